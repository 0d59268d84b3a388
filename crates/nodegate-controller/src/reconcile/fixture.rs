//! A reconciler for tests.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::Client;

use super::{KeepConfig, Reconciler};
use crate::cluster::events::Events;
use crate::memory::removals::MaxRemovals;
use nodegate_base::metrics::Metrics;
use nodegate_policy::{PendingTaints, PolicySet};
use nodegate_stores::inventory::InventoryCache;
use nodegate_stores::state::{ConfigMaps, Identity, SavedStates};

pub(crate) fn config() -> KeepConfig {
    KeepConfig {
        max_removals: MaxRemovals::Tenth,
        writes_per_second: 100,
        pending: PendingTaints::default(),
        pending_timeout: Duration::ZERO,
        release_pending: false,
        adopt: false,
        records_last_change: false,
        counted_labels: Vec::new(),
    }
}

/// With this API server, these policies, an empty memory, and records in the namespace `nodegate`.
pub(crate) fn reconciler(client: Client, set: PolicySet, config: KeepConfig) -> Reconciler {
    let maps = ConfigMaps::new(client.clone(), "nodegate", Arc::new(SavedStates::new(Identity::Name)));
    let (events, _) = Events::new(client.clone(), "test");
    let (policies, inventory) = (Arc::new(ArcSwap::from_pointee(set)), Arc::new(InventoryCache::default()));
    Reconciler::new(client, config, policies, maps, inventory, events, Metrics::new())
}
