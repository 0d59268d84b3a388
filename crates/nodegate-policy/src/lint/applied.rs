//! What is valid in a file and what `kubectl apply` refuses, because the CustomResourceDefinition has one type for each value.

use super::places::{conditions, spec_path};
use super::{Lint, LintName};
use crate::api::crd::RULES_MAX;
use crate::api::document::{OBJECT_VALUES_MAX, Origin, PolicyDocument};
use crate::api::problem::Problem;
use crate::api::schema::nearest;
use crate::api::source::FieldPath;
use serde_json::Value;

/// The fields of `metadata` (`k8s.io/apimachinery/pkg/apis/meta/v1`, `ObjectMeta`). `kubectl apply` has the API server refuse others.
const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Finds what would be refused if the policy of a file were applied as a `NodePolicy` object.
pub(super) fn only_in_files(document: &PolicyDocument, lints: &mut Vec<Lint>) {
    if !matches!(document.origin, Origin::File(_)) {
        return;
    }
    let mut refused = |path: &FieldPath, what: &str, remedy: &str| {
        let problem = Problem::new(format!("`kubectl apply` refuses {what}, which only files may have"), remedy);
        lints.push(Lint { name: LintName::OnlyInFiles, fault: document.fault(path, problem) });
    };
    for field in document.metadata_fields().into_iter().filter(|field| !METADATA.contains(field)) {
        let remedy = match nearest(field, &METADATA) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => "remove it, or write it as an annotation".to_owned(),
        };
        refused(&FieldPath::root().key("metadata").key(field), &format!("the field {field:?} of metadata"), &remedy);
    }
    let rules = spec_path().key("rules");
    if document.spec.rules.len() > RULES_MAX as usize {
        refused(&rules, &format!("more than {RULES_MAX} rules"), "split them into several policies");
    }
    if serde_json::to_value(&*document.spec).is_ok_and(|spec| values(&spec) > OBJECT_VALUES_MAX) {
        let remedy = "split the policy into several, or use labelMap and expressions";
        refused(&spec_path(), &format!("more than {OBJECT_VALUES_MAX} names and values"), remedy);
    }
    for (at, rule) in document.spec.rules.iter().enumerate() {
        let path = rules.index(at).key("taints");
        for path in (0..rule.taints.len()).map(|index| path.index(index)) {
            if document.written_at(&path).is_some_and(|text| !is_mapping(text)) {
                refused(&path, "a text for a taint that a rule sets", "write {key: …, value: …, effect: …}");
            }
        }
    }
    for (path, conditions) in conditions(document) {
        let path = path.key("taints");
        for path in (0..conditions.taints.as_ref().map_or(0, Vec::len)).map(|index| path.index(index)) {
            if document.written_at(&path).is_some_and(is_mapping) {
                refused(&path, "a mapping for a taint in a match", "write key=value:Effect");
            }
        }
    }
}

/// How many lists, mappings, names and values there are.
fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(|value| 1 + values(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whether a taint is written as a mapping, in one of the styles of YAML.
fn is_mapping(text: &str) -> bool {
    let is_field = |name: &str| ["key", "value", "effect"].contains(&name.trim_end().trim_matches(['"', '\'']));
    text.starts_with('{') || text.split_once(": ").is_some_and(|(name, _)| is_field(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_with_more_values_than_an_object_may_have_is_a_warning() {
        let of = |rules: usize| {
            let labels = (0..30).map(|at| format!("l{at}: x")).collect::<Vec<_>>().join(", ");
            let rules: Vec<String> = (0..rules).map(|at| format!("{{name: r{at}, labels: {{{labels}}}}}")).collect();
            let text = format!(
                "{{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {{name: a}}, spec: {{rules: [{}]}}}}",
                rules.join(", ")
            );
            let document =
                PolicyDocument::parse_all(&Origin::File("p.yaml".to_owned()), &text, &mut Vec::new()).remove(0);
            let mut lints = Vec::new();
            only_in_files(&document, &mut lints);
            lints.iter().map(|lint| lint.fault.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(500), [""; 0]);
        let told = of(900);
        assert!(matches!(&told[..], [one] if one.contains("more than 50000 names and values")), "{told:?}");
    }

    #[test]
    fn a_mapping_is_told_from_a_text_in_every_style() {
        for mapping in ["{key: k}", "effect: NoSchedule\n  key: k", "\"key\": k", "'value' : x"] {
            assert!(is_mapping(mapping), "{mapping}");
        }
        for text in ["k=v:NoExecute", "key:NoExecute\n  - other", "\"key=a:NoSchedule\"]", "key\n", ""] {
            assert!(!is_mapping(text), "{text}");
        }
    }
}
