//! The saved state of one node, for commands.

use std::collections::HashMap;
use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::state::{self, NAME_PREFIX, STATE_KEY};
use nodegate_policy::api::state::SavedState;

/// Number of ConfigMaps in one page of a list.
const PAGE: u32 = 500;

/// The saved state of a node in the ConfigMaps of `namespace`.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(super) async fn in_cluster(
    client: &Client,
    namespace: &str,
    node: &str,
) -> Result<Option<SavedState>, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let of_node = |map: &ConfigMap| {
        let text = map.data.as_ref()?.get(STATE_KEY)?;
        serde_json::from_str::<SavedState>(text).ok().filter(|state| state.node_name == node)
    };
    let plain = maps.get_opt(&format!("{NAME_PREFIX}{node}")).await?;
    if let Some(state) = plain.as_ref().and_then(of_node) {
        return Ok(Some(state));
    }
    // A record whose node name is too long, or whose ConfigMap name is taken, is stored under another name.
    Ok(all_in_cluster(client, namespace).await?.into_iter().find(|state| state.node_name == node))
}

/// The saved state of all nodes in the ConfigMaps of `namespace`, with their histories. Unreadable texts are skipped.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(super) async fn all_in_cluster(client: &Client, namespace: &str) -> Result<Vec<SavedState>, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut parameters = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = maps.list(&parameters).await?;
        let ours = page.items.iter().filter(|map| map.name_any().starts_with(NAME_PREFIX));
        let texts = ours.filter_map(|map| map.data.as_ref()?.get(STATE_KEY));
        found.extend(texts.filter_map(|text| serde_json::from_str::<SavedState>(text).ok()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The saved state of all nodes in a directory of `<node>.json` files, by node.
///
/// # Errors
/// Returns an error if the directory or a file in it cannot be read.
pub(super) fn in_directory(directory: &Path) -> anyhow::Result<HashMap<String, SavedState>> {
    anyhow::ensure!(directory.is_dir(), "--state-dir {}: there is no such directory", directory.display());
    let (states, errors) = state::read(directory, &Default::default());
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    Ok(states.iter().map(|(node, state)| (node.to_string(), (**state).clone())).collect())
}
