//! How `serve` runs, as commands that judge nodes like it have to know.

use nodegate_policy::{PendingKey, PendingTaints};
use nodegate_stores::state::Identity;

/// Flags of `serve` that commands need with the same values.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServedArgs {
    /// How saved state is matched to nodes; use the same value as for `serve`
    #[arg(long, value_enum, env = "NODEGATE_IDENTITY", default_value_t = Identity::Name)]
    pub(crate) identity: Identity,
    #[command(flatten)]
    pub(crate) pending: PendingTaintArgs,
    /// Name of the webhook configurations
    #[arg(long, value_name = "NAME", env = "NODEGATE_WEBHOOK_CONFIGURATION", default_value = "nodegate")]
    pub(crate) webhook_configuration: String,
}

/// The pending taint.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PendingTaintArgs {
    /// Key of the pending taint. auto: the key that the autoscaler of the node knows as a startup taint,
    /// readiness.k8s.io/nodegate on nodes of Karpenter and startup-taint.cluster-autoscaler.kubernetes.io/nodegate on others
    #[arg(long, value_name = "KEY", env = "NODEGATE_PENDING_TAINT_KEY", default_value_t = PendingKey::Auto)]
    pub(crate) pending_taint_key: PendingKey,
}

impl PendingTaintArgs {
    /// The taints of nodes that wait.
    pub(crate) fn taints(&self) -> PendingTaints {
        PendingTaints::new(self.pending_taint_key.clone())
    }
}
