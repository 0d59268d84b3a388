//! `governance` and `protect` become [`Governance`]; entries acted on by a later part are checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Faults;
use super::rules::matcher;
use crate::api::names::{check_label_key, check_label_value, is_dns_subdomain};
use crate::api::policy::{
    AllowedSpec, DependencySpec, EntrySpec, GovernanceSpec, GovernedField, NamingSpec, ReservedSpec, SubjectsSpec,
};
use crate::api::source::FieldPath;
use crate::policy::cel::{Expression, Scope, Yields};
use crate::policy::decision::{Field, RuleId};
use crate::policy::governance::{Governance, GovernedDocument, Reserved, Subjects};
use crate::policy::index::NameIndexBuilder;
use crate::policy::matcher::TaintPattern;
use crate::policy::pattern::{KeySet, TextSet};

/// Patterns of `governance.naming` that have a name.
const NAMED_PATTERNS: [&str; 3] = ["kebab-case", "lower-case", "namespaced"];

/// Governance under construction.
#[derive(Default)]
pub(super) struct Builder {
    governance: Governance,
}

impl Builder {
    /// Adds what one document says.
    pub(super) fn add(&mut self, names: &mut NameIndexBuilder, faults: &mut Faults<'_>) {
        let document = faults.document;
        let path = FieldPath::root().key("spec").key("governance");
        let empty = GovernanceSpec::default();
        let spec = document.spec.governance.as_ref().unwrap_or(&empty);
        let policy: Arc<str> = document.name.as_str().into();
        let index = self.governance.add_document(GovernedDocument {
            break_glass: subjects(spec.break_glass.as_ref(), &path.key("breakGlass"), faults),
            protect_id: RuleId { policy: policy.clone(), rule: "protect".into() },
            // Faults in protect are reported where it is compiled for deciding.
            protect: document
                .spec
                .protect
                .as_ref()
                .map(|protect| KeySet::compile(protect.keys.iter().map(String::as_str), |_, _| {}))
                .unwrap_or_default(),
        });
        for (at, entry) in spec.reserved.iter().enumerate() {
            let path = path.key("reserved").index(at);
            let id = RuleId { policy: policy.clone(), rule: entry_name(&entry.entry, "reserved", at).into() };
            self.reserved(entry, id, index, names, &path, faults);
        }
        check_others(spec, names, &path, faults);
    }

    /// The finished governance.
    pub(super) fn build(self) -> Governance {
        self.governance
    }

    fn reserved(
        &mut self,
        spec: &ReservedSpec,
        id: RuleId,
        document: usize,
        names: &mut NameIndexBuilder,
        path: &FieldPath,
        faults: &mut Faults<'_>,
    ) {
        if spec.namespaces.is_empty() && spec.keys.is_empty() {
            faults.at(path, "nothing is reserved; add namespaces or keys");
        }
        for (index, namespace) in spec.namespaces.iter().enumerate() {
            let prefix = namespace.strip_prefix("*.").unwrap_or(namespace);
            if !is_dns_subdomain(prefix) {
                let message = format!(
                    "{namespace:?} is not a namespace; write a prefix such as example.com, or *.example.com for its subdomains"
                );
                faults.at(&path.key("namespaces").index(index), message);
            }
        }
        for (index, key) in spec.keys.iter().enumerate() {
            faults.check(&path.key("keys").index(index), check_label_key(key));
        }
        let fields: Vec<Field> = match &spec.of {
            None => vec![Field::Label, Field::Taint],
            Some(of) => of
                .iter()
                .map(|field| match field {
                    GovernedField::Labels => Field::Label,
                    GovernedField::Taints => Field::Taint,
                    GovernedField::Annotations => Field::Annotation,
                })
                .collect(),
        };
        if fields.is_empty() {
            faults
                .at(&path.key("of"), "the list is empty, so nothing is reserved; write labels, taints or annotations");
        }
        let entry = Reserved {
            id,
            mode: spec.entry.mode.unwrap_or_default(),
            matcher: matcher(spec.entry.match_.as_ref(), names, &path.key("match"), faults),
            operations: spec.entry.operations.as_ref().map(|operations| operations.iter().copied().collect()),
            except: subjects(spec.entry.except.as_ref(), &path.key("except"), faults),
            allow: subjects(spec.allow.as_ref(), &path.key("allow"), faults),
            document,
        };
        self.governance.add_reserved(entry, &fields, &spec.namespaces, &spec.keys);
    }
}

fn entry_name(entry: &EntrySpec, section: &str, index: usize) -> String {
    entry.name.clone().unwrap_or_else(|| format!("{section}[{index}]"))
}

fn subjects(spec: Option<&SubjectsSpec>, path: &FieldPath, faults: &mut Faults<'_>) -> Subjects {
    let Some(spec) = spec else { return Subjects::default() };
    for (index, account) in spec.service_accounts.iter().enumerate() {
        if !account.contains(':') {
            faults.at(
                &path.key("serviceAccounts").index(index),
                format!("{account:?} is not a service account; write namespace:name"),
            );
        }
    }
    let mut set = |field: &str, texts: &[String]| {
        TextSet::compile(texts.iter().map(String::as_str), |index, message| {
            faults.at(&path.key(field).index(index), message);
        })
    };
    Subjects {
        users: set("users", &spec.users),
        groups: set("groups", &spec.groups),
        service_accounts: set("serviceAccounts", &spec.service_accounts),
    }
}

