//! Compiles `governance` and `protect` to [`Governance`].

mod constraints;
mod cycles;

use std::sync::Arc;

use super::Faults;
use super::conditions::matcher;
use crate::api::document::{PolicyDocument, PolicyError};
use crate::api::names::{check_label_key, check_length, cut_name, is_dns_subdomain};
use crate::api::policy::{EntrySpec, GovernanceSpec, GovernedField, ReservedSpec, SubjectsSpec};
use crate::api::presets;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::Field;
use crate::keys::pattern::{Identities, KeySet, TextSet};
use crate::set::governance::{Constraint, Entry, Governance, GovernedDocument, Reserved, Subjects};
use crate::set::index::NameIndexBuilder;
use crate::set::rule::RuleId;

/// Governance under construction.
#[derive(Default)]
pub(super) struct Builder {
    governance: Governance,
    /// The position of each dependency: index of the document, path, index of the constraint.
    dependencies: Vec<(usize, FieldPath, usize)>,
}

impl Builder {
    /// Adds one document. `protect`: the keys that its kubelets may not set.
    pub(super) fn add(&mut self, protect: KeySet, names: &mut NameIndexBuilder, faults: &mut Faults<'_>) {
        let document = faults.document;
        let path = FieldPath::root().key("spec").key("governance");
        let empty = GovernanceSpec::default();
        let spec = document.spec.governance.as_ref().unwrap_or(&empty);
        let policy: Arc<str> = document.name.as_str().into();
        let index = self.governance.add_document(GovernedDocument {
            break_glass: spec
                .break_glass
                .iter()
                .map(|spec| subjects(Some(spec), &path.key("breakGlass"), faults))
                .collect(),
            protect_id: RuleId { policy: policy.clone(), rule: "protect".into() },
            protect,
        });
        let mut entries = Entries { policy, document: index, path, names, faults };
        for (at, spec) in spec.reserved.iter().enumerate() {
            let (entry, path) = entries.entry("reserved", at, &spec.entry);
            self.reserved(spec, entry, &path, entries.faults);
        }
        for (path, constraint) in constraints::compile(spec, &mut entries) {
            if matches!(constraint.constraint, Constraint::Dependency(_)) {
                self.dependencies.push((index, path, self.governance.constraints().len()));
            }
            self.governance.add_constraint(constraint);
        }
    }

    /// The finished governance.
    pub(super) fn build(mut self, documents: &[PolicyDocument], errors: &mut Vec<PolicyError>) -> Governance {
        // Subjects that may override a document may also override the presets that it names.
        for (at, document) in documents.iter().enumerate() {
            for name in document.spec.presets.iter().map(|name| presets::document_name(name)) {
                if let Some(preset) = documents.iter().position(|document| document.name == name) {
                    self.governance.open_also(at, preset);
                }
            }
        }
        cycles::refuse(&self.governance, &self.dependencies, documents, errors);
        cycles::note_further(&mut self.governance);
        self.governance
    }

    fn reserved(&mut self, spec: &ReservedSpec, entry: Entry, path: &FieldPath, faults: &mut Faults<'_>) {
        let ReservedSpec { entry: _, namespaces, keys, of, allow } = spec;
        if namespaces.is_empty() && keys.is_empty() {
            faults.at(path, Problem::new("nothing is reserved", "add namespaces or keys"));
        }
        for (index, namespace) in namespaces.iter().enumerate() {
            let prefix = namespace.strip_prefix("*.").unwrap_or(namespace);
            if !is_dns_subdomain(prefix) {
                let message = Problem::new(
                    format!("{namespace:?} is not a namespace"),
                    "write a prefix such as example.com, or *.example.com for its subdomains",
                );
                faults.at(&path.key("namespaces").index(index), message);
            }
        }
        for (index, key) in keys.iter().enumerate() {
            let path = path.key("keys").index(index);
            match key.strip_suffix('*') {
                Some(pattern) => faults.at(&path, not_a_reserved_key(pattern)),
                None => {
                    faults.check(&path, check_label_key(key));
                }
            }
        }
        let fields = fields(of.as_deref(), &[Field::Label, Field::Taint], &path.key("of"), faults);
        let entry = Reserved { entry, allow: subjects(allow.as_ref(), &path.key("allow"), faults) };
        self.governance.add_reserved(entry, &fields, namespaces, keys);
    }
}

