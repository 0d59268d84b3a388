//! Tells in events what a node got when it joined, and by each change of the policies, and from which rules; and what its kubelet
//! claimed, or what was admitted without nodegate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::memory::node::NodeMemory;
use crate::node::NodeObject;
use crate::reconcile::Reconciler;
use crate::reconcile::change::{Revert, assignment, pair, taint};
use nodegate_base::log_limit::Rate;
use nodegate_policy::{Claims, Desired, Field, NodeChange, NodeFacts, PolicySet, ReconcilePlan, Strength};

/// What a node got when it joined, as people read it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Join {
    /// What admission set in the node's CREATE.
    by_admission: Vec<String>,
    /// What the controller set after it.
    by_controller: Vec<String>,
    /// What was restored from saved state, by either of them.
    restored: Vec<String>,
}

impl Reconciler {
    /// Publishes events about a node that joined while the webhook was registered. Once for each node.
    pub(crate) fn report_join(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        plan: &ReconcilePlan,
        change: Option<&NodeChange>,
    ) {
        if plan.lifts_pending && change.is_some() {
            self.events().tell(node, "Released", "removed the pending taint: nothing is deferred anymore".to_owned());
        }
        let is_join = plan.first_sight && self.was_admitted(node);
        if !is_join || self.with_memory(node, NodeMemory::is_news_of_join) != Some(true) {
            return;
        }
        let Join { by_admission, by_controller, restored } = join(facts, &node.claims(), plan, change);
        for (reason, what, keys) in [
            ("Admitted", "set at admission", by_admission),
            ("Completed", "set by the controller after admission", by_controller),
            ("Restored", "restored from saved state", restored),
        ] {
            if !keys.is_empty() {
                self.events().tell(node, reason, format!("{what}: {}", keys.join(", ")));
            }
        }
    }

    /// Tells, when this leader first processes a node, what was admitted without calling nodegate, and what admission
    /// rejected of a node that is not recorded yet.
    pub(crate) fn report_first_look(&self, node: &NodeObject, plan: &ReconcilePlan) {
        if self.with_memory(node, NodeMemory::is_first_look) != Some(true) {
            return;
        }
        if let Some(unseen) = &plan.unseen {
            tracing::warn!(node = node.name(), %unseen, "admitted without calling nodegate");
            self.metrics().controller.admitted_unseen.inc();
            self.events().later(node, "AdmittedUnseen", unseen.to_string());
        }
        self.report_rejected(node, plan);
    }

    /// Tells what the node's kubelet claimed and admission rejected, once for each node of a term.
    fn report_rejected(&self, node: &NodeObject, plan: &ReconcilePlan) {
        if !plan.first_sight || (plan.rejected.is_empty() && plan.rejected_more == 0) {
            return;
        }
        let mut claims: Vec<String> = plan.rejected.iter().map(ToString::to_string).collect();
        let unnamed = plan.rejected_unnamed();
        claims.extend(unnamed.iter().map(|unnamed| unnamed.key.clone()));
        let claims = claims.join(", ");
        let noted = self.memory().rejections.note(&REJECTIONS, Instant::now());
        log_rejected(noted, node.name(), &claims);
        plan.rejected.iter().for_each(|claim| self.metrics().controller.rejected(&claim.by, 1));
        if let Some(unnamed) = unnamed {
            self.metrics().controller.rejected(&unnamed.by, plan.rejected_more);
        }
        let note = format!(
            "the kubelet of this node claimed what it may not set, or what rules set to other values: {claims}. \
             This was rejected. Check the kubelet's --node-labels, and who has the node's credentials"
        );
        self.events().later(node, "ClaimRejected", note);
    }

