//! What the log and the metrics say of reviews.

use std::collections::BTreeSet;
use std::time::Instant;

use super::Context;
use super::answer::{Asked, cut};
use super::wire::{Reply, Review};
use nodegate_base::metrics::Outcome;
use nodegate_policy::{Decision, Note, Operation, RuleId, Violation, Write};

/// Maximum length of a text in a log line, in bytes.
const LOGGED_MAX: usize = 512;

/// Logs one line per decision, without the object.
pub(super) fn log(review: &Review<'_>, write: &Write<'_>, endpoint: &str, outcome: Outcome, reply: &Reply) {
    tracing::debug!(
        endpoint,
        uid = &*review.uid,
        node = &*write.node.name,
        operation = ?write.operation,
        status = write.status,
        user = &*write.requester.username,
        outcome = outcome.as_str(),
        rules = reply.audit_annotations.get("rules").map(String::as_str),
        denial = reply.denial.as_deref(),
        "reviewed"
    );
}

/// The name of a user in the log. The API server bounds none.
pub(super) fn shown(user: &str) -> String {
    cut(user, LOGGED_MAX)
}

/// Rules in the log.
fn listed(rules: BTreeSet<String>) -> String {
    cut(&rules.into_iter().collect::<Vec<_>>().join(","), LOGGED_MAX)
}

/// Logs a denial for operators, who see nothing of the answer to the requester.
pub(super) fn log_denial(write: &Write<'_>, denial: &str, violations: &[Violation], context: &Context, asked: Asked) {
    let noted = context.denials.note(&write.requester.username, asked.peer, Instant::now());
    let Some(left_out) = noted else { return };
    let user = shown(&write.requester.username);
    let rules: BTreeSet<String> = violations.iter().filter(|one| one.denies()).map(|one| one.by.to_string()).collect();
    tracing::info!(
        node = &*write.node.name,
        user,
        caller = context.callers.as_str(),
        rules = listed(rules),
        denial = cut(denial, LOGGED_MAX),
        left_out = (left_out > 0).then_some(left_out),
        "denied a write"
    );
}

/// Logs what a kubelet wrote to its living node and may not. What it claimed when it joined is the leader's to tell.
pub(super) fn log_corrections(write: &Write<'_>, notes: &[Note], context: &Context, asked: Asked) {
    if write.operation == Operation::Create || !write.requester.is_kubelet() {
        return;
    }
    let corrected = notes.iter().filter_map(|note| match note {
        Note::Stripped { key, by, .. } | Note::PutBack { key, by, .. } | Note::Reverted { key, by, .. } => {
            Some((key.as_str(), by.to_string()))
        }
        _ => None,
    });
    let (keys, rules): (Vec<&str>, BTreeSet<String>) = corrected.unzip();
    if keys.is_empty() {
        return;
    }
    let noted = context.denials.note(&write.requester.username, asked.peer, Instant::now());
    let Some(left_out) = noted else { return };
    tracing::info!(
        node = &*write.node.name,
        user = shown(&write.requester.username),
        caller = context.callers.as_str(),
        keys = cut(&keys.join(","), LOGGED_MAX),
        rules = listed(rules),
        left_out = (left_out > 0).then_some(left_out),
        "corrected a kubelet's write"
    );
}

/// Counts what an answer changes and what it leaves for later. Dry runs count as well, as all reviews do.
pub(super) fn count_change(decision: &Decision, operations: usize, context: &Context) {
    let metrics = &context.metrics.admission;
    metrics.patch_operations.inc_by(u64::try_from(operations).unwrap_or(u64::MAX));
    if decision.deferred.is_some() {
        metrics.deferrals.inc();
    }
    if let Some(change) = &decision.change {
        metrics.restored_keys.inc_by(u64::try_from(decision.restored_by(change)).unwrap_or(u64::MAX));
    }
}

pub(super) fn count_notes(notes: &[Note], context: &Context) {
    for note in notes {
        let (kind, rule): (&'static str, Option<&RuleId>) = match note {
            Note::Conflict { loser, .. } => ("conflict", Some(loser)),
            Note::Unknown { rule, .. } => ("unknown", Some(rule)),
            Note::Unsettled { rule } => ("unsettled", Some(rule)),
            Note::Dropped { rule, .. } => ("dropped", Some(rule)),
            Note::Stripped { by, .. } | Note::StrippedUnnamed { by, .. } => ("stripped", Some(by)),
            Note::PutBack { by, .. } => ("put_back", Some(by)),
            Note::Retired { by, .. } => ("retired", Some(by)),
            Note::Reverted { by, .. } => ("reverted", Some(by)),
            Note::Withheld { by, .. } => ("withheld", Some(by)),
            Note::NotRestored { .. } => ("not_restored", None),
            Note::LeftOut(_) => ("left_out", None),
            Note::DeferredUnmarked { .. } => ("deferred_unmarked", None),
            Note::AwaitedUnmarked { .. } => ("awaited_unmarked", None),
            Note::GatesUnmarked { .. } => ("gates_unmarked", None),
        };
        context.metrics.admission.noted(kind, rule.map_or("", |rule| &rule.policy), rule.map_or("", |rule| &rule.rule));
    }
}
