//! Compiled governance: who may write which keys, and the constraints on labels, taints and annotations.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

mod constraint;
mod convention;

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashMap;

pub(crate) use constraint::{
    Accepted, Constraint, ConstraintEntry, Dependency, ExpressionConstraint, JudgedBy, Naming, TextPattern,
};
pub(crate) use convention::NamingConvention;

use crate::api::names::prefix_of;
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::cel::Expression;
use crate::facts::requester::Requester;
use crate::keys::Field;
use crate::keys::pattern::{Identities, KeySet, TextSet};
use crate::set::matcher::Matcher;
use crate::set::rule::RuleId;

/// Users, groups and service accounts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subjects {
    pub(crate) users: Identities,
    pub(crate) groups: Identities,
    pub(crate) service_accounts: TextSet,
}

impl Subjects {
    /// Whether the requester is one of them.
    pub(crate) fn contain(&self, requester: &Requester<'_>) -> bool {
        self.users.contains(&requester.username)
            || requester.groups.iter().any(|group| self.groups.contains(group))
            || requester.service_account().is_some_and(|account| self.service_accounts.contains(account))
    }

    /// The subjects in words, such as `users a, b; groups c`.
    pub(crate) fn describe(&self) -> Vec<String> {
        let lists: [(&str, Vec<&str>); 3] = [
            ("users", self.users.written().collect()),
            ("groups", self.groups.written().collect()),
            ("service accounts", self.service_accounts.written().collect()),
        ];
        let told = lists.into_iter().filter(|(_, list)| !list.is_empty());
        told.map(|(kind, list)| format!("{kind} {}", list.join(", "))).collect()
    }
}

/// The common fields of entries.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: RuleId,
    pub(crate) mode: EntryMode,
    pub(crate) matcher: Matcher,
    /// The operations that it judges; `None` for all.
    pub(crate) operations: Option<BTreeSet<ChangeOperation>>,
    /// The subjects that are exempt.
    pub(crate) except: Subjects,
    /// Index of the document in [`Governance::documents`].
    pub(crate) document: usize,
}

impl Entry {
    /// Whether it judges this operation.
    pub(crate) fn is_about(&self, operation: ChangeOperation) -> bool {
        self.operations.as_ref().is_none_or(|operations| operations.contains(&operation))
    }
}

/// One entry of `governance.reserved`.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) entry: Entry,
    pub(crate) allow: Subjects,
}

/// The settings of a document besides its entries.
#[derive(Clone, Debug)]
pub(crate) struct GovernedDocument {
    /// The subjects that may override this document. For a preset, also those of the documents that name it.
    pub(crate) break_glass: Vec<Subjects>,
    /// The id under which its `protect` section is reported.
    pub(crate) protect_id: RuleId,
    /// Its protected keys.
    pub(crate) protect: KeySet,
}

/// The scope of a reserved entry. More specific scopes are ordered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyScope<'a> {
    /// One key.
    Key(&'a str),
    /// One prefix.
    Namespace(&'a str),
    /// A suffix of prefixes such as `.kubernetes.io`.
    Subdomains(&'a str),
}

/// Reserved entries by scope.
#[derive(Clone, Debug, Default)]
struct ScopeIndex {
    keys: HashMap<Box<str>, Vec<usize>>,
    namespaces: HashMap<Box<str>, Vec<usize>>,
    /// Suffixes such as `.kubernetes.io`, the longest first.
    subdomains: Vec<(Box<str>, Vec<usize>)>,
}

/// All compiled governance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Governance {
    reserved: Vec<Reserved>,
    places: HashMap<Field, ScopeIndex>,
    constraints: Vec<ConstraintEntry>,
    documents: Vec<GovernedDocument>,
}

/// Whether the text of an expression contains this key, and not only as a part of another one.
fn contains_key(text: &str, key: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    text.match_indices(key).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + key.len()..]);
        (before.ends_with("labels.") || !before.ends_with(is_part)) && !after.starts_with(is_part)
    })
}