    /// Publishes events about an existing node for each change of the policies: one on what the node got, one on what it lost.
    /// So does what a node gets that was there before nodegate. A repair of what others have undone is none.
    pub(crate) fn report_policy_change(
        &self,
        node: &NodeObject,
        policies: &Arc<PolicySet>,
        plan: &ReconcilePlan,
        change: &NodeChange,
        reverts: &[Revert],
    ) {
        if plan.first_sight && self.was_admitted(node) {
            return;
        }
        let [set, removed] = by_policies(plan, change, reverts);
        for (what, keys, lost) in [("set", set, false), ("removed", removed, true)] {
            let is_news = || self.with_memory(node, |known| known.is_new_policy(policies, lost));
            if !keys.is_empty() && is_news() == Some(true) {
                let note = format!("{what} because of the policies in force: {}", keys.join(", "));
                self.events().tell_each(node, "PolicyApplied", note);
            }
        }
    }
}

/// How often the log says that claims were rejected. One limit for all nodes, because each of them joins once.
const REJECTIONS: Rate = Rate { burst: 10, interval: Duration::from_secs(10) };

/// Logs what was rejected of a kubelet, unless there were too many such lines lately. Each node still has its event.
fn log_rejected(noted: Option<u64>, node: &str, claims: &str) {
    let Some(left_out) = noted else { return };
    let left_out = (left_out > 0).then_some(left_out);
    tracing::warn!(node, claims, left_out, "what the kubelet claimed when the node joined was rejected");
}

/// The parts of a change that policies ask for and that repair nothing.
fn by_policies(plan: &ReconcilePlan, change: &NodeChange, reverts: &[Revert]) -> [Vec<String>; 2] {
    let [mut given, mut removed] = [Vec::new(), Vec::new()];
    let mut add = |field: Field, key: String, set: Option<String>| {
        let is_repair = reverts.iter().any(|revert| revert.revert_key == (field, key.clone()));
        let giver = plan.giver(field, &key);
        match set {
            Some(text) if !is_repair && giver.is_some() => given.push(assignment(&text, giver)),
            None if plan.removals.iter().any(|removal| removal.field == field && removal.key == key) => {
                removed.push(key);
            }
            Some(_) | None => {}
        }
    };
    for (key, value) in change.labels() {
        add(Field::Label, key.clone(), value.as_ref().map(|value| pair(key, value)));
    }
    for (key, value) in change.annotations() {
        add(Field::Annotation, key.clone(), value.as_ref().map(|value| pair(key, value)));
    }
    for (id, value) in change.taints() {
        add(Field::Taint, id.to_string(), value.as_ref().map(|value| taint(id, value)));
    }
    [given, removed]
}

