//! A review becomes an answer. No I/O and no waiting: everything is in memory.

use std::collections::BTreeMap;

use super::router::ORDINARY;
use super::wire::{Reply, Review, Subject};
use super::{Context, PendingTaint, policies};
use crate::api::policy::EntryMode;
use crate::metrics::Outcome;
use crate::policy::cel::Budget;
use crate::policy::{
    Circumstances, Decision, Note, PolicySet, RuleId, Verdict, Violation, Write, decide, judge, patch,
};
use crate::state::Machine;
use crate::text::{self, lines, on_a_line};

/// Longest warning, in characters: clients cut longer ones (`k8s.io/api/admission/v1/types.go`).
const WARNING_MAX: usize = 120;
/// Most warnings in one answer.
const WARNINGS_MAX: usize = 16;
/// Longest denial, in bytes.
const DENIAL_MAX: usize = 8192;
/// Longest audit annotation value, in bytes.
const AUDIT_MAX: usize = 1024;

/// A refusal to answer: the HTTP status and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// The HTTP status code, 4xx or 500.
    pub code: u16,
    /// What is wrong.
    pub message: String,
}

impl Rejection {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { code: 500, message: message.into() }
    }
}

/// An answer: the `AdmissionReview` as JSON, and how it is counted.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The JSON.
    pub body: Vec<u8>,
    /// How it is counted.
    pub outcome: Outcome,
}

/// Answers `POST /mutate`: decides what the node should have and patches what this request may carry.
///
/// # Errors
/// 400 for what does not belong here, 500 for a fault of ours.
pub fn mutate(body: &[u8], context: &Context) -> Result<Answer, Rejection> {
    whole(mutate_within(body, context, &Budget::default()))
}

/// As [`mutate`], within `budget`; `None` when that was too brief.
pub(super) fn mutate_within(body: &[u8], context: &Context, budget: &Budget) -> Result<Option<Answer>, Rejection> {
    let review = read(body)?;
    let write = match &review.subject {
        Subject::Node(write) => write,
        Subject::Passed => return passed(&review),
    };
    let mut reply = Reply::default();
    let own = context.exemptions.load().self_user.as_deref() == Some(&*write.requester.username);
    // A patch on nodes/status would break heartbeats (NodeRestriction); we are not registered for it. What nodegate writes
    // itself was decided already, and must not become more than it is: a node that is released, say.
    if !write.status && !own {
        let policies = context.policies.load();
        let saved = context.saved.get(machine(write));
        let circumstances = Circumstances {
            saved: saved.as_deref(),
            pending_taint: context.pending_taint.as_ref().and_then(PendingTaint::now),
            stamps: context.stamps,
            budget: Some(budget),
        };
        let decision = decide(&policies, write, &circumstances);
        if budget.was_too_brief() {
            return Ok(None);
        }
        count_notes(&decision.notes, context);
        reply.patch = decision.change.as_ref().map(|change| patch(&write.node, change));
        reply.warnings = decision_warnings(&decision);
        reply.audit_annotations = decision_annotations(&decision);
    }
    let outcome = if reply.patch.is_some() { Outcome::Patched } else { Outcome::Allowed };
    log(&review, write, "mutate", outcome, &reply);
    finish(&review, &reply, outcome).map(Some)
}

/// Answers `POST /validate`: judges the difference the write makes, or a `NodePolicy` object.
///
/// # Errors
/// 400 for what does not belong here, 500 for a fault of ours.
pub fn validate(body: &[u8], context: &Context) -> Result<Answer, Rejection> {
    whole(validate_within(body, context, &Budget::default()))
}

