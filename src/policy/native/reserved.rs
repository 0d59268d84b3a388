//! `governance.reserved`: who may write a key or a namespace. The most specific place that has an entry that applies
//! decides; its entries add their `allow`s, and the strictest of them says what comes of a violation.

use std::collections::BTreeSet;

use super::condition::{Condition, has_foreign_glob, is_one_of, list, quote};
use super::selection::Selection;
use super::validating::{FIELDS, Validation, entry_matcher, now, told};
use super::variables::Variables;
use super::{LeftOut, NativeOptions};
use crate::api::names::prefix_of;
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::policy::decision::Field;
use crate::policy::governance::{Place, Reserved, Subjects};
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
    selection: &Selection<'_>,
    options: &NativeOptions,
    variables: &mut Variables,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Validation> {
    let mut validations = Vec::new();
    for (field, title) in FIELDS {
        let groups = groups(selection.set(), field);
        let reasons = reasons(selection.set(), &groups);
        for (at, group) in groups.iter().enumerate() {
            match &reasons[at] {
                Some(reason) => {
                    left_out
                        .extend(group.entries.iter().map(|entry| LeftOut::of(&entry.id, &format!("{field}s"), reason)));
                }
                None => {
                    let judged = Judged { selection, options, field, title, groups: &groups, at };
                    judged.add(variables, &mut validations);
                }
            }
        }
    }
    validations
}

fn groups(set: &PolicySet, field: Field) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (order, (place, entries)) in set.governance().places(field).into_iter().enumerate() {
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
            group
                .entries
                .iter()
                .find_map(|entry| reason(set, entry).map(|reason| format!("entry {} {reason}", entry.id)))
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

fn reason(set: &PolicySet, entry: &Reserved) -> Option<&'static str> {
    let foreign = |subjects: &Subjects| {
        has_foreign_glob(subjects.users.written())
            || has_foreign_glob(subjects.groups.written())
            || has_foreign_glob(subjects.service_accounts.written())
    };
    let glass = &set.governance().document(entry.document).break_glass;
    if [&entry.allow, &entry.except, glass].into_iter().any(foreign) {
        return Some("has a glob with characters outside ASCII");
    }
    entry.matcher.conditions().find_map(|conditions| {
        if conditions.gpu.is_some() {
            return Some("matches on GPU inference, which only nodegate has");
        }
        if conditions.names.is_some_and(|group| has_foreign_glob(set.names_of(group))) {
            return Some("has a name glob with characters outside ASCII");
        }
        let expression = conditions.expression.is_some();
        expression.then_some("matches by an expression, which may fail; nodegate then passes over the entry, the API server over the whole validation")
    })
}

/// Whether a requester is one of the subjects.
fn is_subject(subjects: &Subjects) -> Condition {
    let user = "request.userInfo.username";
    let accounts: Vec<String> =
        subjects.service_accounts.written().map(|account| format!("system:serviceaccount:{account}")).collect();
    let groups = match is_one_of("g", subjects.groups.written()) {
        Condition::When(text) => Condition::When(format!("request.userInfo.?groups.orValue([]).exists(g, {text})")),
        Condition::Always => Condition::When("(request.userInfo.?groups.orValue([]).size() > 0)".to_owned()),
        Condition::Never => Condition::Never,
    };
    let users = is_one_of(user, subjects.users.written());
    Condition::any([users, groups, is_one_of(user, accounts.iter().map(String::as_str))])
}

/// One group of places of one field.
struct Judged<'j, 'a> {
    selection: &'j Selection<'a>,
    options: &'j NativeOptions,
    field: Field,
    title: &'static str,
    groups: &'j [Group<'a>],
    at: usize,
}

