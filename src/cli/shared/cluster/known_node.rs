//! A stored node with what is known about its past, as the controller sees it; from a cluster or from files.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, Client};
use serde_json::Value as Json;

use crate::cli::shared::cluster::connect::ClusterTarget;
use crate::cli::shared::cluster::saved_state;
use crate::cli::shared::cluster::serve_flags::ConfigurationArgs;
use crate::cli::shared::node_files::Found;
use crate::cli::shared::output;
use nodegate_base::kube_error::in_words;
use nodegate_base::text::on_a_line;
use nodegate_controller::{NodeApi, NodeObject, NodeText, Read, Unreadable, machine};
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{
    Evidence, FactsError, InventoryAnswers, NodeDevices, NodeFacts, PendingTaints, PolicySet, PoolMemory, Publishers,
    StoredNode,
};
use nodegate_stores::devices::KnownDevices;
use nodegate_stores::inventory::{self, InventoryCache, UnreadableAnswers};
use nodegate_stores::state::{ConfigMaps, Identity, SavedStates};

/// A stored node with what is known about its past.
pub(in crate::cli) struct KnownNode {
    /// The node.
    pub(in crate::cli) node: NodeObject,
    text: NodeText,
    /// Its saved state.
    pub(in crate::cli) saved: SavedState,
    /// What pools remember.
    pools: Arc<PoolMemory>,
    /// The answers of inventories about it.
    inventory: Arc<InventoryAnswers>,
    devices: Option<NodeDevices>,
    /// Whether the node was created while the webhook was registered.
    registered: bool,
    /// Whether the identity of its machine is known, so that its saved state can be found.
    identified: bool,
    /// Taints that a webhook's patch added, as far as it is known.
    patched_taints: BTreeSet<String>,
    /// Programs that publish labels on other nodes.
    elsewhere: Publishers,
    /// The evidence for its pools.
    evidence: Option<Evidence<'static>>,
}

impl KnownNode {
    /// A node of a cluster. `webhook_since`: when the webhook was registered.
    pub(in crate::cli) fn of_cluster(
        node: NodeObject,
        saved: SavedState,
        webhook_since: Option<Timestamp>,
        identity: Identity,
        elsewhere: Publishers,
    ) -> Self {
        let text = node.text();
        let facts = text.facts().ok();
        let identified = facts.as_ref().is_some_and(|facts| identity.of(machine(facts)).is_some());
        // Only the leader knows whether the guard was there when the node was created, and it has recorded the evidence then.
        let evidence = facts.as_ref().and_then(|facts| Evidence::of_stored(facts, &saved, false));
        drop(facts);
        let registered = webhook_since.zip(node.created()).is_some_and(|(since, created)| created > since);
        let patched_taints = BTreeSet::new();
        let (pools, inventory, devices) = (Arc::default(), Arc::default(), None);
        Self {
            node,
            text,
            saved,
            pools,
            inventory,
            devices,
            registered,
            identified,
            patched_taints,
            elsewhere,
            evidence,
        }
    }

    /// The same node, about which inventories of these policies have answered this.
    pub(in crate::cli) fn answered(mut self, set: &PolicySet, answers: &InventoryCache) -> Self {
        if let Ok(facts) = self.text.facts() {
            let about = set.answers_about(&facts, self.evidence.as_ref(), |name| answers.of(name));
            drop(facts);
            self.inventory = about;
        }
        self
    }

    /// The same node with its devices.
    pub(in crate::cli) fn with_devices(self, devices: &KnownDevices) -> Self {
        Self { devices: devices.of(self.node.name()), ..self }
    }

    /// The same node, in a cluster where pools remember this.
    pub(in crate::cli) fn remembering(self, pools: Arc<PoolMemory>) -> Self {
        Self { pools, ..self }
    }

