//! Finds keys in rules and in `persist` that a program sets for a moment, or for each machine.

use super::places::spec_path;
use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::policy::{DerivedSpec, RuleMode, RuleSpec};
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::programs::Kind;
use crate::keys::{Field, programs};

/// Persisted keys that are never saved, and keys of rules that a program sets as well.
pub(super) fn set_by_program(document: &PolicyDocument, lints: &mut Vec<Lint>) {
    let mut found = |path: &FieldPath, what: String, help: &str| {
        lints.push(Lint { name: LintName::SetByProgram, fault: document.fault(path, Problem::new(what, help)) });
    };
    if let Some(persist) = &document.spec.persist {
        let path = spec_path().key("persist");
        for (name, field, keys) in
            [("labels", Field::Label, &persist.labels), ("taints", Field::Taint, &persist.taints)]
        {
            for (at, written) in keys.iter().enumerate() {
                if let Some(program) = programs::never_persisted_pattern(field, written) {
                    let what = format!("{written:?} is persisted, but never saved: {}", program.reason());
                    found(&path.key(name).index(at), what, "remove it");
                }
            }
        }
    }
    for (path, (field, key, value), mode) in set(document) {
        let Some(program) = programs::of_no_rule(field, key, value) else { continue };
        let help = match (program.kind, mode) {
            (Kind::Transient, RuleMode::Enforce) => "remove it, or write `mode: default` if nodes are to begin with it",
            (Kind::Machine, _) => "remove it, and match on it instead",
            (Kind::Transient, RuleMode::Default) | (Kind::Installed | Kind::People, _) => continue,
        };
        found(&path, format!("a rule sets the {field} {key:?}, but {}", program.reason()), help);
    }
}

/// A key that a rule sets: where, what, and whether it is kept so.
type SetKey<'d> = (FieldPath, (Field, &'d str, Option<&'d str>), RuleMode);

/// What the rules of a document set, each with its place and its value, if it is fixed.
fn set(document: &PolicyDocument) -> Vec<SetKey<'_>> {
    let mut all: Vec<SetKey<'_>> = Vec::new();
    for (at, rule) in document.spec.rules.iter().enumerate() {
        let path = spec_path().key("rules").index(at);
        let RuleSpec { labels, label_expressions, label_map, annotations, taints, mode, .. } = rule;
        let mut add = |path, field, key, value| all.push((path, (field, key, value), mode.unwrap_or_default()));
        for (key, value) in labels {
            add(path.key("labels").key(key), Field::Label, key, Some(value));
        }
        for key in label_expressions.keys() {
            add(path.key("labelExpressions").key(key), Field::Label, key, None);
        }
        for (at, key) in label_map.iter().flat_map(|map| &map.keys).enumerate() {
            add(path.key("labelMap").key("keys").index(at), Field::Label, key, None);
        }
        for (key, value) in annotations {
            add(path.key("annotations").key(key), Field::Annotation, key, Some(value));
        }
        for (at, taint) in taints.iter().enumerate() {
            add(path.key("taints").index(at), Field::Taint, &taint.key, Some(&taint.value));
        }
    }
    for (at, DerivedSpec { label, value, .. }) in document.spec.derived.iter().enumerate() {
        let path = spec_path().key("derived").index(at).key("label");
        all.push((path, (Field::Label, label, value.as_deref()), RuleMode::Enforce));
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn found(spec: Json) -> Vec<String> {
        crate::lint::found(LintName::SetByProgram, &[("p", spec)])
    }

    #[test]
    fn a_persisted_key_that_is_never_saved_is_found() {
        let keys = json!(["team", "agentpool", "karpenter.sh/*", "topology.ebs.csi.aws.com/*", "node.kubernetes.io/*"]);
        let taints = json!(["dedicated", "*", "aws-node-termination-handler/spot-itn"]);
        assert_eq!(
            found(json!({"persist": {"labels": keys, "taints": taints}})),
            ["spec.persist.labels[1]", "spec.persist.labels[2]", "spec.persist.labels[3]", "spec.persist.taints[2]"]
        );
    }

    #[test]
    fn a_rule_for_a_key_of_a_program_is_found() {
        let rule = json!({
            "name": "r",
            "labels": {"karpenter.sh/capacity-type": "spot", "topology.kubernetes.io/zone": "a", "nvidia.com/gpu": "true"},
            "labelExpressions": {"storageprofile": "'managed'"},
            "labelMap": {"keys": ["team", "agentpool"], "expression": "{'team': 'a'}"},
            "annotations": {"weave.works/kured-node-lock": "x", "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"},
            "taints": [{"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"}],
        });
        let derived = json!([{"label": "feature.node.kubernetes.io/x", "anyOf": ["a"]}]);
        assert_eq!(
            found(json!({"rules": [rule], "derived": derived})),
            [
                "spec.derived[0].label",
                "spec.rules[0].annotations[\"weave.works/kured-node-lock\"]",
                "spec.rules[0].labelExpressions.storageprofile",
                "spec.rules[0].labelMap.keys[1]",
                "spec.rules[0].labels[\"karpenter.sh/capacity-type\"]",
                "spec.rules[0].taints[0]",
            ]
        );
    }

    #[test]
    fn nodes_may_begin_with_the_startup_taint_of_a_program() {
        let taint = json!({"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"});
        assert_eq!(found(json!({"rules": [{"name": "r", "mode": "default", "taints": [taint]}]})), [""; 0]);
    }
}
