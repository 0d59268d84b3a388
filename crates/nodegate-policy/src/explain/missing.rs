//! What rules assign, or may assign, and the node does not have.

use crate::api::policy::OnTimeout;
use crate::decide::decision::{Desired, Note};
use crate::decide::gates::ClosedGate;
use crate::keys::pattern::KeySet;
use crate::keys::{Field, programs};
use crate::set::index::RuleIndex;
use crate::set::rule::{Rule, RuleId, Strength};

use super::rules::{self, walk};
use super::{Explainer, FieldName, Missing, MissingBecause, Outcome, RuleResult};

/// Whether `pattern` is a pattern for keys, as policies write it, and contains `key`.
pub(super) fn is_pattern_of(pattern: &str, key: &str) -> bool {
    KeySet::compile([pattern], |_, _| {}).contains(key)
}

impl Explainer<'_> {
    /// Everything that is missing. With a key, also what the rules that do not match would assign to it.
    pub(super) fn missing(&self, key: Option<&str>) -> Vec<Missing> {
        let mut missing = self.unwritten();
        missing.extend(self.plan.decision.notes.iter().flat_map(|note| self.noted(note)));
        missing.extend(self.plan.decision.gates.iter().flat_map(awaited_at));
        if let Some(key) = key {
            let unmatched = self.not_matching(key, &missing);
            missing.extend(unmatched);
        }
        missing
    }

    /// Desired values that are not on the node, and the values that lost against them.
    fn unwritten(&self) -> Vec<Missing> {
        let node = self.subject.stored.node;
        let Some(change) = self.plan.change(|_| false, |_, _| false) else { return Vec::new() };
        let mut missing = Vec::new();
        let keyed = |field, entries: &std::collections::BTreeMap<String, Option<String>>| {
            entries
                .iter()
                .filter(|(_, value)| value.is_some())
                .map(move |(key, _)| (field, key.clone(), key.clone(), None))
                .collect::<Vec<_>>()
        };
        let taints = change.taints().iter().filter(|(_, value)| value.is_some());
        let taints = taints.map(|(id, _)| (Field::Taint, id.to_string(), id.key.to_string(), Some(id.effect)));
        let all = keyed(Field::Label, change.labels())
            .into_iter()
            .chain(keyed(Field::Annotation, change.annotations()))
            .chain(taints);
        for (field, id, key, effect) in all {
            let Some(desired) = self.plan.desired(field, &id) else { continue };
            let has = match (field, effect) {
                (Field::Label, _) => node.label(&key),
                (Field::Annotation, _) => node.annotation(&key),
                (Field::Taint, effect) => effect.and_then(|effect| node.taint(&key, effect)),
            };
            let (why, detail) = self.not_written(field, &id, has, desired);
            let of = |by: &RuleId, value: &str, why, detail| Missing {
                field: field.into(),
                key: key.clone(),
                value: Some(value.to_owned()),
                effect: effect.map(|effect| effect.as_str().to_owned()),
                has: has.map(str::to_owned),
                policy: by.policy.to_string(),
                rule: by.rule.to_string(),
                why,
                detail,
            };
            missing.push(of(&desired.by, &desired.value, why, detail));
            if has.is_some() {
                // The entry lists them.
                continue;
            }
            let rivals = match (field, effect) {
                (Field::Label, _) => self.now.view.labels.get(key.as_str()),
                (Field::Annotation, _) => self.now.view.annotations.get(key.as_str()),
                (Field::Taint, effect) => self
                    .now
                    .view
                    .taints
                    .iter()
                    .find(|((of, with), _)| *of == key && Some(*with) == effect)
                    .map(|(_, values)| values),
            };
            for rival in rivals.into_iter().flatten().skip(1) {
                let detail = format!("rule {} takes precedence", desired.by);
                missing.push(of(&self.set.rule(rival.rule).id, &rival.value, MissingBecause::Conflict, detail));
            }
        }
        missing
    }

    /// Why a desired value is not on the node.
    fn not_written(&self, field: Field, id: &str, has: Option<&str>, desired: &Desired) -> (MissingBecause, String) {
        let subject = self.subject;
        if subject.left_alone.iter().any(|(of, key)| *of == field && key == id) {
            let detail = "others keep reverting it, so the controller does not repair it until the policy changes";
            return (MissingBecause::Fight, detail.to_owned());
        }
        let sets = if has.is_some() { "changes" } else { "sets" };
        match subject.stored.pending.on(subject.stored.node).next() {
            Some(taint) => (
                MissingBecause::Pending,
                format!("the controller {sets} it and then removes the pending taint {taint}"),
            ),
            None if desired.strength.is_kept() => {
                (MissingBecause::Deferred, format!("the controller {sets} it with its next write"))
            }
            None => (
                MissingBecause::Deferred,
                format!("the controller {sets} it with its next write, because the node has just joined"),
            ),
        }
    }

    /// The keys that a remark of the decision is about.
    fn noted(&self, note: &Note) -> Vec<Missing> {
        let find = |id: &RuleId| self.set.rules().iter().find(|rule| rule.id == *id);
        match note {
            Note::Unknown { rule: id, reason } => {
                let found = (0..).zip(self.set.rules()).find(|(_, rule)| rule.id == *id);
                let all = found.map(|(index, rule)| {
                    let detail = self.facts_of(index, Outcome::Unknown).unwrap_or_else(|| reason.clone());
                    self.could_assign(rule, MissingBecause::Unknown, &detail)
                });
                all.unwrap_or_default()
            }
            Note::Unsettled { rule } => {
                let why = "its result keeps changing with its own values, so the rule is ignored";
                find(rule).map(|rule| self.could_assign(rule, MissingBecause::Invalid, why)).unwrap_or_default()
            }
            Note::Withheld { taint, by } => {
                let why = "NoExecute would evict pods of an existing node, and the rule does not set evict: true";
                let all =
                    find(by).map(|rule| self.could_assign(rule, MissingBecause::Withheld, why)).unwrap_or_default();
                let meant = |missing: &Missing| {
                    missing.key == taint.key.as_str() && missing.effect.as_deref() == Some(taint.effect.as_str())
                };
                all.into_iter().filter(meant).collect()
            }
            Note::Dropped { rule, key, reason } => {
                let missing = |rule: &Rule| entry(rule, Field::Label, key, MissingBecause::Invalid, reason);
                find(rule).map(missing).into_iter().collect()
            }
            Note::NotRestored { field, key, reason } => {
                let sections = self.set.persisting_rules().filter(|rule| match field {
                    Field::Label => rule.may_write_label(key),
                    Field::Taint => rule.assigns.saved.as_ref().is_some_and(|saved| saved.taints.contains(key)),
                    Field::Annotation => false,
                });
                sections.map(|rule| entry(rule, *field, key, MissingBecause::Invalid, reason)).collect()
            }
            // What is written already, or will be, is reported with the values.
            Note::Conflict { .. }
            | Note::Stripped { .. }
            | Note::StrippedUnnamed { .. }
            | Note::PutBack { .. }
            | Note::Retired { .. }
            | Note::Reverted { .. }
            | Note::LeftOut(_)
            | Note::DeferredUnmarked { .. }
            | Note::AwaitedUnmarked { .. }
            | Note::GatesUnmarked { .. } => Vec::new(),
        }
    }

    /// Everything that a rule could assign and the node does not have.
    fn could_assign(&self, rule: &Rule, why: MissingBecause, detail: &str) -> Vec<Missing> {
        let node = self.subject.stored.node;
        let mut all = rules::outputs(rule, why, detail);
        all.retain(|missing| match (missing.field, &missing.effect) {
            (FieldName::Label, _) => node.label(&missing.key).is_none(),
            (FieldName::Annotation, _) => node.annotation(&missing.key).is_none(),
            (FieldName::Taint, effect) => !node
                .taints()
                .iter()
                .any(|taint| *taint.key == *missing.key && Some(&*taint.effect) == effect.as_deref()),
        });
        all
    }

    fn walked(&self, index: RuleIndex, key: Option<&str>) -> RuleResult {
        let mut evaluation = super::evaluation(self.set, &self.subject.stored, self.plan);
        walk(self.set, self.subject, &mut evaluation.view, index, key)
    }

    /// The conditions of a rule with this result, and the facts that they depend on.
    fn facts_of(&self, index: RuleIndex, result: Outcome) -> Option<String> {
        facts(&self.walked(index, None), result)
    }

    /// What the rules that could assign `key`, and do not match, would assign to it.
    fn not_matching(&self, key: &str, known: &[Missing]) -> Vec<Missing> {
        let is_new =
            |rule: &RuleId| !known.iter().any(|missing| *missing.policy == *rule.policy && *missing.rule == *rule.rule);
        let mut found = Vec::new();
        for index in rules::assigning(self.set, key) {
            let rule = self.set.rule(index);
            let walked = self.walked(index, Some(key));
            let (why, detail) = match (walked.result, rule.strength) {
                (Outcome::False, _) => (MissingBecause::False, facts(&walked, Outcome::False).unwrap_or_default()),
                (Outcome::True, Strength::Default | Strength::Saved) if !self.plan.first_sight => {
                    (MissingBecause::Joined, "it is assigned only when a node joins".to_owned())
                }
                (Outcome::True | Outcome::Unknown, _) => continue,
            };
            if is_new(&rule.id) {
                found.extend(self.could_assign(rule, why, &detail));
            }
        }
        found
    }
}

