//! Keys that are never persisted and never restored, whatever policies say, each with the reason.

use crate::keys::restriction::is_own;

const LABELS: [(&str, &str); 16] = [
    ("kubernetes.io/hostname", "the kubelet sets it"),
    ("kubernetes.io/os", "the kubelet sets it"),
    ("kubernetes.io/arch", "the kubelet sets it"),
    ("beta.kubernetes.io/os", "the kubelet sets it"),
    ("beta.kubernetes.io/arch", "the kubelet sets it"),
    ("node.kubernetes.io/windows-build", "the kubelet sets it"),
    ("topology.kubernetes.io/zone", "it describes the location of the current machine"),
    ("topology.kubernetes.io/region", "it describes the location of the current machine"),
    ("failure-domain.beta.kubernetes.io/zone", "it describes the location of the current machine"),
    ("failure-domain.beta.kubernetes.io/region", "it describes the location of the current machine"),
    ("node.kubernetes.io/instance-type", "it is the type of the current machine"),
    ("beta.kubernetes.io/instance-type", "it is the type of the current machine"),
    ("karpenter.sh/nodepool", "the autoscaler sets it"),
    ("cloud.google.com/gke-nodepool", "the cloud provider sets it"),
    ("eks.amazonaws.com/nodegroup", "the cloud provider sets it"),
    ("kubernetes.azure.com/agentpool", "the cloud provider sets it"),
];

const TAINT_PREFIXES: [(&str, &str); 7] = [
    ("node.kubernetes.io", "it mirrors a node condition"),
    ("node.cloudprovider.kubernetes.io", "it is a startup or shutdown taint of the cloud provider"),
    ("startup-taint.cluster-autoscaler.kubernetes.io", "it is a startup taint"),
    ("ignore-taint.cluster-autoscaler.kubernetes.io", "it is a startup taint"),
    ("karpenter.sh", "Karpenter manages it"),
    ("node.cilium.io", "it is the network plugin's startup taint"),
    ("ebs.csi.aws.com", "it is a storage driver's startup taint"),
];

const TAINTS: [(&str, &str); 4] = [
    ("ToBeDeletedByClusterAutoscaler", "it marks the node for deletion"),
    ("DeletionCandidateOfClusterAutoscaler", "it marks the node for deletion"),
    ("efs.csi.aws.com/agent-not-ready", "it is a storage driver's startup taint"),
    ("fsx.csi.aws.com/agent-not-ready", "it is a storage driver's startup taint"),
];

fn listed(table: &[(&str, &'static str)], key: &str) -> Option<&'static str> {
    table.iter().find(|(name, _)| *name == key).map(|(_, reason)| *reason)
}

/// Why this label is never persisted, or `None`.
pub(crate) fn label(key: &str) -> Option<&'static str> {
    if is_own(key) {
        return Some("it is reserved for nodegate");
    }
    listed(&LABELS, key)
}

/// Why this taint is never persisted, or `None`.
pub(crate) fn taint(key: &str) -> Option<&'static str> {
    if is_own(key) {
        return Some("it is reserved for nodegate");
    }
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    listed(&TAINTS, key).or_else(|| listed(&TAINT_PREFIXES, prefix))
}

/// All entries, for the documentation: key or `prefix/*`, and the reason.
pub fn table() -> impl Iterator<Item = (String, &'static str)> {
    let exact = LABELS.iter().chain(&TAINTS).map(|(key, reason)| ((*key).to_owned(), *reason));
    exact.chain(TAINT_PREFIXES.iter().map(|(prefix, reason)| (format!("{prefix}/*"), *reason)))
}
