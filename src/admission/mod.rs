//! The webhook: `POST /mutate` and `POST /validate`, `admission.k8s.io/v1`.
//!
//! Reads memory, answers, writes nothing, calls nobody: safe for dry runs and for the CREATE that a
//! restarted kubelet sends again.

mod respond;
mod router;
mod wire;

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::api::names::TaintId;
use crate::metrics::Metrics;
use crate::policy::{Exemptions, PolicySet};
use crate::state::SavedStates;

pub use respond::{Answer, Rejection, mutate, validate};
pub use router::{BODY_MAX, Bounds, router};
pub use wire::Review;

/// Everything an answer depends on besides the review.
#[derive(Debug)]
pub struct Context {
    /// The policies in force.
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// What is saved of nodes.
    pub saved: Arc<SavedStates>,
    /// The pending taint, if it may be set now.
    pub pending_taint: Option<TaintId>,
    /// Who is not judged.
    pub exemptions: Exemptions,
    /// Where answers are counted.
    pub metrics: Arc<Metrics>,
}