/// The conditions with this result, each with the fact that it depends on; `None` if there are none.
fn facts(walked: &RuleResult, result: Outcome) -> Option<String> {
    let conditions = walked.conditions.iter().filter(|condition| condition.result == result);
    let facts: Vec<String> =
        conditions.map(|condition| format!("{}: {}", condition.condition, condition.fact)).collect();
    (!facts.is_empty()).then(|| facts.join("; "))
}

/// The labels that a pending node waits for at a gate.
fn awaited_at(gate: &ClosedGate) -> impl Iterator<Item = Missing> {
    let end = match gate.on_timeout {
        OnTimeout::Release => "and is released without it",
        OnTimeout::Keep => "also later than",
    };
    let seconds = gate.timeout.as_secs();
    gate.missing.iter().map(move |key| {
        let usual = programs::of(Field::Label, key, None).map(|program| format!("; {} usually sets it", program.name));
        let usual = usual.unwrap_or_default();
        Missing {
            field: FieldName::Label,
            key: key.clone(),
            value: None,
            effect: None,
            has: None,
            policy: gate.id.policy.to_string(),
            rule: gate.id.rule.to_string(),
            why: MissingBecause::Gate,
            detail: format!("the node waits for it, {end} {seconds} s after its creation{usual}"),
        }
    })
}

/// A missing key of a rule, without a value.
fn entry(rule: &Rule, field: Field, key: &str, why: MissingBecause, detail: &str) -> Missing {
    Missing {
        field: field.into(),
        key: key.to_owned(),
        value: None,
        effect: None,
        has: None,
        policy: rule.id.policy.to_string(),
        rule: rule.id.rule.to_string(),
        why,
        detail: detail.to_owned(),
    }
}
