//! Evaluates rules to a fixpoint: which rules match a node, including the values that other rules assign.
//!
//! Rules are evaluated in an order in which writers come before readers, so most sets settle in one
//! pass. If there is no such order (a cycle on presence, or computed keys), rules are evaluated again
//! when a value that they read has changed. A rule whose result changes more than [`MAX_CHANGES`] times
//! is ignored and reported.

mod values;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::api::names::{TaintEffect, check_label_key, check_label_value};
use crate::api::policy::PersistScope;
use crate::api::state::SavedState;
use crate::decide::decision::Note;
use crate::decide::evaluate::values::Values;
use crate::decide::migrate::Copied;
use crate::decide::sources::{Defaults, Recalled, Sources};
use crate::decide::view::{AssignedValue, AssignedValues, TaintKey, View};
use crate::keys::pattern::KeySet;
use crate::keys::{Field, programs, restriction};
use crate::set::PolicySet;
use crate::set::index::RuleIndex;
use crate::set::kleene::Kleene;
use crate::set::rule::Strength;
use crate::set::rule::{Rule, Saved};

/// How often the result of a rule may change on one node.
const MAX_CHANGES: u8 = 8;

/// Why the labels of an inventory are unknown.
pub(crate) const NO_ANSWER: &str = "the inventory has not answered for this node yet";

/// All values that one rule assigns on one node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Output<'a> {
    labels: Values<'a, Cow<'a, str>>,
    annotations: Values<'a, Cow<'a, str>>,
    taints: Values<'a, TaintKey<'a>>,
}

#[derive(Default)]
struct RuleState<'a> {
    output: Output<'a>,
    changes: u8,
    notes: Vec<Note>,
}

/// One evaluation of all rules on one node.
pub(crate) struct Evaluation<'a> {
    set: &'a PolicySet,
    sources: Sources<'a>,
    pub(crate) view: View<'a>,
    states: BTreeMap<RuleIndex, RuleState<'a>>,
    queue: BTreeSet<RuleIndex>,
}

impl<'a> Evaluation<'a> {
    /// Evaluates all rules on `view` until nothing changes.
    pub(crate) fn run(set: &'a PolicySet, view: View<'a>, sources: Sources<'a>) -> Self {
        let mut evaluation = Self { set, sources, view, states: BTreeMap::new(), queue: BTreeSet::new() };
        evaluation.enqueue_candidates();
        while let Some(rule) = evaluation.queue.pop_first() {
            evaluation.evaluate(rule);
            if evaluation.view.is_tried_in_vain() {
                break;
            }
        }
        evaluation
    }

    /// Whether any of the rules that `meant` selects may still assign a value, because its result is unknown.
    /// Checks all rules, because the index does not find rules by labels that are gone.
    pub(crate) fn may_still_give(&self, meant: impl Fn(&Rule) -> bool) -> bool {
        let unknown = |index: RuleIndex| {
            let state = self.states.get(&index);
            state.is_some_and(|state| state.notes.iter().any(|note| matches!(note, Note::Unknown { .. })))
        };
        let found = (0..)
            .zip(self.set.rules())
            .filter(|(_, rule)| rule.strength.is_kept() && meant(rule))
            .any(|(index, rule)| unknown(index) || rule.matcher.evaluate(&self.view) == Kleene::Unknown);
        self.view.take_failures();
        found
    }

    /// Notes on the rules.
    pub(crate) fn notes(&self) -> impl Iterator<Item = Note> {
        self.states.values().flat_map(|state| state.notes.iter().cloned())
    }

    fn enqueue_candidates(&mut self) {
        let finder = self.set.finder();
        finder.for_names(self.view.name_groups(), &mut self.queue);
        for (key, value) in self.view.all_labels() {
            finder.for_label(key, value, &mut self.queue);
        }
        for taint in self.view.facts().taints() {
            finder.for_taint(&taint.key, &mut self.queue);
        }
    }

