//! Writes the status of `NodePolicy` objects. Only the leader does this, rate limited, and only if the status
//! differs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource as _};
use serde_json::json;

use crate::cluster::annotation_calls::REMEDY;
use crate::node::queue::Urgency;
use crate::policies::{Report, Reports};
use crate::reconcile::Reconciler;
use crate::tell::reports::mode;
use nodegate_base::metrics::{ByRule, Survey};
use nodegate_base::text;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::api::policy::{NodePolicy, NodePolicyStatus, PolicyCondition};
use nodegate_policy::explain::NodeIdentity;
use nodegate_policy::{Kind, Note, PolicySet, ReconcilePlan, RuleId, Verdict};
use nodegate_stores::inventory::{AllFailing, Failing};

/// The condition that reports whether the current generation is in force.
const ACCEPTED: &str = "Accepted";
/// The condition that reports inventories that do not answer.
const INVENTORY_FAILING: &str = "InventoryFailing";
/// The condition that reports entries that are not asked about changes of annotations.
const ANNOTATIONS_NOT_JUDGED: &str = "AnnotationsNotJudged";
/// The condition that reports that the guard lacks keys of the policy.
const GUARD_NOT_CURRENT: &str = "GuardNotCurrent";
/// Maximum length of a condition's message, in characters.
const MESSAGE_MAX: usize = 2000;
/// Maximum number of conflicts in one message.
const NAMED_MAX: usize = 10;

/// The result of a survey of all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// How many nodes get labels, annotations or taints from a policy.
    pub(crate) matched: BTreeMap<String, i64>,
    /// Keys for which another rule takes precedence, by the policy whose value is not used.
    pub(crate) conflicts: BTreeMap<String, BTreeSet<String>>,
    /// Keys that are no longer repaired, by the policy that sets them.
    pub(crate) contested: BTreeMap<String, BTreeSet<String>>,
    /// The violations of each node, if reports are enabled.
    pub(crate) violations: crate::tell::reports::Wanted,
    /// How many nodes violate an entry, by policy, entry and mode.
    pub(crate) violating: BTreeMap<(String, String, &'static str), i64>,
    /// How many nodes lack what an entry requires, by policy and entry.
    pub(crate) required_missing: ByRule,
    /// How many nodes have something from a rule, by policy and rule.
    pub(crate) by_rule: ByRule,
    /// How many nodes differ from what they should have.
    pub(crate) drifted: usize,
    /// How many nodes are proven to belong to a pool, by pool.
    pub(crate) by_pool: BTreeMap<String, i64>,
    /// Of how many nodes it is not known whether they belong to one of the pools.
    pub(crate) pools_unknown: usize,
    /// How many nodes wait at a gate, by policy and gate.
    pub(crate) by_gate: BTreeMap<(String, String), i64>,
    /// Inventories that do not answer and why, by policy.
    pub(crate) inventories: BTreeMap<String, BTreeSet<String>>,
    /// Governance entries that are not asked about writes that change only annotations, by policy.
    pub(crate) left_out: BTreeMap<String, BTreeSet<String>>,
    /// Why the guard may lack protected and persisted keys, by policy that names some.
    pub(crate) unguarded: BTreeMap<String, String>,
    /// Why removals are held back.
    pub(crate) brake: Option<String>,
}

impl Findings {
    /// Adds the violations of one node, each entry once.
    pub(crate) fn note_violations(&mut self, verdict: &Verdict) {
        let entries: BTreeSet<_> = verdict
            .violations
            .iter()
            .map(|violation| (violation.by.policy.to_string(), violation.by.rule.to_string(), mode(violation.mode)))
            .collect();
        for entry in entries {
            *self.violating.entry(entry).or_default() += 1;
        }
        let missing = verdict.violations.iter().filter(|violation| violation.kind == Kind::Required);
        let missing: BTreeSet<(String, String)> = missing.map(|violation| named(&violation.by)).collect();
        for entry in missing {
            *self.required_missing.entry(entry).or_default() += 1;
        }
    }

    /// Adds the pools of one node.
    pub(crate) fn note_pools(&mut self, identity: NodeIdentity) {
        let NodeIdentity { pools, unknown, may_have_others, proof: _, instance: _, contradictions: _ } = identity;
        self.pools_unknown += usize::from(may_have_others || !unknown.is_empty());
        for pool in pools {
            *self.by_pool.entry(pool).or_default() += 1;
        }
    }

    /// The metrics of the survey.
    pub(crate) fn survey(&self, removals_held_back: usize, left_alone: usize) -> Survey {
        let number = |keys: &BTreeSet<String>| i64::try_from(keys.len()).unwrap_or(i64::MAX);
        Survey {
            violating: self.violating.clone(),
            required_missing: self.required_missing.clone(),
            by_rule: self.by_rule.clone(),
            conflicting_keys: self.conflicts.iter().map(|(policy, keys)| (policy.clone(), number(keys))).collect(),
            drifted: self.drifted,
            removals_held_back,
            left_alone,
            by_pool: self.by_pool.clone(),
            pools_unknown: self.pools_unknown,
            by_gate: self.by_gate.clone(),
        }
    }

