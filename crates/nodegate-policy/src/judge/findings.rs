//! Compares a node with the constraints of governance.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

use std::collections::HashMap;

use super::changes::{self, KeyChange, NodeKey, past};
use super::parts::Part;
use super::snapshot::NodeSnapshot;
use crate::api::names::or_quotes;
use crate::api::policy::{ChangeOperation, NamedPart};
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use crate::set::governance::{Accepted, Constraint, Dependency, Naming};

/// One way in which a node violates a constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) field: Field,
    /// The key, with the effect for a taint. It identifies the finding before and after a write.
    pub(super) key: String,
    /// Whether the key itself is wrong, not its value or absence.
    is_key: bool,
    /// The value, if that is wrong; `None` if the key is missing.
    pub(super) value: Option<String>,
    /// The faults as bits; fewer are better.
    faults: u8,
    /// The distance from a valid value, if defined; less is better.
    distance: u64,
    /// The sentence for messages.
    pub(super) what: String,
}

impl Finding {
    fn new(place: NodeKey<'_>, what: String) -> Self {
        Self { field: place.field, key: place.to_string(), is_key: false, value: None, faults: 0, distance: 0, what }
    }

    /// A finding about the node as a whole.
    pub(super) fn of_node(what: String) -> Self {
        Self::new(NodeKey { field: Field::Label, key: "", effect: None }, what)
    }

    /// Whether it is less wrong than another.
    fn is_better_than(&self, other: &Self) -> bool {
        let no_worse = self.faults & !other.faults == 0 && self.distance <= other.distance;
        no_worse && (self.faults, self.distance) != (other.faults, other.distance)
    }

    /// The one key that it concerns; `None` for a taint without an effect.
    pub(super) fn place(&self) -> Option<NodeKey<'_>> {
        if self.field != Field::Taint {
            return Some(NodeKey { field: self.field, key: &self.key, effect: None });
        }
        let (key, effect) = self.key.rsplit_once(':')?;
        Some(NodeKey { field: self.field, key, effect: Some(effect.parse().ok()?) })
    }
}

/// Findings by key, because a writer can cause any number of them.
pub(super) struct KnownFindings<'f>(HashMap<(Field, &'f str), Vec<&'f Finding>>);

impl<'f> KnownFindings<'f> {
    pub(super) fn of(findings: &'f [Finding]) -> Self {
        let mut known: HashMap<_, Vec<_>> = HashMap::with_capacity(findings.len());
        for finding in findings {
            known.entry((finding.field, finding.key.as_str())).or_default().push(finding);
        }
        Self(known)
    }

    /// Whether the same finding is among these.
    pub(super) fn has(&self, finding: &Finding) -> bool {
        let same = self.0.get(&(finding.field, finding.key.as_str()));
        same.into_iter().flatten().any(|known| known.is_key == finding.is_key && known.value == finding.value)
    }

    /// Whether the same finding, or a worse one, is among these.
    pub(super) fn has_same_or_worse(&self, finding: &Finding) -> bool {
        let same = self.0.get(&(finding.field, finding.key.as_str()));
        same.into_iter()
            .flatten()
            .filter(|known| known.is_key == finding.is_key)
            .any(|known| known.value == finding.value || finding.value.is_none() || finding.is_better_than(known))
    }
}

/// The findings on a node. Immutable keys and expressions depend on the write, so they have none here.
///
/// Those about one key of many are only the ones in `part`.
pub(super) fn findings(constraint: &Constraint, snapshot: &NodeSnapshot<'_>, part: Part<'_>) -> Vec<Finding> {
    match constraint {
        Constraint::Required { keys, of } => of.iter().flat_map(|field| missing(*field, keys, snapshot)).collect(),
        Constraint::Allowed { key, of, accepted } => {
            of.iter().flat_map(|field| unaccepted(*field, key, accepted, snapshot)).collect()
        }
        Constraint::Dependency(dependency) => unmet(dependency, snapshot),
        Constraint::Naming(naming) => {
            naming.of.iter().flat_map(|field| misnamed(*field, naming, snapshot, part)).collect()
        }
        Constraint::Immutable { .. } | Constraint::Expression(_) => Vec::new(),
    }
}

