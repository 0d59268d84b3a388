//! The status of `NodePolicy` objects: written by the leader, at a bounded rate, only when it differs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::history::FIELD_MANAGER;
use super::policies::{Report, Reports};
use super::queue::Urgency;
use super::reconcile::Reconciler;
use super::reports::mode;
use crate::api::policy::{NodePolicy, NodePolicyStatus, PolicyCondition};
use crate::policy::{Keep, Note, Verdict};

/// Longest message of a condition, in characters.
const MESSAGE_MAX: usize = 2000;
/// Most conflicts named in one message.
const NAMED_MAX: usize = 10;

/// What a look at the whole fleet showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// How many nodes get something from a policy.
    pub(super) matched: BTreeMap<String, i64>,
    /// Keys for which another rule's value is taken, by the policy that loses.
    pub(super) conflicts: BTreeMap<String, BTreeSet<String>>,
    /// Keys that are left alone, by the policy whose they are.
    pub(super) contested: BTreeMap<String, BTreeSet<String>>,
    /// What each node violates, where that is reported.
    pub(super) violations: super::reports::Wanted,
    /// How many nodes violate an entry, by policy, entry and mode.
    pub(super) violating: BTreeMap<(String, String, &'static str), usize>,
    /// Why removals are held back.
    pub(super) brake: Option<String>,
}

impl Findings {
    /// Takes up what one node violates, each entry once.
    pub(super) fn note_violations(&mut self, verdict: &Verdict) {
        let entries: BTreeSet<_> = verdict
            .violations
            .iter()
            .map(|violation| (violation.by.policy.to_string(), violation.by.rule.to_string(), mode(violation.mode)))
            .collect();
        for entry in entries {
            *self.violating.entry(entry).or_default() += 1;
        }
    }

    /// Takes up what one node needs.
    pub(super) fn note(&mut self, node: &str, keep: &Keep) {
        let policies: BTreeSet<&str> = keep.decision.rules().into_iter().map(|rule| &*rule.policy).collect();
        for policy in policies {
            *self.matched.entry(policy.to_owned()).or_default() += 1;
        }
        for note in &keep.decision.notes {
            if let Note::Conflict { field, key, winner, loser } = note {
                let text = format!("{field} {key}: rule {winner} wins over rule {loser}, on node {node} for one");
                let known = self.conflicts.entry(loser.policy.to_string()).or_default();
                let start = format!("{field} {key}: rule {winner} wins over rule {loser}");
                if !known.iter().any(|known| known.starts_with(&start)) {
                    known.insert(text);
                }
            }
        }
    }
}

/// Writes what differs. An object that has changed meanwhile is left for the next time.
pub(super) async fn write(client: &Client, reports: &Reports, findings: &Findings, reconciler: &Reconciler) {
    let api: Api<NodePolicy> = Api::all(client.clone());
    for (name, report) in reports.iter() {
        let object = match api.get_opt(name).await {
            Ok(Some(object)) => object,
            Ok(None) => continue,
            Err(error) => {
                tracing::debug!(policy = name, %error, "the status could not be read");
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
        if let Err(error) = api.patch_status(name, &parameters, &patch).await {
            tracing::warn!(policy = name, %error, "the status could not be written");
        }
    }
}

fn wanted(
    name: &str,
    report: &Report,
    findings: &Findings,
    before: &NodePolicyStatus,
    now: Timestamp,
) -> NodePolicyStatus {
    let accepted = report.errors.is_empty();
    let condition = |kind: &str, holds: bool, reason: (&str, &str), message: String| {
        let status = if holds { "True" } else { "False" };
        let known = before.conditions.iter().find(|known| known.kind == kind && known.status == status);
        PolicyCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: (if holds { reason.0 } else { reason.1 }).to_owned(),
            message: message.chars().take(MESSAGE_MAX).collect(),
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
    let mut conditions = vec![
        condition("Accepted", accepted, ("InForce", "Faulty"), report.errors.join("; ")),
        condition("Conflicted", !conflicts.is_empty(), ("OtherRuleWins", "NoConflict"), conflicts),
    ];
    if !contested.is_empty() {
        conditions.push(condition("Contested", true, ("LeftAlone", ""), contested));
    }
    if let Some(brake) = &findings.brake {
        conditions.push(condition("Braked", true, ("RemovalsHeldBack", ""), brake.clone()));
    }
    NodePolicyStatus {
        observed_generation: report.generation,
        matched_nodes: if accepted { findings.matched.get(name).copied().unwrap_or_default() } else { 0 },
        conditions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let at = |second| Timestamp::from_second(second).unwrap_or_default();
        let (good, bad) =
            (Report { generation: 1, errors: Vec::new() }, Report { generation: 2, errors: vec!["no".to_owned()] });
        let findings = Findings { matched: BTreeMap::from([("p".to_owned(), 7)]), ..Findings::default() };
        let first = wanted("p", &good, &findings, &NodePolicyStatus::default(), at(0));
        assert_eq!((first.matched_nodes, first.conditions[0].status.as_str()), (7, "True"));
        assert_eq!(wanted("p", &good, &findings, &first, at(60)), first, "nothing to write");
        let second = wanted("p", &bad, &findings, &first, at(60));
        assert_eq!((second.matched_nodes, second.conditions[0].message.as_str()), (0, "no"));
        assert_ne!(second.conditions[0].last_transition_time, first.conditions[0].last_transition_time);
        assert_eq!(second.conditions[1].last_transition_time, first.conditions[1].last_transition_time);
    }
}
