//! `governance.reserved`: who may write a key or a namespace. The most specific scope with an applicable entry
//! decides; all subjects that its entries allow may write. An entry in a weaker mode must not permit what a stricter
//! one forbids, so each mode is evaluated with the stricter ones only.

use crate::api::names::prefix_of;
use crate::api::policy::EntryMode;
use crate::keys::Field;
use crate::native::objects::LeftOut;
use crate::native::terms::formula::{Formula, quote};
use crate::native::terms::variables::Variables;
use crate::native::verdicts::entry::{EntryContext, is_about_change, is_about_node, is_subject, reason};
use crate::native::verdicts::validation::{FIELDS, Validation, describe};
use crate::set::PolicySet;
use crate::set::governance::{KeyScope, Reserved};

/// Whether a key (without effect) is in a scope.
pub(in crate::native) fn contains(place: KeyScope<'_>, key: &str) -> bool {
    match place {
        KeyScope::Key(wanted) => wanted == key,
        KeyScope::Namespace(wanted) => prefix_of(key) == Some(wanted),
        KeyScope::Subdomains(suffix) => prefix_of(key).is_some_and(|prefix| prefix.ends_with(suffix)),
    }
}

/// Scopes that have the same entries.
struct Group<'a> {
    entries: Vec<&'a Reserved>,
    /// The scopes, with their position from the most specific to the least specific one.
    places: Vec<(usize, KeyScope<'a>)>,
}

impl<'a> Group<'a> {
    fn scopes(&self) -> Vec<KeyScope<'a>> {
        self.places.iter().map(|(_, place)| *place).collect()
    }

    /// The scopes of this group that are more specific than `place` and overlap with it.
    fn precedes(&self, order: usize, place: KeyScope<'_>) -> impl Iterator<Item = KeyScope<'_>> {
        self.places.iter().filter(move |(own, mine)| *own < order && overlap(*mine, place)).map(|(_, mine)| *mine)
    }
}

/// The variable with the keys that violate entries of a mode, and the scopes in which it looks.
struct Violated<'a> {
    name: String,
    places: Vec<KeyScope<'a>>,
}

fn overlap(specific: KeyScope<'_>, wider: KeyScope<'_>) -> bool {
    match (specific, wider) {
        (KeyScope::Key(key), wider) => contains(wider, key),
        (KeyScope::Namespace(prefix), KeyScope::Subdomains(suffix)) => prefix.ends_with(suffix),
        (KeyScope::Subdomains(longer), KeyScope::Subdomains(shorter)) => longer.ends_with(shorter),
        _ => false,
    }
}

/// The validations of all entries.
pub(in crate::native) fn validations(
    judging: EntryContext<'_, '_>,
    variables: &mut Variables,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Validation> {
    let mut validations = Vec::new();
    for (field, title) in FIELDS {
        let mut stricter = Vec::new();
        for mode in [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit] {
            let groups = groups(judging.selection.set(), field, mode);
            let reasons = reasons(judging.selection.set(), &groups);
            let mut named = Vec::new();
            for (at, group) in groups.iter().enumerate() {
                match &reasons[at] {
                    Some(reason) => {
                        for reserved in group.entries.iter().filter(|reserved| reserved.entry.mode == mode) {
                            left_out.push(LeftOut::of(&reserved.entry.id, &format!("{field}s"), reason));
                        }
                    }
                    None => {
                        let judged = JudgedBy { judging, field, title, mode, groups: &groups, at, stricter: &stricter };
                        let names = judged.add(variables, &mut validations);
                        named.extend(names.into_iter().map(|name| Violated { name, places: group.scopes() }));
                    }
                }
            }
            stricter.extend(named);
        }
    }
    validations
}

/// The scopes with entries of this mode or of stricter ones.
fn groups(set: &PolicySet, field: Field, mode: EntryMode) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (order, (place, mut entries)) in set.governance().places(field).into_iter().enumerate() {
        entries.retain(|reserved| reserved.entry.mode >= mode);
        if entries.is_empty() {
            continue;
        }
        let same = |group: &&mut Group<'_>| {
            group.entries.len() == entries.len()
                && group.entries.iter().zip(&entries).all(|(one, other)| std::ptr::eq(*one, *other))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.places.push((order, place)),
            None => groups.push(Group { entries, places: vec![(order, place)] }),
        }
    }
    groups
}

/// Why groups are not exported: because of their own entries, or because a group that is not exported takes precedence.
fn reasons(set: &PolicySet, groups: &[Group<'_>]) -> Vec<Option<String>> {
    let own: Vec<Option<String>> = groups
        .iter()
        .map(|group| {
            group.entries.iter().find_map(|entry| {
                reason(set, &entry.entry, &entry.allow).map(|reason| format!("entry {} {reason}", entry.entry.id))
            })
        })
        .collect();
    let before = |at: usize| {
        let hidden = groups.iter().zip(&own).filter(|(_, reason)| reason.is_some());
        hidden.clone().find(|(other, _)| {
            groups[at].places.iter().any(|(order, place)| other.precedes(*order, *place).next().is_some())
        })
    };
    (0..groups.len()).map(|at| own[at].clone().or_else(|| before(at).and_then(|(_, reason)| reason.clone()))).collect()
}

/// One group of scopes of one field.
struct JudgedBy<'j, 'a> {
    judging: EntryContext<'j, 'a>,
    field: Field,
    title: &'static str,
    mode: EntryMode,
    groups: &'j [Group<'a>],
    at: usize,
    /// What violates the entries of stricter modes.
    stricter: &'j [Violated<'a>],
}

