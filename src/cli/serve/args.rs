//! The flags of `serve`, and what they come to.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::callers::{CallersArgs, CallersConfig};
use crate::admission::{Bounds, REVIEW_BYTES};
use crate::api::names::LabelKey;
use crate::cli::cluster::{ClusterConfig, ControllerArgs};
use crate::cli::connect::ConnectArgs;
use crate::files::Sources;
use crate::policy::{Exemptions, Identities};
use crate::tls::{Limits, SubjectName};

/// Serve the webhook over HTTPS; with a cluster, run the controller as well.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// NodePolicy file, or directory of them; watched. Without it the preset `baseline` is in force.
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Directory of flat label files, <namespace>/<label>; watched.
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
    /// Grace between "no source label" and the removal of a label that a flat label file gave.
    #[arg(long, value_name = "DURATION", env = "NODEGATE_LABELS_DIR_GRACE", default_value = "0s", value_parser = duration)]
    labels_dir_grace: Duration,
    /// HTTPS address [default: 127.0.0.1:8443, in a container 0.0.0.0:8443]
    #[arg(long, value_name = "ADDR", env = "NODEGATE_LISTEN")]
    listen: Option<SocketAddr>,
    /// Plain HTTP address of /healthz, /readyz, /metrics [default: 127.0.0.1:8080, in a container 0.0.0.0:8080]
    #[arg(long, value_name = "ADDR", env = "NODEGATE_PROBE_LISTEN")]
    probe_listen: Option<SocketAddr>,
    /// Directory of tls.crt and tls.key; made with a CA of our own when empty.
    /// [default: certs; with a cluster a Secret that nodegate keeps]
    #[arg(long, value_name = "DIR", env = "NODEGATE_CERT_DIR")]
    cert_dir: Option<PathBuf>,
    /// Further name or address in our own certificate, besides localhost, 127.0.0.1 and ::1.
    #[arg(long = "cert-name", value_name = "NAME", env = "NODEGATE_CERT_NAME", value_delimiter = ',')]
    cert_names: Vec<SubjectName>,
    #[command(flatten)]
    callers: CallersArgs,
    /// Largest review that is read, in bytes. Raise it where the API server's --max-request-bytes was raised: to twelve times
    /// that, and two MiB more.
    #[arg(long, value_name = "BYTES", env = "NODEGATE_MAX_REVIEW_BYTES", default_value_t = REVIEW_BYTES as u64, value_parser = clap::value_parser!(u64).range(1_048_576..=1_073_741_824))]
    max_review_bytes: u64,
    /// Most open HTTPS connections. At the bound an idle one ends for each that comes, of the address that has most of them.
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_CONNECTIONS", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    max_connections: u64,
    /// Most open HTTPS connections from one address (of IPv6, one /64). All API servers may have one address where
    /// something stands before them.
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_CONNECTIONS_PER_PEER", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    max_connections_per_peer: u64,
    /// Directory of saved state, one <node>.json per node; watched, never written.
    #[arg(long, value_name = "DIR", env = "NODEGATE_STATE_DIR", default_value = "state")]
    state_dir: PathBuf,
    /// When to mark a joining node that lacks something deferred.
    #[arg(long, value_enum, env = "NODEGATE_PENDING_TAINT", default_value_t = PendingTaintMode::Auto)]
    pending_taint: PendingTaintMode,
    /// Key of the pending taint.
    #[arg(long, value_name = "KEY", env = "NODEGATE_PENDING_TAINT_KEY", default_value = "nodegate.dev/pending")]
    pending_taint_key: LabelKey,
    /// Group whose members may override every policy, exactly or as a glob, which matches names that begin with `system:`
    /// only if it begins so itself. A group name may have commas, so repeat the flag for more.
    #[arg(long = "break-glass-group", value_name = "GROUP", env = "NODEGATE_BREAK_GLASS_GROUP")]
    break_glass_groups: Vec<String>,
    /// Write who changed a governed, owned or persisted label or taint last into the annotation
    /// nodegate.dev/last-change of its node.
    #[arg(long, env = "NODEGATE_STAMP_CHANGES")]
    stamp_changes: bool,
    /// nodegate's own user name in the cluster; never judged [default: with a cluster it is asked]
    #[arg(long, value_name = "USER", env = "NODEGATE_SELF_USER")]
    self_user: Option<String>,
    /// Time between "not ready" and the end of accepting, for load balancers to notice.
    #[arg(long, value_name = "DURATION", env = "NODEGATE_DRAIN_DELAY", default_value = "0s", value_parser = duration)]
    drain_delay: Duration,
    /// One more label prefix to persist, as the label operator had it.
    #[arg(long, value_name = "PREFIX", env = "PERSIST_LABEL_PREFIX", hide = true)]
    persist_label_prefix: Option<String>,
    #[command(flatten, next_help_heading = "With a cluster: controller and saved state in ConfigMaps")]
    connect: ConnectArgs,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// When to mark a joining node that lacks something deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PendingTaintMode {
    /// Only while a controller is known to be there to lift it: never without a cluster.
    Auto,
    /// Whenever something is deferred.
    Always,
    /// Never.
    Never,
}

/// Parses a duration such as `5s`.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    let fault = || format!("{text:?} is not a duration; write one such as 5s");
    let length: jiff::SignedDuration = text.parse().map_err(|_| fault())?;
    Duration::try_from(length).map_err(|_| fault())
}

/// Whether we run in a container, where loopback would reach nobody.
fn in_container() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists())
}

/// Everything `serve` needs to know.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Where policies come from.
    pub sources: Sources,
    /// HTTPS address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Plain HTTP address of the probes; port 0 takes a free one.
    pub probe_listen: SocketAddr,
    /// Certificate directory; without one the certificate is in a Secret of the cluster.
    pub cert_dir: Option<PathBuf>,
    /// Names in our own certificate.
    pub cert_names: Vec<SubjectName>,
    /// Who may call; anybody when not said.
    pub callers: Option<CallersConfig>,
    /// Bounds on reviews.
    pub bounds: Bounds,
    /// Bounds on HTTPS connections.
    pub limits: Limits,
    /// Directory of saved state; not read with a cluster.
    pub state_dir: PathBuf,
    /// When the pending taint is set.
    pub pending_taint: PendingTaintMode,
    /// Its key.
    pub pending_taint_key: LabelKey,
    /// Whether nodes are stamped with who changed them last.
    pub stamp_changes: bool,
    /// Who is not judged.
    pub exemptions: Exemptions,
    /// Time between "not ready" and the end of accepting.
    pub drain_delay: Duration,
    /// The cluster to work on.
    pub cluster: Option<ClusterConfig>,
}

impl TryFrom<ServeArgs> for ServeConfig {
    type Error = anyhow::Error;

    fn try_from(args: ServeArgs) -> anyhow::Result<Self> {
        let cluster = args.connect.place()?.map(|place| args.controller.config(place));
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
            pending_taint_key: args.pending_taint_key,
            stamp_changes: args.stamp_changes,
            exemptions: Exemptions { self_user: args.self_user, break_glass_groups },
            drain_delay: args.drain_delay,
            cluster,
        })
    }
}
