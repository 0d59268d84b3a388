//! What is known of the objects that provisioners make for machines.

use std::collections::HashMap;
use std::sync::Arc;

use super::Asked;
use super::object::{MachineObject, Provisioner};
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::{AssertedMachine, ProvisionedBy};
use nodegate_policy::{Absence, MachinesOfNode, instance_of};

/// How many objects may lead to one node. With more of them, nothing is known of it.
const FOUND_MAX: usize = 8;

/// The objects, by name, and by what leads to them.
#[derive(Debug, Default)]
pub(super) struct Known {
    asked: Asked,
    objects: HashMap<(Provisioner, Box<str>), Entry>,
    /// By their instances in lower case, from which the names of nodes are derived.
    by_instance: HashMap<Box<str>, Vec<Arc<MachineObject>>>,
    by_host_name: HashMap<Box<str>, Vec<Arc<MachineObject>>>,
    /// How many have a machine whose node may have a name that does not lead to them.
    nameless: usize,
    /// How many listings of an API have begun.
    listings: HashMap<Provisioner, u64>,
    /// The APIs whose objects are known.
    complete: Vec<Provisioner>,
}

#[derive(Debug)]
struct Entry {
    object: Arc<MachineObject>,
    /// The listing in or after which it was seen.
    listing: u64,
}

impl Known {
    /// Forgets everything, because something else is asked for.
    pub(super) fn ask(&mut self, asked: Asked) {
        let listings = std::mem::take(&mut self.listings);
        *self = Self { asked, listings, ..Self::default() };
    }

    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// A listing of the objects of an API begins.
    pub(super) fn begin_listing(&mut self, provisioner: Provisioner) {
        *self.listings.entry(provisioner).or_default() += 1;
    }

    fn listing(&self, provisioner: Provisioner) -> u64 {
        self.listings.get(&provisioner).copied().unwrap_or_default()
    }

    /// The listing is complete: objects that are not in it are deleted, and there are no others. Returns those.
    pub(super) fn end_listing(&mut self, provisioner: Provisioner) -> Vec<Arc<MachineObject>> {
        let listing = self.listing(provisioner);
        let is_gone = |entry: &&Entry| entry.object.provisioner == provisioner && entry.listing < listing;
        let gone: Vec<Box<str>> =
            self.objects.values().filter(is_gone).map(|entry| entry.object.name.clone()).collect();
        let gone = gone.into_iter().filter_map(|name| self.remove(provisioner, name)).collect();
        if !self.complete.contains(&provisioner) {
            self.complete.push(provisioner);
        }
        gone
    }

    /// The API does not exist, so there are no objects.
    pub(super) fn is_absent(&mut self, provisioner: Provisioner) -> Vec<Arc<MachineObject>> {
        self.begin_listing(provisioner);
        self.end_listing(provisioner)
    }

    /// The objects of an API may be others than those that are known.
    pub(super) fn is_uncertain(&mut self, provisioner: Provisioner) {
        self.complete.retain(|other| *other != provisioner);
    }

    /// Takes up an object as it is now. Returns what was known of it, unless that is the same.
    pub(super) fn take_up(&mut self, object: MachineObject) -> Option<[Option<Arc<MachineObject>>; 2]> {
        let (key, listing) = ((object.provisioner, object.name.clone()), self.listing(object.provisioner));
        if let Some(entry) = self.objects.get_mut(&key).filter(|entry| *entry.object == object) {
            entry.listing = listing;
            return None;
        }
        let earlier = self.remove(key.0, key.1.clone());
        let object = Arc::new(object);
        if !object.instance().is_empty() {
            put_into(&mut self.by_instance, object.instance().to_ascii_lowercase().into(), &object);
            self.nameless += usize::from(!object.is_named());
        }
        for name in &object.host_names {
            put_into(&mut self.by_host_name, name.clone(), &object);
        }
        self.objects.insert(key, Entry { object: object.clone(), listing });
        Some([earlier, Some(object)])
    }

