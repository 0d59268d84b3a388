//! Answers reviews, without I/O and without waiting: everything is in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::answer::{Answer, Asked, Attempt, Rejection, Span, cut, warning, warnings};
use super::bounds::ORDINARY;
use super::tell::{count_change, count_notes, log, log_corrections, log_denial, shown};
use super::wire::{Reply, Review, Subject};
use super::{Context, policy_reviews};
use nodegate_base::metrics::Outcome;
use nodegate_base::traces::Reviewed;
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::cel::Budget;
use nodegate_policy::{
    DecideContext, Decision, InventoryAnswers, NodePatch, Note, Operation, PolicySet, PoolMemory, Verdict, Violation,
    Write, corrections_exceeded, decide, excess, judge, patch_of_write,
};
use nodegate_stores::state::Machine;

/// Maximum number of warnings in one answer.
const WARNINGS_MAX: usize = 16;
/// Maximum length of a denial, in bytes.
const DENIAL_MAX: usize = 8192;
/// Maximum length of an audit annotation's value, in bytes.
const AUDIT_MAX: usize = 1024;

/// Answers `POST /mutate`: decides what the node should have, and patches the part that this request may carry. Denies only
/// a kubelet's write that would need more corrections than fit into an answer.
///
/// # Errors
/// Returns 400 for a body that is not a valid review, and 500 for an internal error.
pub fn mutate(body: &[u8], context: &Context) -> Result<Answer, Rejection> {
    whole(mutate_within(body, context, &Budget::default(), Asked::default())?)
}

/// Like [`mutate`], within `budget`.
pub(super) fn mutate_within(
    body: &[u8],
    context: &Context,
    budget: &Budget,
    asked: Asked,
) -> Result<Attempt, Rejection> {
    let mut review = read(body, context, asked)?;
    let policies = context.policies.load();
    let saved = prove(&mut review, &policies, context);
    let write = match &review.subject {
        Subject::Node(write) => write,
        Subject::Passed => return passed(&review),
    };
    let mut reply = Reply::default();
    let mut described = (asked.span == Span::Present).then(|| described(&review, write));
    let own = context.exemptions.load().self_user.as_deref() == Some(&*write.requester.username);
    // A patch of nodes/status would break heartbeats (NodeRestriction), and nodegate is not registered for it.
    // nodegate's own writes are already decided and must not be extended, for example when it releases a node.
    if !write.status && !own {
        let known = Known::of(&policies, write, saved, context);
        let decide_context = known.for_decision(context, budget);
        if let Some(count) = excess(&policies, write, &decide_context) {
            let denial = format!("nodegate: {}", corrections_exceeded(count));
            let caller = Some(context.callers.as_str());
            context.metrics.admission.violated(
                "nodegate",
                "too-many-changes",
                effect(false, EntryMode::Enforce),
                caller,
                1,
            );
            log_denial(write, &denial, &[], context, asked);
            let reply = Reply { denial: Some(denial), ..Reply::default() };
            log(&review, write, "mutate", Outcome::Denied, &reply);
            return finish(&review, &reply, Outcome::Denied, described).map(Attempt::Answered);
        }
        let decision = decide(&policies, write, &decide_context);
        check_stopped(budget)?;
        if budget.was_too_brief() {
            return Ok(Attempt::TooBrief);
        }
        count_notes(&decision.notes, context);
        log_corrections(write, &decision.notes, context, asked);
        reply.patch = patch_of_write(write, decision.change.as_ref()).map_err(unserialized)?;
        let operations = reply.patch.as_ref().map_or(0, NodePatch::operations);
        count_change(&decision, operations, context);
        reply.warnings = decision_warnings(&decision);
        reply.audit_annotations = decision_annotations(&decision);
        if let Some(described) = &mut described {
            described.rules = decision.rules().into_iter().map(ToString::to_string).collect();
            described.patch_operations = operations;
        }
    }
    let outcome = if reply.patch.is_some() { Outcome::Patched } else { Outcome::Allowed };
    log(&review, write, "mutate", outcome, &reply);
    finish(&review, &reply, outcome, described).map(Attempt::Answered)
}

/// Answers `POST /validate`: judges the changes in a write, or a `NodePolicy` object.
///
/// # Errors
/// Returns 400 for a body that is not a valid review, and 500 for an internal error.
pub fn validate(body: &[u8], context: &Context) -> Result<Answer, Rejection> {
    match validate_within(body, context, &Budget::default(), Asked::default())? {
        Attempt::OfPolicy => policy_reviews::review(body, context),
        attempt => whole(attempt),
    }
}

