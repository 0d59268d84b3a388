//! The objects that provisioners make for machines (`NodeClaim`, `Machine`), and which of them stands for the machine of a node.
//!
//! Their APIs may be absent, or come later: that no object is there is known only while the API server says so.

mod known;
mod object;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, future};
use kube::core::ApiResource;
use kube::discovery;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use parking_lot::{Mutex, RwLock};

use self::known::Known;
use self::object::{MachineObject, Provisioner, Watched, name_of};
use crate::touched::Touched;
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::{WatchFailures, watch_objects_within};
use nodegate_base::telemetry::brief;
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::ProvisionedBy;
use nodegate_policy::{MachinesOfNode, PolicySet};

/// When it is asked again for an API that seems to be absent, before that counts.
const ASKED_AGAIN: Duration = Duration::from_millis(500);
/// How many nodes are remembered that were looked for in vain.
const SOUGHT_MAX: usize = 16384;

/// What policies ask of the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    kinds: Vec<MachineKind>,
    labels: Vec<Box<str>>,
}

impl Asked {
    /// What these policies ask for.
    pub fn by(set: &PolicySet) -> Self {
        let labels = set.machine_labels().into_iter().map(Into::into).collect();
        Self { kinds: set.machine_kinds().to_vec(), labels }
    }

    fn provisioners(&self) -> impl Iterator<Item = Provisioner> {
        Provisioner::of(&self.kinds)
    }
}

/// The objects that are known.
#[derive(Debug, Default)]
pub struct MachineObjects {
    /// Complete after every change, so a panic elsewhere leaves it usable.
    known: RwLock<Known>,
    sought: Mutex<Sought>,
    touched: Touched,
}

/// Nodes that were looked for in vain.
#[derive(Debug, Default)]
struct Sought {
    nodes: HashSet<Arc<str>>,
    by_instance: HashMap<Box<str>, Arc<str>>,
}

impl MachineObjects {
    /// The names of nodes for whose machines there are other objects.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// As [`nodegate_policy::Witness::machines`].
    pub fn of_node(&self, kinds: &[MachineKind], node: &str, instances: Option<&[&str]>) -> MachinesOfNode {
        let known = self.known.read();
        let machines = known.of_node(kinds, node, instances);
        if machines.found.is_empty() {
            // Nothing changes what is known until then.
            let mut sought = self.sought.lock();
            if !sought.nodes.contains(node) && sought.nodes.len() < SOUGHT_MAX {
                let node: Arc<str> = node.into();
                sought.nodes.insert(node.clone());
                if let Some(instance) = instances.and_then(<[&str]>::first) {
                    sought.by_instance.insert((*instance).into(), node);
                }
            }
        }
        machines
    }

    /// The objects whose machine has this ID, and whose node has another name than this for certain.
    pub fn of_others(&self, provider_id: &str, node: &str) -> Vec<ProvisionedBy> {
        self.known.read().of_others(provider_id, node)
    }

    /// Follows what is asked for until dropped. What fails is tried again after `longest` at the latest.
    pub async fn follow(&self, client: Client, asked: Asked, longest: Duration) {
        if *self.known.read().asked() != asked {
            self.known.write().ask(asked.clone());
        }
        let all = asked.provisioners().map(|provisioner| self.follow_one(&client, provisioner, longest));
        future::join_all(all).await;
        // Nothing is asked for.
        future::pending::<()>().await;
    }

