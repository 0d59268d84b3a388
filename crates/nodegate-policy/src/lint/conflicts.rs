//! Finds rules of one priority that assign different values to one key, as far as this is known without a node.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::common::{Common, Search};
use super::{Lint, LintName};
use crate::api::document::PolicyError;
use crate::api::problem::Problem;
use crate::api::source::{FieldPath, Related};
use crate::keys::Field;
use crate::set::PolicySet;
use crate::set::rule::Rule;

/// Maximum number of pairs of rules that are listed.
const LISTED_MAX: usize = 16;
/// Maximum number of pairs of rules that are compared, because many rules may assign one key.
const PAIRS_MAX: usize = 200_000;

/// A fixed value that a rule assigns to a key.
#[derive(Clone, Copy)]
struct Assigned<'a> {
    rule: &'a Rule,
    value: &'a str,
}

/// A key with the value of the rule that wins, and that of the other one.
struct Contested<'a> {
    field: Field,
    key: &'a str,
    won: &'a str,
    lost: &'a str,
}

/// Two rules that may match one node.
struct Conflict<'a> {
    winner: &'a Rule,
    loser: &'a Rule,
    place: String,
    keys: Vec<Contested<'a>>,
}

/// The conflicts between rules of equal priority, one of them in `policy` if it is given. Rules that can never match the
/// same node have none. Neither have those of which that is not known; `explain` and metrics tell what happens on nodes.
pub(super) fn conflicts(set: &PolicySet, policy: Option<&str>) -> Vec<Lint> {
    let mut by_key: BTreeMap<(Field, String), Vec<Assigned<'_>>> = BTreeMap::new();
    for rule in set.rules() {
        for (field, key, value) in assigned(rule) {
            by_key.entry((field, key)).or_default().push(Assigned { rule, value });
        }
    }
    let is_asked = |rule: &Rule| policy.is_none_or(|policy| *rule.id.policy == *policy);
    let mut search = Search::new(set);
    let mut places: HashMap<(u32, u32), Option<String>> = HashMap::default();
    let mut found: BTreeMap<(u32, u32), Conflict<'_>> = BTreeMap::new();
    let mut left = PAIRS_MAX;
    for ((field, key), all) in &mut by_key {
        // So that the pairs of a policy come first.
        all.sort_by_key(|assigned| (!is_asked(assigned.rule), assigned.rule.rank));
        let asked = all.iter().take_while(|assigned| is_asked(assigned.rule)).count();
        let compared = pairs(all, asked).take(left).filter(|(one, other)| is_contested(*one, *other));
        for (Assigned { rule: winner, value: won }, Assigned { rule: loser, value: lost }) in compared {
            let pair = (winner.rank, loser.rank);
            let place = places.entry(pair).or_insert_with(|| place(&mut search, winner, loser));
            let Some(place) = place.clone() else { continue };
            let conflict = found.entry(pair).or_insert(Conflict { winner, loser, place, keys: Vec::new() });
            conflict.keys.push(Contested { field: *field, key, won, lost });
        }
        left = left.saturating_sub(asked * all.len());
    }
    let more = found.len().saturating_sub(LISTED_MAX);
    let mut lints: Vec<Lint> =
        found.into_values().take(LISTED_MAX).filter_map(|conflict| conflict.lint(set, policy)).collect();
    if let Some(last) = lints.last_mut().filter(|_| more > 0) {
        last.fault.problem.what.push_str(&format!("; conflicts that are not listed: {more}"));
    }
    lints
}

/// The pairs of the first `asked` with each other and with all others, in each pair the rule that takes precedence first.
fn pairs<'a, 'l>(
    all: &'l [Assigned<'a>],
    asked: usize,
) -> impl Iterator<Item = (Assigned<'a>, Assigned<'a>)> + use<'a, 'l> {
    let with_later = move |(at, one): (usize, &'l Assigned<'a>)| all[at + 1..].iter().map(move |other| (*one, *other));
    let pairs = all[..asked].iter().enumerate().flat_map(with_later);
    pairs.map(|(one, other)| if one.rule.rank < other.rule.rank { (one, other) } else { (other, one) })
}

/// Whether the values differ and only the names of the rules decide.
fn is_contested(one: Assigned<'_>, other: Assigned<'_>) -> bool {
    let strength = |assigned: Assigned<'_>| (assigned.rule.strength, assigned.rule.priority);
    one.value != other.value && strength(one) == strength(other)
}

