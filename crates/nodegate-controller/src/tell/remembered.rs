//! What pools remember: counted by the leader from what their nodes have, and kept in a ConfigMap for every replica.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use crate::reconcile::Reconciler;
use crate::tell::published::{self, RETRY};
use nodegate_base::api_server;
use nodegate_base::kube_error::in_words;
use nodegate_policy::PoolMemory;
use nodegate_stores::state::{POOLS_KEY, POOLS_NAME};

/// Minimum time between two counts. Many nodes may change at once.
const PACE: Duration = Duration::from_millis(500);
/// How often it is looked whether others have changed the ConfigMap.
const CHECK: Duration = Duration::from_secs(5);
/// How often it is counted even if nothing has changed: pools without nodes are forgotten.
const INTERVAL: Duration = Duration::from_secs(60);

/// Keeps what pools remember; runs until dropped.
pub(crate) async fn keep(client: Client, namespace: &str, reconciler: &Reconciler) {
    let states = reconciler.maps().states();
    let mut known = loop {
        match reconciler.maps().read_pools().await {
            Ok(known) => break known,
            Err(error) => {
                tracing::warn!(error = in_words(&error), "could not read what pools remember; retrying");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    let mut left_out = 0;
    loop {
        if !reconciler.policies().pools_remember() {
            reconciler.metrics().fleet.pools_remember(&PoolMemory::default());
        }
        if let Some(now) = counted(reconciler, &known) {
            reconciler.metrics().fleet.pools_remember(&now);
            if now != *known || !states.are_stored(&known) {
                if let Err(error) = write(&client, namespace, &now).await {
                    tracing::warn!(error = in_words(&error), "could not store what pools remember; retrying");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                known = Arc::new(now);
            }
            if std::mem::replace(&mut left_out, known.left_out) < known.left_out {
                tracing::warn!(
                    labels = known.left_out,
                    "pools do not remember these many labels: too many are persisted with scope: pool"
                );
            }
        }
        tokio::time::sleep(PACE).await;
        until_changed(reconciler, &known).await;
    }
}

/// Waits until what pools remember may be something else, or not what is stored.
async fn until_changed(reconciler: &Reconciler, known: &PoolMemory) {
    // Where no policy is about that, nobody keeps it.
    let is_kept = || !reconciler.policies().pools_remember() || reconciler.maps().states().are_stored(known);
    let changed_by_others = async {
        tokio::time::sleep(CHECK).await;
        while is_kept() {
            tokio::time::sleep(CHECK).await;
        }
    };
    tokio::select! {
        () = reconciler.shared().notified() => {}
        () = changed_by_others => {}
        () = tokio::time::sleep(INTERVAL) => {}
    }
}

/// What pools remember now; nothing before all nodes were asked by the policies in force, and while no policy is about that.
fn counted(reconciler: &Reconciler, known: &PoolMemory) -> Option<PoolMemory> {
    let set = reconciler.policies();
    if !set.pools_remember() {
        return None;
    }
    let shares = reconciler.memory().shares(&set)?;
    // Nothing is forgotten by a clock that only this replica vouches for.
    let now = api_server::time_at_most(Timestamp::now());
    Some(known.after(&set, shares.iter().map(|share| &**share), now, set.retention()))
}

async fn write(client: &Client, namespace: &str, memory: &PoolMemory) -> Result<(), kube::Error> {
    let text = serde_json::to_string(memory).map_err(kube::Error::SerdeError)?;
    published::edit(client.clone(), namespace, POOLS_NAME, |map| {
        map.data.get_or_insert_default().insert(POOLS_KEY.to_owned(), text.clone());
    })
    .await
}
