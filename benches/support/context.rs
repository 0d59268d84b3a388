//! What reviews are decided by in a bench that calls the handler in process.

use std::sync::Arc;

use arc_swap::ArcSwap;
use nodegate_base::metrics::Metrics;
use nodegate_policy::api::policy::NodePolicySpec;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use nodegate_stores::state::SavedStates;
use nodegate_webhook::admission::{Context, PendingTaint};
use serde_json::Value;

/// One policy, and the saved state of these nodes.
pub(crate) fn context(spec: Value, saved: Vec<SavedState>) -> Context {
    let spec: NodePolicySpec = serde_json::from_value(spec).expect("a policy");
    let set = PolicySet::compile(&[PolicyDocument::new("bench", Origin::Object, spec)]).expect("it compiles");
    let states = SavedStates::default();
    states.replace(saved.into_iter().map(Arc::new));
    Context {
        policies: Arc::new(ArcSwap::from_pointee(set)),
        saved: Arc::new(states),
        witnesses: Arc::default(),
        inventory: Arc::default(),
        pending_taint: PendingTaint::default(),
        synced: Arc::new(true.into()),
        records_last_change: false,
        annotation_calls: Default::default(),
        callers: Default::default(),
        exemptions: Arc::default(),
        denials: Default::default(),
        metrics: Metrics::new(),
        traces: Default::default(),
    }
}
