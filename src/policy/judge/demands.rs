//! What a node lacks of what is demanded of it.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance has to be thought of here")]

use std::collections::HashMap;

use super::changes::{KeyChange, Place, past};
use super::side::Side;
use crate::api::policy::{ChangeOperation, NamedPart};
use crate::policy::decision::Field;
use crate::policy::governance::{Accepted, Dependency, Naming, Wanted};
use crate::policy::pattern::KeySet;

/// One thing that is not as demanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) field: Field,
    /// The key, with the effect of a taint; what names the finding from one side of a write to the other.
    pub(super) key: String,
    /// Whether the key itself is what is wrong, and not its value or its absence.
    is_key: bool,
    /// The value, where that is what is wrong; `None` where it is missing.
    pub(super) value: Option<String>,
    /// What is wrong with it, as bits: fewer of these are better.
    faults: u8,
    /// How far it is from right, where that can be said: less is better.
    distance: u64,
    /// What is wrong, in words.
    pub(super) what: String,
}

impl Finding {
    fn new(place: Place<'_>, what: String) -> Self {
        Self { field: place.field, key: place.to_string(), is_key: false, value: None, faults: 0, distance: 0, what }
    }

    /// Something about the node as a whole.
    pub(super) fn of_node(what: String) -> Self {
        Self::new(Place { field: Field::Label, key: "", effect: None }, what)
    }

    /// Whether it is nearer to right than another.
    fn is_better_than(&self, other: &Self) -> bool {
        let no_worse = self.faults & !other.faults == 0 && self.distance <= other.distance;
        no_worse && (self.faults, self.distance) != (other.faults, other.distance)
    }

    /// The one key it is about; nothing for a taint without an effect.
    pub(super) fn place(&self) -> Option<Place<'_>> {
        if self.field != Field::Taint {
            return Some(Place { field: self.field, key: &self.key, effect: None });
        }
        let (key, effect) = self.key.rsplit_once(':')?;
        Some(Place { field: self.field, key, effect: Some(effect.parse().ok()?) })
    }
}

/// Findings by what they are about: a writer decides how many there are.
pub(super) struct Known<'f>(HashMap<(Field, &'f str), Vec<&'f Finding>>);

impl<'f> Known<'f> {
    pub(super) fn of(findings: &'f [Finding]) -> Self {
        let mut known: HashMap<_, Vec<_>> = HashMap::with_capacity(findings.len());
        for finding in findings {
            known.entry((finding.field, finding.key.as_str())).or_default().push(finding);
        }
        Self(known)
    }

    /// Whether the same is found here.
    pub(super) fn has(&self, finding: &Finding) -> bool {
        let same = self.0.get(&(finding.field, finding.key.as_str()));
        same.into_iter().flatten().any(|known| known.is_key == finding.is_key && known.value == finding.value)
    }

    /// Whether the same is wrong here, or worse.
    pub(super) fn has_same_or_worse(&self, finding: &Finding) -> bool {
        let same = self.0.get(&(finding.field, finding.key.as_str()));
        same.into_iter()
            .flatten()
            .filter(|known| known.is_key == finding.is_key)
            .any(|known| known.value == finding.value || finding.value.is_none() || finding.is_better_than(known))
    }
}

/// What a node on one side lacks. Immutable keys and expressions are about the write: nothing is found here.
pub(super) fn findings(wanted: &Wanted, side: &Side<'_>) -> Vec<Finding> {
    match wanted {
        Wanted::Required { keys, of } => of.iter().flat_map(|field| missing(*field, keys, side)).collect(),
        Wanted::Allowed { key, of, accepted } => {
            of.iter().flat_map(|field| unaccepted(*field, key, accepted, side)).collect()
        }
        Wanted::Dependency(dependency) => unmet(dependency, side),
        Wanted::Naming(naming) => naming.of.iter().flat_map(|field| misnamed(*field, naming, side)).collect(),
        Wanted::Immutable { .. } | Wanted::Expression(_) => Vec::new(),
    }
}

