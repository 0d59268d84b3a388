//! `init --from-kyverno` and `--from-nfd`: the rules of other programs as a policy, and tests for it.
//!
//! # Guarantees
//! - A rule is translated only if it matches exactly the same nodes and sets the same values. Whatever is not known to have an
//!   exact form leaves the whole rule out, with the reason and the line.
//! - No key is set by two rules of the files, unless no node has both or they set the same, and none that a translated rule reads
//!   or sets depends on a rule that is left out.
//! - The policy compiles, may be applied, and its tests pass. There is a test for a node that each rule matches, and for each
//!   condition one for a node that differs only in it, if one is found.
//!
//! # Caveats
//! - Only the files are known: what other rules and the configuration of the other program do is not.
//! - When a value comes and goes is not the same. nodegate removes what it has set after a rule no longer matches, adds taints where
//!   Kyverno replaces those of the node, adds NoExecute taints only to nodes that join, and sets what has Kyverno's anchor `+()`
//!   once.

mod cases;
mod kyverno;
mod nfd;
mod read;
mod rule;
mod trial;

use std::collections::BTreeSet;

use crate::api::case::{Case, PolicyTest};
use crate::api::document::PolicyError;
use crate::api::policy::{NodePolicy, NodePolicySpec, RuleSpec};
use crate::init::{comment, modeline, unique};
use crate::keys::Field;
pub use read::Reason;
use read::{Keys, Object, Reasons, objects};
use rule::Rule;

/// Maximum number of other rules that are named as reasons why a rule is left out.
const OTHERS_MAX: usize = 3;

/// Whose rules are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Kyverno: `ClusterPolicy`.
    Kyverno,
    /// Node Feature Discovery: `NodeFeatureRule`.
    Nfd,
}

/// Where a rule is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The number of the document in the file, from 1.
    pub document: usize,
    /// The kind and name of the object, such as `ClusterPolicy label-gpus`.
    pub object: String,
    /// The number of the rule in the object, from 1.
    pub number: usize,
    /// The name of the rule; may be empty.
    pub rule: String,
    /// The line.
    pub line: u32,
}

/// A rule that is translated.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    /// The original.
    pub place: Place,
    /// The rule of the policy.
    pub rule: RuleSpec,
}

/// A rule that is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The original.
    pub place: Place,
    /// The reasons, by line.
    pub reasons: Vec<Reason>,
}

/// What came of the rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    program: Program,
    /// The rules that are in the policy.
    pub translated: Vec<Translated>,
    /// The rules that stay where they are.
    pub left_out: Vec<LeftOut>,
    /// The tests.
    pub cases: Vec<Case>,
}

/// A rule about nodes, as far as it is understood.
struct Candidate {
    place: Place,
    reads: Keys,
    writes: Keys,
    reasons: Reasons,
    /// Exact if there are no reasons.
    rule: Rule,
}

/// Why nothing is translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// All that is wrong with the files: what is not YAML, and objects of other programs.
    #[error("the files are not those of the program")]
    Files(Vec<PolicyError>),
    /// The rules that have an exact translation, so many, cannot be one policy, or its tests fail.
    #[error("the {0} rules that have an exact translation cannot be one policy: {1}")]
    Together(usize, String),
}

/// Translates the rules in files, given by name and text.
///
/// # Errors
/// Returns an error if the files cannot be read, or if what would be written would be refused later, for example because there are
/// too many rules.
pub fn translate(program: Program, files: &[(String, String)]) -> Result<Translation, TranslateError> {
    let objects = match program {
        Program::Kyverno => objects(files, kyverno::is_wanted, kyverno::REMEDY),
        Program::Nfd => objects(files, nfd::is_wanted, nfd::REMEDY),
    };
    let objects = objects.map_err(TranslateError::Files)?;
    let mut candidates = match program {
        Program::Kyverno => kyverno::candidates(&objects),
        Program::Nfd => nfd::candidates(&objects),
    };
    let mut taken = BTreeSet::new();
    for Candidate { place, reasons, rule, .. } in candidates.iter_mut().filter(|one| one.reasons.is_empty()) {
        rule.name = unique(name(place), &mut taken);
        trial::alone(rule).unwrap_or_else(|text| reasons.add(place.line, text));
    }
    leave_what_depends(&mut candidates);
    let (mut translated, mut left_out, mut rules) = (Vec::new(), Vec::new(), Vec::new());
    for Candidate { place, mut reasons, rule, .. } in candidates {
        if reasons.is_empty() {
            translated.push(Translated { place, rule: rule.spec() });
            rules.push(rule);
            continue;
        }
        reasons.0.sort_unstable();
        reasons.0.dedup();
        left_out.push(LeftOut { place, reasons: reasons.0 });
    }
    let translation = Translation { program, translated, left_out, cases: cases::of(&rules) };
    trial::together(&translation).map_err(|problem| TranslateError::Together(rules.len(), problem))?;
    Ok(translation)
}

