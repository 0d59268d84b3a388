//! CEL about requests, for match conditions of webhooks and native policies.

use crate::keys::control_plane;
use crate::native::terms::formula::{list, quote};

/// Whether the requester is a kubelet.
pub const KUBELET: &str = r#"(request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.?groups.orValue([]))"#;

/// CEL for whether the requester is one of the control plane's own writers.
pub fn control_plane() -> String {
    let named = list(control_plane::USERS);
    let accounts = quote(control_plane::ACCOUNTS);
    format!("request.userInfo.username in {named} || request.userInfo.username.startsWith({accounts})")
}

/// Whether an UPDATE can affect a decision: it changes a fact about the node that rules read, but for those that change often and can
/// wait for the controller. Heartbeats go to `nodes/status` and do not arrive here. Taints of node conditions change
/// on thousands of nodes in a zone outage and do not affect decisions, so they are ignored.
pub const CAN_MATTER: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?providerID.orValue("") != oldObject.?spec.?providerID.orValue("") || object.?spec.?taints != oldObject.?spec.?taints && object.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/")) != oldObject.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/"))"#;

/// Whether an UPDATE changes a label, an annotation or a taint.
pub(in crate::native) const CAN_VIOLATE: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?taints.orValue([]) != oldObject.?spec.?taints.orValue([])"#;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail")]

    use nodegate_cel::Shape;
    use serde_json::{Value as Json, json};

    use super::CAN_MATTER;
    use crate::cel::{Budget, Excerpt, Expression, NODE_FIELDS, Paths, RequestVariables, Scope, Variables, Yields};
    use crate::facts::NodeFacts;

    /// Whether an UPDATE that gives a node all of `given` makes a call.
    fn calls(given: &Json) -> bool {
        let expression = Expression::compile(CAN_MATTER, Scope::Write, Yields::Bool).unwrap();
        let mut new = json!({"metadata": {}});
        new.as_object_mut().unwrap().extend(given.as_object().cloned().unwrap_or_default());
        let (old, new) = (json!({"metadata": {}}).to_string(), new.to_string());
        let read = |text| Excerpt::read(text, &Paths::Whole, &Budget::default()).unwrap().completed();
        let request = RequestVariables { operation: "UPDATE", ..RequestVariables::default() };
        expression.evaluate_bool(&Variables::write(&read(&new), Some(&read(&old)), Some(&request.value()))).unwrap()
    }

    #[test]
    fn a_write_that_changes_a_fact_makes_a_call() {
        // Without `..`: say of a new fact how a write can change it.
        let NodeFacts {
            name,
            is_name_generated,
            uid,
            labels,
            annotations,
            taints,
            has_spec,
            has_owners,
            provider_id,
            capacity,
            readiness,
            system_uuid,
            os_image,
            kernel_version,
            object,
        } = NodeFacts::parse(r#"{"metadata": {"name": "n"}}"#).unwrap();
        let changed_by_no_update = (name, is_name_generated, uid);
        // The guard and the fence ask for owners, and rules for none of these by itself.
        let read_by_no_rule = (has_spec, has_owners, object);
        // They change by writes of `nodes/status`, of which the controller learns.
        let in_status = (capacity, readiness, system_uuid, os_image, kernel_version);
        drop((changed_by_no_update, read_by_no_rule, in_status));
        let metadata = |field: &str| json!({"metadata": {field: {"a": "b"}}});
        let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        let of_condition =
            json!({"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]}});
        assert!(labels.is_none() && calls(&metadata("labels")));
        assert!(annotations.is_none() && calls(&metadata("annotations")));
        assert!(taints.is_none() && calls(&taint) && !calls(&of_condition));
        assert!(provider_id.is_none() && calls(&json!({"spec": {"providerID": "aws:///a/i-1"}})));
    }

    #[test]
    fn fields_of_the_spec_make_a_call_or_wait_for_the_controller() {
        // Expressions may read these too. A cordon or a range of addresses is no reason to call a webhook.
        const WAIT: [&str; 6] =
            ["configSource", "externalID", "podCIDR", "podCIDRs", "podPreemptionPolicy", "unschedulable"];
        let Some((_, Shape::Object(spec))) = NODE_FIELDS.all().iter().find(|(name, _)| *name == "spec") else {
            panic!("a node has a spec")
        };
        for (field, shape) in spec.all() {
            let value = match shape {
                Shape::Bool => json!(true),
                Shape::Text => json!("10.0.0.0/24"),
                Shape::List(Shape::Text) => json!(["10.0.0.0/24"]),
                Shape::List(_) => json!([{"key": "a", "effect": "NoSchedule"}]),
                _ => json!({"a": {}}),
            };
            assert_ne!(calls(&json!({"spec": {*field: value}})), WAIT.contains(field), "spec.{field}");
        }
    }
}
