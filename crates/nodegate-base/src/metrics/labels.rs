//! Label values, and types that several metrics share.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::bounded::{Named, OTHERS};

/// The endpoint of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Endpoint {
    Mutate,
    Validate,
}

/// The outcome of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Outcome {
    /// Allowed without a change.
    Allowed,
    /// Allowed with a patch.
    Patched,
    /// Denied by a policy.
    Denied,
    /// A 4xx: not a valid review for this endpoint.
    Invalid,
    /// A 500: an internal error or a panic.
    Error,
    /// A 500: the caller's timeout expired; or a 408: the body arrived too slowly.
    Timeout,
    /// A 503: too many reviews in progress, or not ready yet.
    Shed,
}

impl Endpoint {
    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mutate => "mutate",
            Self::Validate => "validate",
        }
    }
}

impl Outcome {
    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Shed => "shed",
        }
    }
}

pub(super) const ENDPOINTS: [Endpoint; 2] = [Endpoint::Mutate, Endpoint::Validate];
pub(super) const OUTCOMES: [Outcome; 7] = [
    Outcome::Allowed,
    Outcome::Patched,
    Outcome::Denied,
    Outcome::Invalid,
    Outcome::Error,
    Outcome::Timeout,
    Outcome::Shed,
];

/// Whether a reload succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Reload {
    Success,
    Failure,
}

impl Reload {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabels {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct ViolationLabels {
    pub(super) policy: String,
    pub(super) rule: String,
    pub(super) mode: &'static str,
}

impl Named for ViolationLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned(), rule: OTHERS.to_owned(), mode: self.mode }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FactLabels {
    pub(super) fact: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct PolicyLabels {
    pub(super) policy: String,
}

impl Named for PolicyLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct PoolLabels {
    pub(super) pool: String,
}

impl Named for PoolLabels {
    fn others(&self) -> Self {
        Self { pool: OTHERS.to_owned() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct RuleLabels {
    pub(super) policy: String,
    pub(super) rule: String,
}

impl Named for RuleLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned(), rule: OTHERS.to_owned() }
    }
}

/// A kind of reload that is counted.
pub(super) type Reloads = Family<ReloadLabels, Counter>;

/// Bucket boundaries of the duration histogram, in seconds.
pub(super) const BUCKETS: [f64; 13] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 2.0];

/// Both series at zero, so that an alert on an increase does not miss the first one.
pub(super) fn reloads() -> Reloads {
    let reloads = Reloads::default();
    begin_at_zero(&reloads);
    reloads
}

/// Creates both series.
pub(super) fn begin_at_zero(reloads: &Reloads) {
    for result in [Reload::Success, Reload::Failure] {
        drop(reloads.get_or_create(&ReloadLabels { result: result.as_str() }));
    }
}

/// Counts one of them.
pub(super) fn count(reloads: &Reloads, result: Reload) {
    reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
}
