//! The webhook: `POST /mutate` and `POST /validate`, `admission.k8s.io/v1`.
//!
//! It only reads memory: it writes nothing and calls no other service. So it is safe for dry runs, and for a CREATE
//! that a restarted kubelet repeats.

mod answer;
mod bounds;
mod denials;
mod intake;
mod large_places;
mod policy_reviews;
mod respond;
mod router;
mod tell;
mod texts;
mod unfinished_bodies;
mod wire;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use nodegate_base::metrics::Metrics;
use nodegate_base::traces::Traces;
use nodegate_policy::{Exemptions, PendingTaints, PolicySet};
use nodegate_stores::inventory::InventoryCache;
use nodegate_stores::state::SavedStates;
use nodegate_stores::witnesses::Witnesses;

pub use answer::{Answer, Rejection};
pub use bounds::{Bounds, REVIEW_BYTES};
pub use denials::Denials;
pub use respond::{mutate, validate};
pub use router::router;
pub use wire::{Review, Subject};

/// The pending taints, and the condition for setting one.
#[derive(Clone)]
pub struct PendingTaint {
    /// The taints.
    pub taints: PendingTaints,
    /// Whether a controller is running that can remove them.
    is_lifted: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl PendingTaint {
    /// One of these taints is set while `is_lifted`.
    pub fn new(taints: PendingTaints, is_lifted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { taints, is_lifted: Arc::new(is_lifted) }
    }

    /// Whether one may be set now.
    pub fn may_be_set(&self) -> bool {
        (self.is_lifted)()
    }
}

impl Default for PendingTaint {
    /// None is ever set.
    fn default() -> Self {
        Self::new(PendingTaints::default(), || false)
    }
}

impl std::fmt::Debug for PendingTaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingTaint").field("taints", &self.taints).finish_non_exhaustive()
    }
}

/// Whether those who send reviews have proven who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Callers {
    /// Every caller has presented a client certificate: it is the API server.
    Authenticated,
    /// Anyone who reaches the port is answered, so all names in a review may be invented.
    #[default]
    Unauthenticated,
}

impl Callers {
    /// The value in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Unauthenticated => "unauthenticated",
        }
    }
}

/// Whether the API server leaves out writes that change only annotations; not without a cluster, which would say so.
#[derive(Clone, Debug)]
pub struct AnnotationCalls {
    left_out: watch::Receiver<bool>,
}

impl AnnotationCalls {
    /// Follows `left_out`.
    pub fn new(left_out: watch::Receiver<bool>) -> Self {
        Self { left_out }
    }

    fn are_left_out(&self) -> bool {
        *self.left_out.borrow()
    }
}

impl Default for AnnotationCalls {
    fn default() -> Self {
        Self::new(watch::channel(false).1)
    }
}

/// Everything an answer depends on besides the review.
#[derive(Debug)]
pub struct Context {
    /// The policies in force.
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// The saved state of nodes.
    pub saved: Arc<SavedStates>,
    /// What is known of nodes beside that: their certificates, and their provisioners' objects.
    pub witnesses: Arc<Witnesses>,
    /// The answers of inventories.
    pub inventory: Arc<InventoryCache>,
    /// The pending taints.
    pub pending_taint: PendingTaint,
    /// Whether policies and saved state have been loaded; until then every review gets 503.
    pub synced: Arc<AtomicBool>,
    /// Whether to record the last requester in an annotation.
    pub records_last_change: bool,
    /// Whose writes are not judged. Updated when nodegate's own user name in the cluster is known.
    pub exemptions: Arc<ArcSwap<Exemptions>>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Starts the spans of reviews.
    pub traces: Traces,
    /// Whether the API server leaves out writes that change only annotations.
    pub annotation_calls: AnnotationCalls,
    /// Who may send reviews.
    pub callers: Callers,
    /// Which denials were logged lately.
    pub denials: Denials,
}
