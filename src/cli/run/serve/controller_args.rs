//! The flags of `serve` that apply only with a cluster.

use std::time::Duration;

use crate::cli::run::serve::duration::duration;
use crate::cli::shared::cluster::connect::ClusterTarget;
use nodegate_controller::MaxRemovals;
use nodegate_controller::leader::{LEASE_SECONDS, LEASE_SECONDS_MAX};
use nodegate_policy::api::names::LabelKey;
use nodegate_stores::state::Identity;

/// Flags of `serve` that apply only with a cluster.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControllerArgs {
    /// How saved state is matched to nodes
    #[arg(long, value_enum, env = "NODEGATE_IDENTITY", default_value_t = Identity::Name)]
    identity: Identity,
    /// Maximum number of nodes that may lose owned labels or taints by one change [default: the larger of 10 and 10
    /// %]
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_REMOVALS")]
    max_removals: Option<usize>,
    /// Maximum number of writes per second. Joining nodes have as many in addition, and may use those of 20 seconds at
    /// once
    #[arg(long, value_name = "N", env = "NODEGATE_WRITES_PER_SECOND", default_value_t = 100)]
    writes_per_second: u32,
    /// Seconds after which every node is reconciled again, even without a change
    #[arg(long, value_name = "SECONDS", env = "RESYNC_INTERVAL_SECONDS", default_value_t = 300)]
    resync_interval_seconds: u64,
    /// Duration of the leader's Lease, in seconds
    #[arg(long, value_name = "SECONDS", env = "NODEGATE_LEASE_SECONDS", default_value_t = LEASE_SECONDS, value_parser = clap::value_parser!(u64).range(3..=LEASE_SECONDS_MAX))]
    lease_seconds: u64,
    /// How long after its creation a node that still has the pending taint is reported by an event and released
    #[arg(long, value_name = "DURATION", env = "NODEGATE_PENDING_TIMEOUT", default_value = "10m", value_parser = duration)]
    pending_timeout: Duration,
    /// Remove the pending taint from such a node although labels or taints are missing; false keeps it
    #[arg(
        long,
        value_name = "BOOL",
        env = "NODEGATE_RELEASE_PENDING",
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        value_parser = yes_or_no
    )]
    release_pending: bool,
    /// Label by whose values nodegate_nodes_by_label counts nodes; the 100 most frequent values are counted apart.
    /// Repeat the flag for more labels
    #[arg(
        long = "count-nodes-by",
        value_name = "KEY",
        env = "NODEGATE_COUNT_NODES_BY",
        value_delimiter = ',',
        default_value = "hardware.tier"
    )]
    counted_labels: Vec<LabelKey>,
    /// With --cert-dir: keep caBundle of the webhook configurations equal to ca.crt in that directory
    #[arg(long, env = "NODEGATE_INJECT_CA", requires = "cert_dir")]
    inject_ca: bool,
    /// Report the violations of each node as ClusterReport objects of openreports.io. The CustomResourceDefinition
    /// must be installed
    #[arg(long, env = "NODEGATE_CLUSTER_REPORTS")]
    cluster_reports: bool,
    /// Set failurePolicy Fail on the entries that the annotation nodegate.dev/failure-policy of the validating
    /// webhook configuration names (ENTRY=Fail), as soon as nodegate serves and callers trust its certificate
    #[arg(long, env = "NODEGATE_KEEP_FAILURE_POLICY")]
    keep_failure_policy: bool,
    /// Maintain native admission policies (Kubernetes 1.36) for what the API server can evaluate by itself, so that it
    /// is enforced while nodegate is unavailable
    #[arg(long, env = "NODEGATE_NATIVE_POLICIES")]
    native_policies: bool,
    /// Name of both webhook configurations
    #[arg(long, value_name = "NAME", env = "NODEGATE_WEBHOOK_CONFIGURATION", default_value = "nodegate")]
    webhook_configuration: String,
}

/// The configuration of everything that runs besides the webhook.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The cluster.
    pub place: ClusterTarget,
    /// How saved state is matched to nodes.
    pub identity: Identity,
    /// How many nodes may lose owned keys by one change.
    pub max_removals: MaxRemovals,
    /// Maximum number of writes per second.
    pub writes_per_second: u32,
    /// How often every node is processed even without a change.
    pub resync: Duration,
    /// The duration of the Lease.
    pub lease: Duration,
    /// A node that is pending for longer is reported.
    pub pending_timeout: Duration,
    /// Whether such a node is also released.
    pub release_pending: bool,
    /// Labels by whose values nodes are counted.
    pub counted_labels: Vec<LabelKey>,
    /// Whether caBundle is kept equal to the `ca.crt` of the certificate directory.
    pub inject_ca: bool,
    /// Whether `ClusterReport` objects are written.
    pub cluster_reports: bool,
    /// Whether failurePolicy is set as the annotation requests.
    pub keep_failure_policy: bool,
    /// Whether native admission policies are maintained.
    pub native_policies: bool,
    /// The name of the webhook configurations.
    pub webhook_configuration: String,
}

impl ControllerArgs {
    pub(super) fn config(&self, place: ClusterTarget) -> ClusterConfig {
        ClusterConfig {
            place,
            identity: self.identity,
            max_removals: self.max_removals.map_or(MaxRemovals::Tenth, MaxRemovals::Nodes),
            writes_per_second: self.writes_per_second,
            resync: Duration::from_secs(self.resync_interval_seconds.max(1)),
            lease: Duration::from_secs(self.lease_seconds),
            pending_timeout: self.pending_timeout,
            release_pending: self.release_pending,
            counted_labels: each_once(&self.counted_labels),
            inject_ca: self.inject_ca,
            cluster_reports: self.cluster_reports,
            keep_failure_policy: self.keep_failure_policy,
            native_policies: self.native_policies,
            webhook_configuration: self.webhook_configuration.clone(),
        }
    }
}

/// A flag with a value. Its variable takes what that of a flag without a value takes, and an empty one means false.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "0" | "" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A label that is named twice is counted once.
fn each_once(labels: &[LabelKey]) -> Vec<LabelKey> {
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    labels.dedup();
    labels
}