/// Whether a write that makes these changes can have to do with a demand, on a node that it is about before and after.
pub(super) fn touches(wanted: &Wanted, changes: &[KeyChange<'_>]) -> bool {
    let any = |is_about: &dyn Fn(Field, &str) -> bool| {
        changes.iter().any(|change| is_about(change.place.field, change.place.key))
    };
    match wanted {
        Wanted::Required { keys, of } => {
            any(&|field, key| of.contains(&field) && keys.iter().any(|wanted| **wanted == *key))
        }
        Wanted::Allowed { key: wanted, of, accepted: _ } => any(&|field, key| of.contains(&field) && **wanted == *key),
        Wanted::Immutable { keys, of } => any(&|field, key| of.contains(&field) && keys.contains(key)),
        Wanted::Dependency(dependency) => any(&|field, key| dependency.mentions(field, key)),
        Wanted::Naming(naming) => any(&|field, key| naming.is_about(field, key)),
        // It may be about anything.
        Wanted::Expression(_) => true,
    }
}

/// Whether each finding is about one key, which it names.
pub(super) fn is_about_one_key(wanted: &Wanted) -> bool {
    match wanted {
        Wanted::Allowed { .. } | Wanted::Immutable { .. } | Wanted::Naming(_) => true,
        Wanted::Required { .. } | Wanted::Dependency(_) | Wanted::Expression(_) => false,
    }
}

/// Whether a change has to do with a finding of a demand that is not about one key.
pub(super) fn concerns(wanted: &Wanted, finding: &Finding, change: &KeyChange<'_>) -> bool {
    match wanted {
        Wanted::Dependency(dependency) => dependency.mentions(change.place.field, change.place.key),
        Wanted::Required { .. } => change.place.field == finding.field && change.place.key == finding.key,
        Wanted::Expression(_) | Wanted::Allowed { .. } | Wanted::Immutable { .. } | Wanted::Naming(_) => true,
    }
}

/// Whether a change is of the very keys that a finding names. An expression names none.
pub(super) fn names(wanted: &Wanted, finding: &Finding, change: &KeyChange<'_>) -> bool {
    match wanted {
        Wanted::Expression(_) => false,
        Wanted::Allowed { .. } | Wanted::Immutable { .. } | Wanted::Naming(_) => finding.place() == Some(change.place),
        Wanted::Required { .. } | Wanted::Dependency(_) => concerns(wanted, finding, change),
    }
}

/// Changes of keys that do not change.
pub(super) fn frozen(keys: &KeySet, of: &[Field], changes: &[KeyChange<'_>]) -> Vec<Finding> {
    let touched = changes.iter().filter(|change| change.operation != ChangeOperation::Add);
    let touched = touched.filter(|change| of.contains(&change.place.field) && keys.contains(change.place.key));
    let finding = |change: &KeyChange<'_>| {
        let mut what = format!(
            "{} {:?} does not change once set: it may not be {}",
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

fn missing(field: Field, keys: &[Box<str>], side: &Side<'_>) -> Vec<Finding> {
    let there = |key: &str| match field {
        Field::Taint => side.entries(field).iter().any(|(place, _)| place.key == key),
        Field::Label | Field::Annotation => side.value(field, key).is_some(),
    };
    let missing = keys.iter().filter(|key| !there(key));
    missing
        .map(|key| Finding::new(Place { field, key, effect: None }, format!("{field} {key:?} is required and missing")))
        .collect()
}

fn unaccepted(field: Field, key: &str, accepted: &Accepted, side: &Side<'_>) -> Vec<Finding> {
    let values: Vec<(Place<'_>, &str)> = match field {
        Field::Taint => side.entries(field).into_iter().filter(|(place, _)| place.key == key).collect(),
        Field::Label | Field::Annotation => {
            side.value(field, key).map(|value| (Place { field, key, effect: None }, value)).into_iter().collect()
        }
    };
    let judge = |(place, value): (Place<'_>, &str)| {
        let (distance, rather) = match accepted {
            Accepted::Values(values) if values.iter().any(|allowed| **allowed == *value) => return None,
            Accepted::Values(values) => (0, format!("allowed are {}", values.join(", "))),
            Accepted::Matching(pattern) if pattern.whole.is_match(value) => return None,
            Accepted::Matching(pattern) => (0, format!("it must match {}", pattern.written)),
            Accepted::Range { min, max } => match distance(value, *min, *max) {
                0 => return None,
                far => (far, format!("it must be a whole number {}", range_words(*min, *max))),
            },
        };
        let what = format!("{field} {:?} may not be {:?}: {rather}", place.to_string(), cut(value));
        let faults = u8::from(distance == 0 || distance == u64::MAX);
        Some(Finding { value: Some(value.to_owned()), faults, distance, ..Finding::new(place, what) })
    };
    values.into_iter().filter_map(judge).collect()
}

/// How far a value is from a range; the farthest when it is no whole number.
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
        (Some(min), Some(max)) => format!("from {min} to {max}"),
        (Some(min), None) => format!("of at least {min}"),
        (None, Some(max)) => format!("of at most {max}"),
        (None, None) => String::new(),
    }
}

fn unmet(dependency: &Dependency, side: &Side<'_>) -> Vec<Finding> {
    let is = |(key, value): &(Box<str>, Option<Box<str>>)| {
        side.value(Field::Label, key).is_some_and(|there| value.as_ref().is_none_or(|value| **value == *there))
    };
    if !dependency.when.iter().all(is) {
        return Vec::new();
    }
    let written =
        |key: &str, value: Option<&str>| value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
    let when: Vec<String> =
        dependency.when.iter().map(|(key, _)| written(key, side.value(Field::Label, key))).collect();
    let when = format!("label {}", when.join(" with "));
    let further = match dependency.further.as_slice() {
        [] => String::new(),
        further => format!(", which needs {}", further.join(" and ")),
    };
    let finding = |field, key: &str, what: String| Finding::new(Place { field, key, effect: None }, what);
    let lacking = dependency.require.iter().filter(|label| !is(label)).map(|(key, value)| {
        let value_there = side.value(Field::Label, key);
        let there = value_there.map_or_else(String::new, |there| format!(", not {there:?}"));
        finding(Field::Label, key, format!("{when} needs label {}{there}{further}", written(key, value.as_deref())))
    });
    let untainted = dependency.require_taints.iter().filter(|(pattern, _)| !side.has_taint(pattern));
    let untainted = untainted.map(|(_, taint)| finding(Field::Taint, taint, format!("{when} needs taint {taint}")));
    let forbidden = dependency.forbid.iter().filter(|key| side.value(Field::Label, key).is_some());
    let forbidden =
        forbidden.map(|key| finding(Field::Label, key, format!("{when} does not go together with label {key}")));
    lacking.chain(untainted).chain(forbidden).collect()
}

fn misnamed(field: Field, naming: &Naming, side: &Side<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, value) in side.entries(field) {
        if !naming.is_about(field, place.key) {
            continue;
        }
        let of_key = (naming.part != NamedPart::Value).then_some(("key", place.key, true));
        let of_value = (naming.part != NamedPart::Key).then_some(("value", value, false));
        for (part, text, is_key) in of_key.into_iter().chain(of_value) {
            let Some((faults, distance, said)) = faults(naming, text, is_key) else { continue };
            let what = format!("{field} {:?}: its {part} {said}", place.to_string());
            let value = (!is_key).then(|| text.to_owned());
            found.push(Finding { is_key, value, faults, distance, ..Finding::new(place, what) });
        }
    }
    found
}

/// What is wrong with a text, as bits, by how many characters it is too long, and in words; nothing when it is right.
fn faults(naming: &Naming, text: &str, is_key: bool) -> Option<(u8, u64, String)> {
    let (mut faults, mut said) = (0, Vec::new());
    if let Some(pattern) = naming.pattern.filter(|pattern| !pattern.is_kept_by(text, is_key)) {
        let instead = pattern.instead_of(text, is_key).map(|instead| format!("; write {:?}", cut(&instead)));
        faults |= 1;
        said.push(format!("is not {}{}", pattern.describe(), instead.unwrap_or_default()));
    }
    if let Some(regex) = naming.regex.as_ref().filter(|regex| !regex.whole.is_match(text)) {
        faults |= 2;
        said.push(format!("does not match {}", regex.written));
    }
    let length = text.chars().count();
    let excess = naming.max_length.map_or(0, |max| length.saturating_sub(usize::from(max)));
    if excess > 0 {
        faults |= 4;
        said.push(format!("has {length} characters, more than {}", naming.max_length.unwrap_or_default()));
    }
    (faults != 0).then(|| (faults, excess as u64, said.join(", ")))
}

/// Longest value that is quoted, in characters: annotations may be very long.
const QUOTED_MAX: usize = 100;

fn cut(value: &str) -> String {
    match value.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}
