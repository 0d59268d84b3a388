//! Finds rules that assign different values to one key, as far as this is known without a node.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use foldhash::HashMap;

use crate::api::policy::Operator;
use crate::keys::Field;
use crate::keys::pattern::is_glob;
use crate::set::PolicySet;
use crate::set::matcher::{Conditions, NameGroup, Requirement, Source};
use crate::set::rule::Rule;

/// Maximum number of conflicts that are listed.
const LISTED_MAX: usize = 16;
/// Maximum number of pairs of rules that are compared, because many rules may assign one key.
const PAIRS_MAX: usize = 200_000;

/// A key with a fixed value, and the rule that assigns it.
type Assigned<'a> = (Field, String, &'a str, &'a Rule);

/// Keys to which a rule of `policy` and a rule of another policy assign different values, a sentence each. Pairs that
/// can never match the same node are omitted.
pub(crate) fn possible_conflicts(set: &PolicySet, policy: &str) -> Vec<String> {
    let (own, others): (Vec<&Rule>, Vec<&Rule>) = set.rules().iter().partition(|rule| *rule.id.policy == *policy);
    let mut by_key: HashMap<(Field, String), Vec<(&str, &Rule)>> = HashMap::default();
    for (field, key, value, rule) in others.into_iter().flat_map(assigned) {
        by_key.entry((field, key)).or_default().push((value, rule));
    }
    let mut pairs = 0;
    let mut found = Vec::new();
    for (field, key, value, rule) in own.into_iter().flat_map(assigned) {
        let at = (field, key);
        for (theirs, other) in by_key.get(&at).into_iter().flatten() {
            pairs += 1;
            if pairs > PAIRS_MAX || found.len() >= LISTED_MAX {
                return found;
            }
            let same = *theirs == value || other.strength != rule.strength;
            if same || are_disjoint(set, &rule.matcher.all, &other.matcher.all) {
                continue;
            }
            let (winner, loser) = if rule.rank < other.rank { (rule, *other) } else { (*other, rule) };
            found.push(format!(
                "{} {}: rule {} takes precedence over rule {} where both match",
                at.0, at.1, winner.id, loser.id
            ));
        }
    }
    found
}

/// All fixed values that a rule assigns.
fn assigned(rule: &Rule) -> impl Iterator<Item = Assigned<'_>> {
    let labels =
        rule.assigns.labels.iter().map(move |(key, value)| (Field::Label, key.to_string(), value.as_str(), rule));
    let annotations = rule.assigns.annotations.iter();
    let annotations = annotations.map(move |(key, value)| (Field::Annotation, key.to_string(), &**value, rule));
    let taints = rule.assigns.taints.iter();
    let taints = taints.map(move |taint| (Field::Taint, taint.id.to_string(), taint.value.as_str(), rule));
    labels.chain(annotations).chain(taints)
}

/// Whether no node can match both, judging by names and labels.
fn are_disjoint(set: &PolicySet, one: &Conditions, other: &Conditions) -> bool {
    let apart = |these, those| {
        let mut listed = set.names_of(these);
        listed.all(|name| !is_glob(name) && !set.name_groups(name).contains(&those))
    };
    one.iter().any(|condition| match condition.source() {
        Source::Name(group) => names(other).any(|their| apart(group, their) || apart(their, group)),
        Source::Label(label) => labels(other).any(|their| contradict(label, their) || contradict(their, label)),
        Source::Taints(_) | Source::Status(_) | Source::Gpu | Source::Expression(_) => false,
    })
}

fn names(conditions: &Conditions) -> impl Iterator<Item = NameGroup> {
    conditions
        .iter()
        .filter_map(|condition| if let Source::Name(group) = condition.source() { Some(group) } else { None })
}

fn labels(conditions: &Conditions) -> impl Iterator<Item = &Requirement> {
    conditions
        .iter()
        .filter_map(|condition| if let Source::Label(label) = condition.source() { Some(label) } else { None })
}

/// Whether no label satisfies both.
fn contradict(one: &Requirement, other: &Requirement) -> bool {
    one.key == other.key
        && match (one.operator, other.operator) {
            (Operator::In, Operator::In) => one.values.iter().all(|value| !other.values.contains(value)),
            (Operator::In, Operator::NotIn) => one.values.iter().all(|value| other.values.contains(value)),
            (Operator::In | Operator::Exists, Operator::DoesNotExist) => true,
            _ => false,
        }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::{Origin, PolicyDocument};

    /// Whether rules with these requirements on labels are reported as a conflict.
    fn conflict(one: &Json, other: &Json) -> bool {
        let document = |name: &str, requirement: &Json, value: &str| {
            let selector = json!({"matchExpressions": [requirement]});
            let spec = json!({"rules": [{"name": "r", "match": {"selector": selector}, "labels": {"tier": value}}]});
            PolicyDocument::new(name, Origin::Object, serde_json::from_value(spec).unwrap())
        };
        let set = PolicySet::compile(&[document("a", one, "gold"), document("b", other, "tin")]).unwrap();
        !possible_conflicts(&set, "a").is_empty()
    }

    #[test]
    fn rules_whose_label_requirements_contradict_each_other_have_no_conflict() {
        let of = |operator: &str, values: &[&str]| json!({"key": "pool", "operator": operator, "values": values});
        let (x, not_x) = (of("In", &["x"]), of("NotIn", &["x"]));
        let (there, absent) = (of("Exists", &[]), of("DoesNotExist", &[]));
        for (one, other, expected) in [
            (&x, &of("In", &["y", "z"]), false),
            (&x, &of("In", &["x", "y"]), true),
            (&x, &not_x, false),
            (&of("In", &["x", "y"]), &not_x, true),
            (&x, &absent, false),
            (&there, &absent, false),
            (&x, &there, true),
            (&not_x, &absent, true),
            (&not_x, &there, true),
            (&x, &json!({"key": "zone", "operator": "DoesNotExist"}), true),
        ] {
            assert_eq!(conflict(one, other), expected, "{one} and {other}");
            assert_eq!(conflict(other, one), expected, "{other} and {one}");
        }
    }
}