fn join(facts: &NodeFacts<'_>, claims: &Claims, plan: &ReconcilePlan, change: Option<&NodeChange>) -> Join {
    let mut join = Join::default();
    // No field manager claims what a webhook's patch set. Taints have no claims of their own.
    let mut note = |desired: &Desired, text: String, is_there: bool, is_claimed: bool, is_set: bool| {
        let text = assignment(&text, Some(&desired.by));
        match desired.strength {
            Strength::Saved if is_set || (is_there && !is_claimed) => join.restored.push(text),
            Strength::Saved => {}
            Strength::Enforced | Strength::Inventory | Strength::Default if is_set => join.by_controller.push(text),
            Strength::Enforced | Strength::Inventory | Strength::Default if is_there && !is_claimed => {
                join.by_admission.push(text);
            }
            Strength::Enforced | Strength::Inventory | Strength::Default => {}
        }
    };
    for (key, desired) in &plan.decision.labels {
        let is_set = change.is_some_and(|change| change.labels().get(key).is_some_and(Option::is_some));
        let is_there = facts.label(key) == Some(&desired.value);
        note(desired, pair(key, &desired.value), is_there, claims.has_label(key), is_set);
    }
    for (key, desired) in &plan.decision.annotations {
        let is_set = change.is_some_and(|change| change.annotations().get(key).is_some_and(Option::is_some));
        let is_there = facts.annotation(key) == Some(&desired.value);
        note(desired, pair(key, &desired.value), is_there, claims.has_annotation(key), is_set);
    }
    for (id, desired) in &plan.decision.taints {
        let is_set = change.is_some_and(|change| change.taints().get(id).is_some_and(Option::is_some));
        let is_there = facts.taint(id.key.as_str(), id.effect) == Some(&desired.value);
        note(desired, taint(id, &desired.value), is_there, false, is_set);
    }
    join
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use parking_lot::Mutex;
    use serde_json::json;
    use tracing::field::{Field as LogField, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use nodegate_base::log_limit::LogLimit;
    use nodegate_policy::{PendingTaints, PolicyDocument, PolicySet, StoredNode, plan_reconcile};

    /// Keeps what the lines that are written say was left out.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u64>>>);

    impl Visit for Lines {
        fn record_debug(&mut self, _field: &LogField, _value: &dyn std::fmt::Debug) {}

        fn record_u64(&mut self, field: &LogField, value: u64) {
            if let Some(last) = self.0.lock().last_mut().filter(|_| field.name() == "left_out") {
                *last = value;
            }
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _span: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _span: &Id, _values: &Record<'_>) {}

        fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

        fn event(&self, event: &Event<'_>) {
            self.0.lock().push(0);
            event.record(&mut self.clone());
        }

        fn enter(&self, _span: &Id) {}

        fn exit(&self, _span: &Id) {}
    }

    #[test]
    fn a_thousand_nodes_with_rejected_claims_are_a_few_lines_that_count_the_rest() {
        let (lines, mut limit, start) =
            (Lines::default(), LogLimit::default(), Instant::now() + Duration::from_secs(3600));
        tracing::subscriber::with_default(lines.clone(), || {
            (0..1000).for_each(|at| log_rejected(limit.note(&REJECTIONS, start), &format!("n{at}"), "tier=\"x\""));
            log_rejected(limit.note(&REJECTIONS, start + Duration::from_secs(60)), "later", "tier=\"x\"");
        });
        let left_out = lines.0.lock();
        assert!(left_out.len() < 20, "{left_out:?}");
        assert_eq!(left_out.last().copied(), u64::try_from(1001 - left_out.len()).ok(), "{left_out:?}");
    }

    #[test]
    fn what_admission_the_controller_and_saved_state_gave_is_told_apart() {
        let spec = json!({
            "rules": [{"name": "role", "labels": {"tier": "gold", "role": "worker", "own": "kubelet"},
                       "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}],
            "persist": {"labels": ["persist.demo/*"]},
        });
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        let claims = json!([{"manager": "kubelet", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:own": {}}}}}]);
        let node = json!({"metadata": {"name": "n", "uid": "u", "labels": {"tier": "gold", "own": "kubelet", "persist.demo/a": "1"},
            "managedFields": claims}, "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}});
        let node = NodeObject::read(&node.to_string()).unwrap();
        let text = node.text();
        let facts = text.facts().unwrap();
        let saved =
            json!({"nodeName": "n", "nodeUID": "before", "labels": {"persist.demo/a": "1", "persist.demo/b": "2"}});
        let stored = StoredNode {
            pools: None,
            node: &facts,
            version: None,
            claims: &node.claims(),
            saved: &serde_json::from_value(saved).unwrap(),
            inventory: None,
            devices: None,
            registered: true,
            identified: true,
            pending: <&PendingTaints>::default(),
            adopt: false,
            patched_taints: &BTreeSet::new(),
            elsewhere: Default::default(),
            evidence: None,
        };
        let plan = plan_reconcile(&set, &stored);
        let change = plan.change(|_| true, |_, _| false);
        let join = join(&facts, &node.claims(), &plan, change.as_ref());
        let of = |key: &str| format!("{key} (policy fleet, rule role)");
        assert_eq!(
            join.by_admission,
            [of("tier=gold"), of("dedicated=gpu:NoSchedule")],
            "a kubelet's own label is not told"
        );
        assert_eq!(join.by_controller, [of("role=worker")]);
        let restored: Vec<&str> = join.restored.iter().map(|text| text.split(' ').next().unwrap()).collect();
        assert_eq!(restored, ["persist.demo/a=1", "persist.demo/b=2"]);
    }
}
