//! The ResourceSlices in which drivers for dynamic resource allocation (DRA) publish the devices of nodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::RwLock;

use crate::touched::Touched;
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::{WatchFailures, watch_objects};
use nodegate_base::pages::next_page;
use nodegate_base::served_kind::served_kind;
use nodegate_base::telemetry::brief;
use nodegate_policy::{DeviceSlice, NodeDevices};

const GROUP: &str = "resource.k8s.io";
const KIND: &str = "ResourceSlice";
/// How many objects a page of a listing has.
const PAGE: u32 = 500;
/// When it is asked again whether the API server has the API.
const ASKED_AGAIN: Duration = Duration::from_secs(30);

/// The devices that are known.
#[derive(Debug, Default)]
pub struct KnownDevices {
    /// Complete after every change, so a panic elsewhere leaves it usable.
    known: RwLock<Known>,
    touched: Touched,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether all slices were listed once. Before, nothing is known of any node.
    listed: bool,
    by_node: HashMap<Arc<str>, HashMap<Box<str>, DeviceSlice>>,
    node_of: HashMap<Box<str>, Arc<str>>,
}

impl Known {
    /// Takes up a slice, or that it is gone. Returns the nodes about which this changes something.
    fn put(&mut self, name: &str, slice: Option<DeviceSlice>) -> Vec<Arc<str>> {
        let before = self.node_of.remove(name).and_then(|node| {
            let slices = self.by_node.get_mut(&node)?;
            let slice = slices.remove(name)?;
            if slices.is_empty() {
                self.by_node.remove(&node);
            }
            Some((node, slice))
        });
        let after = slice.map(|slice| {
            let node = self.by_node.get_key_value(&*slice.node).map(|(node, _)| node.clone());
            (node.unwrap_or_else(|| slice.node.as_str().into()), slice)
        });
        let changed = if before == after {
            Vec::new()
        } else {
            [&before, &after].into_iter().flatten().map(|(node, _)| node.clone()).collect()
        };
        if let Some((node, slice)) = after {
            self.node_of.insert(name.into(), node.clone());
            self.by_node.entry(node).or_default().insert(name.into(), slice);
        }
        changed
    }
}

impl KnownDevices {
    /// The devices of a node; `None` while not all of them are known.
    pub fn of(&self, node: &str) -> Option<NodeDevices> {
        let known = self.known.read();
        if !known.listed {
            return None;
        }
        NodeDevices::of(known.by_node.get(node)?.values())
    }

    /// The names of nodes whose devices change.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Reads all slices once. A cluster without their API has none.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn list(&self, client: &Client) -> kube::Result<()> {
        if let Some(resource) = served_kind(client, GROUP, KIND).await? {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let mut next = Some(ListParams::default().limit(PAGE));
            while let Some(page) = next {
                let listed = api.list(&page).await?;
                next = next_page(page, &listed.metadata);
                listed.items.iter().for_each(|slice| drop(self.take(slice)));
            }
        }
        self.known.write().listed = true;
        Ok(())
    }

    /// Follows all slices until dropped.
    pub async fn follow(&self, client: Client) {
        let mut failing = WatchFailures::default();
        loop {
            match served_kind(&client, GROUP, KIND).await {
                Ok(Some(resource)) => self.watch(client.clone(), &resource, &mut failing).await,
                Ok(None) => self.known.write().listed = true,
                Err(error) => {
                    let error = brief(in_words(&error));
                    if failing.is_news(&error) {
                        tracing::warn!(%error, "could not ask the API server for the versions of ResourceSlices; retrying");
                    }
                }
            }
            tokio::time::sleep(ASKED_AGAIN).await;
        }
    }

    async fn watch(&self, client: Client, resource: &ApiResource, failing: &mut WatchFailures) {
        let slices: Api<DynamicObject> = Api::all_with(client, resource);
        let mut stream = std::pin::pin!(watch_objects(slices, Config::default()));
        let mut seen = HashSet::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => seen.clear(),
                Ok(Event::InitApply(slice)) => {
                    self.tell(self.take(&slice));
                    seen.insert(slice.name_any());
                }
                Ok(Event::InitDone) => {
                    self.end_listing(&std::mem::take(&mut seen));
                    failing.works();
                }
                Ok(Event::Apply(slice)) => self.tell(self.take(&slice)),
                Ok(Event::Delete(slice)) => {
                    let changed = self.known.write().put(&slice.name_any(), None);
                    self.tell(changed);
                }
                Err(error) => {
                    if let Some(error) = failing.news(&error) {
                        tracing::warn!(%error, "the watch of ResourceSlices failed; what is known of devices stays in force; retrying");
                    }
                }
            }
        }
    }

    fn take(&self, slice: &DynamicObject) -> Vec<Arc<str>> {
        self.known.write().put(&slice.name_any(), DeviceSlice::read(&slice.data))
    }

    /// Forgets the slices that a listing has not shown.
    fn end_listing(&self, seen: &HashSet<String>) {
        let mut known = self.known.write();
        let gone: Vec<Box<str>> = known.node_of.keys().filter(|name| !seen.contains(&***name)).cloned().collect();
        let mut changed: Vec<Arc<str>> = gone.iter().flat_map(|name| known.put(name, None)).collect();
        if !std::mem::replace(&mut known.listed, true) {
            changed.extend(known.by_node.keys().cloned());
        }
        drop(known);
        self.tell(changed);
    }

    fn tell(&self, nodes: Vec<Arc<str>>) {
        if !nodes.is_empty() {
            self.touched.tell(nodes);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, node: &str, devices: usize) -> DynamicObject {
        let devices: Vec<_> = (0..devices).map(|at| json!({"name": format!("d{at}")})).collect();
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        serde_json::from_value(json!({"apiVersion": "resource.k8s.io/v1", "kind": KIND, "metadata": {"name": name},
            "spec": {"driver": "d", "nodeName": node, "pool": pool, "devices": devices}}))
        .unwrap()
    }

    #[test]
    fn devices_are_known_once_all_slices_were_listed_and_followers_are_told_what_changes() {
        let known = KnownDevices::default();
        let named = |nodes: &[&str]| -> Vec<Arc<str>> { nodes.iter().map(|node| Arc::from(*node)).collect() };
        assert_eq!(known.take(&slice("a", "n1", 1)), named(&["n1"]));
        assert_eq!(known.of("n1"), None);
        known.end_listing(&HashSet::from(["a".to_owned()]));
        assert!(known.of("n1").is_some() && known.of("n2").is_none());
        assert_eq!(known.take(&slice("a", "n1", 1)), named(&[]), "nothing has changed");
        assert_eq!(known.take(&slice("a", "n1", 2)), named(&["n1", "n1"]));
        assert_eq!(known.take(&slice("a", "n2", 2)), named(&["n1", "n2"]));
        assert!(known.of("n1").is_none() && known.of("n2").is_some());
        known.take(&slice("b", "n3", 1));
        known.end_listing(&HashSet::from(["b".to_owned()]));
        assert!(known.of("n2").is_none() && known.of("n3").is_some());
        assert_eq!(known.known.read().by_node.len(), 1);
    }
}