/// What is wrong with a pattern among the keys of a `reserved` entry, without its `*`.
fn not_a_reserved_key(pattern: &str) -> Problem {
    let remedy = match pattern.strip_suffix('/') {
        Some(namespace) => format!("write namespaces: [{namespace}]"),
        None if pattern.is_empty() => {
            "to say who may write any label at all, write an entry of expressions, such as `oldObject == null || \
            object.metadata.labels == oldObject.metadata.labels || \"platform\" in request.userInfo.groups`"
                .to_owned()
        }
        None => "write the keys one by one, or their namespace in namespaces".to_owned(),
    };
    Problem::new(format!("\"{pattern}*\" is a pattern, but keys are exact here"), remedy)
}

/// The entries of one document under construction.
struct Entries<'e, 'd> {
    policy: Arc<str>,
    document: usize,
    path: FieldPath,
    names: &'e mut NameIndexBuilder,
    faults: &'e mut Faults<'d>,
}

impl Entries<'_, '_> {
    /// The common fields of an entry, and its path.
    fn entry(&mut self, section: &str, at: usize, spec: &EntrySpec) -> (Entry, FieldPath) {
        let path = self.path.key(section).index(at);
        let EntrySpec { name, mode, match_, operations, except } = spec;
        let rule = match name {
            Some(name) => {
                self.faults.check(&path.key("name"), check_length(name));
                cut_name(name).to_owned()
            }
            None => format!("{section}[{at}]"),
        };
        if operations.as_ref().is_some_and(Vec::is_empty) {
            let message = Problem::new(
                "the list is empty, so nothing is judged",
                "add operations (add, change or remove), or remove the field",
            );
            self.faults.at(&path.key("operations"), message);
        }
        let entry = Entry {
            id: RuleId { policy: self.policy.clone(), rule: rule.into() },
            mode: mode.unwrap_or_default(),
            matcher: matcher(match_.as_ref(), self.names, &path.key("match"), self.faults),
            operations: operations.as_ref().map(|operations| operations.iter().copied().collect()),
            except: subjects(except.as_ref(), &path.key("except"), self.faults),
            document: self.document,
        };
        (entry, path)
    }
}

/// The parts of a node that an entry applies to.
fn fields(of: Option<&[GovernedField]>, default: &[Field], path: &FieldPath, faults: &mut Faults<'_>) -> Vec<Field> {
    let Some(of) = of else { return default.to_vec() };
    if of.is_empty() {
        faults.at(path, Problem::new("the list is empty, so nothing is governed", "add labels, taints or annotations"));
    }
    of.iter().map(Field::from).collect()
}

fn subjects(spec: Option<&SubjectsSpec>, path: &FieldPath, faults: &mut Faults<'_>) -> Subjects {
    let Some(SubjectsSpec { users, groups, service_accounts }) = spec else { return Subjects::default() };
    for (index, account) in service_accounts.iter().enumerate() {
        if !account.contains(':') {
            faults.at(
                &path.key("serviceAccounts").index(index),
                Problem::new(format!("{account:?} is not a service account"), "write namespace:name"),
            );
        }
    }
    let budget = faults.budget;
    let mut fault = |field: &str, index: usize, problem: Problem| faults.at(&path.key(field).index(index), problem);
    Subjects {
        users: Identities::compile(users.iter().map(String::as_str), budget, |at, message| fault("users", at, message)),
        groups: Identities::compile(groups.iter().map(String::as_str), budget, |at, message| {
            fault("groups", at, message);
        }),
        service_accounts: TextSet::compile(service_accounts.iter().map(String::as_str), budget, |at, message| {
            fault("serviceAccounts", at, message);
        }),
    }
}