/// As [`validate`], within `budget`; `None` when that was too brief.
pub(super) fn validate_within(body: &[u8], context: &Context, budget: &Budget) -> Result<Option<Answer>, Rejection> {
    let review = match read(body) {
        Ok(review) => review,
        // Asked only now: reviews of nodes, which are many, pay nothing for those of policies.
        Err(rejection) => return policies::review(body, context, budget).unwrap_or(Err(rejection)),
    };
    let write = match &review.subject {
        Subject::Node(write) => write,
        Subject::Passed => return passed(&review),
    };
    let policies: &PolicySet = &context.policies.load();
    let saved = context.saved.get(machine(write));
    let circumstances = Circumstances {
        saved: saved.as_deref(),
        pending_taint: context.pending_taint.as_ref().and_then(PendingTaint::now),
        stamps: context.stamps,
        budget: Some(budget),
    };
    let verdict = judge(policies, write, &circumstances, &context.exemptions.load());
    if budget.was_too_brief() {
        return Ok(None);
    }
    let denial = verdict.denial();
    if let Some((rule, reason)) = verdict.too_costly.as_ref().filter(|_| denial.is_none()) {
        // Not a verdict: what happens then is the failure policy's to say.
        return Err(Rejection::internal(format!("rule {rule} could not be judged: {reason}")));
    }
    let reply = Reply {
        patch: None,
        denial: denial.map(|message| cut(format!("nodegate: {message}"), DENIAL_MAX)),
        warnings: verdict_warnings(&verdict),
        audit_annotations: verdict_annotations(&verdict),
    };
    for (rule, reason) in &verdict.unknown {
        tracing::debug!(%rule, reason, "an expression has no answer, so it denies nothing");
        context.metrics.noted("unknown", &rule.policy, &rule.rule);
    }
    for violation in &verdict.violations {
        let (by, mode) = (&violation.by, consequence(violation));
        context.metrics.violated(&by.policy, &by.rule, mode, violation.denies());
    }
    let outcome = if reply.denial.is_some() { Outcome::Denied } else { Outcome::Allowed };
    log(&review, write, "validate", outcome, &reply);
    finish(&review, &reply, outcome).map(Some)
}

/// Reads a review. The log names the node of a large one: no ordinary node comes near that size.
fn read(body: &[u8]) -> Result<Review<'_>, Rejection> {
    let review = Review::parse(body)?;
    if let Subject::Node(write) = &review.subject
        && body.len() > ORDINARY
    {
        let (node, user) = (&*write.node.name, &*write.requester.username);
        tracing::warn!(node, user, bytes = body.len(), "the review of this node is unusually large");
    }
    Ok(review)
}

/// The answer to what is neither decided nor judged.
fn passed(review: &Review<'_>) -> Result<Option<Answer>, Rejection> {
    finish(review, &Reply::default(), Outcome::Allowed).map(Some)
}

/// The answer of a try that was not brief.
fn whole(answered: Result<Option<Answer>, Rejection>) -> Result<Answer, Rejection> {
    answered?.ok_or_else(|| Rejection::internal("internal error: the review has no answer"))
}

/// Which machine a write is about. What it is stored as comes first: a later write may claim another ID.
fn machine<'a>(write: &'a Write<'_>) -> Machine<'a> {
    let (new, old) = (&write.node, write.old.as_ref());
    let provider_id = old.and_then(|old| old.provider_id.as_deref()).or(new.provider_id.as_deref());
    let system_uuid = old.and_then(|old| old.system_uuid.as_deref()).or(new.system_uuid.as_deref());
    Machine { name: &new.name, provider_id, system_uuid }
}

fn finish(review: &Review<'_>, reply: &Reply, outcome: Outcome) -> Result<Answer, Rejection> {
    let body =
        reply.to_json(review).map_err(|error| Rejection::internal(format!("the answer cannot be written: {error}")))?;
    Ok(Answer { body, outcome })
}

