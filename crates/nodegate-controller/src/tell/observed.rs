//! What the leader knows beside the state of nodes, in a ConfigMap for the command line.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use serde::{Deserialize, Serialize};

use crate::memory::reverts::{GivenUp, quoted};
use crate::reconcile::Reconciler;
use crate::tell::published::{self, RETRY};
use nodegate_base::kube_error::in_words;

/// The data key, in the ConfigMap of [`published::NAME`].
const KEY: &str = "controller.json";
/// Maximum size of the listed keys, in bytes. The policies in force are in the same ConfigMap.
const LISTED_MAX: usize = 64 * 1024;

/// What the controller does not write, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Observed {
    /// Keys that the controller does not repair anymore, because others kept reverting them; as many as
    /// fit.
    pub left_alone: Vec<LeftAlone>,
    /// Why removals of owned keys are held back; absent if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back: Option<String>,
}

/// A key that the controller does not repair anymore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftAlone {
    /// The node.
    pub node: String,
    /// `label`, `annotation` or `taint`.
    pub field: String,
    /// The key; for a taint `key:Effect`.
    pub key: String,
    /// The policy that sets the key.
    pub policy: String,
    /// The last field managers that reverted it, quoted.
    pub writers: String,
    /// The same names, the latest last. Empty if an earlier version has written it.
    #[serde(default)]
    pub writer_names: Vec<String>,
}

/// Reads what the leader has published; `None` if no leader has.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn read(client: Client, namespace: &str) -> Result<Option<Observed>, kube::Error> {
    Ok(published::map(client, namespace).await?.as_ref().and_then(read_from))
}

/// Reads what the leader has published from the ConfigMap of [`published::NAME`].
pub fn read_from(map: &ConfigMap) -> Option<Observed> {
    serde_json::from_str(map.data.as_ref()?.get(KEY)?).ok()
}

/// Publishes what `reconciler` knows whenever that changes; runs until dropped.
pub(crate) async fn keep(client: Client, namespace: &str, reconciler: &Reconciler) {
    loop {
        let told = reconciler.news().notified();
        if let Err(error) = publish(&client, namespace, &observed(reconciler)).await {
            tracing::debug!(error = in_words(&error), "could not publish what the controller does not write; retrying");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        told.await;
    }
}

fn observed(reconciler: &Reconciler) -> Observed {
    let memory = reconciler.memory();
    let left_alone = memory.given_up().map(|(node, GivenUp { key: (field, key), writers, policy })| LeftAlone {
        node: node.to_owned(),
        field: field.to_string(),
        key: key.clone(),
        policy: policy.to_owned(),
        writers: quoted(writers),
        writer_names: writers.iter().map(|name| name.to_string()).collect(),
    });
    let mut left_alone: Vec<LeftAlone> = left_alone.collect();
    left_alone.sort_unstable();
    let mut size = 0;
    left_alone.retain(|LeftAlone { node, field, key, policy, writers, writer_names: _ }| {
        // Escaped, a byte of a name takes up to six. The names are there twice.
        size += 96 + node.len() + field.len() + key.len() + policy.len() + 12 * writers.len();
        size <= LISTED_MAX
    });
    Observed { left_alone, held_back: memory.removals.brake().map(ToString::to_string) }
}

async fn publish(client: &Client, namespace: &str, observed: &Observed) -> Result<(), kube::Error> {
    let text = serde_json::to_string(observed).map_err(kube::Error::SerdeError)?;
    published::edit(client.clone(), namespace, published::NAME, |map| {
        map.data.get_or_insert_default().insert(KEY.to_owned(), text.clone());
    })
    .await
}