    /// The object with this name was deleted. Returns it.
    pub(super) fn remove(&mut self, provisioner: Provisioner, name: Box<str>) -> Option<Arc<MachineObject>> {
        let Entry { object, .. } = self.objects.remove(&(provisioner, name))?;
        if !object.instance().is_empty() {
            take_out(&mut self.by_instance, &object.instance().to_ascii_lowercase(), &object);
            self.nameless -= usize::from(!object.is_named());
        }
        object.host_names.iter().for_each(|name| take_out(&mut self.by_host_name, name, &object));
        Some(object)
    }

    /// As [`nodegate_policy::Witness::machines`].
    pub(super) fn of_node(&self, kinds: &[MachineKind], node: &str, instances: Option<&[&str]>) -> MachinesOfNode {
        let is_complete = |provisioner| self.complete.contains(&provisioner);
        // What the policies in force ask for may be followed in a moment only.
        let are_complete = Provisioner::of(kinds).all(is_complete);
        // A kubelet that is authenticated as an instance is that instance, whatever its name is. A name may lead to another object by now.
        let by_instance = instances.filter(|instances| !instances.is_empty());
        let found: Vec<&Arc<MachineObject>> = match by_instance {
            Some(instances) => instances.iter().flat_map(|one| self.of_instance(one)).collect(),
            None => self.of_name(node).into_iter().filter(|object| is_complete(object.provisioner)).collect(),
        };
        if found.len() > FOUND_MAX {
            return MachinesOfNode { absence: Absence::Unknown, ..MachinesOfNode::default() };
        }
        let mut found: Vec<ProvisionedBy> =
            found.into_iter().map(|object| object.provisioned(&self.asked.labels, by_instance.is_some())).collect();
        found.sort_unstable_by(|one, other| (&one.group, &one.name).cmp(&(&other.group, &other.name)));
        found.dedup();
        // The machine of whom no instance is known may be that of any object without a certain name.
        let may_be_nameless = by_instance.is_none() && self.nameless > 0;
        let absence = match (are_complete, may_be_nameless) {
            (false, _) => Absence::Unlisted,
            (true, true) => Absence::Unknown,
            (true, false) => Absence::SoFar,
        };
        MachinesOfNode { found, absence, ..MachinesOfNode::default() }
    }

    /// The objects of this instance.
    fn of_instance<'k>(&'k self, instance: &'k str) -> impl Iterator<Item = &'k Arc<MachineObject>> {
        let alike = self.by_instance.get(&*instance.to_ascii_lowercase()).into_iter().flatten();
        alike.filter(move |object| object.instance() == instance)
    }

    /// The objects that lead to the node with this name, each once.
    fn of_name(&self, node: &str) -> Vec<&Arc<MachineObject>> {
        // A derived name is the instance, or begins with it and a dot.
        let host = node.split_once('.').map(|(host, _)| host);
        let of_instance = [Some(node), host].into_iter().flatten().filter_map(|name| self.by_instance.get(name));
        let alike = of_instance.chain(self.by_host_name.get(node)).flatten();
        let mut found: Vec<&Arc<MachineObject>> = alike.filter(|object| object.leads_to(node)).collect();
        found.sort_unstable_by_key(|object| Arc::as_ptr(object));
        found.dedup_by(|one, other| Arc::ptr_eq(one, other));
        found
    }

    /// The objects whose machine has this ID, which the node with this name has.
    pub(super) fn with_provider_id(&self, provider_id: &str, node: &str) -> Vec<AssertedMachine> {
        let with_id = self.of_instance(instance_of(provider_id)).filter(|object| *object.provider_id == *provider_id);
        with_id.take(FOUND_MAX).map(|object| object.asserted(node)).collect()
    }
}

fn put_into(map: &mut HashMap<Box<str>, Vec<Arc<MachineObject>>>, key: Box<str>, object: &Arc<MachineObject>) {
    let objects = map.entry(key).or_default();
    // Nearly always the only one.
    objects.reserve_exact(1);
    objects.push(object.clone());
}

fn take_out(map: &mut HashMap<Box<str>, Vec<Arc<MachineObject>>>, key: &str, object: &Arc<MachineObject>) {
    let Some(objects) = map.get_mut(key) else { return };
    objects.retain(|other| !Arc::ptr_eq(other, object));
    if objects.is_empty() {
        map.remove(key);
    }
}
