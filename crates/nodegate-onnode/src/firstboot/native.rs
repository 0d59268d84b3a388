//! Labels for the first registration in the settings of programs that have such a setting: these need no helper.

use serde_json::{Value, json};

use super::Label;

/// A program that takes labels by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// kubeadm's `JoinConfiguration`.
    Kubeadm,
    /// A drop-in of the configuration of k3s.
    K3s,
    /// A drop-in of the configuration of RKE2.
    Rke2,
    /// A patch of Talos' machine configuration.
    Talos,
    /// A patch of Karpenter's `NodePool`.
    Karpenter,
    /// Cluster API's `KubeadmConfigTemplate`.
    ClusterApi,
}

/// The settings, and a comment that says where they belong.
///
/// # Errors
/// If the program refuses one of the labels; the error is a sentence.
pub fn native(program: Native, name: &str, labels: &[Label]) -> Result<(&'static str, Value), String> {
    let flags: Vec<String> = labels.iter().map(Label::flag).collect();
    let map: Value = labels.iter().map(|label| (label.key().to_owned(), json!(label.value()))).collect();
    let extra = json!([{"name": "node-labels", "value": flags.join(",")}]);
    Ok(match program {
        Native::Kubeadm => (
            "Merge this into the JoinConfiguration for `kubeadm join --config`.",
            json!({"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration", "nodeRegistration": {"kubeletExtraArgs": extra}}),
        ),
        Native::K3s => (
            "Write this to /etc/rancher/k3s/config.yaml.d/99-nodegate-firstboot.yaml before the first start of k3s.",
            json!({"node-label+": flags}),
        ),
        Native::Rke2 => (
            "Write this to /etc/rancher/rke2/config.yaml.d/99-nodegate-firstboot.yaml before the first start of RKE2.",
            json!({"node-label+": flags}),
        ),
        Native::Talos => (
            // Not machine.nodeLabels: Talos sets those after the node has registered.
            "A patch of the machine configuration: talosctl machineconfig patch MACHINE.yaml --patch @FILE. It replaces other node-labels in extraArgs.",
            json!({"machine": {"kubelet": {"extraArgs": {"node-labels": flags.join(",")}}}}),
        ),
        Native::Karpenter => {
            if let Some(label) = labels.iter().find(|label| is_refused_by_karpenter(label.key())) {
                return Err(format!(
                    "Karpenter refuses the label {} in a NodePool; use a key outside of kubernetes.io, k8s.io and karpenter.sh, or one of node.kubernetes.io",
                    label.key()
                ));
            }
            (
                "A patch of the NodePool: kubectl patch nodepool NAME --type merge --patch-file FILE.",
                json!({
                    "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
                    "spec": {"template": {"metadata": {"labels": map}}},
                }),
            )
        }
        Native::ClusterApi => (
            "Merge this into the KubeadmConfigTemplate of the MachineDeployment.",
            json!({
                "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfigTemplate", "metadata": {"name": name},
                "spec": {"template": {"spec": {"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": extra}}}}},
            }),
        ),
    })
}

/// Karpenter's `RestrictedLabelDomains` without its exceptions (`pkg/apis/v1/labels.go`).
fn is_refused_by_karpenter(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    let is_below =
        |domain: &str| prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    ["kubernetes.io", "k8s.io", "karpenter.sh"].into_iter().any(is_below) && !is_below("node.kubernetes.io")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::firstboot::ExtraLabels;

    #[test]
    fn karpenter_refuses_labels_of_its_restricted_domains() {
        for (label, is_refused) in [
            ("pool=a", false),
            ("example.com/a=b", false),
            ("node.kubernetes.io/worker-rwn=", false),
            ("kubelet.kubernetes.io/a=b", true),
            ("karpenter.sh/a=b", true),
        ] {
            let labels = ExtraLabels::parse(label).labels;
            assert_eq!(native(Native::Karpenter, "default", &labels).is_err(), is_refused, "{label}");
        }
    }
}