    async fn follow_one(&self, client: &Client, provisioner: Provisioner, longest: Duration) {
        let (mut failing, mut absent) = (WatchFailures::default(), 0_u32);
        loop {
            let found = resource(client, provisioner).await;
            absent = if matches!(found, Ok(None)) { absent.saturating_add(1) } else { 0 };
            match (found, absent) {
                (Ok(Some(resource)), _) => {
                    self.watch(client.clone(), provisioner, &resource, longest, &mut failing).await;
                }
                // For a moment an API server may not know an API that is there.
                (Ok(None), 1) => self.known.write().is_uncertain(provisioner),
                (Ok(None), 2) => {
                    let gone = self.known.write().is_absent(provisioner);
                    self.tell_listed(&gone);
                }
                (Ok(None), _) => {}
                (Err(error), _) => {
                    self.known.write().is_uncertain(provisioner);
                    let error = brief(in_words(&error));
                    if failing.is_news(&error) {
                        tracing::warn!(group = provisioner.group(), %error, "could not ask the API server for the versions of an API with machines; retrying");
                    }
                }
            }
            tokio::time::sleep(if absent == 1 { ASKED_AGAIN } else { longest }).await;
        }
    }

    /// Watches the objects of an API until that fails.
    async fn watch(
        &self,
        client: Client,
        provisioner: Provisioner,
        resource: &ApiResource,
        longest: Duration,
        failing: &mut WatchFailures,
    ) {
        let objects: Api<Watched> = Api::all_with(client, resource);
        let mut stream = std::pin::pin!(watch_objects_within(objects, Config::default(), longest));
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => self.known.write().begin_listing(provisioner),
                Ok(Event::InitApply(object) | Event::Apply(object)) => self.take_up(provisioner, &object),
                Ok(Event::InitDone) => {
                    let gone = self.known.write().end_listing(provisioner);
                    self.tell_listed(&gone);
                    failing.works();
                }
                Ok(Event::Delete(object)) => {
                    let gone = self.known.write().remove(provisioner, name_of(&object));
                    self.tell(gone.iter().map(|object| &**object));
                }
                Err(error) => {
                    self.known.write().is_uncertain(provisioner);
                    if let Some(error) = failing.news(&error) {
                        tracing::warn!(group = provisioner.group(), resource = resource.plural, %error, "the watch of the objects that a provisioner makes for machines failed, so nodes are not known to belong to pools with `nameFrom`; retrying");
                    }
                    // The API may have gone, or have other versions now.
                    return;
                }
            }
        }
    }

    fn take_up(&self, provisioner: Provisioner, object: &Watched) {
        let mut known = self.known.write();
        let object = MachineObject::read(provisioner, object, &known.asked().labels);
        let changed = known.take_up(object);
        drop(known);
        if let Some(changed) = changed {
            self.tell(changed.iter().flatten().map(|object| &**object));
        }
    }

    /// Tells the followers of the nodes that these objects lead to, by name or by instance.
    fn tell<'o>(&self, objects: impl Iterator<Item = &'o MachineObject>) {
        let mut nodes: Vec<Arc<str>> = Vec::new();
        let mut sought = self.sought.lock();
        for object in objects {
            nodes.extend(object.node_names().into_iter().map(Arc::from));
            nodes.extend(sought.by_instance.remove(object.instance()));
        }
        for node in &nodes {
            sought.nodes.remove(node);
        }
        drop(sought);
        self.touched.tell(nodes);
    }

    /// Tells the followers of all nodes that were looked for in vain: what was not known is known now.
    fn tell_listed(&self, gone: &[Arc<MachineObject>]) {
        self.tell(gone.iter().map(|object| &**object));
        let sought = std::mem::take(&mut *self.sought.lock());
        self.touched.tell(sought.nodes);
    }
}

/// The API of these objects in its most stable version, which may not be the group's; `None` if there is none.
async fn resource(client: &Client, provisioner: Provisioner) -> kube::Result<Option<ApiResource>> {
    let group = match discovery::group(client, provisioner.group()).await {
        Err(kube::Error::Discovery(discovery_error)) => {
            return match discovery_error {
                kube::error::DiscoveryError::MissingApiGroup(_) => Ok(None),
                other => Err(kube::Error::Discovery(other)),
            };
        }
        group => group?,
    };
    let resources = group.resources_by_stability().into_iter().map(|(resource, _)| resource);
    let mut of_kind = resources.filter(|resource| resource.kind == provisioner.kind().as_str());
    Ok(of_kind.next())
}
