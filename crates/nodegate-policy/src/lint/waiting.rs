//! Finds what nodes wait for, if their autoscaler does not know that they only start.

use super::places::spec_path;
use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::names::LabelKey;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::restriction::is_restricted;

/// What makes nodes wait in a policy, once: each part of it has the same remedy. `key` is that of the pending taint.
pub(super) fn waits_unknown(document: &PolicyDocument, key: &LabelKey, lints: &mut Vec<Lint>) {
    let Some((path, waits)) = waits(document) else { return };
    let what =
        format!("{waits} with the taint {:?}: an autoscaler that does not know the key creates others", key.as_str());
    let help = "use --pending-taint-key auto, or make the key a startup taint of the autoscaler";
    lints.push(Lint { name: LintName::WaitsUnknown, fault: document.fault(&path, Problem::new(what, help)) });
}

/// A gate, a required inventory, or else a label that a kubelet's request cannot carry.
fn waits(document: &PolicyDocument) -> Option<(FieldPath, &'static str)> {
    let spec = &document.spec;
    if !spec.gates.is_empty() {
        return Some((spec_path().key("gates").index(0), "nodes wait at the gate"));
    }
    if !spec.topologies.is_empty() {
        return Some((spec_path().key("topologies").index(0), "nodes wait for the labels of the topology"));
    }
    if let Some(at) = spec.inventory.iter().position(|inventory| inventory.require == Some(true)) {
        return Some((spec_path().key("inventory").index(at).key("require"), "nodes wait for the inventory"));
    }
    let rules = spec.rules.iter().enumerate();
    let mut deferred = rules.flat_map(|(at, rule)| {
        let path = spec_path().key("rules").index(at);
        let fixed = rule.labels.keys().map(|key| ("labels", key));
        let keys = fixed.chain(rule.label_expressions.keys().map(|key| ("labelExpressions", key)));
        let keys = keys.filter(|(_, key)| is_restricted(key));
        keys.map(|(field, key)| path.key(field).key(key)).collect::<Vec<_>>()
    });
    deferred.next().map(|path| (path, "nodes wait until the controller has set this label,"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::{Origin, PolicySet};

    fn found(spec: Json, key: &str) -> Vec<String> {
        let document = PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap());
        let set = PolicySet::compile(&[document]).unwrap();
        let lints =
            set.lints_with(&key.parse().unwrap()).into_iter().filter(|lint| lint.name == LintName::WaitsUnknown);
        lints.map(|lint| lint.fault.path.to_string()).collect()
    }

    #[test]
    fn a_policy_that_makes_nodes_wait_is_told_once_if_no_autoscaler_knows_the_key() {
        let inventory =
            |require: bool| json!([{"name": "cmdb", "url": "https://a/{node}", "allow": ["a"], "require": require}]);
        let role = json!({"name": "role", "labels": {"a": "1", "node-role.kubernetes.io/x": ""}});
        let all = json!({"inventory": inventory(true), "rules": [role]});
        assert_eq!(found(all.clone(), "example.com/wait"), ["spec.inventory[0].require"]);
        for known in ["auto", "readiness.k8s.io/x", "startup-taint.cluster-autoscaler.kubernetes.io/x"] {
            assert_eq!(found(all.clone(), known), [""; 0], "{known}");
        }
        let roles = json!({"inventory": inventory(false), "rules": [{"name": "a", "labels": {"a": "1"}}, role]});
        assert_eq!(found(roles, "nodegate.dev/pending"), ["spec.rules[1].labels[\"node-role.kubernetes.io/x\"]"]);
        let gate = json!({"gates": [{"name": "topology", "labels": ["rack"]}]});
        assert_eq!(found(gate, "example.com/wait"), ["spec.gates[0]"]);
        let none = json!({"inventory": inventory(false), "rules": [{"name": "a", "labels": {"a": "1"}}]});
        assert_eq!(found(none, "example.com/wait"), [""; 0]);
    }
}
