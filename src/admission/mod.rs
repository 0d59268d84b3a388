//! The webhook: `POST /mutate` and `POST /validate`, `admission.k8s.io/v1`.
//!
//! Reads memory, answers, writes nothing, calls nobody: safe for dry runs and for the CREATE that a
//! restarted kubelet sends again.

mod intake;
mod policies;
mod respond;
mod router;
mod wire;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;

use crate::api::names::{TaintEffect, TaintId};
use crate::metrics::Metrics;
use crate::policy::{Exemptions, PolicySet};
use crate::state::SavedStates;

pub use respond::{Answer, Rejection, mutate, validate};
pub use router::{Bounds, REVIEW_BYTES, router};
pub use wire::{Review, Subject};

/// The pending taint, and when it may be set.
#[derive(Clone)]
pub struct PendingTaint {
    /// Key and effect.
    pub taint: TaintId,
    /// Whether somebody is there to lift it.
    pub is_lifted: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl PendingTaint {
    /// The taint with this key, effect NoSchedule.
    pub fn new(key: crate::api::names::LabelKey, is_lifted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { taint: TaintId { key, effect: TaintEffect::NoSchedule }, is_lifted: Arc::new(is_lifted) }
    }

    /// The taint, if it may be set now.
    pub fn now(&self) -> Option<&TaintId> {
        (self.is_lifted)().then_some(&self.taint)
    }
}

impl std::fmt::Debug for PendingTaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingTaint({})", self.taint)
    }
}

/// Everything an answer depends on besides the review.
#[derive(Debug)]
pub struct Context {
    /// The policies in force.
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// What is saved of nodes.
    pub saved: Arc<SavedStates>,
    /// The pending taint.
    pub pending_taint: Option<PendingTaint>,
    /// Whether policies and saved state have been read: until then every review is answered 503.
    pub synced: Arc<AtomicBool>,
    /// Whether nodes are stamped with who changed them last.
    pub stamps: bool,
    /// Who is not judged. Swapped when our own name in the cluster is known.
    pub exemptions: Arc<ArcSwap<Exemptions>>,
    /// Where answers are counted.
    pub metrics: Arc<Metrics>,
}