/// Whether these changes can affect a constraint that applies to the node before and after the write.
pub(super) fn touches(constraint: &Constraint, changes: &[KeyChange<'_>]) -> bool {
    let any = |is_about: &dyn Fn(Field, &str) -> bool| {
        changes.iter().any(|change| is_about(change.place.field, change.place.key))
    };
    match constraint {
        Constraint::Required { keys, of } => {
            any(&|field, key| of.contains(&field) && keys.iter().any(|constraint| **constraint == *key))
        }
        Constraint::Allowed { key: constraint, of, accepted: _ } => {
            any(&|field, key| of.contains(&field) && **constraint == *key)
        }
        Constraint::Immutable { keys, of } => any(&|field, key| of.contains(&field) && keys.contains(key)),
        Constraint::Dependency(dependency) => any(&|field, key| dependency.mentions(field, key)),
        Constraint::Naming(naming) => any(&|field, key| naming.is_about(field, key)),
        // An expression may read anything.
        Constraint::Expression(_) => true,
    }
}

/// Whether each finding concerns exactly one key.
pub(super) fn is_about_one_key(constraint: &Constraint) -> bool {
    match constraint {
        Constraint::Allowed { .. } | Constraint::Immutable { .. } | Constraint::Naming(_) => true,
        Constraint::Required { .. } | Constraint::Dependency(_) | Constraint::Expression(_) => false,
    }
}

/// Whether a writer can cause any number of findings, one for each key.
pub(super) fn is_about_many_keys(constraint: &Constraint) -> bool {
    match constraint {
        Constraint::Immutable { .. } | Constraint::Naming(_) => true,
        Constraint::Allowed { .. }
        | Constraint::Required { .. }
        | Constraint::Dependency(_)
        | Constraint::Expression(_) => false,
    }
}

/// Whether a change is related to a finding of a constraint that concerns several keys.
pub(super) fn concerns(constraint: &Constraint, finding: &Finding, change: &KeyChange<'_>) -> bool {
    match constraint {
        Constraint::Dependency(dependency) => dependency.mentions(change.place.field, change.place.key),
        Constraint::Required { .. } => change.place.field == finding.field && change.place.key == finding.key,
        Constraint::Expression(_)
        | Constraint::Allowed { .. }
        | Constraint::Immutable { .. }
        | Constraint::Naming(_) => true,
    }
}

/// Whether one of these changes is of a key that a finding names. An expression names none.
pub(super) fn is_named(constraint: &Constraint, finding: &Finding, changes: &[KeyChange<'_>]) -> bool {
    match constraint {
        Constraint::Expression(_) => false,
        Constraint::Allowed { .. } | Constraint::Immutable { .. } | Constraint::Naming(_) => {
            finding.place().is_some_and(|place| changes::at(changes, place).is_some())
        }
        Constraint::Required { .. } | Constraint::Dependency(_) => {
            changes.iter().any(|change| concerns(constraint, finding, change))
        }
    }
}

/// Changes of immutable keys in `part`.
pub(super) fn frozen(keys: &KeySet, of: &[Field], changes: &[KeyChange<'_>], part: Part<'_>) -> Vec<Finding> {
    let touched = changes.iter().filter(|change| change.operation != ChangeOperation::Add);
    let touched = touched.filter(|change| part.has(change.place.key));
    let touched = touched.filter(|change| of.contains(&change.place.field) && keys.contains(change.place.key));
    let finding = |change: &KeyChange<'_>| {
        let mut what = format!(
            "{} {:?} is immutable and cannot be {}",
            change.place.field,
            change.place.to_string(),
            past(change.operation)
        );
        if let (Some(old), Some(new)) = (change.old, change.new) {
            what.push_str(&format!(" from {:?} to {:?}", cut(old), cut(new)));
        }
        Finding::new(change.place, what)
    };
    touched.map(finding).collect()
}

fn missing(field: Field, keys: &[Box<str>], snapshot: &NodeSnapshot<'_>) -> Vec<Finding> {
    let there = |key: &str| match field {
        Field::Taint => snapshot.entries(field).iter().any(|(place, _)| place.key == key),
        Field::Label | Field::Annotation => snapshot.value(field, key).is_some(),
    };
    let missing = keys.iter().filter(|key| !there(key));
    missing
        .map(|key| {
            Finding::new(NodeKey { field, key, effect: None }, format!("{field} {key:?} is required and missing"))
        })
        .collect()
}

fn unaccepted(field: Field, key: &str, accepted: &Accepted, snapshot: &NodeSnapshot<'_>) -> Vec<Finding> {
    let values: Vec<(NodeKey<'_>, &str)> = match field {
        Field::Taint => snapshot.entries(field).into_iter().filter(|(place, _)| place.key == key).collect(),
        Field::Label | Field::Annotation => {
            snapshot.value(field, key).map(|value| (NodeKey { field, key, effect: None }, value)).into_iter().collect()
        }
    };
    let judge = |(place, value): (NodeKey<'_>, &str)| {
        let (distance, rather) = match accepted {
            Accepted::Values(values) if values.iter().any(|allowed| **allowed == *value) => return None,
            Accepted::Values(values) => (0, format!("the allowed values are {}", values.join(", "))),
            Accepted::Matching(pattern) if pattern.whole.is_match(value) => return None,
            Accepted::Matching(pattern) => (0, format!("the value must match {}", pattern.written)),
            Accepted::Range { min, max } => match distance(value, *min, *max) {
                0 => return None,
                far => (far, format!("the value must be an integer {}", range_words(*min, *max))),
            },
        };
        let what = format!("{field} {:?} may not be {:?}: {rather}", place.to_string(), cut(value));
        let faults = u8::from(distance == 0 || distance == u64::MAX);
        Some(Finding { value: Some(value.to_owned()), faults, distance, ..Finding::new(place, what) })
    };
    values.into_iter().filter_map(judge).collect()
}

/// The distance of a value from a range; the maximum if it is not an integer.
fn distance(value: &str, min: Option<i64>, max: Option<i64>) -> u64 {
    let Ok(number) = value.parse::<i64>() else { return u64::MAX };
    match (min, max) {
        (Some(min), _) if number < min => number.abs_diff(min),
        (_, Some(max)) if number > max => number.abs_diff(max),
        _ => 0,
    }
}

fn range_words(min: Option<i64>, max: Option<i64>) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!("between {min} and {max}"),
        (Some(min), None) => format!("greater than or equal to {min}"),
        (None, Some(max)) => format!("less than or equal to {max}"),
        (None, None) => String::new(),
    }
}