/// Like [`validate`], within `budget`, and for reviews of nodes only.
pub(super) fn validate_within(
    body: &[u8],
    context: &Context,
    budget: &Budget,
    asked: Asked,
) -> Result<Attempt, Rejection> {
    let mut review = match read(body, context, asked) {
        Ok(review) => review,
        // Checked last, so that it costs nothing for reviews of nodes, which are the majority.
        Err(_) if policy_reviews::is_review(body) => return Ok(Attempt::OfPolicy),
        Err(rejection) => return Err(rejection),
    };
    let policies: &PolicySet = &context.policies.load();
    let saved = prove(&mut review, policies, context);
    let write = match &review.subject {
        Subject::Node(write) => write,
        Subject::Passed => return passed(&review),
    };
    let known = Known::of(policies, write, saved, context);
    let decide_context = known.for_decision(context, budget);
    let verdict = judge(policies, write, &decide_context, &context.exemptions.load());
    check_stopped(budget)?;
    if budget.was_too_brief() {
        return Ok(Attempt::TooBrief);
    }
    let denial = verdict.denial();
    if let Some((rule, reason)) = verdict.too_costly.as_ref().filter(|_| denial.is_none()) {
        // This is not a verdict: the failure policy decides.
        return Err(Rejection::internal(format!("rule {rule} could not be evaluated: {reason}")));
    }
    let reply = Reply {
        patch: None,
        denial: denial.map(|message| cut(&format!("nodegate: {message}"), DENIAL_MAX)),
        warnings: verdict_warnings(&verdict),
        audit_annotations: verdict_annotations(&verdict),
    };
    for (rule, reason) in &verdict.unknown {
        tracing::debug!(%rule, reason, "an expression failed to evaluate, so it does not deny the write");
        context.metrics.admission.noted("unknown", &rule.policy, &rule.rule);
    }
    for violation in &verdict.violations {
        let (by, mode) = (&violation.by, consequence(violation));
        let denied = violation.denies().then(|| context.callers.as_str());
        context.metrics.admission.violated(&by.policy, &by.rule, mode, denied, 1);
    }
    for further in &verdict.further {
        let (by, mode, count) = (&further.by, effect(further.overridden, further.mode), further.count as u64);
        let denied = further.denies().then(|| context.callers.as_str());
        context.metrics.admission.violated(&by.policy, &by.rule, mode, denied, count);
    }
    if let Some(denial) = &reply.denial {
        log_denial(write, denial, &verdict.violations, context, asked);
    }
    let outcome = if reply.denial.is_some() { Outcome::Denied } else { Outcome::Allowed };
    log(&review, write, "validate", outcome, &reply);
    let described = (asked.span == Span::Present).then(|| {
        let rules: BTreeSet<String> = verdict.violations.iter().map(|violation| violation.by.to_string()).collect();
        Box::new(Reviewed { rules: rules.into_iter().collect(), ..*described(&review, write) })
    });
    finish(&review, &reply, outcome, described).map(Attempt::Answered)
}

/// The saved state of the node, and with it the evidence for the node's pools.
fn prove(review: &mut Review<'_>, policies: &PolicySet, context: &Context) -> Option<Arc<SavedState>> {
    let Subject::Node(write) = &mut review.subject else { return None };
    let saved = context.saved.get(machine(write));
    write.prove(policies, saved.as_deref(), &*context.witnesses);
    saved
}

/// What is known of the node of a write besides what the review says.
struct Known {
    saved: Option<Arc<SavedState>>,
    pools: Arc<PoolMemory>,
    inventory: Arc<InventoryAnswers>,
}

impl Known {
    fn of(policies: &PolicySet, write: &Write<'_>, saved: Option<Arc<SavedState>>, context: &Context) -> Self {
        let answers = policies.answers_about(&write.node, write.evidence.as_ref(), |name| context.inventory.of(name));
        Self { saved, pools: context.saved.pools(), inventory: answers }
    }

    fn for_decision<'a>(&'a self, context: &'a Context, budget: &'a Budget) -> DecideContext<'a> {
        DecideContext {
            saved: self.saved.as_deref(),
            pools: Some(&self.pools),
            inventory: Some(&self.inventory),
            devices: None,
            pending_taints: &context.pending_taint.taints,
            sets_pending: context.pending_taint.may_be_set(),
            records_last_change: context.records_last_change,
            budget: Some(budget),
            elsewhere: context.saved.publishers(),
        }
    }
}

/// Refuses to answer a review whose evaluation was stopped, because an answer would lack what was not evaluated.
fn check_stopped(budget: &Budget) -> Result<(), Rejection> {
    if budget.was_stopped() {
        return Err(Rejection::internal(
            "the large review took more than half a second while others waited for its slot",
        ));
    }
    Ok(())
}

