//! Compiles documents to a [`PolicySet`], or reports all errors in them at once.
//!
//! Files, objects, flat label files and presets are all compiled here, by the same rules.

mod answers;
mod conditions;
mod gates;
mod governance;
mod inventory;
mod migrations;
mod order;
mod pools;
pub(crate) mod review;
mod rules;
mod sections;
mod texts;
pub(crate) mod trust;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::api::document::{Origin, PolicyDocument, PolicyError, THE_FIRST};
use crate::api::names::{check_length, cut_name};
use crate::api::policy::NodePolicySpec;
use crate::api::presets;
use crate::api::problem::{ERRORS_MAX, Problem};
use crate::api::schema::nearest;
use crate::api::source::{FieldPath, Related};
use crate::keys::compile_budget::{CompileBudget, EXPRESSIONS_MAX};
use crate::keys::pattern::{KeySet, TextSet};
use crate::set::index::{NameIndexBuilder, RuleFinder};
use crate::set::rule::Rule;
use crate::set::{PolicySet, SetParts};

/// Adds an error, unless there are very many.
pub(super) fn add(errors: &mut Vec<PolicyError>, error: PolicyError) {
    if errors.len() < ERRORS_MAX {
        errors.push(error);
    }
}

/// The errors of one document.
pub(super) struct Faults<'d> {
    document: &'d PolicyDocument,
    errors: &'d mut Vec<PolicyError>,
    /// What the whole set may take.
    pub(super) budget: &'d CompileBudget,
}

impl Faults<'_> {
    fn push(&mut self, error: PolicyError) {
        add(self.errors, error);
    }

    /// Adds an error at the value of `path`, unless it may only follow from an invalid field there.
    pub(super) fn at(&mut self, path: &FieldPath, problem: impl Into<Problem>) {
        if !self.document.is_invalid_within(path) {
            self.push(self.document.fault(path, problem));
        }
    }

    /// Adds an error if a list of alternatives is empty. `so`: what follows from that.
    pub(super) fn refuse_empty(&mut self, list: &[String], path: &FieldPath, so: &str) {
        if list.is_empty() {
            let problem = Problem::new(format!("the list is empty, so {so}"), "add an entry or remove the field");
            self.at(path, problem);
        }
    }

    /// Compiles a list of texts, exact or globs. `so`: what follows if it is empty.
    pub(super) fn texts(&mut self, list: &[String], path: &FieldPath, so: &str) -> TextSet {
        self.refuse_empty(list, path, so);
        let budget = self.budget;
        TextSet::compile(list.iter().map(String::as_str), budget, |index, message| self.at(&path.index(index), message))
    }

    /// Adds an error about something that `first` already has.
    pub(super) fn again(&mut self, path: &FieldPath, first: &FieldPath, problem: Problem) {
        self.push(self.document.fault_again(path, first, problem));
    }

    /// Checks the name of an item of the list `all`: not empty, not too long, and given once. `what`: what is named; `seen`: the names of
    /// earlier items; `so`: what to write for an empty one.
    pub(super) fn item_name<'n>(
        &mut self,
        (what, so): (&str, &'static str),
        name: &'n str,
        (all, index): (&FieldPath, usize),
        seen: &mut HashMap<&'n str, usize>,
    ) {
        let path = all.index(index).key("name");
        let first = seen.get(name).copied();
        if name.is_empty() {
            self.at(&path, Problem::new("the name is empty", so));
        } else if let Some(first) = first {
            let problem = format!("another {what} of this policy is named {:?}", cut_name(name));
            let first = all.index(first).key("name");
            self.again(&path, &first, Problem::new(problem, format!("give each {what} a unique name")));
        } else {
            seen.insert(name, index);
        }
        self.check(&path, check_length(name));
    }

    /// Adds an error at the name of the field `path`.
    pub(super) fn at_key(&mut self, path: &FieldPath, problem: impl Into<Problem>) {
        self.push(self.document.fault_at_key(path, problem));
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
        self.push(error);
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
        let mut pools = pools::PoolParts::default();
        let mut gates = Vec::new();
        let budget = CompileBudget::default();
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
                pools: _,
                gates: _,
                topologies: _,
            } = &*document.spec;
            let mut faults = Faults { document, errors: &mut errors, budget: &budget };
            rules::compile(index, &mut names, &mut drafts, &mut faults);
            let protect = sections::protect(&mut faults);
            protected.extend(&protect);
            migrations::compile(index, &mut drafts, &mut faults);
            governance.add(protect, &mut names, &mut faults);
            pools::compile(&mut names, &mut pools, &mut faults);
            gates::compile(&mut names, &mut gates, &mut faults);
        }
        let governance = governance.build(&documents, &mut errors);
        if budget.expressions() > EXPRESSIONS_MAX {
            let what = format!(
                "the policies contain {} expressions in total, but the limit is {EXPRESSIONS_MAX}, because each may be evaluated on every write",
                budget.expressions()
            );
            errors.push(of_all(Problem::new(what, "use fewer expressions")));
        }
        if budget.is_exceeded() || budget.expressions() > EXPRESSIONS_MAX {
            // What was not compiled would only cause further errors.
            if errors.is_empty() {
                let what = "the globs, regular expressions and expressions of all policies are too large in total";
                errors.push(of_all(Problem::new(what, "use fewer or simpler ones")));
            }
            PolicyError::sort(&mut errors);
            return Err(errors);
        }
        migrations::check(&documents, &drafts, &gates, &mut errors);
        migrations::persist_both(&mut drafts);
        check_guarded(&protected, &drafts, &mut errors);
        let inventories = drafts.iter().filter_map(|draft| draft.rule.assigns.inventory.as_ref());
        let pools = pools.build(inventories.into_iter().any(|inventory| inventory.is_by_machine()));
        pools::check(&pools, &mut errors);
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
            pools,
            gates,
        }))
    }
}

