//! The flags of `serve` about inventories.

use std::path::PathBuf;

use crate::inventory::RefresherConfig;

/// Flags about inventories.
#[derive(Debug, clap::Args)]
pub(super) struct InventoryArgs {
    /// Directory of credentials for the inventories of policies, with a subdirectory for each, by its name: `url` (the
    /// credentials are for this URL and what is below it), `token`, `ca.crt`, `tls.crt`, `tls.key`; read again when they
    /// change
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
