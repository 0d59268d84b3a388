//! What a request is about, in the API server's CEL: for match conditions of webhooks and of native policies.

/// Who a kubelet is.
pub const KUBELET: &str = r#"(request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.?groups.orValue([]))"#;

/// An UPDATE that can matter to a decision. Heartbeats go to `nodes/status` and are never seen here. Formula taints flip by the thousand in a zone outage and
/// decide nothing, so they are left out.
pub const CAN_MATTER: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?providerID.orValue("") != oldObject.?spec.?providerID.orValue("") || object.?spec.?taints != oldObject.?spec.?taints && object.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/")) != oldObject.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/"))"#;

/// An UPDATE that changes a label, an annotation or a taint.
pub(super) const CAN_VIOLATE: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?taints.orValue([]) != oldObject.?spec.?taints.orValue([])"#;
