//! How `serve` runs, as commands that judge nodes like it have to know.

use kube::Client;
use nodegate_policy::{PendingKey, PendingTaints};
use nodegate_stores::state::Identity;

use crate::cli::shared::cluster::registration;

/// Flags of `serve` that commands need with the same values.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServedArgs {
    /// How saved state is matched to nodes; use the same value as for `serve`
    #[arg(long, value_enum, env = "NODEGATE_IDENTITY", default_value_t = Identity::Name)]
    pub(crate) identity: Identity,
    #[command(flatten)]
    pub(crate) pending: PendingTaintArgs,
    #[command(flatten)]
    pub(crate) configuration: ConfigurationArgs,
}

/// How fast a command writes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PaceArgs {
    /// Maximum number of writes per second
    #[arg(long, value_name = "N", env = "NODEGATE_WRITES_PER_SECOND", default_value_t = 100)]
    pub(crate) writes_per_second: u32,
}

/// The webhook configurations.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConfigurationArgs {
    /// Name of the webhook configurations. By default the only ones in the cluster that call nodegate, or nodegate
    #[arg(long, value_name = "NAME", env = "NODEGATE_WEBHOOK_CONFIGURATION")]
    webhook_configuration: Option<String>,
}

impl ConfigurationArgs {
    /// The name of the webhook configurations: a Helm release of another name has others than `nodegate`.
    pub(crate) async fn name(&self, client: &Client) -> String {
        if let Some(named) = self.webhook_configuration.clone().filter(|name| !name.is_empty()) {
            return named;
        }
        registration::find(client).await.configuration.unwrap_or_else(|| "nodegate".to_owned())
    }
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
