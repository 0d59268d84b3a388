//! Compiles documents to a [`PolicySet`], or reports all errors in them at once.
//!
//! Files, objects, flat label files and presets are all compiled here, by the same rules.

mod conditions;
mod conflicts;
mod governance;
mod order;
pub(crate) mod review;
mod rules;
mod sections;
mod trust;

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::api::document::{Origin, PolicyDocument, PolicyError};
use crate::api::presets;
use crate::api::source::FieldPath;
use crate::keys::pattern::KeySet;
use crate::set::index::{NameIndexBuilder, RuleFinder};
use crate::set::rule::Rule;
use crate::set::{PolicySet, SetParts};

/// The errors of one document.
pub(super) struct Faults<'d> {
    document: &'d PolicyDocument,
    errors: &'d mut Vec<PolicyError>,
}

impl Faults<'_> {
    /// Adds an error at `path`.
    pub(super) fn at(&mut self, path: &FieldPath, message: impl Into<String>) {
        self.errors.push(self.document.fault(path, message));
    }

    /// Returns the value, or adds an error at `path`.
    pub(super) fn check<T, E: ToString>(&mut self, path: &FieldPath, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|error| self.at(path, error.to_string())).ok()
    }
}

/// A rule under construction, with its position for errors that are found only when all rules are known.
pub(super) struct Draft {
    pub(super) rule: Rule,
    pub(super) document: usize,
    pub(super) path: FieldPath,
}

impl PolicySet {
    /// Compiles documents and the presets they name.
    ///
    /// # Errors
    /// Returns all errors in all documents: invalid keys, values, globs, quantities and expressions, duplicate
    /// names, cycles between rules, and keys that depend on a kubelet's claims without `trustKubelet: true`.
    pub fn compile(documents: &[PolicyDocument]) -> Result<Self, Vec<PolicyError>> {
        let mut errors = Vec::new();
        let written = documents;
        let documents = with_presets(written, &mut errors);
        duplicate_names(&documents, &mut errors);

        let mut names = NameIndexBuilder::default();
        let mut protected = KeySet::default();
        let mut drafts = Vec::new();
        let mut governance = governance::Builder::default();
        let mut not_acted_on = Vec::new();
        for (index, document) in documents.iter().enumerate() {
            let mut faults = Faults { document, errors: &mut errors };
            rules::compile(index, &mut names, &mut drafts, &mut faults);
            protected.extend(&sections::protect(&mut faults));
            sections::check_inventory(&mut faults);
            sections::check_migrations(&mut faults);
            governance.add(&mut names, &mut faults);
            sections::not_acted_on(document, &mut not_acted_on);
        }
        let governance = governance.build(&documents, &mut errors);
        let expressions = drafts.iter().map(|draft| draft.rule.expressions().count()).sum::<usize>();
        if expressions + governance.expression_count() > EXPRESSIONS_MAX {
            errors.push(of_all(format!(
                "the policies contain {} expressions in total, but the limit is {EXPRESSIONS_MAX}, because each may be evaluated on every write; use fewer expressions",
                expressions + governance.expression_count()
            )));
        }
        trust::check(&documents, &drafts, &protected, &mut errors);
        let drafts = order::order(&documents, drafts, &mut errors);
        if !errors.is_empty() {
            place_preset_faults(written, &mut errors);
            errors.sort_by(|a, b| (&a.file, a.place, &a.policy).cmp(&(&b.file, b.place, &b.policy)));
            return Err(errors);
        }
        let names = names.build().map_err(|error| vec![too_large(&error)])?;
        let rules = ranked(drafts.into_iter().map(|draft| draft.rule).collect());
        Ok(Self::from_parts(SetParts {
            finder: RuleFinder::build(&rules),
            documents,
            governance,
            rules,
            names,
            protected,
            not_acted_on,
        }))
    }
}

/// Maximum number of CEL expressions in all policies.
const EXPRESSIONS_MAX: usize = 2_000;

fn too_large(error: &globset::Error) -> PolicyError {
    of_all(format!("the node name globs of all policies are too large in total ({error}); use fewer or shorter ones"))
}

/// An error that concerns all documents.
fn of_all(message: String) -> PolicyError {
    PolicyError { file: None, place: None, policy: None, entry: None, path: FieldPath::root(), message }
}

/// The documents, sorted by name so that nothing depends on the order of files, and every preset they name once.
fn with_presets(documents: &[PolicyDocument], errors: &mut Vec<PolicyError>) -> Vec<PolicyDocument> {
    let mut all: Vec<PolicyDocument> = documents.to_vec();
    let mut wanted = Vec::new();
    for document in documents {
        let path = FieldPath::root().key("spec").key("presets");
        for (index, name) in document.spec.presets.iter().enumerate() {
            match presets::get(name) {
                Some(preset) if !wanted.contains(name) => {
                    wanted.push(name.clone());
                    all.push(preset);
                }
                Some(_) => {}
                None => {
                    let message = format!("there is no preset {name:?}; the presets are {}", presets::NAMES.join(", "));
                    errors.push(document.fault(&path.index(index), message));
                }
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Reports the errors of a preset where it is named: other policies cause them, and users cannot change the text of a
/// preset.
fn place_preset_faults(written: &[PolicyDocument], errors: &mut [PolicyError]) {
    for error in errors {
        let Some(preset) = error.policy.as_deref().and_then(|policy| policy.strip_prefix("preset:")) else { continue };
        let place_in = |document: &PolicyDocument| document.spec.presets.iter().position(|name| name == preset);
        if let Some((document, index)) = written.iter().find_map(|document| Some((document, place_in(document)?))) {
            let whereabouts = error.whereabouts().unwrap_or_default();
            let message = format!("preset {preset}, {whereabouts}: {}", error.message);
            *error = document.fault(&FieldPath::root().key("spec").key("presets").index(index), message);
        }
    }
}

fn duplicate_names(documents: &[PolicyDocument], errors: &mut Vec<PolicyError>) {
    let mut seen: HashMap<&str, &Origin> = HashMap::new();
    for document in documents.iter().filter(|document| !document.name.is_empty()) {
        if let Some(first) = seen.insert(&document.name, &document.origin) {
            let path = FieldPath::root().key("metadata").key("name");
            let other = match first {
                Origin::File(file) => format!("in {file}"),
                Origin::Preset => "as a preset".to_owned(),
                Origin::Object => "as an object in the cluster".to_owned(),
            };
            let message =
                format!("a policy named {:?} also exists {other}; give each policy a unique name", document.name);
            errors.push(document.fault(&path, message));
        }
    }
}

/// Ranks each rule by precedence: higher priority, then policy name, then rule name.
fn ranked(mut rules: Vec<Rule>) -> Vec<Rule> {
    let mut order: Vec<usize> = (0..rules.len()).collect();
    order.sort_by_key(|at| (Reverse(rules[*at].priority), rules[*at].id.clone()));
    for (rank, at) in (0..).zip(order) {
        rules[at].rank = rank;
    }
    rules
}