fn unmet(dependency: &Dependency, snapshot: &NodeSnapshot<'_>) -> Vec<Finding> {
    let is = |(key, value): &(Box<str>, Option<Box<str>>)| {
        snapshot.value(Field::Label, key).is_some_and(|there| value.as_ref().is_none_or(|value| **value == *there))
    };
    if !dependency.when.iter().all(is) {
        return Vec::new();
    }
    let written = |key: &str, value: Option<&str>| {
        value.map_or_else(|| key.to_owned(), |value| format!("{key}={}", or_quotes(value)))
    };
    let when: Vec<String> =
        dependency.when.iter().map(|(key, _)| written(key, snapshot.value(Field::Label, key))).collect();
    let (labels, require, forbid) = dependency.verbs();
    let when = format!("{labels} {}", when.join(" and "));
    let further = match dependency.further.as_slice() {
        [] => String::new(),
        further => format!(", which requires {}", further.join(" and ")),
    };
    let finding = |field, key: &str, what: String| Finding::new(NodeKey { field, key, effect: None }, what);
    let lacking = dependency.require.iter().filter(|label| !is(label)).map(|(key, value)| {
        let value_there = snapshot.value(Field::Label, key);
        let there = value_there.map_or_else(String::new, |there| format!(" (found {there:?})"));
        let wanted = written(key, value.as_deref());
        finding(Field::Label, key, format!("{when} {require} label {wanted}{there}{further}"))
    });
    let untainted = dependency.require_taints.iter().filter(|(pattern, _)| !snapshot.has_taint(pattern));
    let untainted = untainted.map(|(_, taint)| finding(Field::Taint, taint, format!("{when} {require} taint {taint}")));
    let forbidden = dependency.forbid.iter().filter(|key| snapshot.value(Field::Label, key).is_some());
    let forbidden = forbidden.map(|key| finding(Field::Label, key, format!("{when} {forbid} label {key}")));
    lacking.chain(untainted).chain(forbidden).collect()
}

