//! CEL about requests, for match conditions of webhooks and native policies.

/// Whether the requester is a kubelet.
pub const KUBELET: &str = r#"(request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.?groups.orValue([]))"#;

/// Whether the requester is one of the control plane's own writers.
pub const CONTROL_PLANE: &str = r#"request.userInfo.username in ["system:apiserver", "system:kube-controller-manager", "system:cloud-controller-manager"] || request.userInfo.username.startsWith("system:serviceaccount:kube-system:")"#;

/// Whether an UPDATE can affect a decision. Heartbeats go to `nodes/status` and do not arrive here. Taints of node conditions change
/// on thousands of nodes in a zone outage and do not affect decisions, so they are ignored.
pub const CAN_MATTER: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?providerID.orValue("") != oldObject.?spec.?providerID.orValue("") || object.?spec.?taints != oldObject.?spec.?taints && object.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/")) != oldObject.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/"))"#;

/// Whether an UPDATE changes a label, an annotation or a taint.
pub(in crate::native) const CAN_VIOLATE: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?taints.orValue([]) != oldObject.?spec.?taints.orValue([])"#;