    /// Adds the inventories that do not answer.
    pub(crate) fn note_inventories(&mut self, failing: &AllFailing) {
        for Failing { policy, name, why } in failing.values() {
            self.inventories.entry(policy.clone()).or_default().insert(format!("inventory {name}: {why}"));
        }
    }

    /// Adds the entries that are about annotations.
    pub(crate) fn note_left_out(&mut self, policies: &PolicySet) {
        for entry in policies.entries_on_annotations() {
            self.left_out.entry(entry.policy.to_string()).or_default().insert(entry.rule.to_string());
        }
    }

    /// Adds why the guard may lack keys.
    pub(crate) fn note_unguarded(&mut self, policies: &PolicySet, why: &str) {
        self.unguarded = policies.guarding().map(|policy| (policy.to_owned(), why.to_owned())).collect();
    }

    /// Adds the changes that one node needs.
    pub(crate) fn note(&mut self, node: &str, plan: &ReconcilePlan) {
        for gate in &plan.decision.gates {
            *self.by_gate.entry(named(&gate.id)).or_default() += 1;
        }
        let rules = plan.decision.rules();
        for rule in &rules {
            *self.by_rule.entry(named(rule)).or_default() += 1;
        }
        self.drifted += usize::from(plan.change(|_| true, |_, _| false).is_some());
        let policies: BTreeSet<&str> = rules.into_iter().map(|rule| &*rule.policy).collect();
        for policy in policies {
            *self.matched.entry(policy.to_owned()).or_default() += 1;
        }
        for note in &plan.decision.notes {
            if let Note::Conflict { field, key, winner, loser } = note {
                let text = format!(
                    "{field} {key}: rule {winner} takes precedence over rule {loser}, for example on node {node}"
                );
                let known = self.conflicts.entry(loser.policy.to_string()).or_default();
                let start = format!("{field} {key}: rule {winner} takes precedence over rule {loser}");
                if !known.iter().any(|known| known.starts_with(&start)) {
                    known.insert(text);
                }
            }
        }
    }
}

fn named(rule: &RuleId) -> (String, String) {
    (rule.policy.to_string(), rule.rule.to_string())
}

/// Writes what differs. An object that changed concurrently is written in the next pass.
pub(crate) async fn write(client: &Client, reports: &Reports, findings: &Findings, reconciler: &Reconciler) {
    let api: Api<NodePolicy> = Api::all(client.clone());
    for (name, report) in reports.iter() {
        let object = match api.get_opt(name).await {
            Ok(Some(object)) => object,
            Ok(None) => continue,
            Err(error) => {
                tracing::debug!(policy = name, %error, "could not read the status");
                continue;
            }
        };
        let before = object.status.unwrap_or_default();
        let status = wanted(name, report, findings, &before, Timestamp::now());
        if status == before {
            continue;
        }
        reconciler.turn(Urgency::Routine).await;
        let patch = Patch::Merge(json!({"status": status}));
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_status(name, &parameters, &patch).await {
            Ok(_) => {
                for (kind, status_of_fault, reason) in [
                    (ACCEPTED, "False", "Faulty"),
                    (INVENTORY_FAILING, "True", INVENTORY_FAILING),
                    (ANNOTATIONS_NOT_JUDGED, "True", ANNOTATIONS_NOT_JUDGED),
                    (GUARD_NOT_CURRENT, "True", GUARD_NOT_CURRENT),
                ] {
                    if let Some(complaint) = news(&before, &status, (kind, status_of_fault)) {
                        reconciler.events().later_for(reference(name, report), reason, complaint);
                    }
                }
            }
            Err(error) => tracing::warn!(policy = name, %error, "could not write the status"),
        }
    }
}

/// What a condition with this status says, if no event has reported it yet.
fn news(before: &NodePolicyStatus, now: &NodePolicyStatus, (kind, status_of_fault): (&str, &str)) -> Option<String> {
    let message = |status: &NodePolicyStatus| {
        let found =
            status.conditions.iter().find(|condition| condition.kind == kind && condition.status == status_of_fault);
        found.map(|condition| condition.message.clone())
    };
    message(now).filter(|told| message(before).as_ref() != Some(told))
}

fn reference(name: &str, report: &Report) -> ObjectReference {
    ObjectReference {
        api_version: Some(NodePolicy::api_version(&()).into_owned()),
        kind: Some(NodePolicy::kind(&()).into_owned()),
        name: Some(name.to_owned()),
        uid: Some(report.uid.clone()),
        ..ObjectReference::default()
    }
}

