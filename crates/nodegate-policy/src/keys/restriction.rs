//! What the API server lets a kubelet write on its own Node.
//!
//! Sources: `k8s.io/kubernetes/plugin/pkg/admission/noderestriction/admission.go` and
//! `k8s.io/kubelet/pkg/apis/well_known_labels.go` (`IsKubeletLabel`). NodeRestriction also checks a
//! mutating webhook's patch of a kubelet's request, as the kubelet's own change.

use crate::api::names::LabelKey;
use crate::api::problem::Problem;

/// The prefix of labels, taints and annotations that is reserved for nodegate.
pub const OWN_PREFIX: &str = "nodegate.dev";

/// Labels that a kubelet sets and reconciles by writes to `nodes/status`
/// (`pkg/kubelet/kubelet_node_status.go`, `updateDefaultLabels`).
pub const RECONCILED_LABELS: [&str; 12] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Annotations that a kubelet sets on its own node and maintains (`pkg/kubelet/kubelet_node_status.go`,
/// `pkg/kubelet/nodestatus/setters.go`, `pkg/volume/csi/nodeinfomanager`).
pub const KUBELET_ANNOTATIONS: [&str; 4] = [
    "alpha.kubernetes.io/provided-node-ip",
    "csi.volume.kubernetes.io/nodeid",
    "volumes.kubernetes.io/controller-managed-attach-detach",
    "volumes.kubernetes.io/keep-terminated-pod-volumes",
];

const KUBELET_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

fn is_or_is_below(prefix: &str, domain: &str) -> bool {
    prefix == domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// Whether kubelets reconcile this label. Denying such a write would freeze the node's status.
pub fn is_reconciled_by_kubelet(key: &str) -> bool {
    RECONCILED_LABELS.contains(&key)
}

/// What comes before the slash. Every key of a node is looked at in every review, and `str::split_once` takes three times as long for
/// texts as short as these.
fn prefix_of(key: &str) -> Option<&str> {
    key.get(..memchr::memchr(b'/', key.as_bytes())?)
}

/// Whether NodeRestriction forbids kubelets to set this label.
pub fn is_restricted(key: &str) -> bool {
    let Some(prefix) = prefix_of(key) else { return false };
    if is_or_is_below(prefix, "node-restriction.kubernetes.io") {
        return true;
    }
    if !is_or_is_below(prefix, "kubernetes.io") && !is_or_is_below(prefix, "k8s.io") {
        return false;
    }
    !is_reconciled_by_kubelet(key) && !KUBELET_PREFIXES.iter().any(|allowed| is_or_is_below(prefix, allowed))
}

/// Whether this key (of a label, annotation or taint) is reserved for nodegate.
pub fn is_own(key: &str) -> bool {
    prefix_of(key).is_some_and(|prefix| is_or_is_below(prefix, OWN_PREFIX))
}

/// Labels that every kubelet maintains. A rule for them would conflict with it permanently.
const KUBELETS_OWN: [&str; 5] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// A label key that policies may assign.
pub(crate) fn writable_label(text: &str) -> Result<LabelKey, Problem> {
    let key: LabelKey = text.parse()?;
    if is_own(text) {
        return Err(Problem::new(format!("{text:?} is in nodegate's own namespace"), "use another prefix"));
    }
    if KUBELETS_OWN.contains(&text) {
        return Err(Problem::new(
            format!("{text:?} is set and maintained by every kubelet"),
            "match on it instead of setting it",
        ));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restricted_labels_are_those_that_node_restriction_refuses_to_kubelets() {
        for key in [
            "node-role.kubernetes.io/worker",
            "node-restriction.kubernetes.io/a",
            "example.node-restriction.kubernetes.io/a",
            "topology.k8s.io/zone",
            "app.kubernetes.io/name",
            "kubernetes.io/anything",
            "k8s.io/a",
        ] {
            assert!(is_restricted(key), "{key}");
        }
        for key in [
            "pool",
            "nvidia.com/gpu",
            "hardware.tier",
            "node.kubernetes.io/tier",
            "feature.node.kubernetes.io/x",
            "kubelet.kubernetes.io/a",
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "notkubernetes.io/a",
        ] {
            assert!(!is_restricted(key), "{key}");
        }
    }
}