impl Governance {
    /// The ids of all entries, and of all `protect` sections that name keys.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &RuleId> {
        let protecting = self.documents.iter().filter(|document| document.protect.written().next().is_some());
        self.entries().map(|entry| &entry.id).chain(protecting.map(|document| &document.protect_id))
    }

    /// The entries that name this label in their `match` or in their expressions.
    pub(crate) fn readers_of_label(&self, key: &str) -> impl Iterator<Item = &RuleId> {
        let in_match = move |entry: &&Entry| entry.matcher.conditions().any(|one| one.source().names_label(key));
        // What an expression over `object` reads is only known by its text.
        let demanded = self.constraints.iter().filter(move |one| {
            one.constraint.expression().is_some_and(|demanded| contains_key(demanded.expression.source(), key))
        });
        self.entries().filter(in_match).map(|entry| &entry.id).chain(demanded.map(|one| &one.entry.id))
    }

    /// The entries about this label, by its own name. Those that are violated on a node without it count always, others
    /// only if none of their kind is about the other key.
    pub(crate) fn about_label(&self, key: &str, other: Option<&str>) -> Vec<&RuleId> {
        let keys = self.places.get(&Field::Label).map(|places| &places.keys);
        let reserving = |key: &str| keys.and_then(|keys| keys.get(key)).into_iter().flatten();
        let is_alone = |is_about: &dyn Fn(&Constraint, &str) -> bool| {
            !other.is_some_and(|other| self.constraints.iter().any(|one| is_about(&one.constraint, other)))
        };
        let is_used = |constraint: &Constraint| match constraint {
            Constraint::Required { .. } | Constraint::Dependency(_) => constraint.is_about_label(key),
            Constraint::Allowed { .. } => {
                let is_about =
                    |one: &Constraint, key: &str| matches!(one, Constraint::Allowed { .. }) && one.is_about_label(key);
                constraint.is_about_label(key) && is_alone(&is_about)
            }
            Constraint::Immutable { .. } | Constraint::Naming(_) => {
                constraint.is_about_label(key) && !other.is_some_and(|other| constraint.is_about_label(other))
            }
            Constraint::Expression(_) => false,
        };
        let used = self.constraints.iter().filter(|one| is_used(&one.constraint)).map(|one| &one.entry.id);
        let is_reserved = other.is_some_and(|other| reserving(other).next().is_some());
        let reserved = reserving(key).filter(|_| !is_reserved).map(|at| &self.reserved[*at].entry.id);
        used.chain(reserved).collect()
    }

    /// Adds a document and returns its index.
    pub(crate) fn add_document(&mut self, document: GovernedDocument) -> usize {
        self.documents.push(document);
        self.documents.len() - 1
    }

    /// Adds an entry for namespaces (`a.io`, `*.a.io`) and keys of some fields.
    pub(crate) fn add_reserved(&mut self, entry: Reserved, fields: &[Field], namespaces: &[String], keys: &[String]) {
        let at = self.reserved.len();
        self.reserved.push(entry);
        for field in fields {
            let places = self.places.entry(*field).or_default();
            for key in keys {
                places.keys.entry(key.as_str().into()).or_default().push(at);
            }
            for namespace in namespaces {
                match namespace.strip_prefix('*') {
                    None => places.namespaces.entry(namespace.as_str().into()).or_default().push(at),
                    Some(suffix) => match places.subdomains.iter_mut().find(|(there, _)| **there == *suffix) {
                        Some((_, entries)) => entries.push(at),
                        None => places.subdomains.push((suffix.into(), vec![at])),
                    },
                }
            }
            places.subdomains.sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        }
    }

    /// Adds an entry of another section than `reserved`.
    pub(crate) fn add_constraint(&mut self, constraint_entry: ConstraintEntry) {
        self.constraints.push(constraint_entry);
    }

    /// The entry with this index, for changes.
    pub(crate) fn constraint_mut(&mut self, index: usize) -> &mut ConstraintEntry {
        &mut self.constraints[index]
    }

    /// All entries except `reserved`.
    pub(crate) fn constraints(&self) -> &[ConstraintEntry] {
        &self.constraints
    }

    /// The entries that decide on a key: those of the most specific scope with applicable entries.
    pub(crate) fn reserved(&self, field: Field, key: &str, applies: impl Fn(&Reserved) -> bool) -> Vec<&Reserved> {
        let Some(places) = self.places.get(&field) else { return Vec::new() };
        let prefix = prefix_of(key);
        let by_key = places.keys.get(key);
        let by_namespace = prefix.and_then(|prefix| places.namespaces.get(prefix));
        let by_subdomain =
            places.subdomains.iter().filter(|(suffix, _)| prefix.is_some_and(|prefix| prefix.ends_with(&**suffix)));
        by_key
            .into_iter()
            .chain(by_namespace)
            .chain(by_subdomain.map(|(_, entries)| entries))
            .map(|entries| {
                entries.iter().map(|at| &self.reserved[*at]).filter(|entry| applies(entry)).collect::<Vec<_>>()
            })
            .find(|entries| !entries.is_empty())
            .unwrap_or_default()
    }

    /// The entries of one field by scope, the most specific scope first.
    pub(crate) fn places(&self, field: Field) -> Vec<(KeyScope<'_>, Vec<&Reserved>)> {
        let Some(places) = self.places.get(&field) else { return Vec::new() };
        let entries = |at: &Vec<usize>| at.iter().map(|at| &self.reserved[*at]).collect();
        let mut keys: Vec<_> = places.keys.iter().map(|(key, at)| (KeyScope::Key(key), entries(at))).collect();
        let mut namespaces: Vec<_> =
            places.namespaces.iter().map(|(prefix, at)| (KeyScope::Namespace(prefix), entries(at))).collect();
        keys.sort_by_key(|(place, _)| *place);
        namespaces.sort_by_key(|(place, _)| *place);
        let subdomains = places.subdomains.iter().map(|(suffix, at)| (KeyScope::Subdomains(suffix), entries(at)));
        keys.into_iter().chain(namespaces).chain(subdomains).collect()
    }

    /// All documents.
    pub(crate) fn documents(&self) -> &[GovernedDocument] {
        &self.documents
    }

    /// Allows the subjects that may override one document to override another.
    pub(crate) fn open_also(&mut self, index: usize, other: usize) {
        let opened_by = self.documents[index].break_glass.clone();
        self.documents[other].break_glass.extend(opened_by);
    }

    /// The document with this index.
    pub(crate) fn document(&self, index: usize) -> &GovernedDocument {
        &self.documents[index]
    }

    /// The document whose `protect` names a label.
    pub(crate) fn protecting(&self, key: &str) -> Option<&GovernedDocument> {
        self.documents.iter().find(|document| document.protect.contains(key))
    }

    /// The number of expressions, in matches and in `expressions`.
    pub(crate) fn expression_count(&self) -> usize {
        let of_demands =
            self.constraints.iter().filter(|constraint_entry| constraint_entry.constraint.expression().is_some());
        self.entries().flat_map(|entry| entry.matcher.expressions()).count() + of_demands.count()
    }

    /// All expressions: in matches, in `expressions` and for messages.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        let demanded = self.constraints.iter().filter_map(|constraint_entry| constraint_entry.constraint.expression());
        self.entries().flat_map(|entry| entry.matcher.expressions()).chain(
            demanded.flat_map(|demanded| std::iter::once(&demanded.expression).chain(&demanded.message_expression)),
        )
    }

    /// All entries.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.reserved.iter().map(|reserved| &reserved.entry);
        entries.chain(self.constraints.iter().map(|constraint_entry| &constraint_entry.entry))
    }

    /// Whether judging may evaluate CEL.
    pub(crate) fn has_expressions(&self) -> bool {
        self.expression_count() > 0
    }

    /// The entries that a change of annotations alone can violate, sorted.
    pub(crate) fn entries_on_annotations(&self) -> BTreeSet<&RuleId> {
        let is_governed = |constraint_entry: &&ConstraintEntry| match &constraint_entry.constraint {
            Constraint::Required { of, .. } | Constraint::Allowed { of, .. } | Constraint::Immutable { of, .. } => {
                of.contains(&Field::Annotation)
            }
            Constraint::Naming(naming) => naming.of.contains(&Field::Annotation),
            Constraint::Expression(demanded) => demanded.expression.paths().read_annotations(),
            Constraint::Dependency(_) => false,
        };
        let reserved = self.places(Field::Annotation).into_iter().flat_map(|(_, entries)| entries);
        let reserved = reserved.map(|reserved| &reserved.entry);
        let governed = self.constraints.iter().filter(is_governed).map(|constraint_entry| &constraint_entry.entry);
        let asked = self
            .entries()
            .filter(|entry| entry.matcher.expressions().any(|expression| expression.paths().read_annotations()));
        reserved.chain(governed).chain(asked).map(|entry| &entry.id).collect()
    }

    /// All users and service accounts that may override a document, sorted.
    pub(crate) fn break_glass_people(&self) -> Vec<String> {
        let subjects = self.documents.iter().flat_map(|document| &document.break_glass);
        let people = subjects.flat_map(|subjects| subjects.users.written().chain(subjects.service_accounts.written()));
        people.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// All groups that may override a document, sorted.
    pub(crate) fn break_glass_groups(&self) -> Vec<String> {
        let subjects = self.documents.iter().flat_map(|document| &document.break_glass);
        let groups = subjects.flat_map(|subjects| subjects.groups.written());
        groups.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
    }
}
