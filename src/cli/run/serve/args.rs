//! The flags of `serve`, and the configuration they result in.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::run::serve::callers::{CallersArgs, CallersConfig};
use crate::cli::run::serve::controller_args::{ClusterConfig, ControllerArgs};
use crate::cli::run::serve::duration::duration;
use crate::cli::run::serve::inventories::InventoryArgs;
use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::cluster::serve_flags::PendingTaintArgs;
use crate::cli::shared::invocation::Invocation;
use nodegate_base::traces::TraceSettings;
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::{Exemptions, Identities, PendingKey};
use nodegate_stores::files::Sources;
use nodegate_stores::inventory::RefresherConfig;
use nodegate_webhook::admission::{Bounds, REVIEW_BYTES};
use nodegate_webhook::tls::{Limits, SubjectName};

/// The mode of the preset `baseline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BaselineMode {
    /// Denies violations
    Enforce,
    /// Allows them with a warning
    Warn,
    /// Allows them, and records them in audit annotations and metrics
    Audit,
}

impl BaselineMode {
    fn entry_mode(self) -> EntryMode {
        match self {
            Self::Enforce => EntryMode::Enforce,
            Self::Warn => EntryMode::Warn,
            Self::Audit => EntryMode::Audit,
        }
    }
}

/// Serve the webhook over HTTPS, and run the controller in a cluster
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Traces: OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:4318 sends OpenTelemetry traces to a collector. \
                        docs/guides/tracing.md lists the variables."
)]
pub(crate) struct ServeArgs {
    /// NodePolicy file, or directory of them; watched for changes [default: the preset `baseline`]
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Directory of flat label files, <namespace>/<label>; watched for changes
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
    /// How long a label from a flat label file stays after its last source label is gone.
    #[arg(long, value_name = "DURATION", env = "NODEGATE_LABELS_DIR_GRACE", default_value = "0s", value_parser = duration)]
    labels_dir_grace: Duration,
    /// What the preset `baseline` does while there is no policy. In policies, write `presets: [baseline-warn]` or
    /// `[baseline-audit]` instead
    #[arg(long, value_name = "MODE", env = "NODEGATE_BASELINE_MODE", value_enum, default_value_t = BaselineMode::Enforce)]
    baseline_mode: BaselineMode,
    /// HTTPS address [default: 127.0.0.1:8443, in a container 0.0.0.0:8443]
    #[arg(long, value_name = "ADDR", env = "NODEGATE_LISTEN")]
    listen: Option<SocketAddr>,
    /// Plain HTTP address of /healthz, /readyz and /metrics [default: 127.0.0.1:8080, in a container 0.0.0.0:8080]
    #[arg(long, value_name = "ADDR", env = "NODEGATE_PROBE_LISTEN")]
    probe_listen: Option<SocketAddr>,
    /// Directory of tls.crt and tls.key; if it is empty, nodegate creates a CA and a certificate [default: certs;
    /// with a cluster a Secret that nodegate manages]
    #[arg(long, value_name = "DIR", env = "NODEGATE_CERT_DIR")]
    cert_dir: Option<PathBuf>,
    /// Additional DNS name or IP address for the issued certificate, besides localhost, 127.0.0.1 and ::1
    #[arg(long = "cert-name", value_name = "NAME", env = "NODEGATE_CERT_NAME", value_delimiter = ',')]
    cert_names: Vec<SubjectName>,
    #[command(flatten)]
    callers: CallersArgs,
    /// Maximum size of a review, in bytes. If you raise the API server's --max-request-bytes, use twelve times that
    /// value plus two MiB
    #[arg(long, value_name = "BYTES", env = "NODEGATE_MAX_REVIEW_BYTES", default_value_t = REVIEW_BYTES as u64, value_parser = clap::value_parser!(u64).range(1_048_576..=1_073_741_824))]
    max_review_bytes: u64,
    /// Maximum number of open HTTPS connections. At the limit, each new connection closes an idle one of the address
    /// that has the most
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_CONNECTIONS", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    max_connections: u64,
    /// Maximum number of open HTTPS connections from one address (for IPv6, one /64). Behind a proxy or NAT, all API
    /// servers can have the same address
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_CONNECTIONS_PER_PEER", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    max_connections_per_peer: u64,
    /// Directory of saved state, one <node>.json per node; watched for changes, never written
    #[arg(long, value_name = "DIR", env = "NODEGATE_STATE_DIR", default_value = "state")]
    state_dir: PathBuf,
    /// When to set the pending taint on a joining node that has something deferred
    #[arg(long, value_enum, env = "NODEGATE_PENDING_TAINT", default_value_t = PendingTaintMode::Auto)]
    pending_taint: PendingTaintMode,
    #[command(flatten)]
    pending: PendingTaintArgs,
    /// Group whose members may override every policy: a name or a glob. Only a glob that begins with `system:` matches
    /// names that begin with it. Repeat the flag for more groups; a name can contain commas
    #[arg(long = "break-glass-group", value_name = "GROUP", env = "NODEGATE_BREAK_GLASS_GROUP")]
    break_glass_groups: Vec<String>,
    /// Record who last changed a governed, owned or persisted label or taint in the node's annotation
    /// nodegate.dev/last-change
    #[arg(long, env = "NODEGATE_STAMP_CHANGES")]
    stamp_changes: bool,
    /// nodegate's own user name in the cluster, whose writes are never judged [default: with a cluster, nodegate asks
    /// the API server]
    #[arg(long, value_name = "USER", env = "NODEGATE_SELF_USER")]
    self_user: Option<String>,
    /// Node that this replica runs on, for the metric nodegate_replica_node
    #[arg(long, value_name = "NODE", env = "NODEGATE_NODE_NAME")]
    node_name: Option<String>,
    /// Delay between reporting "not ready" and closing the listener, so that load balancers notice [default: 5s with a
    /// cluster or in a pod, otherwise 0s]
    #[arg(long, value_name = "DURATION", env = "NODEGATE_DRAIN_DELAY", value_parser = duration)]
    drain_delay: Option<Duration>,
    /// Additional label prefix to persist, for compatibility with the label operator
    #[arg(long, value_name = "PREFIX", env = "PERSIST_LABEL_PREFIX", hide = true)]
    persist_label_prefix: Option<String>,
    #[command(flatten)]
    inventory: InventoryArgs,
    #[command(flatten, next_help_heading = "With a cluster: controller and saved state in ConfigMaps")]
    connect: ConnectArgs,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// When to set the pending taint on a joining node that has something deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PendingTaintMode {
    /// Only while a controller runs that can remove it; never without a cluster
    Auto,
    /// Whenever something is deferred
    Always,
    /// Never
    Never,
}