fn wanted(
    name: &str,
    report: &Report,
    findings: &Findings,
    before: &NodePolicyStatus,
    now: Timestamp,
) -> NodePolicyStatus {
    let complaint = report.complaint();
    let condition = |kind: &str, holds: bool, reason: (&str, &str), mut message: String| {
        text::cut_to_characters(&mut message, MESSAGE_MAX);
        let status = if holds { "True" } else { "False" };
        let known = before.conditions.iter().find(|known| known.kind == kind && known.status == status);
        PolicyCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: (if holds { reason.0 } else { reason.1 }).to_owned(),
            message,
            last_transition_time: known.map_or_else(
                || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                |known| known.last_transition_time.clone(),
            ),
            observed_generation: report.generation,
        }
    };
    let listed = |found: Option<&BTreeSet<String>>| {
        let found: Vec<&str> = found.into_iter().flatten().map(String::as_str).collect();
        let more = found.len().saturating_sub(NAMED_MAX);
        let named = found[..found.len() - more].join("; ");
        if more > 0 { format!("{named}; and {more} more") } else { named }
    };
    let conflicts = listed(findings.conflicts.get(name));
    let contested = listed(findings.contested.get(name));
    let inventories = listed(findings.inventories.get(name));
    let mut conditions = vec![
        condition(ACCEPTED, complaint.is_none(), ("InForce", "Faulty"), complaint.unwrap_or_default()),
        condition("Conflicted", !conflicts.is_empty(), ("OtherRuleWins", "NoConflict"), conflicts),
    ];
    if !contested.is_empty() {
        conditions.push(condition("Contested", true, ("LeftAlone", ""), contested));
    }
    if !inventories.is_empty() {
        let message = format!("{inventories}; the last answers stay in force");
        conditions.push(condition(INVENTORY_FAILING, true, ("NoAnswer", ""), message));
    }
    let left_out = listed(findings.left_out.get(name));
    if !left_out.is_empty() {
        let message = format!(
            "the webhook configuration leaves out writes that change only annotations, so these entries do not judge them: {left_out}; {REMEDY}"
        );
        conditions.push(condition(ANNOTATIONS_NOT_JUDGED, true, ("LeftOutByWebhook", ""), message));
    }
    if let Some(why) = findings.unguarded.get(name) {
        let message = format!(
            "the guard may lack keys that this policy protects or persists, so kubelets can set them while no replica answers: {why}"
        );
        conditions.push(condition(GUARD_NOT_CURRENT, true, ("ParametersNotWritten", ""), message));
    }
    if let Some(brake) = &findings.brake {
        conditions.push(condition("Braked", true, ("RemovalsHeldBack", ""), brake.clone()));
    }
    NodePolicyStatus {
        observed_generation: report.generation,
        generation_in_force: report.in_force,
        matched_nodes: report.in_force.and_then(|_| findings.matched.get(name).copied()).unwrap_or_default(),
        conditions,
        // The native export writes this field.
        native: before.native.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT: (&str, &str) = (ACCEPTED, "False");

    #[test]
    fn nodes_are_counted_by_pool_and_those_that_may_belong_to_another() {
        let of = |pools: &[&str], unknown: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            NodeIdentity { pools: names(pools), unknown: names(unknown), ..NodeIdentity::default() }
        };
        let mut findings = Findings::default();
        for identity in [of(&["a", "b"], &[]), of(&["a"], &["b", "c"]), of(&[], &["a"]), of(&[], &[])] {
            findings.note_pools(identity);
        }
        let Survey { by_pool, pools_unknown, .. } = findings.survey(0, 0);
        assert_eq!(by_pool, BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]));
        assert_eq!(pools_unknown, 2);
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let at = |second| Timestamp::from_second(second).unwrap_or_default();
        let report = |generation, errors, in_force| Report { uid: "u".to_owned(), generation, errors, in_force };
        let good = report(1, Vec::new(), Some(1));
        let bad = report(2, vec!["no".to_owned()], Some(1));
        let findings = Findings { matched: BTreeMap::from([("p".to_owned(), 7)]), ..Findings::default() };
        let first = wanted("p", &good, &findings, &NodePolicyStatus::default(), at(0));
        assert_eq!((first.matched_nodes, first.conditions[0].status.as_str()), (7, "True"));
        assert_eq!(wanted("p", &good, &findings, &first, at(60)), first, "nothing to write");
        let second = wanted("p", &bad, &findings, &first, at(60));
        let told = second.conditions[0].message.as_str();
        assert_eq!(
            (second.generation_in_force, told),
            (Some(1), "generation 2 has 1 error; generation 1 stays in force: no")
        );
        assert_eq!(
            (second.matched_nodes, news(&first, &second, FAULT).as_deref(), news(&second, &second, FAULT)),
            (7, Some(told), None)
        );
        assert_ne!(second.conditions[0].last_transition_time, first.conditions[0].last_transition_time);
        assert_eq!(second.conditions[1].last_transition_time, first.conditions[1].last_transition_time);
    }
}