fn too_large(error: &globset::Error) -> PolicyError {
    of_all(Problem::new(
        format!("the node name globs of all policies are too large in total ({error})"),
        "use fewer or shorter ones",
    ))
}

/// Maximum size of all protected and persisted keys, in bytes. The guard's parameters are annotations of one object, of which the
/// API server stores 256 KiB (`k8s.io/apimachinery/pkg/api/validation`, `TotalAnnotationSizeLimitB`).
const GUARDED_BYTES_MAX: usize = 192 * 1024;
/// Maximum number of these keys. The guard compares each with each label of a joining node, and a node with more labels than its
/// budget allows loses all those that a kubelet may choose: with so many keys, these are more than a hundred labels.
const GUARDED_KEYS_MAX: usize = 2_900;

/// Refuses more keys than the guard can be told. It would keep the keys of an earlier set, and never learn of later ones.
fn check_guarded(protected: &KeySet, drafts: &[Draft], errors: &mut Vec<PolicyError>) {
    let saved = drafts.iter().filter_map(|draft| draft.rule.assigns.saved.as_ref());
    let keys: BTreeSet<&str> = protected.written().chain(saved.flat_map(|saved| saved.labels.written())).collect();
    let (count, size) = (keys.len(), keys.iter().map(|key| key.len() + 1).sum::<usize>());
    let what = if count > GUARDED_KEYS_MAX {
        format!(
            "protect and persist name {count} keys in total, but the limit is {GUARDED_KEYS_MAX}, because the guard compares each of them with each label of a joining node"
        )
    } else if size > GUARDED_BYTES_MAX {
        format!(
            "the keys in protect and persist have {size} bytes in total, but the limit is {GUARDED_BYTES_MAX}, because the guard's parameters have to fit into annotations"
        )
    } else {
        return;
    };
    errors.push(of_all(Problem::new(what, "protect whole prefixes, such as example.com/*")));
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
                    let remedy = match nearest(name, &presets::names()) {
                        Some(near) => format!("did you mean {near:?}?"),
                        None => format!("the presets are {}", presets::names().join(", ")),
                    };
                    let problem = Problem::new(format!("there is no preset {name:?}"), remedy);
                    add(errors, document.fault(&path.index(index), problem));
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
            add(errors, PolicyError { related, ..document.fault(&path, problem) });
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