/// One line a decision, never the object.
fn log(review: &Review<'_>, write: &Write<'_>, endpoint: &str, outcome: Outcome, reply: &Reply) {
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

fn count_notes(notes: &[Note], context: &Context) {
    for note in notes {
        let (kind, rule): (&'static str, Option<&RuleId>) = match note {
            Note::Conflict { loser, .. } => ("conflict", Some(loser)),
            Note::Unknown { rule, .. } => ("unknown", Some(rule)),
            Note::Unsettled { rule } => ("unsettled", Some(rule)),
            Note::Dropped { rule, .. } => ("dropped", Some(rule)),
            Note::Stripped { .. } => ("stripped", None),
            Note::PutBack { .. } => ("put_back", None),
            Note::Reverted { by, .. } => ("reverted", Some(by)),
            Note::Withheld { by, .. } => ("withheld", Some(by)),
            Note::NotRestored { .. } => ("not_restored", None),
            Note::LeftOut(_) => ("left_out", None),
            Note::DeferredUnmarked { .. } => ("deferred_unmarked", None),
        };
        context.metrics.noted(kind, rule.map_or("", |rule| &rule.policy), rule.map_or("", |rule| &rule.rule));
    }
}

/// Cuts a text to a warning's length, at a character. Control characters are escaped: the API server drops a warning with one.
pub(super) fn warning(text: &str) -> String {
    let text = &*on_a_line(text);
    if text.chars().count() <= WARNING_MAX {
        return text.to_owned();
    }
    text.chars().take(WARNING_MAX - 1).chain(['…']).collect()
}

/// What the requester should hear of. Unknown conditions are ordinary while a node starts: they are
/// counted, not warned of.
fn decision_warnings(decision: &Decision) -> Vec<String> {
    let told = decision.notes.iter().filter(|note| !matches!(note, Note::Unknown { .. }));
    told.take(WARNINGS_MAX).map(|note| warning(&format!("nodegate: {note}"))).collect()
}

fn verdict_warnings(verdict: &Verdict) -> Vec<String> {
    let told = verdict.violations.iter().filter(|violation| matches!(consequence(violation), "warn" | "break_glass"));
    // Long ones are cut at the end: what matters stands first.
    let text = |violation: &Violation| match &violation.overridden_by {
        Some(by) => format!("nodegate: {}: break glass by {by}: {}", violation.by, violation.what),
        None => format!("nodegate: {}: {}", violation.by, violation.what),
    };
    told.take(WARNINGS_MAX).map(|violation| warning(&text(violation))).collect()
}

/// What comes of a violation.
fn consequence(violation: &Violation) -> &'static str {
    match (&violation.overridden_by, violation.mode) {
        (Some(_), EntryMode::Enforce) => "break_glass",
        (_, EntryMode::Enforce) => "enforce",
        (_, EntryMode::Warn) => "warn",
        (_, EntryMode::Audit) => "audit",
    }
}

/// Cuts a text to so many bytes, at a character. `kubectl` shows it as it is, so control characters but newlines are escaped.
pub(super) fn cut(text: String, max: usize) -> String {
    let mut text = lines(&text).into_owned();
    text::cut(&mut text, max);
    text
}

fn annotate(annotations: &mut BTreeMap<&'static str, String>, key: &'static str, values: Vec<String>) {
    if values.is_empty() {
        return;
    }
    let text = cut(values.join(","), AUDIT_MAX);
    annotations.insert(key, text);
}

fn decision_annotations(decision: &Decision) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::new();
    annotate(&mut annotations, "rules", decision.rules().into_iter().map(ToString::to_string).collect());
    if let Some(deferred) = &decision.deferred {
        let taints = deferred.taints().keys().map(ToString::to_string);
        annotate(&mut annotations, "deferred", deferred.labels().keys().cloned().chain(taints).collect());
    }
    let stripped = decision.notes.iter().filter_map(|note| match note {
        Note::Stripped { key, .. } | Note::PutBack { key, .. } => Some(key.clone()),
        _ => None,
    });
    annotate(&mut annotations, "stripped", stripped.collect());
    annotations
}

fn verdict_annotations(verdict: &Verdict) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::new();
    let texts = verdict
        .violations
        .iter()
        .map(|violation| format!("{}:{}:{}", consequence(violation), violation.by, violation.key));
    annotate(&mut annotations, "violations", texts.collect());
    annotate(&mut annotations, "unknown", verdict.unknown.iter().map(|(rule, _)| rule.to_string()).collect());
    annotations
}