    fn evaluate(&mut self, index: RuleIndex) {
        let rule = self.set.rule(index);
        let idle = match rule.strength {
            Strength::Enforced | Strength::Inventory => false,
            Strength::Default => self.sources.defaults == Defaults::None,
            Strength::Saved => match rule.assigns.saved.as_ref().map(|saved| saved.scope).unwrap_or_default() {
                PersistScope::Node => self.sources.saved.is_none(),
                PersistScope::Pool => self.sources.pools.is_none(),
            },
        };
        let settled = self.states.get(&index).is_some_and(|state| state.changes > MAX_CHANGES);
        if idle || settled {
            return;
        }
        let mut notes = Vec::new();
        let look = |view: &View<'a>| match &rule.assigns.migration {
            Some(migration) => migration.evaluate(view),
            None => (rule.matcher.evaluate(view), None),
        };
        let (outcome, copied) =
            if rule.is_blind_to_itself() { self.view.without(index, rule, look) } else { look(&self.view) };
        let mut output = match outcome {
            Kleene::True => self.output(rule, copied, &mut notes),
            Kleene::False => Output::default(),
            Kleene::Unknown => {
                let reason = self.view.take_failures().pop().or_else(|| rule.matcher.awaited(&self.view));
                let reason = reason.unwrap_or_else(|| "a fact that it reads has not been reported yet".to_owned());
                notes.push(Note::Unknown { rule: rule.id.clone(), reason });
                Output::default()
            }
        };
        let state = self.states.entry(index).or_default();
        state.notes = notes;
        if state.output == output {
            return;
        }
        state.changes += 1;
        if state.changes > MAX_CHANGES {
            state.notes = vec![Note::Unsettled { rule: rule.id.clone() }];
            output = Output::default();
        }
        let before = std::mem::take(&mut state.output);
        self.apply(index, rule, &before, &output);
        if let Some(state) = self.states.get_mut(&index) {
            state.output = output;
        }
    }

    /// The values that a matching rule assigns. A value that cannot be computed is omitted and noted.
    fn output(&self, rule: &'a Rule, copied: Option<Copied<'a>>, notes: &mut Vec<Note>) -> Output<'a> {
        let mut output = Output::default();
        if let Some(Copied { key, value }) = copied {
            output.labels.insert(Cow::Borrowed(key.as_str()), Cow::Owned(value));
        }
        for (key, value) in &rule.assigns.labels {
            output.labels.insert(Cow::Borrowed(key.as_str()), Cow::Borrowed(value.as_str()));
        }
        for (key, value) in &rule.assigns.annotations {
            output.annotations.insert(Cow::Borrowed(key.as_str()), Cow::Borrowed(value));
        }
        let tainting = rule.strength != Strength::Default || self.sources.defaults == Defaults::All;
        for taint in rule.assigns.taints.iter().filter(|_| tainting) {
            output
                .taints
                .insert((Cow::Borrowed(taint.id.key.as_str()), taint.id.effect), Cow::Borrowed(taint.value.as_str()));
        }
        for (key, expression) in &rule.assigns.label_expressions {
            match self.view.with_variables(expression, |variables| expression.evaluate_text(variables)) {
                Some(value) => match check_label_value(&value) {
                    Ok(()) => {
                        output.labels.insert(Cow::Borrowed(key.as_str()), Cow::Owned(value));
                    }
                    Err(error) => {
                        let (key, reason) = (key.to_string(), error.to_string());
                        notes.push(Note::Dropped { rule: rule.id.clone(), key, reason });
                    }
                },
                None => self.note_failures(rule, &format!("label {key}"), notes),
            }
        }
        if let Some((keys, expression)) = rule.assigns.label_map.as_deref() {
            let map = self.view.with_variables(expression, |variables| expression.evaluate_map(variables));
            match map {
                Some(map) => add_label_map(rule, keys, map, &mut output, notes),
                None => self.note_failures(rule, "labelMap", notes),
            }
        }
        if let Some(inventory) = &rule.assigns.inventory {
            let answers = &self.view.answers;
            let given = answers.of(inventory).into_iter().flat_map(|labels| inventory.given(labels));
            given.for_each(|(key, value)| output.labels.insert(Cow::Borrowed(key), Cow::Borrowed(value)));
            if answers.complete(inventory).is_none() {
                notes.push(Note::Unknown { rule: rule.id.clone(), reason: NO_ANSWER.to_owned() });
            }
        }
        if let Some(keys) = &rule.assigns.saved {
            match (keys.scope, self.sources.saved, self.sources.pools) {
                (PersistScope::Node, Some(saved), _) => restore(keys, saved, &mut output, notes),
                (PersistScope::Pool, _, Some(pools)) => self.recall(keys, pools, &mut output, notes),
                (PersistScope::Node, None, _) | (PersistScope::Pool, _, None) => {}
            }
        }
        if rule.strength.is_kept() && rule.assigns.migration.is_none() {
            self.without_retired(rule, &mut output, notes);
        }
        output
    }

    /// The labels that the node's pools remember.
    fn recall(&self, keys: &Saved, pools: Recalled<'a>, output: &mut Output<'a>, notes: &mut Vec<Note>) {
        let of_node = self.view.pools().proven.iter().map(|(pool, _)| *pool);
        for (key, value) in pools.memory.given(of_node, &keys.labels) {
            match value.and_then(|value| restorable(key, value)) {
                Ok(value) if pools.may_replace(key) => {
                    output.labels.insert(Cow::Borrowed(key), Cow::Borrowed(value));
                }
                Ok(_) => {}
                Err(reason) => notes.push(Note::NotRestored { field: Field::Label, key: key.to_owned(), reason }),
            }
        }
    }

    /// Drops old keys of migrations that are done: the controller removes them, and a rule would set them again. Fixed keys
    /// are refused at load; the keys of label maps and inventories are known only here.
    fn without_retired(&self, rule: &Rule, output: &mut Output<'a>, notes: &mut Vec<Note>) {
        for (key, _) in output.labels.extract(|key| self.set.is_retired(key)) {
            let reason = "a migration replaces the key, and is done".to_owned();
            notes.push(Note::Dropped { rule: rule.id.clone(), key: key.into_owned(), reason });
        }
    }

    fn note_failures(&self, rule: &Rule, what: &str, notes: &mut Vec<Note>) {
        let failures = self.view.take_failures();
        notes.extend(
            failures
                .into_iter()
                .map(|reason| Note::Unknown { rule: rule.id.clone(), reason: format!("{what}: {reason}") }),
        );
    }

    /// Replaces the values of a rule, and queues the rules that read a changed key.
    fn apply(&mut self, index: RuleIndex, rule: &Rule, before: &Output<'a>, after: &Output<'a>) {
        let given = |value: &Cow<'a, str>| {
            let value = value.clone();
            AssignedValue { strength: rule.strength, rank: rule.rank, rule: index, value }
        };
        for (key, value) in before.labels.replaced_by(&after.labels) {
            if replace(&mut self.view.labels, key, index, value.map(given)) {
                self.label_changed(key);
            }
        }
        for (key, value) in before.taints.replaced_by(&after.taints) {
            if replace(&mut self.view.taints, key, index, value.map(given)) {
                self.taint_changed(&key.0);
            }
        }
        for (key, value) in before.annotations.replaced_by(&after.annotations) {
            replace(&mut self.view.annotations, key, index, value.map(given));
        }
    }

    fn label_changed(&mut self, key: &str) {
        self.view.label_changed(key);
        if let Some(value) = self.view.label(key) {
            self.set.finder().for_label(key, value, &mut self.queue);
        }
        let readers = self.states.keys().copied().filter(|rule| self.set.rule(*rule).reads_label(key));
        self.queue.extend(readers);
    }

    fn taint_changed(&mut self, key: &str) {
        self.set.finder().for_taint(key, &mut self.queue);
        let readers = self.states.keys().copied().filter(|rule| self.set.rule(*rule).reads_taint(key));
        self.queue.extend(readers);
    }
}

