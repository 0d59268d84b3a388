//! Metrics of reviews.

mod bodies;
mod callers;
mod connections;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use super::bounded::{Bounded, Named, OTHERS, number};
use super::catalog::Catalog;
use super::labels::{BUCKETS, ENDPOINTS, Endpoint, OUTCOMES, Outcome, ViolationLabels};

pub use bodies::BodyMetrics;
pub use callers::CallerMetrics;
pub use connections::ConnectionMetrics;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct NoteLabels {
    note: &'static str,
    policy: String,
    rule: String,
}

impl Named for NoteLabels {
    fn others(&self) -> Self {
        Self { note: self.note, policy: OTHERS.to_owned(), rule: OTHERS.to_owned() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct DenialLabels {
    policy: String,
    rule: String,
    mode: &'static str,
    caller: &'static str,
}

impl Named for DenialLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned(), rule: OTHERS.to_owned(), mode: self.mode, caller: self.caller }
    }
}

/// The notes that are about no rule. They are there from the start, so that an alert on their increase does not miss the first one.
const NOTES_WITHOUT_RULE: [&str; 4] = ["not_restored", "left_out", "deferred_unmarked", "awaited_unmarked"];

/// Metrics of reviews. Counting takes no lock and allocates nothing, except for notes and violations.
#[derive(Debug)]
pub struct AdmissionMetrics {
    requests: Family<RequestLabels, Counter>,
    by_outcome: [[Counter; OUTCOMES.len()]; ENDPOINTS.len()],
    durations: Family<EndpointLabels, Histogram, fn() -> Histogram>,
    by_endpoint: [Histogram; ENDPOINTS.len()],
    in_flight: Family<EndpointLabels, Gauge>,
    in_flight_by_endpoint: [Gauge; ENDPOINTS.len()],
    in_flight_bytes: Gauge,
    /// Reviews that panicked.
    pub panics: Counter,
    /// Operations in the patches of all answers.
    pub patch_operations: Counter,
    /// Reviews with something that the request may not carry.
    pub deferrals: Counter,
    /// Labels and taints that answers restored from saved state.
    pub restored_keys: Counter,
    notes: Bounded<NoteLabels, Counter>,
    violations: Bounded<ViolationLabels, Counter>,
    denials: Bounded<DenialLabels, Counter>,
    /// Bodies that were not read completely, and large reviews.
    pub bodies: BodyMetrics,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        let requests = Family::<RequestLabels, Counter>::default();
        let durations = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let in_flight = Family::<EndpointLabels, Gauge>::default();
        let of = |endpoint: Endpoint| EndpointLabels { endpoint: endpoint.as_str() };
        Self {
            by_outcome: ENDPOINTS.map(|endpoint| {
                OUTCOMES.map(|outcome| {
                    let labels = RequestLabels { endpoint: endpoint.as_str(), outcome: outcome.as_str() };
                    requests.get_or_create_owned(&labels)
                })
            }),
            by_endpoint: ENDPOINTS.map(|endpoint| durations.get_or_create_owned(&of(endpoint))),
            in_flight_by_endpoint: ENDPOINTS.map(|endpoint| in_flight.get_or_create_owned(&of(endpoint))),
            notes: notes_at_zero(),
            requests,
            durations,
            in_flight,
            in_flight_bytes: Gauge::default(),
            panics: Counter::default(),
            patch_operations: Counter::default(),
            deferrals: Counter::default(),
            restored_keys: Counter::default(),
            violations: Bounded::default(),
            denials: Bounded::default(),
            bodies: BodyMetrics::default(),
        }
    }
}

fn notes_at_zero() -> Bounded<NoteLabels, Counter> {
    let notes = Bounded::default();
    begin(&notes);
    notes
}

fn begin(notes: &Bounded<NoteLabels, Counter>) {
    for note in NOTES_WITHOUT_RULE {
        drop(notes.of(&NoteLabels { note, policy: String::new(), rule: String::new() }));
    }
}

/// Adds to a gauge until it is dropped, also if its request is cancelled.
#[derive(Debug)]
pub struct Held {
    gauge: Gauge,
    amount: i64,
}