fn misnamed(field: Field, naming: &Naming, snapshot: &NodeSnapshot<'_>, part: Part<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, value) in snapshot.entries_in(field, part) {
        if !naming.is_about(field, place.key) {
            continue;
        }
        let of_key = (naming.part != NamedPart::Value).then_some(("key", place.key, true));
        let of_value = (naming.part != NamedPart::Key).then_some(("value", value, false));
        for (named, text, is_key) in of_key.into_iter().chain(of_value) {
            let Some((faults, distance, said)) = faults(naming, text, is_key) else { continue };
            let what = format!("the {named} of {field} {:?} {said}", place.to_string());
            let value = (!is_key).then(|| text.to_owned());
            found.push(Finding { is_key, value, faults, distance, ..Finding::new(place, what) });
        }
    }
    found
}

/// The faults of a text as bits, the number of excess characters, and the words for messages; `None` if it is valid.
fn faults(naming: &Naming, text: &str, is_key: bool) -> Option<(u8, u64, String)> {
    let (mut faults, mut said, mut hint) = (0, Vec::new(), String::new());
    if let Some(pattern) = naming.pattern.filter(|pattern| !pattern.is_kept_by(text, is_key)) {
        if let Some(instead) = pattern.instead_of(text, is_key) {
            hint = format!("; use {:?}", cut(&instead));
        }
        faults |= 1;
        said.push(format!("is not {}", pattern.describe()));
    }
    if let Some(regex) = naming.regex.as_ref().filter(|regex| !regex.whole.is_match(text)) {
        faults |= 2;
        said.push(format!("does not match {}", regex.written));
    }
    let length = text.chars().count();
    let excess = naming.max_length.map_or(0, |max| length.saturating_sub(usize::from(max)));
    if excess > 0 {
        faults |= 4;
        said.push(format!("has {length} characters (the limit is {})", naming.max_length.unwrap_or_default()));
    }
    (faults != 0).then(|| (faults, excess as u64, said.join(" and ") + &hint))
}

/// Maximum length of a quoted value, in characters, because annotations may be very long.
const QUOTED_MAX: usize = 100;

pub(super) fn cut(value: &str) -> String {
    match value.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::simulate::compile_inline;

    #[test]
    fn a_constraint_is_touched_by_changes_of_its_own_keys_and_an_expression_by_every_write() {
        let set = compile_inline(&json!({"governance": {
            "required": [{"name": "required", "keys": ["owner", "team"]}],
            "allowed": [{"name": "allowed", "key": "team", "values": ["a"], "of": ["annotations"]}],
            "immutable": [{"name": "immutable", "keys": ["team"], "of": ["taints"]}],
            "dependencies": [{"name": "dependency", "when": {"team": "a"}, "require": {"owner": "b"}}],
            "naming": [{"name": "naming", "keys": ["team"], "in": ["annotations"], "maxLength": 5}],
            "expressions": [{"name": "expression", "expression": "object.metadata.name != 'x'"}],
        }}))
        .unwrap();
        let touched = |changed: Option<(Field, &'static str)>| -> Vec<&str> {
            let change = |(field, key)| {
                let effect = (field == Field::Taint).then_some(crate::api::names::TaintEffect::NoSchedule);
                let place = NodeKey { field, key, effect };
                KeyChange { place, operation: ChangeOperation::Add, old: None, new: Some("x") }
            };
            let changes: Vec<_> = changed.into_iter().map(change).collect();
            let entries = set.governance().constraints().iter();
            entries.filter(|one| touches(&one.constraint, &changes)).map(|one| &*one.entry.id.rule).collect()
        };
        assert_eq!(touched(None), ["expression"]);
        assert_eq!(touched(Some((Field::Label, "team"))), ["required", "dependency", "expression"]);
        assert_eq!(touched(Some((Field::Label, "owner"))), ["required", "dependency", "expression"]);
        assert_eq!(touched(Some((Field::Annotation, "team"))), ["allowed", "naming", "expression"]);
        assert_eq!(touched(Some((Field::Annotation, "owner"))), ["expression"]);
        assert_eq!(touched(Some((Field::Taint, "team"))), ["immutable", "expression"]);
        assert_eq!(touched(Some((Field::Taint, "owner"))), ["expression"]);
    }
}