/// Replaces the value that a rule assigns to a key. Returns whether another value comes first then, or the same of another rule: a
/// default rule overlooks what weaker ones give. A value that the object's own label hides counts too, because not all rules see that
/// label.
fn replace<'a, K: Ord + Clone>(
    assigned: &mut BTreeMap<K, AssignedValues<'a>>,
    key: &K,
    rule: RuleIndex,
    value: Option<AssignedValue<'a>>,
) -> bool {
    let values = assigned.entry(key.clone()).or_default();
    let was = values.first().cloned();
    values.retain(|given| given.rule != rule);
    if let Some(value) = value {
        let at = values.partition_point(|given| (given.strength, given.rank) < (value.strength, value.rank));
        values.insert(at, value);
    }
    values.first() != was.as_ref()
}

fn add_label_map<'a>(
    rule: &Rule,
    keys: &KeySet,
    map: BTreeMap<String, String>,
    output: &mut Output<'a>,
    notes: &mut Vec<Note>,
) {
    for (key, value) in map {
        let fault = if keys.contains(&key) {
            let checked =
                check_label_key(&key).and_then(|()| check_label_value(&value)).map_err(|error| error.to_string());
            checked
                .and_then(|()| {
                    if restriction::is_own(&key) { Err("the key is reserved for nodegate".to_owned()) } else { Ok(()) }
                })
                .err()
        } else {
            Some("the key is not listed in labelMap.keys".to_owned())
        };
        match fault {
            Some(reason) => notes.push(Note::Dropped { rule: rule.id.clone(), key, reason }),
            None => {
                output.labels.insert(Cow::Owned(key), Cow::Owned(value));
            }
        }
    }
}

/// The value, if a label may be restored with it.
fn restorable<'v>(key: &str, value: &'v str) -> Result<&'v str, String> {
    check_label_key(key).and_then(|()| check_label_value(value)).map_err(|error| error.to_string())?;
    programs::never_persisted(Field::Label, key, Some(value)).map_or(Ok(value), |never| Err(never.to_string()))
}

/// The saved labels and taints that a persist section restores, without those that are invalid or
/// must never be restored.
fn restore<'a>(patterns: &Saved, saved: &'a SavedState, output: &mut Output<'a>, notes: &mut Vec<Note>) {
    let mut refuse =
        |field, key: &str, reason: String| notes.push(Note::NotRestored { field, key: key.to_owned(), reason });
    for (key, value) in saved.labels.iter().filter(|(key, _)| patterns.labels.contains(key)) {
        match restorable(key, value) {
            Ok(value) => {
                output.labels.insert(Cow::Borrowed(key), Cow::Borrowed(value));
            }
            Err(reason) => refuse(Field::Label, key, reason),
        }
    }
    for taint in saved.taints.iter().filter(|taint| patterns.taints.contains(&taint.key)) {
        let checked = check_label_key(&taint.key).and_then(|()| check_label_value(&taint.value));
        let never = programs::never_persisted(Field::Taint, &taint.key, Some(&taint.value));
        match (checked.and_then(|()| taint.effect.parse::<TaintEffect>()), never) {
            (Err(error), _) => refuse(Field::Taint, &taint.key, error.to_string()),
            (Ok(_), Some(never)) => refuse(Field::Taint, &taint.key, never.to_string()),
            (Ok(effect), None) => {
                output.taints.insert((Cow::Borrowed(&taint.key), effect), Cow::Borrowed(&taint.value));
            }
        }
    }
}
