//! What is known of the objects that provisioners make for machines.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Asked;
use super::object::{MachineObject, Provisioner};
use crate::by_text::ByText;
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::{AssertedMachine, ProvisionedBy};
use nodegate_policy::{Absence, MachinesOfNode, instance_of};

/// How many objects may lead to one node. With more of them, nothing is known of it.
const FOUND_MAX: usize = 8;

/// The objects, by name and by what leads to them.
#[derive(Debug, Default)]
pub(super) struct Known {
    asked: Asked,
    /// By their [`MachineObject::texts`].
    objects: ByText<MachineObject>,
    /// How many have a machine whose node may have a name that does not lead to them.
    nameless: usize,
    /// The names of the objects that were seen since the listing of an API has begun, until it ends.
    listings: HashMap<Provisioner, HashSet<Box<str>>>,
    /// The APIs whose objects are known.
    complete: Vec<Provisioner>,
}

impl Known {
    /// Forgets everything, because something else is asked for.
    pub(super) fn ask(&mut self, asked: Asked) {
        *self = Self { asked, ..Self::default() };
    }

    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// A listing of the objects of an API begins.
    pub(super) fn begin_listing(&mut self, provisioner: Provisioner) {
        self.listings.insert(provisioner, HashSet::new());
    }

    fn find(&self, provisioner: Provisioner, name: &str) -> Option<&Arc<MachineObject>> {
        self.objects.like(name).find(|object| object.is_of(provisioner) && *object.name == *name)
    }

    /// The listing is complete: objects that are not in it are deleted, and there are no others. Returns those.
    pub(super) fn end_listing(&mut self, provisioner: Provisioner) -> Vec<Arc<MachineObject>> {
        let seen = self.listings.remove(&provisioner).unwrap_or_default();
        let is_gone = |object: &&Arc<MachineObject>| object.is_of(provisioner) && !seen.contains(&object.name);
        let gone = each_once(self.objects.iter().filter(is_gone).cloned().collect());
        gone.iter().for_each(|object| self.take_out(object));
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

    /// Takes up an object of this API as it is now. Returns what was known of it, unless that is the same.
    pub(super) fn take_up(
        &mut self,
        provisioner: Provisioner,
        object: MachineObject,
    ) -> Option<[Option<Arc<MachineObject>>; 2]> {
        if let Some(seen) = self.listings.get_mut(&provisioner) {
            seen.insert(object.name.clone());
        }
        if self.find(provisioner, &object.name).is_some_and(|known| **known == object) {
            return None;
        }
        let earlier = self.remove(provisioner, &object.name);
        let object = Arc::new(object);
        object.texts().iter().for_each(|text| self.objects.insert(text, &object));
        self.nameless += usize::from(object.is_nameless());
        Some([earlier, Some(object)])
    }

    /// The object with this name was deleted. Returns it.
    pub(super) fn remove(&mut self, provisioner: Provisioner, name: &str) -> Option<Arc<MachineObject>> {
        let object = self.find(provisioner, name)?.clone();
        self.take_out(&object);
        Some(object)
    }

    fn take_out(&mut self, object: &Arc<MachineObject>) {
        object.texts().iter().for_each(|text| self.objects.remove(text, object));
        self.nameless -= usize::from(object.is_nameless());
    }

    /// As [`nodegate_policy::Witness::machines`].
    pub(super) fn of_node(&self, kinds: &[MachineKind], node: &str, instances: Option<&[&str]>) -> MachinesOfNode {
        let is_complete = |object: &MachineObject| self.complete.iter().any(|provisioner| object.is_of(*provisioner));
        // What the policies in force ask for may be followed in a moment only.
        let are_complete = Provisioner::of(kinds).all(|provisioner| self.complete.contains(&provisioner));
        // A kubelet that is authenticated as an instance is that instance, whatever its name is. A name may lead to another object by now.
        let by_instance = instances.filter(|instances| !instances.is_empty());
        let found: Vec<&Arc<MachineObject>> = match by_instance {
            Some(instances) => instances.iter().flat_map(|one| self.of_instance(one)).collect(),
            None => self.of_name(node).into_iter().filter(|object| is_complete(object)).collect(),
        };
        if found.len() > FOUND_MAX {
            return MachinesOfNode { absence: Absence::Unknown, ..MachinesOfNode::default() };
        }
        let mut found: Vec<ProvisionedBy> =
            found.into_iter().map(|object| object.provisioned(by_instance.is_some())).collect();
        found.sort_unstable_by(|one, other| (one.group(), &one.name).cmp(&(other.group(), &other.name)));
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
        self.objects.like(&instance.to_ascii_lowercase()).filter(move |object| object.instance() == instance)
    }

    /// The objects that lead to the node with this name, each once.
    fn of_name(&self, node: &str) -> Vec<&Arc<MachineObject>> {
        // A derived name is the instance, or begins with it and a dot.
        let host = node.split_once('.').map(|(host, _)| host);
        let alike = [Some(node), host].into_iter().flatten().flat_map(|name| self.objects.like(name));
        each_once(alike.filter(|object| object.leads_to(node)).collect())
    }

    /// The objects whose machine has this ID, which the node with this name has.
    pub(super) fn with_provider_id(&self, provider_id: &str, node: &str) -> Vec<AssertedMachine> {
        let with_id = self.of_instance(instance_of(provider_id)).filter(|object| *object.provider_id == *provider_id);
        with_id.take(FOUND_MAX).map(|object| object.asserted(node)).collect()
    }
}

/// Each of these objects once.
fn each_once<O: Borrow<Arc<MachineObject>>>(mut objects: Vec<O>) -> Vec<O> {
    objects.sort_unstable_by_key(|object| Arc::as_ptr(object.borrow()));
    objects.dedup_by(|one, other| Arc::ptr_eq((*one).borrow(), (*other).borrow()));
    objects
}