impl Held {
    fn new(gauge: &Gauge, amount: i64) -> Self {
        gauge.inc_by(amount);
        Self { gauge: gauge.clone(), amount }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.dec_by(self.amount);
    }
}

impl AdmissionMetrics {
    /// Counts a review as in flight until the result is dropped.
    pub fn begun(&self, endpoint: Endpoint) -> Held {
        Held::new(&self.in_flight_by_endpoint[endpoint as usize], 1)
    }

    /// Counts the bytes of a review as held until the result is dropped.
    pub fn holds(&self, bytes: usize) -> Held {
        Held::new(&self.in_flight_bytes, number(bytes))
    }

    /// Counts one answered review.
    pub fn answered(&self, endpoint: Endpoint, outcome: Outcome, seconds: f64) {
        self.by_outcome[endpoint as usize][outcome as usize].inc();
        self.by_endpoint[endpoint as usize].observe(seconds);
    }

    /// Counts a note of a decision; `policy` and `rule` are empty if no rule is involved.
    pub fn noted(&self, note: &'static str, policy: &str, rule: &str) {
        self.notes.of(&NoteLabels { note, policy: policy.to_owned(), rule: rule.to_owned() }).inc();
    }

    /// Counts violations of one entry by their effect, and by the kind of caller if they denied the write.
    pub fn violated(&self, policy: &str, rule: &str, mode: &'static str, denied: Option<&'static str>, count: u64) {
        let labels = ViolationLabels { policy: policy.to_owned(), rule: rule.to_owned(), mode };
        if let Some(caller) = denied {
            let ViolationLabels { policy, rule, mode } = labels.clone();
            self.denials.of(&DenialLabels { policy, rule, mode, caller }).inc_by(count);
        }
        self.violations.of(&labels).inc_by(count);
    }

    /// Removes the series of policies and rules, because others are in force now.
    pub(super) fn policies_changed(&self) {
        let Self {
            requests: _,
            by_outcome: _,
            durations: _,
            by_endpoint: _,
            in_flight: _,
            in_flight_by_endpoint: _,
            in_flight_bytes: _,
            panics: _,
            patch_operations: _,
            deferrals: _,
            restored_keys: _,
            notes,
            violations,
            denials,
            bodies: _,
        } = self;
        notes.clear();
        begin(notes);
        violations.clear();
        denials.clear();
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self {
            requests,
            by_outcome: _,
            durations,
            by_endpoint: _,
            in_flight,
            in_flight_by_endpoint: _,
            in_flight_bytes,
            panics,
            patch_operations,
            deferrals,
            restored_keys,
            notes,
            violations,
            denials,
            bodies,
        } = self;
        catalog.section("Admission");
        catalog.add(
            "admission_requests",
            "Reviews by endpoint (mutate, validate) and outcome: allowed, patched, denied, invalid (HTTP 4xx), error (500), timeout \
             (500, or 408 for a slow body), shed (503)",
            requests,
        );
        catalog.add_in(
            "admission_duration",
            Unit::Seconds,
            "Time from the start of a request to its complete answer",
            durations,
        );
        catalog.add("admission_in_flight", "Reviews that are not answered yet", in_flight);
        catalog.add_in(
            "admission_in_flight",
            Unit::Bytes,
            "Bytes of reviews that were read completely and are not answered yet",
            in_flight_bytes,
        );
        catalog.add("admission_panics", "Reviews that panicked and got a 500; each is a bug in nodegate", panics);
        catalog.add("patch_operations", "Operations in the patches of all answers", patch_operations);
        catalog.add("deferrals", "Reviews in which a label or taint was deferred", deferrals);
        catalog.add("restored_keys", "Labels and taints that answers restored from saved state", restored_keys);
        catalog.add("decision_notes", "Notes on decisions, by the kinds listed below", &notes.family);
        catalog.add(
            "violations",
            "Governance violations; mode is the consequence: enforce, warn, audit or break_glass",
            &violations.family,
        );
        catalog.add("denials", "Governance violations that denied a write; caller is unauthenticated if nodegate requires no client certificate", &denials.family);
        bodies.register(catalog);
    }
}
