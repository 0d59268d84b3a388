//! `governance.dependencies`: labels that require or forbid others.
//!
//! Each required label or taint and each forbidden label is one possible finding. It is a violation if the node has it
//! after the write, did not have it before, and would also have it with the requester's own changes only.

use std::collections::BTreeSet;

use crate::api::names::or_quotes;
use crate::api::policy::ChangeOperation;
use crate::native::terms::formula::{Formula, quote};
use crate::set::governance::{Dependency, Entry};
use crate::set::matcher::TaintPattern;

/// A state of the node that is compared.
#[derive(Clone, Copy)]
enum Side {
    Now,
    Before,
    /// With the requester's own changes only.
    Asked,
}

/// All possible findings: a condition and a message for each.
pub(in crate::native) fn findings(dependency: &Dependency, entry: &Entry) -> Vec<(Formula, String)> {
    let touched = is_touched(dependency, entry);
    let when = |side: Side| Formula::all(dependency.when.iter().map(|label| side.is(label)));
    let finding = |text: String, lacks: &dyn Fn(Side) -> Formula| {
        let on = |side: Side| Formula::all([when(side), lacks(side)]);
        let there = Formula::When("(oldObject != null)".to_owned());
        let before = Formula::all([there, on(Side::Before)]);
        (Formula::all([on(Side::Now), before.not(), on(Side::Asked), touched.clone()]), text)
    };
    let labels: Vec<String> = dependency.when.iter().map(in_words).collect();
    let (noun, require, forbid) = dependency.verbs();
    let with = format!("{noun} {}", labels.join(" and "));
    let further = match dependency.further.as_slice() {
        [] => String::new(),
        further => format!(", which requires {}", further.join(" and ")),
    };
    let required = dependency.require.iter().map(|label| {
        finding(format!("{with} {require} label {}{further}", in_words(label)), &|side| side.is(label).not())
    });
    let taints = dependency.require_taints.iter().map(|(pattern, written)| {
        finding(format!("{with} {require} taint {}", quote(written)), &|side| side.has_taint(pattern).not())
    });
    let forbidden = dependency
        .forbid
        .iter()
        .map(|key| finding(format!("{with} {forbid} label {}", quote(key)), &|side| side.has(key)));
    required.chain(taints).chain(forbidden).collect()
}

fn in_words((key, value): &(Box<str>, Option<Box<str>>)) -> String {
    match value {
        Some(value) => format!("{}={}", quote(key), or_quotes(value)),
        None => quote(key),
    }
}

impl Side {
    /// CEL for the map of labels that contains the state of a key.
    fn labels(self, key: &str) -> String {
        match self {
            Self::Now => "variables.labels".to_owned(),
            Self::Before => "variables.oldLabels".to_owned(),
            // A key that the requester did not change has its old value.
            Self::Asked => {
                format!("({} in variables.changedLabels ? variables.labels : variables.oldLabels)", quote(key))
            }
        }
    }

    fn has(self, key: &str) -> Formula {
        Formula::When(format!("({} in {})", quote(key), self.labels(key)))
    }

    fn is(self, (key, value): &(Box<str>, Option<Box<str>>)) -> Formula {
        let Some(value) = value else { return self.has(key) };
        Formula::When(format!("({}[?{}] == optional.of({}))", self.labels(key), quote(key), quote(value)))
    }

    fn has_taint(self, pattern: &TaintPattern) -> Formula {
        let meets = |map: &str, and: &str| {
            let key = match pattern.effect {
                Some(effect) => format!("id == {}", quote(&format!("{}:{effect}", pattern.key))),
                None => format!("id.startsWith({})", quote(&format!("{}:", pattern.key))),
            };
            let value = pattern.value.as_deref().map(|value| format!(" && {map}[id] == {}", quote(value)));
            Formula::When(format!("{map}.exists(id, {key}{}{and})", value.unwrap_or_default()))
        };
        let (now, before) = ("variables.taintValues", "variables.oldTaintValues");
        match self {
            Self::Now => meets(now, ""),
            Self::Before => meets(before, ""),
            Self::Asked => Formula::any([
                meets(now, " && id in variables.changedTaintValues"),
                meets(before, " && !(id in variables.changedTaintValues)"),
            ]),
        }
    }
}

/// Whether the write changes a key of the entry with an operation that the entry judges.
fn is_touched(dependency: &Dependency, entry: &Entry) -> Formula {
    let all = BTreeSet::from([ChangeOperation::Add, ChangeOperation::Change, ChangeOperation::Remove]);
    let Some(operations) = entry.operations.as_ref().filter(|operations| **operations != all) else {
        return Formula::Always;
    };
    let labels: BTreeSet<&str> = dependency
        .when
        .iter()
        .chain(&dependency.require)
        .map(|(key, _)| &**key)
        .chain(dependency.forbid.iter().map(|key| &**key))
        .collect();
    let labels = crate::native::terms::formula::is_one_of("k", labels);
    let taints = dependency.require_taints.iter();
    let taints =
        taints.map(|(pattern, _)| Formula::When(format!("k.startsWith({})", quote(&format!("{}:", pattern.key)))));
    let taints = Formula::any(taints);
    Formula::any(
        [("Labels", "variables.labels", labels), ("TaintValues", "variables.taintValues", taints)]
            .into_iter()
            .map(|(title, now, keys)| is_changed(title, now, &keys, operations)),
    )
}

/// Whether the write has an operation that an entry for the whole node judges.
pub(in crate::native) fn is_about_write(entry: &Entry) -> Formula {
    let Some(operations) = &entry.operations else { return Formula::Always };
    let made = if operations.contains(&ChangeOperation::Add) { "variables.create" } else { "false" };
    let fields = crate::native::verdicts::validation::FIELDS.into_iter();
    let changed = fields.map(|(field, title)| {
        is_changed(title, crate::native::verdicts::validation::now(field), &Formula::Always, operations)
    });
    Formula::any([Formula::When(made.to_owned())].into_iter().chain(changed))
}

/// Whether a key of a field is changed so. Changes that are not held against the requester count, too.
fn is_changed(title: &str, now: &str, keys: &Formula, operations: &BTreeSet<ChangeOperation>) -> Formula {
    let before = format!("variables.old{title}");
    Formula::any(operations.iter().map(|operation| {
        let (map, changed) = match operation {
            ChangeOperation::Add => (now, format!("!(k in {before})")),
            ChangeOperation::Change => (now, format!("(k in {before} && {before}[k] != {now}[k])")),
            ChangeOperation::Remove => (before.as_str(), format!("!(k in {now})")),
        };
        match Formula::all([keys.clone(), Formula::When(changed)]) {
            Formula::When(text) => Formula::When(format!("{map}.exists(k, {text})")),
            never => never,
        }
    }))
}