/// The default of `--drain-delay` in a cluster, where a Service is in front of nodegate: the kube-proxies notice within
/// seconds that a pod is not ready, and a connection that they still route to a closed listener is a failed call.
const DRAIN_DELAY: Duration = Duration::from_secs(5);

/// The variable that every pod has.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// Whether nodegate runs in a container, where loopback is not reachable from outside.
fn in_container() -> bool {
    std::env::var_os(IN_POD).is_some()
        || ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
}

/// The configuration of `serve`.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where policies are read from.
    pub sources: Sources,
    /// HTTPS address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Plain HTTP address of the probes; port 0 selects a free port.
    pub probe_listen: SocketAddr,
    /// Certificate directory; without it, the certificate is in a Secret of the cluster.
    pub cert_dir: Option<PathBuf>,
    /// Names in the issued certificate.
    pub cert_names: Vec<SubjectName>,
    /// Which clients may call the webhook; all if `None`.
    pub callers: Option<CallersConfig>,
    /// Limits on reviews.
    pub bounds: Bounds,
    /// Limits on HTTPS connections.
    pub limits: Limits,
    /// Directory of saved state; not used with a cluster.
    pub state_dir: PathBuf,
    /// When the pending taint is set.
    pub pending_taint: PendingTaintMode,
    /// The key of the pending taint.
    pub pending_taint_key: PendingKey,
    /// Whether to record the last requester in an annotation.
    pub stamp_changes: bool,
    /// Whose writes are not judged.
    pub exemptions: Exemptions,
    /// The node that this replica runs on, if it is known.
    pub node_name: Option<String>,
    /// Delay between reporting "not ready" and closing the listener.
    pub drain_delay: Duration,
    /// How inventories are asked.
    pub inventory: RefresherConfig,
    /// How traces are sent, if they are.
    pub traces: Option<TraceSettings>,
    /// The cluster, if there is one.
    pub cluster: Option<ClusterConfig>,
}

impl TryFrom<ServeArgs> for ServeConfig {
    type Error = anyhow::Error;

