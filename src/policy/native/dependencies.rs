//! `governance.dependencies`: what labels need, or do not go together with.
//!
//! Every label and taint that may be lacking is one finding. It is held against the requester where the node has it after
//! the write, had it not before, and has it still without the changes that are not held against him.

use std::collections::BTreeSet;

use super::formula::{Formula, quote};
use crate::api::policy::ChangeOperation;
use crate::policy::governance::{Dependency, Entry};
use crate::policy::matcher::TaintPattern;

/// One of the states of a node that are compared.
#[derive(Clone, Copy)]
enum Side {
    Now,
    Before,
    /// As the requester alone would have made it.
    Asked,
}

/// Everything that may be lacking: when it is, and a text for each.
pub(super) fn findings(dependency: &Dependency, entry: &Entry) -> Vec<(Formula, String)> {
    let touched = is_touched(dependency, entry);
    let when = |side: Side| Formula::all(dependency.when.iter().map(|label| side.is(label)));
    let finding = |text: String, lacks: &dyn Fn(Side) -> Formula| {
        let on = |side: Side| Formula::all([when(side), lacks(side)]);
        let there = Formula::When("(oldObject != null)".to_owned());
        let before = Formula::all([there, on(Side::Before)]);
        (Formula::all([on(Side::Now), before.not(), on(Side::Asked), touched.clone()]), text)
    };
    let labels: Vec<String> = dependency.when.iter().map(in_words).collect();
    let with = format!("with label {}", labels.join(" and "));
    let further = match dependency.further.as_slice() {
        [] => String::new(),
        further => format!(", which needs {}", further.join(" and ")),
    };
    let required = dependency.require.iter().map(|label| {
        finding(format!("{with}, label {} is needed{further}", in_words(label)), &|side| side.is(label).not())
    });
    let taints = dependency.require_taints.iter().map(|(pattern, written)| {
        finding(format!("{with}, taint {} is needed", quote(written)), &|side| side.has_taint(pattern).not())
    });
    let forbidden = dependency
        .forbid
        .iter()
        .map(|key| finding(format!("{with}, label {} may not be there", quote(key)), &|side| side.has(key)));
    required.chain(taints).chain(forbidden).collect()
}

fn in_words((key, value): &(Box<str>, Option<Box<str>>)) -> String {
    match value {
        Some(value) => format!("{}={value}", quote(key)),
        None => quote(key),
    }
}

impl Side {
    /// The labels that count for a key.
    fn labels(self, key: &str) -> String {
        match self {
            Self::Now => "variables.labels".to_owned(),
            Self::Before => "variables.oldLabels".to_owned(),
            // What does not count as changed is as it was.
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

/// Whether a key that the entry speaks of is changed in a way that it is about.
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
    let labels = super::formula::is_one_of("k", labels);
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

/// Whether something is changed in a way that an entry about the whole node is about.
pub(super) fn is_about_write(entry: &Entry) -> Formula {
    let Some(operations) = &entry.operations else { return Formula::Always };
    let made = if operations.contains(&ChangeOperation::Add) { "variables.create" } else { "false" };
    let fields = super::validating::FIELDS.into_iter();
    let changed =
        fields.map(|(field, title)| is_changed(title, super::validating::now(field), &Formula::Always, operations));
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
