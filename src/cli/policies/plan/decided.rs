//! The plan of one node, from what is decided for it.

use crate::cli::policies::plan::document::{Change, NodePlan, Noted, Op, Violated};
use crate::scheduling::NodeState;
use k8s_openapi::api::core::v1::Taint;
use nodegate_policy::explain::FieldName;
use nodegate_policy::simulate::Simulated;
use nodegate_policy::{Decision, Desired, Field, NodeChange, NodeFacts, Note, PolicySet, ReconcilePlan, StoredNode};

/// The plan of a write, such as a kubelet's CREATE.
pub(in crate::cli) fn of_write(node: &NodeFacts<'_>, simulated: &Simulated) -> NodePlan {
    let Decision { change, deferred, notes, .. } = &simulated.decision;
    let changes = |change: &Option<NodeChange>| {
        change.as_ref().map(|change| changes(node, change, &simulated.decision)).unwrap_or_default()
    };
    let violated = simulated.verdict.violations.iter().map(|violation| Violated {
        policy: violation.by.policy.to_string(),
        rule: violation.by.rule.to_string(),
        field: violation.field.into(),
        key: violation.key.clone(),
        message: violation.message.clone(),
    });
    let plan = NodePlan {
        node: node.name.to_string(),
        changes: changes(change),
        deferred: changes(deferred),
        violations: violated.collect(),
        ..NodePlan::default()
    };
    noted(plan, notes)
}

/// The plan of a stored node: what the controller changes. `in_force` tells which rules assign what is removed.
pub(in crate::cli) fn of_stored(
    stored: &StoredNode<'_>,
    plan: &ReconcilePlan,
    change: Option<&NodeChange>,
    in_force: Option<&PolicySet>,
) -> NodePlan {
    let mut changes = change.map(|change| changes(stored.node, change, &plan.decision)).unwrap_or_default();
    let before = in_force
        .filter(|_| !plan.removals.is_empty())
        .map(|in_force| nodegate_policy::plan_reconcile(in_force, stored));
    for change in changes.iter_mut().filter(|change| change.op == Op::Remove) {
        let id = change.id();
        let field = change.field;
        let removal = plan.removals.iter().find(|removal| FieldName::from(removal.field) == field && removal.key == id);
        change.after_seconds = removal.map(|removal| removal.after.as_secs());
        let giver = |field| before.as_ref().and_then(|before| before.giver(field, &id));
        if let Some(by) = removal.and_then(|removal| giver(removal.field)) {
            change.policy = Some(by.policy.to_string());
            change.rule = Some(by.rule.to_string());
        }
    }
    let planned = NodePlan { node: stored.node.name.to_string(), changes, ..NodePlan::default() };
    // Nobody's write is reverted here: the change itself is listed.
    noted(planned, plan.decision.notes.iter().filter(|note| !matches!(note, Note::Reverted { .. })))
}

/// What a stored node lacks of what policies give it, and what it has although they do not: its drift. The same for all commands that
/// show it.
pub(in crate::cli) fn drift(set: &PolicySet, stored: &StoredNode<'_>) -> (ReconcilePlan, NodePlan) {
    let plan = nodegate_policy::plan_reconcile(set, stored);
    let change = plan.change(|_| true, |_, _| false);
    let planned = of_stored(stored, &plan, change.as_ref(), None);
    (plan, planned)
}

fn noted<'a>(mut plan: NodePlan, notes: impl IntoIterator<Item = &'a Note>) -> NodePlan {
    for note in notes {
        match Noted::from(note) {
            Noted::Unknown(unknown) => plan.unknown.push(unknown),
            Noted::Remark(remark) => plan.notes.push(remark),
            Noted::SaidElsewhere => {}
        }
    }
    plan.unknown.sort_unstable();
    plan.notes.sort_unstable();
    plan.violations.sort_unstable();
    plan
}

impl Change {
    /// The key, or `key:Effect`.
    pub(in crate::cli) fn id(&self) -> String {
        self.effect.as_ref().map_or_else(|| self.key.clone(), |effect| format!("{}:{effect}", self.key))
    }
}

/// A change of a node, key by key.
fn changes(node: &NodeFacts<'_>, change: &NodeChange, decision: &Decision) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for (key, value) in change.labels() {
        let was = node.label(key);
        changes.extend(one(Field::Label, (key, None), was, value.as_deref(), decision.labels.get(key)));
    }
    for (key, value) in change.annotations() {
        let was = node.annotation(key);
        changes.extend(one(Field::Annotation, (key, None), was, value.as_deref(), decision.annotations.get(key)));
    }
    for (id, value) in change.taints() {
        let (key, effect) = (id.key.as_str(), id.effect);
        let of = (key, Some(effect.as_str()));
        changes.extend(one(Field::Taint, of, node.taint(key, effect), value.as_deref(), decision.taints.get(id)));
    }
    changes.sort_unstable_by(|one, other| {
        (one.field, &one.key, &one.effect).cmp(&(other.field, &other.key, &other.effect))
    });
    changes
}

/// One change; `None` if the value is the same.
fn one(
    field: Field,
    (key, effect): (&str, Option<&str>),
    was: Option<&str>,
    value: Option<&str>,
    desired: Option<&Desired>,
) -> Option<Change> {
    let op = match (was, value) {
        (None, Some(_)) => Op::Add,
        (Some(_), Some(_)) => Op::Change,
        (_, None) => Op::Remove,
    };
    let by = desired.map(|desired| &desired.by);
    (was != value).then(|| Change {
        op,
        field: field.into(),
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: effect.map(str::to_owned),
        was: was.map(str::to_owned),
        policy: by.map(|by| by.policy.to_string()),
        rule: by.map(|by| by.rule.to_string()),
        after_seconds: None,
    })
}

/// The labels and taints of a node, as the scheduler sees them.
pub(in crate::cli) fn state(node: &NodeFacts<'_>) -> NodeState {
    NodeState {
        name: node.name.to_string(),
        labels: node.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        taints: node
            .taints()
            .iter()
            .map(|taint| Taint {
                key: taint.key.to_string(),
                value: Some(taint.value().to_owned()).filter(|value| !value.is_empty()),
                effect: taint.effect.to_string(),
                time_added: None,
            })
            .collect(),
    }
}

/// The state after these changes; `None` if they change neither labels nor taints.
pub(in crate::cli) fn state_after<'a>(
    before: &NodeState,
    changes: impl Iterator<Item = &'a Change>,
) -> Option<NodeState> {
    let mut after = before.clone();
    for change in changes {
        match (change.field, &change.value) {
            (FieldName::Label, Some(value)) => drop(after.labels.insert(change.key.clone(), value.clone())),
            (FieldName::Label, None) => drop(after.labels.remove(&change.key)),
            (FieldName::Taint, value) => {
                let effect = change.effect.clone().unwrap_or_default();
                after.taints.retain(|taint| taint.key != change.key || taint.effect != effect);
                after.taints.extend(value.as_ref().map(|value| Taint {
                    key: change.key.clone(),
                    value: Some(value.clone()).filter(|value| !value.is_empty()),
                    effect,
                    time_added: None,
                }));
            }
            (FieldName::Annotation, _) => {}
        }
    }
    (after != *before).then_some(after)
}
