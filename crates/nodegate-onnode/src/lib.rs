//! What nodegate does on a node, before and beside the kubelet: labels for the first registration (`firstboot`), and the
//! accelerators of the machine (`probe`). It knows no Kubernetes client, no network and no async code.

pub mod firstboot;
pub mod probe;