    /// A node of a file. Without saved state, it is assumed that admission handled the node and that it did not join just
    /// now; of one without a uid, that others have set its keys.
    ///
    /// # Errors
    /// Returns an error if it is not a Node.
    pub(in crate::cli) fn of_file(
        node: &Json,
        saved: Option<SavedState>,
        elsewhere: Publishers,
    ) -> anyhow::Result<Self> {
        let node = NodeObject::read(&node.to_string()).map_err(|Unreadable { name, why }| {
            anyhow::anyhow!("{}: {why}", if name.is_empty() { "a node without a name" } else { &name })
        })?;
        let text = node.text();
        let identified = saved.is_some() || !node.uid().is_empty();
        let patched_taints = match &saved {
            Some(_) => BTreeSet::new(),
            None => text.facts()?.taints().iter().map(|taint| format!("{}:{}", &*taint.key, &*taint.effect)).collect(),
        };
        let saved = saved.unwrap_or_else(|| SavedState {
            node_name: node.name().to_owned(),
            node_uid: Some(node.uid().to_owned()).filter(|uid| !uid.is_empty()),
            ..SavedState::default()
        });
        let (pools, inventory) = (Arc::default(), Arc::default());
        let evidence = Evidence::of_stored(&text.facts()?, &saved, true);
        Ok(Self {
            node,
            text,
            saved,
            pools,
            inventory,
            devices: None,
            registered: true,
            identified,
            patched_taints,
            elsewhere,
            evidence,
        })
    }

    /// The facts of the node.
    ///
    /// # Errors
    /// Returns an error if a field has an unexpected type.
    pub(in crate::cli) fn facts(&self) -> Result<NodeFacts<'_>, FactsError> {
        self.text.facts()
    }

    /// The JSON of the node.
    pub(in crate::cli) fn json(&self) -> &str {
        self.text.json()
    }

    /// The node as `plan_reconcile` takes it.
    pub(in crate::cli) fn stored<'a>(&'a self, facts: &'a NodeFacts<'a>, pending: &'a PendingTaints) -> StoredNode<'a> {
        let Self {
            node: _,
            text,
            saved,
            pools,
            inventory,
            devices,
            registered,
            identified,
            patched_taints,
            elsewhere,
            evidence,
        } = self;
        StoredNode {
            node: facts,
            version: None,
            claims: text.claims(),
            saved,
            pools: Some(pools),
            inventory: Some(inventory),
            devices: devices.as_ref(),
            registered: *registered,
            identified: *identified,
            pending,
            adopt: false,
            patched_taints,
            elsewhere: *elsewhere,
            evidence: evidence.as_ref(),
        }
    }
}

/// The programs that publish labels on nodes of files, as these and their records show.
pub(in crate::cli) fn publishers(found: &[Found], saved: &HashMap<String, SavedState>) -> Publishers {
    let keys = |field| {
        let maps = found.iter().filter_map(move |found| found.node["metadata"][field].as_object());
        maps.flat_map(|map| map.keys().map(String::as_str))
    };
    Publishers::of_keys(keys("labels"), keys("annotations")).and(Publishers::recorded(saved.values()))
}

/// How the past of the nodes of a cluster is found.
pub(in crate::cli) struct Known<'a> {
    /// The policies, which say what is read about nodes.
    pub(in crate::cli) set: &'a PolicySet,
    /// How saved state is matched to nodes.
    pub(in crate::cli) identity: Identity,
    /// The webhook configurations.
    pub(in crate::cli) configuration: &'a ConfigurationArgs,
}