impl Judged<'_, '_> {
    fn group(&self) -> &Group<'_> {
        &self.groups[self.at]
    }

    fn add(&self, variables: &mut Variables, validations: &mut Vec<Validation>) {
        let entries = &self.group().entries;
        let open = Condition::any(entries.iter().map(|entry| {
            Condition::all([self.applies(entry), Condition::any([is_subject(&entry.allow), is_subject(&entry.except)])])
        }));
        for (at, entry) in entries.iter().enumerate() {
            let stricter = entries.iter().enumerate().filter(|(other, rival)| {
                *other != at && (rival.mode > entry.mode || (rival.mode == entry.mode && *other > at))
            });
            let stricter = Condition::any(stricter.map(|(_, rival)| self.applies(rival)));
            let violates = Condition::all([self.is_here(), self.applies(entry), stricter.not(), open.clone().not()]);
            if violates == Condition::Never {
                continue;
            }
            let name = format!("reserved{}_{}_{at}", self.title, self.at);
            variables.add(&name, format!("variables.governed{}.filter(k, {})", self.title, violates.text()));
            validations.extend(self.validations(entry, &name));
        }
    }

    /// Whether this group decides on the key in `k`.
    fn is_here(&self) -> Condition {
        Condition::any(self.group().places.iter().map(|(order, place)| {
            let others = self.groups.iter().enumerate().filter(|(other, _)| *other != self.at);
            let before = others.flat_map(|(_, other)| {
                let applies = Condition::any(other.entries.iter().map(|entry| self.applies(entry)));
                other
                    .precedes(*order, *place)
                    .map(move |specific| Condition::all([self.is_in(specific), applies.clone()]))
                    .collect::<Vec<_>>()
            });
            Condition::all([self.is_in(*place), Condition::any(before).not()])
        }))
    }

    /// Whether the key in `k` (of a taint `key:Effect`) is in a place.
    fn is_in(&self, place: Place<'_>) -> Condition {
        let text = match place {
            Place::Key(key) if self.field == Field::Taint => format!("k.startsWith({})", quote(&format!("{key}:"))),
            Place::Key(key) => format!("(k == {})", quote(key)),
            Place::Namespace(prefix) => format!("k.startsWith({})", quote(&format!("{prefix}/"))),
            Place::Subdomains(suffix) => format!("k.contains({})", quote(&format!("{suffix}/"))),
        };
        Condition::When(text)
    }

    /// Whether an entry is about this node and this change.
    fn applies(&self, entry: &Reserved) -> Condition {
        let (now, before) = (now(self.field), format!("variables.old{}", self.title));
        let all = BTreeSet::from([ChangeOperation::Add, ChangeOperation::Change, ChangeOperation::Remove]);
        let operation = match &entry.operations {
            None => Condition::Always,
            Some(operations) if *operations == all => Condition::Always,
            Some(operations) => Condition::any(operations.iter().map(|operation| {
                Condition::When(match operation {
                    ChangeOperation::Add => format!("!(k in {before})"),
                    ChangeOperation::Change => format!("(k in {now} && k in {before})"),
                    ChangeOperation::Remove => format!("!(k in {now})"),
                })
            })),
        };
        Condition::all([operation, entry_matcher(self.selection, &entry.matcher)])
    }

    fn validations(&self, entry: &Reserved, name: &str) -> Vec<Validation> {
        let variable = format!("variables.{name}");
        let open = &self.options.break_glass_groups;
        let by_flag = (!open.is_empty()).then(|| {
            let groups = list(open.iter().map(String::as_str));
            Condition::When(format!("request.userInfo.?groups.orValue([]).exists(g, g in {groups})"))
        });
        let glass = &self.selection.set().governance().document(entry.document).break_glass;
        let glass = Condition::any(by_flag.into_iter().chain([is_subject(glass)]));
        let none = Condition::When(format!("({variable}.size() == 0)"));
        let told = told(self.field, self.title, &variable);
        let reason = self.reason(entry);
        let made = |mode: EntryMode, passes: Condition, prefix: &str| Validation {
            mode,
            expression: passes.text(),
            message: format!(
                "{} + {told} + \" by \\\"\" + request.userInfo.username + {}",
                quote(prefix),
                quote(&format!("\"{reason}"))
            ),
            fallback: format!("{prefix}this {} may not be changed{reason}", self.field),
        };
        if entry.mode != EntryMode::Enforce || glass == Condition::Never {
            return vec![made(entry.mode, none, "nodegate: ")];
        }
        vec![
            made(EntryMode::Enforce, Condition::any([none.clone(), glass.clone()]), "nodegate: "),
            made(EntryMode::Warn, Condition::any([none, glass.not()]), "nodegate: break glass: "),
        ]
    }

    /// Who may, and how to override.
    fn reason(&self, entry: &Reserved) -> String {
        let writers: Vec<String> = self.group().entries.iter().flat_map(|entry| entry.allow.describe()).collect();
        let writers = if writers.is_empty() { "nobody".to_owned() } else { writers.join("; ") };
        let document = self.selection.set().governance().document(entry.document);
        let mut glass: Vec<&str> = document.break_glass.groups.written().collect();
        glass.extend(self.options.break_glass_groups.iter().map(String::as_str));
        let way = if glass.is_empty() {
            "to override, name a break-glass group in the policy".to_owned()
        } else {
            format!("to override, act as a member of break-glass group {}", glass.join(" or "))
        };
        format!(": reserved by policy {}, rule {}; writers: {writers}; {way}", entry.id.policy, entry.id.rule)
    }
}
