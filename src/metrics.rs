//! Every metric, by name. Label values are bounded: words of this file, or policies and rules in force.

mod bodies;
mod callers;
mod keeping;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use bodies::BodyMetrics;
pub use callers::CallerMetrics;
pub use keeping::KeepingMetrics;

/// Which path was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Endpoint {
    Mutate,
    Validate,
}

/// How a review was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Outcome {
    /// Allowed, nothing to add.
    Allowed,
    /// Allowed with a patch.
    Patched,
    /// Denied by a policy.
    Denied,
    /// A 4xx: not a review that belongs here.
    Invalid,
    /// A 500: an internal error or a panic.
    Error,
    /// A 500: the caller's deadline passed; or a 408: its body came in too slowly.
    Timeout,
    /// A 503: too many reviews in flight, or not ready yet.
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

const ENDPOINTS: [Endpoint; 2] = [Endpoint::Mutate, Endpoint::Validate];
const OUTCOMES: [Outcome; 7] = [
    Outcome::Allowed,
    Outcome::Patched,
    Outcome::Denied,
    Outcome::Invalid,
    Outcome::Error,
    Outcome::Timeout,
    Outcome::Shed,
];

/// Whether something was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Reload {
    Success,
    Failure,
}

impl Reload {
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoteLabels {
    note: &'static str,
    policy: String,
    rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViolationLabels {
    policy: String,
    rule: String,
    mode: &'static str,
}

/// A counted kind of reload.
type Reloads = Family<ReloadLabels, Counter>;

/// All metrics. Cheap to share; counting takes no lock on the request path but for notes and violations.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: [[Counter; OUTCOMES.len()]; ENDPOINTS.len()],
    durations: [Histogram; ENDPOINTS.len()],
    notes: Family<NoteLabels, Counter>,
    violations: Family<ViolationLabels, Counter>,
    denials: Family<ViolationLabels, Counter>,
    policy_reloads: Reloads,
    faulty_policies: Family<PolicyLabels, Gauge>,
    state_reloads: Reloads,
    certificate_reloads: Reloads,
    /// Policies in force, presets included.
    pub policies: Gauge,
    /// Rules in force, derived labels and persist sections included.
    pub rules: Gauge,
    /// Nodes with saved state.
    pub saved_states: Gauge,
    /// When the served certificate expires, in seconds since 1970.
    pub certificate_not_after: Gauge<f64, AtomicU64>,
    /// 1 from fourteen days before the served certificate expires.
    pub certificate_expiring: Gauge,
    /// Open HTTPS connections.
    pub connections: Gauge,
    /// HTTPS connections that ended to make room for others.
    pub connections_ended: Counter,
    /// HTTPS connections that were refused because every other one had a request that was being answered.
    pub connections_refused: Counter,
    /// Handshakes that failed or took too long.
    pub handshake_failures: Counter,
    /// Failures of `accept`.
    pub accept_failures: Counter,
    /// Bodies that were not read to their end, and large ones.
    pub bodies: BodyMetrics,
    /// Who was refused for want of a client certificate.
    pub callers: CallerMetrics,
    /// What the controller does.
    pub controller: ControllerMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    what: &'static str,
    result: &'static str,
}

/// What the controller does; all zero where none runs.
#[derive(Debug)]
pub struct ControllerMetrics {
    /// 1 while this replica leads.
    pub leading: Gauge,
    writes: Family<WriteLabels, Counter>,
    reconciles: Family<ReloadLabels, Counter>,
    durations: Histogram,
    /// Nodes that have been pending for too long.
    pub pending_too_long: Gauge,
    /// Nodes that would lose owned keys and do not, because too many would.
    pub removals_held_back: Gauge,
    /// Keys that are left alone after a fight, since the start.
    pub keys_left_alone: Counter,
    /// Documents of saved state that could not be read, since the start.
    pub unreadable_states: Counter,
    /// Nodes and changes that were admitted although nobody was asked, since the start.
    pub admitted_unseen: Counter,
    /// Nodes that violate an entry of `governance` as they stand.
    violating: Family<ViolationLabels, Gauge>,
    /// Nodes that cannot be read.
    pub unreadable_nodes: Gauge,
    /// Nodes of which something is too large to be kept.
    pub nodes_read_in_part: Gauge,
    /// 1 while this replica should see nodes and cannot.
    pub node_watch_failing: Gauge,
    /// What is put off or left out so that the rest goes on.
    pub keeping: KeepingMetrics,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        Self {
            leading: Gauge::default(),
            writes: Family::default(),
            reconciles: reloads(),
            durations: Histogram::new(BUCKETS),
            pending_too_long: Gauge::default(),
            removals_held_back: Gauge::default(),
            keys_left_alone: Counter::default(),
            unreadable_states: Counter::default(),
            admitted_unseen: Counter::default(),
            violating: Family::default(),
            unreadable_nodes: Gauge::default(),
            nodes_read_in_part: Gauge::default(),
            node_watch_failing: Gauge::default(),
            keeping: KeepingMetrics::default(),
        }
    }
}

