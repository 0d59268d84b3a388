//! Tests against a real kube-apiserver 1.36 with NodeRestriction. Without a control plane they are
//! reported as ignored; `just control-plane` builds one.

pub(crate) mod control_plane;
mod nodegate;
mod replica;
mod requester;

mod certificates;
mod governance;
mod join;
mod outage;
