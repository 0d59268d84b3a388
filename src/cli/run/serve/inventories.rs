//! The flags of `serve` about inventories, and who asks them.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::cli::run::serve::cluster::Cluster;
use crate::cli::run::serve::policies::InForce;
use crate::cli::run::serve::process::Process;
use nodegate_stores::inventory::{Refresher, RefresherConfig};

/// Flags about inventories.
#[derive(Debug, clap::Args)]
pub(super) struct InventoryArgs {
    /// Directory with a subdirectory of credentials for each inventory, by its name: `url` (to which they may be sent,
    /// and below it), `token`, `ca.crt`, `tls.crt`, `tls.key`; watched for changes
    #[arg(long = "inventory-credentials", value_name = "DIR", env = "NODEGATE_INVENTORY_CREDENTIALS")]
    credentials: Option<PathBuf>,
    /// Maximum number of requests per second to one inventory
    #[arg(long = "inventory-requests-per-second", value_name = "N", env = "NODEGATE_INVENTORY_REQUESTS_PER_SECOND", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    requests_per_second: u32,
}

impl InventoryArgs {
    pub(super) fn config(self) -> RefresherConfig {
        RefresherConfig { credentials: self.credentials, requests_per_second: self.requests_per_second }
    }
}

/// Prepares to ask the inventories of the policies in force. With a cluster, the leader asks; without one, this begins now.
pub(super) fn refresher(
    config: RefresherConfig,
    cluster: Option<&Cluster>,
    in_force: &InForce,
    generation: &watch::Receiver<u64>,
    process: &Process,
) -> Arc<Refresher> {
    let cache = cluster.map_or_else(Arc::default, |cluster| cluster.inventory.clone());
    let (policies, metrics) = (in_force.policies.clone(), process.metrics.clone());
    let refresher = Refresher::new(cache, policies, generation.clone(), config, metrics);
    if cluster.is_none() {
        let (alone, shutdown) = (refresher.clone(), process.shutdown.clone());
        tokio::spawn(shutdown.run_until_cancelled_owned(async move { alone.run_alone().await }));
    }
    refresher
}