/// Leaves out each rule that depends on another one, until none does: a rule that is left out may depend on others in turn.
fn leave_what_depends(candidates: &mut [Candidate]) {
    loop {
        let others: Vec<Vec<String>> = (0..candidates.len()).map(|at| others(candidates, at)).collect();
        if others.iter().all(Vec::is_empty) {
            return;
        }
        for (candidate, others) in candidates.iter_mut().zip(others) {
            others.into_iter().for_each(|text| candidate.reasons.add(candidate.place.line, text));
        }
    }
}

/// Why a rule cannot leave because of others: they set the same key, or one of the two reads what the other sets.
fn others(candidates: &[Candidate], at: usize) -> Vec<String> {
    let this = &candidates[at];
    if !this.reasons.is_empty() {
        return Vec::new();
    }
    let reason = |other: &Candidate| {
        let place = &other.place;
        let whose = match place.rule.as_str() {
            "" => format!("{} ({}:{})", place.object, place.file, place.line),
            rule => format!("rule {rule:?} of {} ({}:{})", place.object, place.file, place.line),
        };
        if other.writes.unknown || other.reads.unknown {
            let text = format!("{whose} may set or read the same keys; if it does not, leave it out of the files");
            return Some(text);
        }
        let shared = |one: &Keys, other: &Keys| one.keys.intersection(&other.keys).next().map(name_of);
        // Which of two rules wins does not matter if both leave, and no node has both or they set the same.
        let is_harmless =
            || other.reasons.is_empty() && (this.rule.sets == other.rule.sets || this.rule.excludes(&other.rule));
        let sets = shared(&this.writes, &other.writes).filter(|_| !is_harmless());
        let sets = sets.map(|key| format!("{whose} sets {key} as well"));
        let is_read =
            || shared(&this.writes, &other.reads).map(|key| format!("{whose} reads {key}, which this rule sets"));
        let reads =
            || shared(&this.reads, &other.writes).map(|key| format!("{whose} sets {key}, which this rule reads"));
        sets.or_else(is_read).or_else(reads)
    };
    let own = this.reads.keys.intersection(&this.writes.keys).next();
    let own = own.map(|key| format!("the rule reads {}, which it sets itself", name_of(key)));
    let others = candidates.iter().enumerate().filter(|(other, _)| *other != at);
    own.into_iter().chain(others.filter_map(|(_, other)| reason(other)).take(OTHERS_MAX)).collect()
}

fn name_of((field, key): &(Field, String)) -> String {
    match (field, key.as_str()) {
        (Field::Taint, "") => "taints (Kyverno replaces all of a node)".to_owned(),
        (field, key) => format!("the {field} {key}"),
    }
}

/// The name of the rule in the policy.
fn name(place: &Place) -> String {
    let object = place.object.split_once(' ').map_or("", |(_, name)| name);
    let parts = [object, &place.rule].map(|part| {
        let letters = part.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        letters.collect::<String>().trim_matches('-').to_owned()
    });
    let name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
    if name.is_empty() { "rule".to_owned() } else { name }
}

fn spec(rules: Vec<RuleSpec>) -> NodePolicySpec {
    NodePolicySpec { presets: vec!["baseline".to_owned()], rules, ..NodePolicySpec::default() }
}

impl Place {
    fn of(object: &Object, number: usize, rule: &str, line: u32) -> Self {
        Self {
            file: object.file.clone(),
            document: object.document,
            object: format!("{} {}", object.kind, object.name),
            number,
            rule: rule.to_owned(),
            line,
        }
    }
}

impl Translation {
    /// The policy. Its first line names the schema file for editors.
    ///
    /// # Errors
    /// Returns an error if it cannot be serialized, which is a bug in nodegate.
    pub fn policy_yaml(&self, name: &str, schema: &str) -> Result<String, serde_saphyr::ser::Error> {
        let has = |what: fn(&RuleSpec) -> bool| self.translated.iter().any(|one| what(&one.rule));
        let (flag, note) = match self.program {
            Program::Kyverno if has(|rule| !rule.taints.is_empty()) => {
                ("kyverno", " It adds taints, and leaves other taints of a node as they are.")
            }
            Program::Kyverno => ("kyverno", ""),
            Program::Nfd if has(|rule| rule.match_.is_some()) => {
                ("nfd", " It reads labels that nfd-worker publishes: keep Node Feature Discovery running.")
            }
            Program::Nfd => ("nfd", ""),
        };
        let left = match self.left_out.len() {
            0 => String::new(),
            1 => " 1 rule was left out; the command says why.".to_owned(),
            more => format!(" {more} rules were left out; the command says why."),
        };
        let introduction = format!("What `nodegate init --from-{flag}` translated.{left}{note}");
        let rules = self.translated.iter().map(|one| one.rule.clone()).collect();
        let yaml = serde_saphyr::to_string(&NodePolicy::new(name, spec(rules)))?;
        Ok(modeline(schema) + &comment("", &introduction) + &yaml)
    }

    /// The tests of the policy in the file `policy`. Their first line names the schema file for editors.
    ///
    /// # Errors
    /// Returns an error if they cannot be serialized, which is a bug in nodegate.
    pub fn test_yaml(&self, policy: &str, schema: &str) -> Result<String, serde_saphyr::ser::Error> {
        Ok(modeline(schema) + &serde_saphyr::to_string(&PolicyTest::of_file(policy, self.cases.clone()))?)
    }
}