/// All fixed values that a rule assigns.
fn assigned(rule: &Rule) -> impl Iterator<Item = (Field, String, &str)> {
    let labels = rule.assigns.labels.iter().map(|(key, value)| (Field::Label, key.to_string(), value.as_str()));
    let annotations = rule.assigns.annotations.iter();
    let annotations = annotations.map(|(key, value)| (Field::Annotation, key.to_string(), &**value));
    let taints = rule.assigns.taints.iter();
    let taints = taints.map(|taint| (Field::Taint, taint.id.to_string(), taint.value.as_str()));
    labels.chain(annotations).chain(taints)
}

/// Where both rules match; `None` if that is nowhere, or not known.
fn place(search: &mut Search<'_>, winner: &Rule, loser: &Rule) -> Option<String> {
    Some(match search.common(&winner.matcher, &loser.matcher)? {
        Common::EveryNode => "on every node".to_owned(),
        Common::AllOfFirst => format!("wherever {} matches", winner.id),
        Common::AllOfSecond => format!("wherever {} matches", loser.id),
        Common::Names(one, other) if one == other => format!("on nodes named {one}"),
        Common::Names(one, other) => format!("on nodes whose names match {one} and {other}"),
        Common::Both => "where both match".to_owned(),
    })
}

impl Conflict<'_> {
    /// The warning, at the rule that loses, or at the one of `policy` if only that one is.
    fn lint(&self, set: &PolicySet, policy: Option<&str>) -> Option<Lint> {
        let Self { winner, loser, place, keys } = self;
        let is_about_winner = policy.is_some_and(|policy| *loser.id.policy != *policy);
        let (rule, other) = if is_about_winner { (winner, loser) } else { (loser, winner) };
        let told =
            |Contested { field, key, won, lost }: &Contested<'_>| format!("{field} {key}: {won:?}, not {lost:?}");
        let name = if winner.id.policy == loser.id.policy { "name" } else { "policy's name" };
        let what = format!(
            "rule {} takes precedence over rule {} {place}, only because its {name} sorts first ({})",
            winner.id,
            loser.id,
            keys.iter().map(told).collect::<Vec<_>>().join("; ")
        );
        let problem = Problem::new(what, "give the rule that should win a higher priority, such as \"priority: 10\"");
        let first = keys.first()?;
        let (fault, there) = (fault(set, rule, first, problem)?, fault(set, other, first, Problem::from(""))?);
        let is_one_file = fault.text.is_some() && (&fault.file, &fault.text) == (&there.file, &there.text);
        let label = if is_about_winner { "the other value" } else { "this one takes precedence" };
        let related = there.place.filter(|_| is_one_file).map(|place| Related { place, label: label.to_owned() });
        Some(Lint { name: LintName::Conflict, fault: PolicyError { related, ..fault } })
    }
}