/// Parses a review. The log names the node of a large one, because ordinary nodes are much smaller.
fn read<'b>(body: &'b [u8], context: &Context, asked: Asked) -> Result<Review<'b>, Rejection> {
    let review = Review::parse(body)?;
    if let Subject::Node(write) = &review.subject
        && body.len() > ORDINARY
        && let Some(left_out) = context.denials.remark(asked.peer, Instant::now())
    {
        let (node, user) = (&*write.node.name, shown(&write.requester.username));
        let caller = context.callers.as_str();
        let (bytes, left_out) = (body.len(), (left_out > 0).then_some(left_out));
        tracing::warn!(node, user, caller, bytes, left_out, "the review of this node is unusually large");
    }
    Ok(review)
}

/// The answer to an operation that is neither decided nor judged.
fn passed(review: &Review<'_>) -> Result<Attempt, Rejection> {
    finish(review, &Reply::default(), Outcome::Allowed, None).map(Attempt::Answered)
}

/// The answer of an attempt with the full budget.
pub(super) fn whole(attempt: Attempt) -> Result<Answer, Rejection> {
    match attempt {
        Attempt::Answered(answer) => Ok(answer),
        Attempt::TooBrief | Attempt::OfPolicy => {
            Err(Rejection::internal("internal error: the review was not answered"))
        }
    }
}

/// Identifies the machine that a write is about. The stored ID comes first, because a later write may claim another
/// one.
fn machine<'a>(write: &'a Write<'_>) -> Machine<'a> {
    let (new, old) = (&write.node, write.old.as_ref());
    let provider_id = old.and_then(|old| old.provider_id.as_deref()).or(new.provider_id.as_deref());
    let system_uuid = old.and_then(|old| old.system_uuid.as_deref()).or(new.system_uuid.as_deref());
    Machine { name: &new.name, provider_id, system_uuid }
}

/// What the span of a review says of its request.
fn described(review: &Review<'_>, write: &Write<'_>) -> Box<Reviewed> {
    Box::new(Reviewed {
        node: write.node.name.to_string(),
        uid: review.uid.to_string(),
        operation: match write.operation {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
        },
        status: write.status,
        dry_run: write.dry_run,
        ..Reviewed::default()
    })
}

fn finish(
    review: &Review<'_>,
    reply: &Reply,
    outcome: Outcome,
    reviewed: Option<Box<Reviewed>>,
) -> Result<Answer, Rejection> {
    let body = reply.to_json(review).map_err(unserialized)?;
    Ok(Answer { body, outcome, reviewed })
}

#[expect(clippy::needless_pass_by_value, reason = "map_err gives it")]
fn unserialized(error: serde_json::Error) -> Rejection {
    Rejection::internal(format!("internal error: could not serialize the answer: {error}"))
}

/// The notes to return as warnings. Unknown conditions are normal while a node starts, so they are counted but not
/// returned.
fn decision_warnings(decision: &Decision) -> Vec<String> {
    let reported = decision.notes.iter().filter(|note| !matches!(note, Note::Unknown { .. }));
    reported.take(WARNINGS_MAX).map(|note| warning(&format!("nodegate: {note}"))).collect()
}

fn verdict_warnings(verdict: &Verdict) -> Vec<String> {
    let reported =
        verdict.violations.iter().filter(|violation| matches!(consequence(violation), "warn" | "break_glass"));
    let text = |violation: &Violation| match &violation.overridden_by {
        Some(who) => format!("{who} overrides {} (break glass): {}", violation.by, violation.what),
        None => format!("{}: {}", violation.by, violation.what),
    };
    reported.flat_map(|violation| warnings(&text(violation))).take(WARNINGS_MAX).collect()
}

/// The effect of a violation.
fn consequence(violation: &Violation) -> &'static str {
    effect(violation.overridden_by.is_some(), violation.mode)
}

/// The effect of a violation of an entry with this mode.
fn effect(overridden: bool, mode: EntryMode) -> &'static str {
    match mode {
        EntryMode::Enforce if overridden => "break_glass",
        EntryMode::Enforce => "enforce",
        EntryMode::Warn => "warn",
        EntryMode::Audit => "audit",
    }
}

fn annotate(annotations: &mut BTreeMap<&'static str, String>, key: &'static str, values: Vec<String>) {
    if values.is_empty() {
        return;
    }
    let text = cut(&values.join(","), AUDIT_MAX);
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
        Note::Stripped { key, .. } | Note::PutBack { key, .. } | Note::Retired { key, .. } => Some(key.clone()),
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
