//! The saved state of nodes, for commands.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::cli::shared::output;
use nodegate_base::pages::next_page;
use nodegate_policy::api::state::SavedState;
use nodegate_stores::state::{
    self, ConfigMaps, Identity, Machine, NAME_PREFIX, Precedence, STATE_KEY, SavedStates, Unused, UnusedDocument,
};

/// Number of ConfigMaps in one page of a list.
const PAGE: u32 = 500;

/// Saved state for nodes that come from files.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct SavedFiles {
    /// Directory of saved state, one <node>.json per node, for nodes from files
    #[arg(long, value_name = "DIR", env = "NODEGATE_STATE_DIR", conflicts_with_all = ["kubeconfig", "namespace"])]
    state_dir: Option<PathBuf>,
}

impl SavedFiles {
    /// The saved state of each node, by its name; `None` without the flag.
    ///
    /// # Errors
    /// Returns an error if the directory or a file in it cannot be read.
    pub(in crate::cli) fn read(&self) -> anyhow::Result<Option<HashMap<String, SavedState>>> {
        self.state_dir.as_deref().map(in_directory).transpose()
    }
}

/// The saved state of a node in the ConfigMaps of a namespace.
pub(in crate::cli) enum InCluster {
    /// It has a record.
    Record(Box<SavedState>),
    /// It has none.
    Nothing,
    /// Its record cannot be read.
    Unreadable(UnusedDocument),
}

/// The saved state of the machine behind a node, with its history, as `serve` with this `identity` finds it.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn of_machine(
    client: &Client,
    namespace: &str,
    identity: Identity,
    machine: Machine<'_>,
) -> Result<InCluster, kube::Error> {
    let Some(own) = identity.of(machine) else { return Ok(InCluster::Nothing) };
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let usual = maps.get_opt(&format!("{NAME_PREFIX}{}", machine.name)).await?;
    if let Some(Ok(state)) = usual.as_ref().and_then(document)
        && Identity::key(&state) == own
    {
        return Ok(InCluster::Record(Box::new(state)));
    }
    // A record may be stored under another name: the name of the node is too long, or another machine's record has it.
    let all = ConfigMaps::new(client.clone(), namespace, Arc::new(SavedStates::new(identity)));
    let mut problem = None;
    all.read(|found| problem = problem.take().or((found.node == machine.name).then_some(found))).await?;
    Ok(match (all.with_history(machine).await?, problem) {
        (Some(state), _) => InCluster::Record(Box::new(state)),
        (None, Some(problem)) => InCluster::Unreadable(problem),
        (None, None) => InCluster::Nothing,
    })
}

/// The saved state of the node with this name, with its history. If machines had the name one after the other, this is the
/// record of the present node.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn of_name(client: &Client, namespace: &str, node: &str) -> Result<InCluster, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let name = format!("{NAME_PREFIX}{node}");
    let usual = maps.get_opt(&name).await?.as_ref().and_then(document);
    if let Some(Ok(state)) = &usual
        && state.node_name == node
        && state.deleted_at.is_none()
    {
        return Ok(InCluster::Record(Box::new(state.clone())));
    }
    // A record may be stored under another name: the name of the node is too long, or another machine's record has it.
    let all = all_in_cluster(client, namespace, |_| {}).await?;
    let of_node = all.into_iter().filter(|state| state.node_name == node);
    match (of_node.max_by(|one, other| age(one).cmp(&age(other))), usual) {
        (Some(state), _) => Ok(InCluster::Record(Box::new(state))),
        (None, Some(Err(why))) => {
            Ok(InCluster::Unreadable(UnusedDocument { config_map: name, node: node.to_owned(), why }))
        }
        (None, _) => Ok(InCluster::Nothing),
    }
}

/// Sorts the records of one name: the present node last, and before it the one that was deleted last.
fn age(state: &SavedState) -> (bool, Option<&str>) {
    (state.deleted_at.is_none(), state.deleted_at.as_deref())
}