impl ControllerMetrics {
    /// Counts a write of a `node` or of its `state`.
    pub fn wrote(&self, what: &'static str, taken: bool) {
        let result = if taken { Reload::Success } else { Reload::Failure }.as_str();
        self.writes.get_or_create(&WriteLabels { what, result }).inc();
    }

    /// Counts a node that was looked at.
    pub fn reconciled(&self, done: bool, seconds: f64) {
        let result = if done { Reload::Success } else { Reload::Failure }.as_str();
        self.reconciles.get_or_create(&ReloadLabels { result }).inc();
        self.durations.observe(seconds);
    }

    /// Sets how many nodes violate each entry: policy, rule and mode.
    pub fn violating<'a>(&self, nodes: impl IntoIterator<Item = ((&'a str, &'a str, &'static str), usize)>) {
        self.violating.clear();
        for ((policy, rule, mode), nodes) in nodes {
            let labels = ViolationLabels { policy: policy.to_owned(), rule: rule.to_owned(), mode };
            self.violating.get_or_create(&labels).set(i64::try_from(nodes).unwrap_or(i64::MAX));
        }
    }

    fn register(&self, registry: &mut Registry) {
        let Self {
            leading,
            writes,
            reconciles,
            durations,
            pending_too_long,
            removals_held_back,
            keys_left_alone,
            unreadable_states,
            admitted_unseen,
            violating,
            unreadable_nodes,
            nodes_read_in_part,
            node_watch_failing,
            keeping,
        } = self;
        registry.register("leading", "1 while this replica leads", leading.clone());
        registry.register("writes", "Writes of the controller", writes.clone());
        registry.register("reconciles", "Nodes the controller looked at", reconciles.clone());
        registry.register(
            "reconcile_duration_seconds",
            "Time to bring a node to what it should have, writes included",
            durations.clone(),
        );
        registry.register(
            "nodes_pending_too_long",
            "Nodes that still wait for labels or taints",
            pending_too_long.clone(),
        );
        registry.register(
            "removals_held_back_nodes",
            "Nodes that would lose owned keys and do not, because too many would",
            removals_held_back.clone(),
        );
        registry.register(
            "keys_left_alone",
            "Keys not repaired any more, because somebody kept undoing it",
            keys_left_alone.clone(),
        );
        registry.register(
            "unreadable_states",
            "Documents of saved state that could not be read",
            unreadable_states.clone(),
        );
        registry.register(
            "admitted_unseen",
            "Nodes and changes that were admitted although nobody was asked",
            admitted_unseen.clone(),
        );
        registry.register(
            "violating_nodes",
            "Nodes that violate an entry of governance as they stand, by the leader's last look at all of them",
            violating.clone(),
        );
        registry.register(
            "unreadable_nodes",
            "Nodes that the leader cannot read and therefore leaves as they are",
            unreadable_nodes.clone(),
        );
        registry.register(
            "nodes_read_in_part",
            "Nodes of which a field is too large for the leader to keep",
            nodes_read_in_part.clone(),
        );
        registry.register(
            "node_watch_failing",
            "1 while this replica cannot list and watch nodes, and therefore does not lead for long",
            node_watch_failing.clone(),
        );
        keeping.register(registry);
    }
}

