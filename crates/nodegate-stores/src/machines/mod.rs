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
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use self::known::Known;
use self::object::{MachineObject, Provisioner, Watched, name_of};
use crate::touched::Touched;
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::{WatchFailures, watch_objects_within};
use nodegate_base::pages::next_page;
use nodegate_base::served_kind::served_kind;
use nodegate_base::telemetry::brief;
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::AssertedMachine;
use nodegate_policy::{Absence, MachinesOfNode, PolicySet};

/// When it is asked again after a failure, and for an API that seems to be absent, before that counts.
const ASKED_AGAIN: Duration = Duration::from_millis(500);
/// How many objects a page of a listing has.
const PAGE: u32 = 500;
/// The longest time until it is asked again.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// How many nodes and instances are remembered whose objects were looked for.
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

/// Whom objects may concern whose names say nothing of them.
#[derive(Debug, Default)]
struct Sought {
    /// Nodes that were looked for before all objects were known.
    nodes: HashSet<Arc<str>>,
    /// Nodes by the instances of their kubelets.
    by_instance: HashMap<Box<str>, Arc<str>>,
}

impl MachineObjects {
    /// The names of nodes for whose machines there are other objects.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// The objects that there are now, for a command that watches nothing; and the groups of APIs that could not be listed, with
    /// the reason.
    pub async fn listed(client: &Client, asked: Asked) -> (Self, Vec<(&'static str, kube::Error)>) {
        let (objects, mut failed) = (Self::default(), Vec::new());
        objects.known.write().ask(asked.clone());
        for provisioner in asked.provisioners() {
            if let Err(error) = objects.list(client, provisioner).await {
                objects.known.write().is_uncertain(provisioner);
                failed.push((provisioner.group(), error));
            }
        }
        (objects, failed)
    }

    async fn list(&self, client: &Client, provisioner: Provisioner) -> kube::Result<()> {
        let Some(resource) = resource(client, provisioner).await? else {
            self.known.write().is_absent(provisioner);
            return Ok(());
        };
        let api: Api<Watched> = Api::all_with(client.clone(), &resource);
        let mut next = Some(ListParams::default().limit(PAGE));
        self.known.write().begin_listing(provisioner);
        while let Some(page) = next {
            let listed = api.list(&page).await?;
            next = next_page(page, &listed.metadata);
            listed.items.iter().for_each(|object| self.take_up(provisioner, object));
        }
        self.known.write().end_listing(provisioner);
        Ok(())
    }

    /// As [`nodegate_policy::Witness::machines`].
    pub fn of_node(&self, kinds: &[MachineKind], node: &str, instances: Option<&[&str]>) -> MachinesOfNode {
        let known = self.known.read();
        let machines = known.of_node(kinds, node, instances);
        // Nothing changes what is known until then.
        let mut sought = self.sought.lock();
        if machines.absence == Absence::Unlisted && sought.nodes.len() < SOUGHT_MAX && !sought.nodes.contains(node) {
            sought.nodes.insert(node.into());
        }
        for instance in instances.unwrap_or_default() {
            let is_known = sought.by_instance.get(*instance).is_some_and(|known| **known == *node);
            if !is_known {
                // Most of them are of nodes that are gone. The others are looked for again.
                if sought.by_instance.len() >= SOUGHT_MAX {
                    sought.by_instance.clear();
                }
                sought.by_instance.insert((*instance).into(), node.into());
            }
        }
        drop(sought);
        machines
    }

    /// The objects whose machine has this ID, which the node with this name has.
    pub fn with_provider_id(&self, provider_id: &str, node: &str) -> Vec<AssertedMachine> {
        self.known.read().with_provider_id(provider_id, node)
    }

    /// Follows what is asked for until dropped. What fails is tried again after `longest`, or five seconds, at the latest.
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
        let (mut failing, mut absent, mut delay) = (WatchFailures::default(), 0_u32, ASKED_AGAIN);
        loop {
            let begun = Instant::now();
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
            let is_watched = begun.elapsed() > longest;
            delay = if is_watched || absent == 1 { ASKED_AGAIN } else { (delay * 2).min(longest.min(DELAY_MAX)) };
            tokio::time::sleep(delay).await;
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
                    let gone = self.known.write().remove(provisioner, &name_of(&object));
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
        let changed = known.take_up(provisioner, object);
        drop(known);
        if let Some(changed) = changed {
            self.tell(changed.iter().flatten().map(|object| &**object));
        }
    }

    /// Tells the followers of the nodes that these objects lead to, by name or by instance.
    fn tell<'o>(&self, objects: impl Iterator<Item = &'o MachineObject>) {
        let mut nodes: Vec<Arc<str>> = Vec::new();
        let sought = self.sought.lock();
        for object in objects {
            nodes.extend(object.node_names().into_iter().map(Arc::from));
            nodes.extend(sought.by_instance.get(object.instance()).cloned());
        }
        drop(sought);
        self.touched.tell(nodes);
    }

    /// Tells the followers of all nodes that were looked for before all objects were known.
    fn tell_listed(&self, gone: &[Arc<MachineObject>]) {
        self.tell(gone.iter().map(|object| &**object));
        let nodes = std::mem::take(&mut self.sought.lock().nodes);
        self.touched.tell(nodes);
    }
}

/// The API of these objects; `None` if there is none.
async fn resource(client: &Client, provisioner: Provisioner) -> kube::Result<Option<ApiResource>> {
    served_kind(client, provisioner.group(), provisioner.kind().as_str()).await
}
