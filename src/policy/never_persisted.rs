//! What is never persisted and never restored, whatever a policy says, each with the reason.

use crate::policy::restriction::is_own;

const LABELS: [(&str, &str); 16] = [
    ("kubernetes.io/hostname", "the kubelet sets it"),
    ("kubernetes.io/os", "the kubelet sets it"),
    ("kubernetes.io/arch", "the kubelet sets it"),
    ("beta.kubernetes.io/os", "the kubelet sets it"),
    ("beta.kubernetes.io/arch", "the kubelet sets it"),
    ("node.kubernetes.io/windows-build", "the kubelet sets it"),
    ("topology.kubernetes.io/zone", "it says where this machine stands, not the one before"),
    ("topology.kubernetes.io/region", "it says where this machine stands, not the one before"),
    ("failure-domain.beta.kubernetes.io/zone", "it says where this machine stands, not the one before"),
    ("failure-domain.beta.kubernetes.io/region", "it says where this machine stands, not the one before"),
    ("node.kubernetes.io/instance-type", "it says what this machine is, not the one before"),
    ("beta.kubernetes.io/instance-type", "it says what this machine is, not the one before"),
    ("karpenter.sh/nodepool", "the node pool is the autoscaler's word"),
    ("cloud.google.com/gke-nodepool", "the node pool is the cloud's word"),
    ("eks.amazonaws.com/nodegroup", "the node pool is the cloud's word"),
    ("kubernetes.azure.com/agentpool", "the node pool is the cloud's word"),
];

const TAINT_PREFIXES: [(&str, &str); 7] = [
    ("node.kubernetes.io", "it mirrors a condition of the living node"),
    ("node.cloudprovider.kubernetes.io", "it is a startup or shutdown taint of the cloud provider"),
    ("startup-taint.cluster-autoscaler.kubernetes.io", "it is a startup taint"),
    ("ignore-taint.cluster-autoscaler.kubernetes.io", "it is a startup taint"),
    ("karpenter.sh", "it belongs to a node's life cycle under Karpenter"),
    ("node.cilium.io", "it is the network plugin's startup taint"),
    ("ebs.csi.aws.com", "it is a storage driver's startup taint"),
];

const TAINTS: [(&str, &str); 4] = [
    ("ToBeDeletedByClusterAutoscaler", "it announces this node's deletion"),
    ("DeletionCandidateOfClusterAutoscaler", "it announces this node's deletion"),
    ("efs.csi.aws.com/agent-not-ready", "it is a storage driver's startup taint"),
    ("fsx.csi.aws.com/agent-not-ready", "it is a storage driver's startup taint"),
];

fn listed(table: &[(&str, &'static str)], key: &str) -> Option<&'static str> {
    table.iter().find(|(name, _)| *name == key).map(|(_, reason)| *reason)
}

/// Why this label is never persisted, or `None`.
pub(crate) fn label(key: &str) -> Option<&'static str> {
    if is_own(key) {
        return Some("it is nodegate's own");
    }
    listed(&LABELS, key)
}

/// Why this taint is never persisted, or `None`.
pub(crate) fn taint(key: &str) -> Option<&'static str> {
    if is_own(key) {
        return Some("it is nodegate's own");
    }
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    listed(&TAINTS, key).or_else(|| listed(&TAINT_PREFIXES, prefix))
}

/// Every entry, for the documentation: key or `prefix/*`, and the reason.
pub fn table() -> impl Iterator<Item = (String, &'static str)> {
    let exact = LABELS.iter().chain(&TAINTS).map(|(key, reason)| ((*key).to_owned(), *reason));
    exact.chain(TAINT_PREFIXES.iter().map(|(prefix, reason)| (format!("{prefix}/*"), *reason)))
}