    fn try_from(args: ServeArgs) -> anyhow::Result<Self> {
        let cluster = args.connect.place(Invocation::Nodegate)?.map(|place| args.controller.config(place));
        let environment = |name: &str| std::env::var(name).ok();
        let behind_service = cluster.is_some() || environment(IN_POD).is_some();
        let traces = TraceSettings::from_environment(environment, environment("HOSTNAME").as_deref())?;
        let local = [127, 0, 0, 1];
        let host = if in_container() { [0, 0, 0, 0] } else { local };
        let break_glass_groups = Identities::parse(args.break_glass_groups.iter().map(String::as_str))
            .map_err(|message| anyhow::anyhow!("--break-glass-group: {message}"))?;
        let loopback = ["localhost", "127.0.0.1", "::1"].into_iter().filter_map(|name| name.parse().ok());
        Ok(Self {
            sources: Sources {
                policies: args.policies,
                labels_dir: args.labels_dir,
                labels_grace: args.labels_dir_grace,
                persist_prefix: args.persist_label_prefix.filter(|prefix| !prefix.is_empty()),
                baseline_mode: args.baseline_mode.entry_mode(),
            },
            listen: args.listen.unwrap_or_else(|| SocketAddr::from((host, 8443))),
            probe_listen: args.probe_listen.unwrap_or_else(|| SocketAddr::from((host, 8080))),
            cert_dir: args.cert_dir.or_else(|| cluster.is_none().then(|| PathBuf::from("certs"))),
            cert_names: loopback.chain(args.cert_names).collect(),
            callers: args.callers.config(),
            bounds: Bounds {
                review_bytes: usize::try_from(args.max_review_bytes).unwrap_or(usize::MAX),
                ..Bounds::default()
            },
            limits: Limits {
                connections: usize::try_from(args.max_connections).unwrap_or(usize::MAX),
                connections_of_peer: usize::try_from(args.max_connections_per_peer).unwrap_or(usize::MAX),
                ..Limits::default()
            },
            state_dir: args.state_dir,
            pending_taint: args.pending_taint,
            pending_taint_key: args.pending.pending_taint_key,
            stamp_changes: args.stamp_changes,
            exemptions: Exemptions { self_user: args.self_user, break_glass_groups },
            node_name: args.node_name.filter(|node| !node.is_empty()),
            drain_delay: args.drain_delay.unwrap_or(if behind_service { DRAIN_DELAY } else { Duration::ZERO }),
            inventory: args.inventory.config(),
            traces,
            cluster,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }

    #[test]
    fn nodes_are_released_after_ten_minutes_unless_a_flag_says_otherwise() {
        let cluster = |arguments: &[&str]| {
            let all = ["serve", "--kubeconfig", "kubeconfig", "--namespace", "nodegate"];
            let program = Program::try_parse_from(all.iter().chain(arguments))?;
            Ok::<_, clap::Error>(ServeConfig::try_from(program.serve).unwrap().cluster.unwrap())
        };
        let released = |arguments: &[&str]| cluster(arguments).ok().map(|config| config.release_pending);
        assert_eq!(cluster(&[]).unwrap().pending_timeout, Duration::from_secs(600));
        assert_eq!((released(&[]), released(&["--release-pending"])), (Some(true), Some(true)));
        for (text, expected) in [("true", Some(true)), ("FALSE", Some(false)), ("0", Some(false)), ("", Some(false))] {
            assert_eq!(released(&[&format!("--release-pending={text}")]), expected, "{text:?}");
        }
        assert_eq!(released(&["--release-pending=keep"]), None);
        assert_eq!(released(&["--release-pending", "--pending-taint", "always"]), Some(true), "it takes no other flag");
    }

    #[test]
    fn with_a_cluster_the_listener_stays_open_for_five_seconds_unless_a_flag_says_otherwise() {
        let delay = |arguments: &[&str]| {
            let program = Program::try_parse_from(["serve"].iter().chain(arguments)).unwrap();
            ServeConfig::try_from(program.serve).unwrap().drain_delay
        };
        let cluster = ["--kubeconfig", "kubeconfig", "--namespace", "nodegate"];
        assert_eq!(delay(&cluster), Duration::from_secs(5));
        assert_eq!(delay(&[&cluster as &[&str], &["--drain-delay", "0s"]].concat()), Duration::ZERO);
        if std::env::var_os(IN_POD).is_none() {
            assert_eq!(delay(&[]), Duration::ZERO, "nothing is in front of it");
        }
    }
}