impl JudgedBy<'_, '_> {
    fn group(&self) -> &Group<'_> {
        &self.groups[self.at]
    }

    /// Adds the variables and validations of this group; returns the names of the variables.
    fn add(&self, variables: &mut Variables, validations: &mut Vec<Validation>) -> Vec<String> {
        let mut names = Vec::new();
        let entries = &self.group().entries;
        let open =
            Formula::any(entries.iter().map(|entry| Formula::all([self.applies(entry), is_subject(&entry.allow)])));
        for (at, entry) in entries.iter().enumerate() {
            let stricter = entries.iter().enumerate().filter(|(other, rival)| {
                *other != at
                    && (rival.entry.mode > entry.entry.mode || (rival.entry.mode == entry.entry.mode && *other > at))
            });
            let stricter = Formula::any(stricter.map(|(_, rival)| self.applies(rival)));
            let told = self.is_told_by_stricter();
            let violates =
                Formula::all([self.is_here(), self.applies(entry), stricter.not(), open.clone().not(), told.not()]);
            // A violation of stricter entries is reported by those.
            if violates == Formula::Never || entry.entry.mode != self.mode {
                continue;
            }
            let name = format!("reserved{}{:?}_{}_{at}", self.title, self.mode, self.at);
            variables.add(&name, format!("variables.governed{}.filter(k, {})", self.title, violates.text()));
            validations.extend(self.validations(entry, &name));
            names.push(name);
        }
        names
    }

    /// Whether the key in `k` violates an entry of a stricter mode whose scope is wider, which then reports it. One whose scope
    /// is as specific or more so decides in this mode, too.
    fn is_told_by_stricter(&self) -> Formula {
        let places = &self.group().places;
        let wider = |other: &&Violated<'_>| {
            places.iter().any(|(_, mine)| other.places.iter().any(|theirs| overlap(*mine, *theirs) && mine != theirs))
        };
        let told = self.stricter.iter().filter(wider);
        Formula::any(told.map(|other| Formula::When(format!("(k in variables.{})", other.name))))
    }

    /// Whether this group decides on the key in `k`.
    fn is_here(&self) -> Formula {
        Formula::any(self.group().places.iter().map(|(order, place)| {
            let others = self.groups.iter().enumerate().filter(|(other, _)| *other != self.at);
            let before = others.flat_map(|(_, other)| {
                let applies = Formula::any(other.entries.iter().map(|entry| self.applies(entry)));
                other
                    .precedes(*order, *place)
                    .map(move |specific| Formula::all([self.is_in(specific), applies.clone()]))
                    .collect::<Vec<_>>()
            });
            Formula::all([self.is_in(*place), Formula::any(before).not()])
        }))
    }

    /// Whether the key in `k` (for a taint `key:Effect`) is in a scope.
    fn is_in(&self, place: KeyScope<'_>) -> Formula {
        let text = match place {
            KeyScope::Key(key) if self.field == Field::Taint => format!("k.startsWith({})", quote(&format!("{key}:"))),
            KeyScope::Key(key) => format!("(k == {})", quote(key)),
            KeyScope::Namespace(prefix) => format!("k.startsWith({})", quote(&format!("{prefix}/"))),
            KeyScope::Subdomains(suffix) => format!("k.contains({})", quote(&format!("{suffix}/"))),
        };
        Formula::When(text)
    }

    /// Whether an entry applies to this node, this change and this requester.
    fn applies(&self, reserved: &Reserved) -> Formula {
        let change = is_about_change(&reserved.entry, self.field, self.title);
        let excepted = is_subject(&reserved.entry.except);
        Formula::all([change, is_about_node(self.judging.selection, &reserved.entry), excepted.not()])
    }

    fn validations(&self, reserved: &Reserved, name: &str) -> Vec<Validation> {
        let entry = &reserved.entry;
        let variable = format!("variables.{name}");
        let message = describe(self.field, self.title, &variable);
        let message = format!("{message} + \" by \\\"\" + request.userInfo.username + \"\\\"\"");
        let writers: Vec<String> = self.group().entries.iter().flat_map(|entry| entry.allow.describe()).collect();
        let writers = if writers.is_empty() { "nobody".to_owned() } else { writers.join("; ") };
        let way = self.judging.override_hint(entry);
        let reason = format!(
            ": reserved by policy {}, rule {} (allowed writers: {writers}); {way}",
            entry.id.policy, entry.id.rule
        );
        self.judging.validations(entry, &variable, &message, &reason)
    }
}