/// An error where a rule assigns a key.
fn fault(set: &PolicySet, rule: &Rule, assigned: &Contested<'_>, problem: Problem) -> Option<PolicyError> {
    let document = set.documents().iter().find(|document| *document.name == *rule.id.policy)?;
    let spec = FieldPath::root().key("spec");
    let named = document.spec.rules.iter().position(|named| *named.name == *rule.id.rule);
    let derived = || document.spec.derived.iter().position(|derived| derived.label == assigned.key);
    let path = match (named, assigned.field) {
        (Some(at), Field::Label) => spec.key("rules").index(at).key("labels").key(assigned.key),
        (Some(at), Field::Annotation) => spec.key("rules").index(at).key("annotations").key(assigned.key),
        (Some(at), Field::Taint) => spec.key("rules").index(at).key("taints"),
        (None, _) => derived().map_or_else(|| spec.clone(), |at| spec.key("derived").index(at)),
    };
    Some(document.fault(&path, problem))
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
        !conflicts(&set, None).is_empty()
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

    /// The warnings about rules of one policy that all set the label `tier`, each with its match and further fields.
    fn among(rules: &[(&str, Json, Json)]) -> Vec<String> {
        let rule = |(name, matches, more): &(&str, Json, Json)| {
            let mut rule = json!({"name": name, "match": matches, "labels": {"tier": name}});
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            rule
        };
        let spec = json!({"rules": rules.iter().map(rule).collect::<Vec<_>>()});
        let document = PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap());
        let set = PolicySet::compile(&[document]).unwrap();
        conflicts(&set, None).iter().map(|lint| lint.fault.problem.what.clone()).collect()
    }

    #[test]
    fn a_general_rule_and_its_exception_conflict_unless_one_has_a_higher_priority() {
        let (gpus, h100) = (json!({"names": ["gpu-*"]}), json!({"names": ["gpu-h100-*"]}));
        let none = json!({});
        assert_eq!(
            among(&[("gold", h100.clone(), none.clone()), ("a-silver", gpus.clone(), none.clone())]),
            [
                "rule p/a-silver takes precedence over rule p/gold on nodes whose names match gpu-* and gpu-h100-*, only \
              because its name sorts first (label tier: \"a-silver\", not \"gold\")"
            ]
        );
        assert!(
            among(&[("gold", h100.clone(), json!({"priority": 1})), ("silver", gpus.clone(), none.clone())]).is_empty()
        );
        assert!(among(&[("gold", h100, json!({"mode": "default"})), ("silver", gpus, none)]).is_empty());
    }

    #[test]
    fn rules_conflict_only_where_both_are_known_to_match() {
        let place = |one: Json, other: Json| {
            let found = among(&[("a", one, json!({})), ("b", other, json!({}))]);
            let place = |what: &String| what.split_once("p/b ").unwrap().1.split_once(", only").unwrap().0.to_owned();
            found.first().map(place)
        };
        let is = |place: Option<String>, expected: Option<&str>| assert_eq!(place.as_deref(), expected);
        let names = |names: &[&str]| json!({"names": names});
        is(place(json!({}), json!({})), Some("on every node"));
        is(place(json!({}), names(&["x"])), Some("wherever p/b matches"));
        is(place(names(&["x"]), json!({})), Some("wherever p/a matches"));
        is(place(names(&["gpu-*", "cpu-1"]), names(&["*-cpu", "cpu-1"])), Some("on nodes named cpu-1"));
        is(place(names(&["edge-?"]), names(&["edge-??", "core-*"])), None);
        is(place(names(&["x*"]), json!({"gpu": {"vendor": "amd"}})), Some("where both match"));
        is(place(json!({"capacity": {"cpu": ">=16"}}), json!({"capacity": {"cpu": "<16"}})), None);
        is(place(json!({"capacity": {"cpu": ">=16"}}), json!({"capacity": {"cpu": ">=8"}})), Some("where both match"));
        is(place(json!({"gpu": {"vendor": "amd"}}), json!({"gpu": {"vendor": "nvidia"}})), None);
        is(place(json!({"gpu": {"count": ">=8"}}), json!({"gpu": {"count": "<8"}})), None);
        is(place(json!({"gpu": {"model": "a100*"}}), json!({"gpu": {"model": "*-80gb"}})), None);
        is(place(json!({"anyOf": [{"names": ["a"]}, {"names": ["b"]}]}), names(&["c*"])), None);
        is(place(json!({"anyOf": [{"names": ["a"]}, {"names": ["b"]}]}), names(&["b*"])), Some("on nodes named b"));
        let expression = |text: &str| json!({"expression": text});
        is(place(expression("gpu.count >= 8"), expression("gpu.count < 8")), None);
        is(place(expression("gpu.count >= 8"), json!({"gpu": {"count": "<8"}})), None);
        is(place(expression("gpu.count >= 8"), names(&["gpu-*"])), Some("where both match"));
        is(place(expression("gpu.count >= 8"), expression("gpu.count >= 8")), Some("where both match"));
    }

    #[test]
    fn the_last_of_many_conflicts_says_how_many_are_not_listed() {
        let rules: Vec<String> = (0..7).map(|at| format!("r{at}")).collect();
        let same: Vec<_> = rules.iter().map(|name| (name.as_str(), json!({}), json!({}))).collect();
        let found = among(&same);
        assert_eq!(found.len(), LISTED_MAX, "of 21 pairs");
        assert!(
            found[15].ends_with("; conflicts that are not listed: 5") && !found[14].contains("listed"),
            "{found:?}"
        );
        assert!(!among(&same[..6]).concat().contains("listed"));
    }

    #[test]
    fn the_search_for_conflicts_ends_early_if_there_are_very_many_names() {
        let names: Vec<String> = (0..2_000).map(|at| format!("*{at}x*")).collect();
        let others: Vec<String> = (0..2_000).map(|at| format!("a{at}-*y")).collect();
        assert!(
            among(&[("a", json!({"names": others}), json!({})), ("b", json!({"names": names}), json!({}))]).len() < 2
        );
    }
}
