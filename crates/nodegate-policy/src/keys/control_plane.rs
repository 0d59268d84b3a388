//! What the control plane writes on nodes to bring them up and to report their state. No policy denies it: a node whose `not-ready`
//! taint stays, or whose `uninitialized` taint does, never runs a pod, and one that gets no `unreachable` taint never loses its pods.

use super::Field;
use super::restriction::RECONCILED_LABELS;

/// The control plane's own users. EKS gives its cloud controller a name of its own, and so do k3s and RKE2 (`genClientCerts` in
/// pkg/daemons/control/deps/deps.go of k3s).
pub(crate) const USERS: [&str; 6] = [
    "system:apiserver",
    "system:kube-controller-manager",
    "system:cloud-controller-manager",
    "eks:cloud-controller-manager",
    "k3s-cloud-controller-manager",
    "rke2-cloud-controller-manager",
];
/// Its controllers, each with its own account: `--use-service-account-credentials`, cloud controllers, provisioners.
pub(crate) const ACCOUNTS: &str = "system:serviceaccount:kube-system:";
/// Accounts of provisioners that are in another namespace when installed as their guides say, and of OpenShift's cloud controllers
/// (manifests of openshift/cluster-cloud-controller-manager-operator).
pub(crate) const ELSEWHERE: [&str; 3] = [
    "system:serviceaccount:capi-system:capi-manager",
    "system:serviceaccount:karpenter:karpenter",
    "system:serviceaccount:openshift-cloud-controller-manager:cloud-controller-manager",
];

/// Taints of the node lifecycle controller (`pkg/controller/nodelifecycle`, `k8s.io/api/core/v1/well_known_taints.go`) and of
/// cloud controllers (`k8s.io/cloud-provider/api`).
const TAINTS: [&str; 9] = [
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
];
/// Labels that a cloud controller gives a node that it initializes (`getNodeModifiersFromCloudProvider` in
/// `k8s.io/cloud-provider/controllers/node`), whatever its name is.
pub(crate) const GIVEN_BY_CLOUDS: [&str; 6] = [
    "beta.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Annotations of the TTL controller (`pkg/controller/ttl`).
const ANNOTATIONS: [&str; 1] = ["node.alpha.kubernetes.io/ttl"];
/// Namespaces of provisioners (Karpenter with its providers for AWS and Azure, Cluster API) and of the AWS cloud controller, with
/// the slash.
const NAMESPACES: [&str; 6] = [
    "cluster.x-k8s.io/",
    "karpenter.azure.com/",
    "karpenter.k8s.aws/",
    "karpenter.sh/",
    "node.cluster.x-k8s.io/",
    "topology.k8s.aws/",
];

/// The taint that the API server itself puts on every new node (plugin TaintNodesByCondition), as a part of its CREATE.
pub(crate) const NEW_NODE_TAINT: &str = "node.kubernetes.io/not-ready:NoSchedule";

/// Whether a user is of the control plane.
pub(crate) fn is_control_plane(user: &str) -> bool {
    user.starts_with(ACCOUNTS) || USERS.contains(&user) || ELSEWHERE.contains(&user)
}

/// The keys of a field (of taints without effect) that it writes, and their namespaces with the slash.
pub(crate) fn written(field: Field) -> (&'static [&'static str], &'static [&'static str]) {
    let keys: &[&str] = match field {
        Field::Label => &RECONCILED_LABELS,
        Field::Annotation => &ANNOTATIONS,
        Field::Taint => &TAINTS,
    };
    (keys, &NAMESPACES)
}

/// Whether the control plane writes this key.
pub(crate) fn is_written(field: Field, key: &str) -> bool {
    let (keys, namespaces) = written(field);
    keys.contains(&key) || namespaces.iter().any(|namespace| key.starts_with(namespace))
}