/// Upper bounds of the duration histogram, in seconds.
const BUCKETS: [f64; 13] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 2.0];

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Arc<Self> {
        let requests = Family::<RequestLabels, Counter>::default();
        let durations = Family::<EndpointLabels, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let mut metrics = Self {
            requests: ENDPOINTS.map(|endpoint| {
                OUTCOMES.map(|outcome| {
                    requests
                        .get_or_create(&RequestLabels { endpoint: endpoint.as_str(), outcome: outcome.as_str() })
                        .clone()
                })
            }),
            durations: ENDPOINTS
                .map(|endpoint| durations.get_or_create(&EndpointLabels { endpoint: endpoint.as_str() }).clone()),
            registry: Registry::with_prefix("nodegate"),
            notes: Family::default(),
            violations: Family::default(),
            denials: Family::default(),
            policy_reloads: reloads(),
            faulty_policies: Family::default(),
            state_reloads: reloads(),
            certificate_reloads: reloads(),
            policies: Gauge::default(),
            rules: Gauge::default(),
            saved_states: Gauge::default(),
            certificate_not_after: Gauge::default(),
            certificate_expiring: Gauge::default(),
            connections: Gauge::default(),
            connections_ended: Counter::default(),
            connections_refused: Counter::default(),
            handshake_failures: Counter::default(),
            accept_failures: Counter::default(),
            bodies: BodyMetrics::default(),
            callers: CallerMetrics::default(),
            controller: ControllerMetrics::default(),
        };
        metrics.registry.register("admission_requests", "Admission reviews by how they were answered", requests);
        metrics.registry.register(
            "admission_duration_seconds",
            "Time from the whole request to the whole answer",
            durations,
        );
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let Self {
            registry,
            requests: _,
            durations: _,
            notes,
            violations,
            denials,
            policy_reloads,
            faulty_policies,
            state_reloads,
            certificate_reloads,
            policies,
            rules,
            saved_states,
            certificate_not_after,
            certificate_expiring,
            connections,
            connections_ended,
            connections_refused,
            handshake_failures,
            accept_failures,
            bodies,
            callers,
            controller,
        } = self;
        registry.register("build", "What is running", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        registry.register(
            "decision_notes",
            "Conflicts, unknown conditions, stripped and reverted keys and the like",
            notes.clone(),
        );
        registry.register(
            "violations",
            "Governance violations; mode is what came of them: enforce, warn, audit or break_glass",
            violations.clone(),
        );
        registry.register("denials", "Governance violations that denied a write", denials.clone());
        registry.register("policy_reloads", "Policy sets taken over or refused", policy_reloads.clone());
        registry.register(
            "policy_faulty",
            "1 while the present generation of a NodePolicy object is not in force",
            faulty_policies.clone(),
        );
        registry.register("state_reloads", "Saved states read or refused", state_reloads.clone());
        registry.register("certificate_reloads", "Certificates taken over or refused", certificate_reloads.clone());
        registry.register("policies", "Policies in force", policies.clone());
        registry.register("rules", "Rules in force", rules.clone());
        registry.register("saved_states", "Nodes with saved state", saved_states.clone());
        registry.register(
            "certificate_not_after_timestamp_seconds",
            "When the served certificate expires",
            certificate_not_after.clone(),
        );
        registry.register(
            "certificate_expiring",
            "1 from fourteen days before the served certificate expires",
            certificate_expiring.clone(),
        );
        registry.register("connections", "Open HTTPS connections", connections.clone());
        registry.register(
            "connections_ended",
            "HTTPS connections that ended to make room for others",
            connections_ended.clone(),
        );
        registry.register(
            "connections_refused",
            "HTTPS connections refused because every other one had a request that was being answered",
            connections_refused.clone(),
        );
        registry.register(
            "handshake_failures",
            "TLS handshakes that failed or took too long",
            handshake_failures.clone(),
        );
        registry.register(
            "accept_failures",
            "Connections the operating system could not hand over",
            accept_failures.clone(),
        );
        bodies.register(registry);
        callers.register(registry);
        controller.register(registry);
    }

    /// Counts one answered review.
    pub fn answered(&self, endpoint: Endpoint, outcome: Outcome, seconds: f64) {
        self.requests[endpoint as usize][outcome as usize].inc();
        self.durations[endpoint as usize].observe(seconds);
    }

    /// Counts one note of a decision; `policy` and `rule` are empty where no rule is concerned.
    pub fn noted(&self, note: &'static str, policy: &str, rule: &str) {
        self.notes.get_or_create(&NoteLabels { note, policy: policy.to_owned(), rule: rule.to_owned() }).inc();
    }

    /// Counts one violation by what came of it.
    pub fn violated(&self, policy: &str, rule: &str, mode: &'static str, denies: bool) {
        let labels = ViolationLabels { policy: policy.to_owned(), rule: rule.to_owned(), mode };
        if denies {
            self.denials.get_or_create(&labels).inc();
        }
        self.violations.get_or_create(&labels).inc();
    }

    /// Counts a policy set taken over (with its size) or refused. Series of policies that are gone go.
    pub fn policies_reloaded(&self, result: Reload, policies: usize, rules: usize) {
        self.policy_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
        if result == Reload::Success {
            self.policies.set(i64::try_from(policies).unwrap_or(i64::MAX));
            self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
            self.notes.clear();
            self.violations.clear();
            self.denials.clear();
        }
    }

    /// Shows for every `NodePolicy` object whether its present generation has faults. Series of objects that are gone go.
    pub fn policies_judged<'a>(&self, objects: impl IntoIterator<Item = (&'a str, bool)>) {
        self.faulty_policies.clear();
        for (policy, faulty) in objects {
            self.faulty_policies.get_or_create(&PolicyLabels { policy: policy.to_owned() }).set(faulty.into());
        }
    }

    /// Counts a saved state read or refused.
    pub fn state_reloaded(&self, result: Reload) {
        self.state_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    /// Counts a certificate taken over or refused.
    pub fn certificate_reloaded(&self, result: Reload) {
        self.certificate_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    /// The OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail; what is left of a failure is an empty page.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn reloads() -> Reloads {
    let reloads = Reloads::default();
    for result in [Reload::Success, Reload::Failure] {
        drop(reloads.get_or_create(&ReloadLabels { result: result.as_str() }));
    }
    reloads
}
