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

/// How often what the nodes have is counted even if none of them has changed: nodes are deleted, and others may change the
/// ConfigMap.
const INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two counts. Many nodes may change at once.
const PACE: Duration = Duration::from_millis(500);

/// Keeps what pools remember; runs until dropped.
pub(crate) async fn keep(client: Client, namespace: &str, reconciler: &Reconciler) {
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
        let told = reconciler.shared().notified();
        if let Some(now) = counted(reconciler, &known)
            && (now != *known || now != *reconciler.maps().states().pools())
        {
            if let Err(error) = write(&client, namespace, &now).await {
                tracing::warn!(error = in_words(&error), "could not store what pools remember; retrying");
                tokio::time::sleep(RETRY).await;
                continue;
            }
            if std::mem::replace(&mut left_out, now.left_out) < now.left_out {
                tracing::warn!(
                    labels = now.left_out,
                    "pools do not remember these many labels: too many are persisted with scope: pool"
                );
            }
            reconciler.maps().states().remember_pools(now.clone());
            known = Arc::new(now);
        }
        tokio::time::sleep(PACE).await;
        tokio::select! {
            () = told => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// What pools remember now; nothing before all nodes were asked by the policies in force, and while no policy is about that.
fn counted(reconciler: &Reconciler, known: &PoolMemory) -> Option<PoolMemory> {
    let set = reconciler.policies();
    if !set.pools_remember() {
        return None;
    }
    let memory = reconciler.memory();
    let shares = memory.shares(&set)?;
    // Nothing is forgotten by a clock that only this replica vouches for.
    Some(known.after(&set, shares, api_server::time_at_most(Timestamp::now()), set.retention()))
}

async fn write(client: &Client, namespace: &str, memory: &PoolMemory) -> Result<(), kube::Error> {
    let text = serde_json::to_string(memory).map_err(kube::Error::SerdeError)?;
    published::edit(client.clone(), namespace, POOLS_NAME, |map| {
        map.data.get_or_insert_default().insert(POOLS_KEY.to_owned(), text.clone());
    })
    .await
}
