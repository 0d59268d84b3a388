//! The rules that could assign a key, and the result of each of their conditions.

use crate::decide::evaluate::NO_ANSWER;
use crate::decide::view::View;
use crate::reconcile::plan_reconcile;
use crate::set::PolicySet;
use crate::set::index::RuleIndex;
use crate::set::inventory::Inventory;
use crate::set::kleene::Kleene;
use crate::set::matcher::Conditions;
use crate::set::migration::Migration;
use crate::set::rule::Rule;

use super::conditions::{describe, fact};
use super::{ConditionResult, FieldName, Missing, MissingBecause, RuleResult, Subject, WhyNot, evaluation};

/// Every rule that could assign `key` (of a label, annotation or taint) to the node, with the result of each condition.
pub fn why_not(set: &PolicySet, subject: &Subject<'_>, key: &str) -> WhyNot {
    let plan = plan_reconcile(set, &subject.stored);
    let mut evaluation = evaluation(set, &subject.stored, &plan);
    let mut found = assigning(set, key);
    found.sort_by_key(|index| (set.rule(*index).strength, set.rule(*index).rank));
    let rules = found.into_iter().map(|index| walk(set, subject, &mut evaluation.view, index, Some(key)));
    WhyNot { rules: rules.collect(), node: subject.stored.node.name.to_string(), key: key.to_owned() }
}

/// The rules that could assign `key`.
pub(super) fn assigning(set: &PolicySet, key: &str) -> Vec<RuleIndex> {
    let assigns = |rule: &Rule| {
        rule.may_write_label(key)
            || rule.may_write_annotation(key)
            || rule.assigns.taints.iter().any(|taint| taint.id.key.as_str() == key)
            || rule.assigns.saved.as_ref().is_some_and(|saved| saved.taints.contains(key))
    };
    (0..).zip(set.rules()).filter(|(_, rule)| assigns(rule)).map(|(index, _)| index).collect()
}

/// What an inventory has answered about the node, and whether it gives `key`.
fn answered(view: &View<'_>, inventory: &Inventory, key: Option<&str>) -> (Kleene, ConditionResult) {
    let (result, fact) = match (view.answers.of(inventory), key) {
        (None, _) => (Kleene::Unknown, NO_ANSWER.to_owned()),
        (Some(answer), Some(key))
            if !inventory.is_answered_by(answer) && !inventory.given(answer).any(|(given, _)| given == key) =>
        {
            let fact = "the inventory has not answered for this node since its url or allow changed";
            (Kleene::Unknown, fact.to_owned())
        }
        (Some(answer), Some(key)) if !inventory.given(answer).any(|(given, _)| given == key) => {
            (Kleene::False, format!("its answer about this node does not contain {key}"))
        }
        (Some(answer), _) => (Kleene::True, format!("labels in its answer about this node: {}", answer.iter().count())),
    };
    let condition = format!("inventory {}", inventory.name);
    (result, ConditionResult { condition, any_of: None, result: result.into(), fact })
}

/// Evaluates each condition of a rule, also those after one that is false. For an inventory, whether it gives `key`.
pub(super) fn walk<'a>(
    set: &'a PolicySet,
    subject: &Subject<'a>,
    view: &mut View<'a>,
    index: RuleIndex,
    key: Option<&str>,
) -> RuleResult {
    let rule = set.rule(index);
    let look = |view: &View<'_>| {
        let mut conditions = Vec::new();
        let mut add = |any_of, of: &Conditions| {
            for condition in of.iter() {
                let result = condition.evaluate(view);
                let failures = view.take_failures();
                conditions.push(ConditionResult {
                    condition: describe(set, condition),
                    any_of,
                    result: result.into(),
                    fact: fact(set, subject, view, condition, failures),
                });
            }
        };
        add(None, &rule.matcher.all);
        for (at, alternative) in rule.matcher.any_of.iter().flatten().enumerate() {
            add(Some(at), alternative);
        }
        let result: Kleene = rule.matcher.evaluate(view);
        view.take_failures();
        (result, conditions)
    };
    let (mut result, mut conditions) =
        if rule.is_blind_to_itself() { view.without(index, rule, look) } else { look(view) };
    if let Some(inventory) = &rule.assigns.inventory {
        let (given, condition) = answered(view, inventory, key);
        result = result.and(given);
        conditions.push(condition);
    }
    RuleResult {
        policy: rule.id.policy.to_string(),
        rule: rule.id.rule.to_string(),
        priority: rule.priority,
        mode: rule.strength.into(),
        result: result.into(),
        conditions,
    }
}

/// Everything that a rule could assign. Computed keys are patterns.
pub(super) fn outputs(rule: &Rule, why: MissingBecause, detail: &str) -> Vec<Missing> {
    let missing = |field, key: &str, value: Option<&str>, effect: Option<&str>| Missing {
        field,
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: effect.map(str::to_owned),
        has: None,
        policy: rule.id.policy.to_string(),
        rule: rule.id.rule.to_string(),
        why,
        detail: detail.to_owned(),
    };
    let assigns = &rule.assigns;
    let mut all = Vec::new();
    all.extend(
        assigns.labels.iter().map(|(key, value)| missing(FieldName::Label, key.as_str(), Some(value.as_str()), None)),
    );
    all.extend(assigns.label_expressions.iter().map(|(key, _)| missing(FieldName::Label, key.as_str(), None, None)));
    let migrated = assigns.migration.iter().flat_map(Migration::written);
    all.extend(migrated.map(|key| missing(FieldName::Label, key.as_str(), None, None)));
    let sets = rule.written_label_sets().flat_map(|keys| keys.written());
    all.extend(sets.map(|key| missing(FieldName::Label, key, None, None)));
    all.extend(
        assigns.annotations.iter().map(|(key, value)| missing(FieldName::Annotation, key.as_str(), Some(value), None)),
    );
    all.extend(assigns.taints.iter().map(|taint| {
        missing(FieldName::Taint, taint.id.key.as_str(), Some(taint.value.as_str()), Some(taint.id.effect.as_str()))
    }));
    let saved = assigns.saved.iter().flat_map(|saved| saved.taints.written());
    all.extend(saved.map(|key| missing(FieldName::Taint, key, None, None)));
    all
}
