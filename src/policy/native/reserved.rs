//! `governance.reserved`: who may write a key or a namespace. The most specific place that has an entry that applies
//! decides; its entries add their `allow`s. What is on trial opens nothing: each mode is asked together with the
//! stricter ones only.

use super::LeftOut;
use super::entry::{Judging, is_about_change, is_about_node, is_subject, reason};
use super::formula::{Formula, quote};
use super::validating::{FIELDS, Validation, told};
use super::variables::Variables;
use crate::api::names::prefix_of;
use crate::api::policy::EntryMode;
use crate::policy::decision::Field;
use crate::policy::governance::{Place, Reserved};
use crate::policy::set::PolicySet;

/// Whether a key (without effect) is in a place.
pub(super) fn contains(place: Place<'_>, key: &str) -> bool {
    match place {
        Place::Key(wanted) => wanted == key,
        Place::Namespace(wanted) => prefix_of(key) == Some(wanted),
        Place::Subdomains(suffix) => prefix_of(key).is_some_and(|prefix| prefix.ends_with(suffix)),
    }
}

/// Places that have the very same entries.
struct Group<'a> {
    entries: Vec<&'a Reserved>,
    /// With their order by how specific they are.
    places: Vec<(usize, Place<'a>)>,
}

impl Group<'_> {
    /// Whether one of these places is more specific than `place`, and has keys in common with it.
    fn precedes(&self, order: usize, place: Place<'_>) -> impl Iterator<Item = Place<'_>> {
        self.places.iter().filter(move |(own, mine)| *own < order && overlap(*mine, place)).map(|(_, mine)| *mine)
    }
}

fn overlap(specific: Place<'_>, wider: Place<'_>) -> bool {
    match (specific, wider) {
        (Place::Key(key), wider) => contains(wider, key),
        (Place::Namespace(prefix), Place::Subdomains(suffix)) => prefix.ends_with(suffix),
        (Place::Subdomains(longer), Place::Subdomains(shorter)) => longer.ends_with(shorter),
        _ => false,
    }
}

/// The validations of all entries.
pub(super) fn validations(
    judging: Judging<'_, '_>,
    variables: &mut Variables,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Validation> {
    let mut validations = Vec::new();
    let modes = [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit];
    for ((field, title), mode) in FIELDS.into_iter().flat_map(|field| modes.map(|mode| (field, mode))) {
        let groups = groups(judging.selection.set(), field, mode);
        let reasons = reasons(judging.selection.set(), &groups);
        for (at, group) in groups.iter().enumerate() {
            match &reasons[at] {
                Some(reason) => {
                    for reserved in group.entries.iter().filter(|reserved| reserved.entry.mode == mode) {
                        left_out.push(LeftOut::of(&reserved.entry.id, &format!("{field}s"), reason));
                    }
                }
                None => {
                    let judged = Judged { judging, field, title, mode, groups: &groups, at };
                    judged.add(variables, &mut validations);
                }
            }
        }
    }
    validations
}

/// The places of entries of this mode and of stricter ones.
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

/// Why groups are left out: for an entry of their own, or because one that is left out may decide before them.
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

/// One group of places of one field.
struct Judged<'j, 'a> {
    judging: Judging<'j, 'a>,
    field: Field,
    title: &'static str,
    mode: EntryMode,
    groups: &'j [Group<'a>],
    at: usize,
}

impl Judged<'_, '_> {
    fn group(&self) -> &Group<'_> {
        &self.groups[self.at]
    }

    fn add(&self, variables: &mut Variables, validations: &mut Vec<Validation>) {
        let entries = &self.group().entries;
        let open =
            Formula::any(entries.iter().map(|entry| Formula::all([self.applies(entry), is_subject(&entry.allow)])));
        for (at, entry) in entries.iter().enumerate() {
            let stricter = entries.iter().enumerate().filter(|(other, rival)| {
                *other != at
                    && (rival.entry.mode > entry.entry.mode || (rival.entry.mode == entry.entry.mode && *other > at))
            });
            let stricter = Formula::any(stricter.map(|(_, rival)| self.applies(rival)));
            let violates = Formula::all([self.is_here(), self.applies(entry), stricter.not(), open.clone().not()]);
            // What stricter entries refuse is theirs to say.
            if violates == Formula::Never || entry.entry.mode != self.mode {
                continue;
            }
            let name = format!("reserved{}{:?}_{}_{at}", self.title, self.mode, self.at);
            variables.add(&name, format!("variables.governed{}.filter(k, {})", self.title, violates.text()));
            validations.extend(self.validations(entry, &name));
        }
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

    /// Whether the key in `k` (of a taint `key:Effect`) is in a place.
    fn is_in(&self, place: Place<'_>) -> Formula {
        let text = match place {
            Place::Key(key) if self.field == Field::Taint => format!("k.startsWith({})", quote(&format!("{key}:"))),
            Place::Key(key) => format!("(k == {})", quote(key)),
            Place::Namespace(prefix) => format!("k.startsWith({})", quote(&format!("{prefix}/"))),
            Place::Subdomains(suffix) => format!("k.contains({})", quote(&format!("{suffix}/"))),
        };
        Formula::When(text)
    }

    /// Whether an entry is about this node, this change and this requester.
    fn applies(&self, reserved: &Reserved) -> Formula {
        let change = is_about_change(&reserved.entry, self.field, self.title);
        let excepted = is_subject(&reserved.entry.except);
        Formula::all([change, is_about_node(self.judging.selection, &reserved.entry), excepted.not()])
    }

    fn validations(&self, reserved: &Reserved, name: &str) -> Vec<Validation> {
        let entry = &reserved.entry;
        let variable = format!("variables.{name}");
        let told = told(self.field, self.title, &variable);
        let told = format!("{told} + \" by \\\"\" + request.userInfo.username + \"\\\"\"");
        let writers: Vec<String> = self.group().entries.iter().flat_map(|entry| entry.allow.describe()).collect();
        let writers = if writers.is_empty() { "nobody".to_owned() } else { writers.join("; ") };
        let way = self.judging.way(entry);
        let reason =
            format!(": reserved by policy {}, rule {}; writers: {writers}; {way}", entry.id.policy, entry.id.rule);
        self.judging.validations(entry, &variable, &told, &reason)
    }
}