/// Reads all nodes of a cluster, page by page, with what is known about their past. Returns what their pools remember.
///
/// # Errors
/// Returns an error if nodes or saved state cannot be read, or the first error of `take`.
pub(in crate::cli) async fn each(
    client: &Client,
    place: &ClusterTarget,
    known: &Known<'_>,
    mut take: impl FnMut(Result<KnownNode, Unreadable>) -> anyhow::Result<()>,
) -> anyhow::Result<Arc<PoolMemory>> {
    let maps = ConfigMaps::new(client.clone(), &place.namespace, Arc::new(SavedStates::new(known.identity)));
    maps.read(saved_state::tell_unused).await.context("could not read saved state")?;
    let inventories = inventory_answers(client, &place.namespace).await;
    let devices = devices_read_by(known.set, client).await;
    let since = webhook_since(client, known.configuration).await;
    let mut taken = Ok(());
    let with_past = |node: NodeObject| {
        let saved = record(maps.states(), &node.text());
        KnownNode::of_cluster(node, saved, since, known.identity, maps.states().publishers())
            .answered(known.set, &inventories)
            .with_devices(&devices)
            .remembering(maps.states().pools())
    };
    let each = |node: Read| {
        if taken.is_ok() {
            taken = take(node.map(with_past));
        }
    };
    NodeApi::new(client.clone()).each(each).await.context("could not list nodes")?;
    taken?;
    Ok(maps.states().pools())
}

/// The record of the machine behind a node; an empty one if there is none.
pub(in crate::cli) fn record(states: &SavedStates, node: &NodeText) -> SavedState {
    let saved = node.facts().ok().and_then(|facts| states.get(machine(&facts)));
    saved.map(|saved| (*saved).clone()).unwrap_or_default()
}

/// The devices of all nodes, if policies read them. If they cannot be listed, prints a note, and none are known.
pub(in crate::cli) async fn devices_read_by(set: &PolicySet, client: &Client) -> KnownDevices {
    let devices = KnownDevices::default();
    if set.reads_devices()
        && let Err(error) = devices.list(client).await
    {
        output::note(&format!("note: could not list ResourceSlices, so devices are unknown: {}", in_words(&error)));
    }
    devices
}

/// The answers of inventories that the leader keeps. If they cannot be read, prints a note.
pub(in crate::cli) async fn inventory_answers(client: &Client, namespace: &str) -> InventoryCache {
    let cache = InventoryCache::default();
    match inventory::read(client, namespace, &cache).await {
        Ok(unreadable) => {
            for UnreadableAnswers { config_map, why } in unreadable {
                output::note(&format!(
                    "note: could not read the answers of inventories in ConfigMap {config_map}, so some of their labels are unknown: {}",
                    on_a_line(&why)
                ));
            }
        }
        Err(error) => output::note(&format!(
            "note: could not read the answers of inventories, so their labels are unknown: {}",
            in_words(&error)
        )),
    }
    cache
}

/// What pools remember, as the leader keeps it. If that cannot be read, prints a note.
pub(in crate::cli) async fn pool_memory(client: &Client, namespace: &str) -> Arc<PoolMemory> {
    let maps = ConfigMaps::new(client.clone(), namespace, Arc::default());
    maps.read_pools().await.unwrap_or_else(|error| {
        let why = in_words(&error);
        output::note(&format!("note: could not read what pools remember, so labels of it are unknown: {why}"));
        Arc::default()
    })
}

/// As [`inventory_answers`], for a command that writes.
///
/// # Errors
/// Returns an error if some of the answers cannot be read.
pub(in crate::cli) async fn all_inventory_answers(client: &Client, namespace: &str) -> anyhow::Result<InventoryCache> {
    let cache = InventoryCache::default();
    let read = inventory::read(client, namespace, &cache).await;
    if let Some(UnreadableAnswers { config_map, why }) =
        read.context("could not read the answers of inventories")?.first()
    {
        bail!(
            "could not read the answers of inventories in ConfigMap {config_map}: {}; start `nodegate serve`, whose leader writes it again, or delete it",
            on_a_line(why)
        );
    }
    Ok(cache)
}

/// When the webhook was registered. If that cannot be read, prints a note.
pub(in crate::cli) async fn webhook_since(client: &Client, configuration: &ConfigurationArgs) -> Option<Timestamp> {
    let configuration = configuration.name(client).await;
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match api.get_opt(&configuration).await {
        Ok(found) => found?.metadata.creation_timestamp.map(|time| time.0),
        Err(error) => {
            output::note(&format!(
                "note: could not read webhook configuration {configuration}, so it is unknown which nodes were created after it: {}",
                in_words(&error)
            ));
            None
        }
    }
}
