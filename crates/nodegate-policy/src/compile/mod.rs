//! Compiles documents to a [`PolicySet`], or reports all errors in them at once.
//!
//! Files, objects, flat label files and presets are all compiled here, by the same rules.

mod conditions;
mod conflicts;
mod governance;
mod inventory;
mod migrations;
mod order;
mod resources;
pub(crate) mod review;
mod rules;
mod sections;
mod trust;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use crate::api::document::{Origin, PolicyDocument, PolicyError, THE_FIRST};
use crate::api::policy::NodePolicySpec;
use crate::api::presets;
use crate::api::problem::Problem;
use crate::api::schema::nearest;
use crate::api::source::{FieldPath, Related};
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
    /// Adds an error at the value of `path`, unless it may only follow from an invalid field there.
    pub(super) fn at(&mut self, path: &FieldPath, problem: impl Into<Problem>) {
        if !self.document.is_invalid_within(path) {
            self.errors.push(self.document.fault(path, problem));
        }
    }

    /// Adds an error about something that `first` already has.
    pub(super) fn again(&mut self, path: &FieldPath, first: &FieldPath, problem: Problem) {
        self.errors.push(self.document.fault_again(path, first, problem));
    }

    /// Adds an error at the name of the field `path`.
    pub(super) fn at_key(&mut self, path: &FieldPath, problem: impl Into<Problem>) {
        self.errors.push(self.document.fault_at_key(path, problem));
    }

    /// Returns the value, or adds an error at the value of `path`.
    pub(super) fn check<T>(&mut self, path: &FieldPath, outcome: Result<T, impl Into<Problem>>) -> Option<T> {
        outcome.map_err(|error| self.at(path, error)).ok()
    }

    /// Returns the value, or adds an error at the name of the field `path`.
    pub(super) fn check_key<T>(&mut self, path: &FieldPath, outcome: Result<T, impl Into<Problem>>) -> Option<T> {
        outcome.map_err(|error| self.at_key(path, error)).ok()
    }

    /// Adds an error in a part of `value`, the string at `path`. Where the part has no place in a file, `described` says
    /// where it is in the string.
    pub(super) fn inside(
        &mut self,
        path: &FieldPath,
        value: &str,
        part: Range<usize>,
        problem: Problem,
        described: impl FnOnce(&str) -> String,
    ) {
        let error = match self.document.place_inside(path, value, part) {
            Some(place) => PolicyError { place: Some(place), ..self.document.fault(path, problem) },
            None => self.document.fault(path, problem.described(described)),
        };
        self.errors.push(error);
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
        for (index, document) in documents.iter().enumerate() {
            // A new section must be compiled here.
            let NodePolicySpec {
                presets: _,
                rules: _,
                derived: _,
                persist: _,
                inventory: _,
                protect: _,
                governance: _,
                migrations: _,
            } = &*document.spec;
            let mut faults = Faults { document, errors: &mut errors };
            rules::compile(index, &mut names, &mut drafts, &mut faults);
            protected.extend(&sections::protect(&mut faults));
            migrations::compile(index, &mut drafts, &mut faults);
            governance.add(&mut names, &mut faults);
        }
        let governance = governance.build(&documents, &mut errors);
        let expressions = drafts.iter().map(|draft| draft.rule.expressions().count()).sum::<usize>();
        if expressions + governance.expression_count() > EXPRESSIONS_MAX {
            let what = format!(
                "the policies contain {} expressions in total, but the limit is {EXPRESSIONS_MAX}, because each may be evaluated on every write",
                expressions + governance.expression_count()
            );
            errors.push(of_all(Problem::new(what, "use fewer expressions")));
        }
        migrations::check(&documents, &drafts, &mut errors);
        migrations::persist_both(&mut drafts);
        trust::check(&documents, &drafts, &protected, &mut errors);
        let drafts = order::order(&documents, drafts, &mut errors);
        if !errors.is_empty() {
            place_preset_faults(written, &mut errors);
            PolicyError::sort(&mut errors);
            return Err(errors);
        }
        let names = names.build().map_err(|error| vec![too_large(&error)])?;
        let rules = ranked(drafts.into_iter().map(|draft| draft.rule).collect());
        Ok(Self::from_parts(SetParts {
            finder: RuleFinder::build(&rules),
            documents: documents.into_iter().map(PolicyDocument::settled).collect(),
            governance,
            rules,
            names,
            protected,
        }))
    }
}

/// Maximum number of CEL expressions in all policies.
const EXPRESSIONS_MAX: usize = 2_000;

fn too_large(error: &globset::Error) -> PolicyError {
    of_all(Problem::new(
        format!("the node name globs of all policies are too large in total ({error})"),
        "use fewer or shorter ones",
    ))
}

/// An error that concerns all documents.
fn of_all(problem: Problem) -> PolicyError {
    let path = FieldPath::root();
    PolicyError { file: None, place: None, policy: None, entry: None, path, problem, related: None, text: None }
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
                    let remedy = match nearest(name, &presets::NAMES) {
                        Some(near) => format!("did you mean {near:?}?"),
                        None => format!("the presets are {}", presets::NAMES.join(", ")),
                    };
                    let problem = Problem::new(format!("there is no preset {name:?}"), remedy);
                    errors.push(document.fault(&path.index(index), problem));
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
            let problem = error.problem.clone().described(|what| format!("preset {preset}, {whereabouts}: {what}"));
            *error = document.fault(&FieldPath::root().key("spec").key("presets").index(index), problem);
        }
    }
}

fn duplicate_names(documents: &[PolicyDocument], errors: &mut Vec<PolicyError>) {
    let mut seen: HashMap<&str, &PolicyDocument> = HashMap::new();
    for document in documents.iter().filter(|document| !document.name.is_empty()) {
        if let Some(first) = seen.insert(&document.name, document) {
            let path = FieldPath::root().key("metadata").key("name");
            let other = match &first.origin {
                Origin::File(_) if first.origin == document.origin => "in this file".to_owned(),
                Origin::File(file) => format!("in {file}"),
                Origin::Preset => "as a preset".to_owned(),
                Origin::Object => "as an object in the cluster".to_owned(),
            };
            let what = format!("a policy named {:?} also exists {other}", document.name);
            let problem = Problem::new(what, "give each policy a unique name");
            let first = Some(first).filter(|first| first.origin == document.origin);
            let related = first
                .and_then(|first| Some(Related { place: first.fault(&path, "").place?, label: THE_FIRST.to_owned() }));
            errors.push(PolicyError { related, ..document.fault(&path, problem) });
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