/// Checks the entries that are not judged yet, so that a policy that loads today loads tomorrow.
fn check_others(spec: &GovernanceSpec, names: &mut NameIndexBuilder, path: &FieldPath, faults: &mut Faults<'_>) {
    let mut entry = |entry: &EntrySpec, path: &FieldPath, faults: &mut Faults<'_>| {
        matcher(entry.match_.as_ref(), names, &path.key("match"), faults);
        subjects(entry.except.as_ref(), &path.key("except"), faults);
    };
    for (at, required) in spec.required.iter().enumerate() {
        let path = path.key("required").index(at);
        entry(&required.entry, &path, faults);
        for (index, key) in required.keys.iter().enumerate() {
            faults.check(&path.key("keys").index(index), check_label_key(key));
        }
    }
    for (at, allowed) in spec.allowed.iter().enumerate() {
        let path = path.key("allowed").index(at);
        entry(&allowed.entry, &path, faults);
        check_allowed(allowed, &path, faults);
    }
    for (at, immutable) in spec.immutable.iter().enumerate() {
        let path = path.key("immutable").index(at);
        entry(&immutable.entry, &path, faults);
        KeySet::compile(immutable.keys.iter().map(String::as_str), |index, message| {
            faults.at(&path.key("keys").index(index), message);
        });
    }
    for (at, dependency) in spec.dependencies.iter().enumerate() {
        let path = path.key("dependencies").index(at);
        entry(&dependency.entry, &path, faults);
        check_dependency(dependency, &path, faults);
    }
    for (at, naming) in spec.naming.iter().enumerate() {
        let path = path.key("naming").index(at);
        entry(&naming.entry, &path, faults);
        check_naming(naming, &path, faults);
    }
    for (at, expression) in spec.expressions.iter().enumerate() {
        let path = path.key("expressions").index(at);
        entry(&expression.entry, &path, faults);
        faults.check(&path.key("expression"), Expression::compile(&expression.expression, Scope::Write, Yields::Bool));
        if let Some(message) = &expression.message_expression {
            faults.check(&path.key("messageExpression"), Expression::compile(message, Scope::Write, Yields::Text));
        }
    }
}

fn check_regex(text: &str, path: &FieldPath, faults: &mut Faults<'_>) {
    faults.check(
        path,
        regex::RegexBuilder::new(text)
            .size_limit(1 << 20)
            .build()
            .map_err(|error| format!("{text:?} is not a regular expression: {error}")),
    );
}

fn check_allowed(spec: &AllowedSpec, path: &FieldPath, faults: &mut Faults<'_>) {
    faults.check(&path.key("key"), check_label_key(&spec.key));
    let given = [spec.values.is_some(), spec.pattern.is_some(), spec.range.is_some()];
    if given.into_iter().filter(|there| *there).count() != 1 {
        faults.at(path, "write exactly one of values, pattern and range");
    }
    for (index, value) in spec.values.iter().flatten().enumerate() {
        faults.check(&path.key("values").index(index), check_label_value(value));
    }
    if let Some(pattern) = &spec.pattern {
        check_regex(pattern, &path.key("pattern"), faults);
    }
    if spec.range.is_some_and(|range| matches!((range.min, range.max), (Some(min), Some(max)) if min > max)) {
        faults.at(&path.key("range"), "min is larger than max");
    }
}

fn check_dependency(spec: &DependencySpec, path: &FieldPath, faults: &mut Faults<'_>) {
    let mut labels = |field: &str, labels: &BTreeMap<String, String>| {
        for (key, value) in labels {
            let path = path.key(field).key(key);
            faults.check(&path, check_label_key(key));
            if value != "*" {
                faults.check(&path, check_label_value(value));
            }
        }
    };
    labels("when", &spec.when);
    labels("require", &spec.require);
    for (index, taint) in spec.require_taints.iter().enumerate() {
        faults.check(&path.key("requireTaints").index(index), TaintPattern::parse(taint));
    }
    for (index, key) in spec.forbid.iter().enumerate() {
        faults.check(&path.key("forbid").index(index), check_label_key(key));
    }
    if spec.when.is_empty() || (spec.require.is_empty() && spec.require_taints.is_empty() && spec.forbid.is_empty()) {
        faults.at(path, "write when, and require, requireTaints or forbid");
    }
}

fn check_naming(spec: &NamingSpec, path: &FieldPath, faults: &mut Faults<'_>) {
    KeySet::compile(spec.keys.iter().map(String::as_str), |index, message| {
        faults.at(&path.key("keys").index(index), message);
    });
    if let Some(pattern) = spec.pattern.as_deref().filter(|pattern| !NAMED_PATTERNS.contains(pattern)) {
        faults.at(
            &path.key("pattern"),
            format!("there is no pattern {pattern:?}; write {} or use regex", NAMED_PATTERNS.join(", ")),
        );
    }
    if let Some(regex) = &spec.regex {
        check_regex(regex, &path.key("regex"), faults);
    }
    if spec.pattern.is_none() && spec.regex.is_none() && spec.max_length.is_none() {
        faults.at(path, "write pattern, regex or maxLength");
    }
}