/// The document of a ConfigMap, or why it cannot be read.
fn document(map: &ConfigMap) -> Option<Result<SavedState, Unused>> {
    let text = map.data.as_ref()?.get(STATE_KEY)?;
    let read = serde_json::from_str::<SavedState>(text);
    Some(read.map_err(|error| Unused::unreadable(&error.to_string(), map, STATE_KEY)))
}

/// The saved state of all nodes in the ConfigMaps of `namespace`, with their histories. Calls `report` for each that cannot be
/// read, or is a copy.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn all_in_cluster(
    client: &Client,
    namespace: &str,
    mut report: impl FnMut(UnusedDocument),
) -> Result<Vec<SavedState>, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut next = Some(ListParams::default().limit(PAGE));
    let mut found = Vec::new();
    while let Some(parameters) = next {
        let page = maps.list(&parameters).await?;
        next = next_page(parameters, &page.metadata);
        for map in page.items {
            let name = map.name_any();
            match (name.strip_prefix(NAME_PREFIX), document(&map)) {
                (Some(_), Some(Ok(state))) if state::is_record(&name, &state) => {
                    found.push((Precedence::of(&map, &state.node_name), state));
                }
                (Some(_), Some(Ok(state))) => report(UnusedDocument::copy(name, &state.node_name)),
                (Some(node), Some(Err(why))) => {
                    report(UnusedDocument { node: node.to_owned(), config_map: name, why });
                }
                (None, _) | (_, None) => {}
            }
        }
    }
    Ok(each_once(found, report))
}

/// Tells that a document is not used.
pub(in crate::cli) fn tell_unused(UnusedDocument { config_map, node: _, why }: UnusedDocument) {
    output::note(&format!("note: saved state in ConfigMap {config_map} is not used: {why}"));
}

/// The records without copies of them, as `serve` finds them when it starts.
fn each_once(mut found: Vec<(Precedence, SavedState)>, mut report: impl FnMut(UnusedDocument)) -> Vec<SavedState> {
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut records: HashMap<String, String> = HashMap::new();
    found.retain(|(place, state)| match records.entry(Identity::key(state)) {
        Entry::Vacant(free) => {
            free.insert(place.config_map().to_owned());
            true
        }
        Entry::Occupied(record) => {
            report(UnusedDocument::copy_of(record.get().clone(), place.config_map().to_owned(), &state.node_name));
            false
        }
    });
    found.into_iter().map(|(_, state)| state).collect()
}

/// The saved state of all nodes in a directory of `<node>.json` files, by node.
///
/// # Errors
/// Returns an error if the directory or a file in it cannot be read.
pub(in crate::cli) fn in_directory(directory: &Path) -> anyhow::Result<HashMap<String, SavedState>> {
    anyhow::ensure!(directory.is_dir(), "--state-dir {}: there is no such directory", directory.display());
    let (states, errors) = state::read_with_history(directory);
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    Ok(states.iter().map(|(node, state)| (node.to_string(), (**state).clone())).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_record_and_its_copies_the_oldest_is_found_and_of_one_second_the_one_named_after_the_node() {
        for (seconds, expected) in [([1, 2], "node-labels-a"), ([2, 1], "node-labels-n1"), ([1, 1], "node-labels-n1")] {
            let found = ["node-labels-a", "node-labels-n1"].into_iter().zip(seconds).map(|(name, second)| {
                let created = format!("2026-01-01T00:00:0{second}Z");
                let map = json!({"metadata": {"name": name, "creationTimestamp": created}});
                let state = json!({"nodeName": "n1", "identity": "systemUUID=C", "labels": {"in": name}});
                let map: ConfigMap = serde_json::from_value(map).unwrap();
                (Precedence::of(&map, "n1"), serde_json::from_value::<SavedState>(state).unwrap())
            });
            let mut copies = Vec::new();
            let records = each_once(found.collect(), |problem| copies.push(problem));
            assert_eq!(records.iter().map(|state| state.labels.get("in")).collect::<Vec<_>>(), [Some(expected)]);
            assert!(copies.len() == 1 && copies[0].config_map != expected, "{copies:?}");
            assert_eq!(copies[0].why, Unused::Copy { node: "n1".to_owned(), record: expected.to_owned() });
        }
    }
}
