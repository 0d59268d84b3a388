//! How `serve` runs, as commands that judge nodes like it have to know.

use nodegate_policy::api::names::{LabelKey, TaintEffect, TaintId};

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
    /// Key of the pending taint
    #[arg(long, value_name = "KEY", env = "NODEGATE_PENDING_TAINT_KEY", default_value = "nodegate.dev/pending")]
    pub(crate) pending_taint_key: LabelKey,
}

impl PendingTaintArgs {
    /// The taints of a node that waits for something deferred.
    pub(crate) fn taints(&self) -> [TaintId; 1] {
        [TaintId { key: self.pending_taint_key.clone(), effect: TaintEffect::NoSchedule }]
    }
}
