//! The objects that provisioners make for machines, and which of them provably stands for the machine of a node.
//!
//! A kubelet chooses its `spec.providerID`, so that proves nothing. What leads to an object is authenticated: the ID of the
//! instance in the kubelet's extra information, or the name of the node, which a kubelet's credential is for.

use std::borrow::Cow;

use crate::api::pools::MachineKind;
use crate::api::state::{ProvisionedBy, SavedState};

/// What is known of the objects that stand for the machine of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachinesOfNode {
    /// Those that are found.
    pub found: Vec<ProvisionedBy>,
    /// How certain it is that there is no other.
    pub absence: Absence,
    /// The kinds of which there was no other when that was certain.
    pub absent: Vec<String>,
}

/// How certain it is that an object that is not found is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absence {
    /// Certain: all objects are known.
    Certain,
    /// The node has just been created, and its object may come yet.
    SoFar,
    /// The objects are not known yet.
    #[default]
    Unlisted,
    /// It is not known which of them the machine is.
    Unknown,
}

impl MachinesOfNode {
    /// What the record of a node object says.
    pub(crate) fn recorded(saved: &SavedState) -> Self {
        if !saved.is_provisioned() {
            return Self::default();
        }
        let (found, absent) = (saved.provisioned_by.to_vec(), saved.not_provisioned_by.clone());
        Self { found, absent, ..Self::default() }
    }

    /// Whether nothing is known.
    pub(crate) fn says_nothing(&self) -> bool {
        self.found.is_empty() && self.absent.is_empty() && self.absence == Absence::Unlisted
    }

    /// The kinds of which there is no other, of those that are asked for: as it is certain now, or was when it was recorded.
    pub(crate) fn absent(&self, asked: &[MachineKind]) -> Vec<String> {
        let now = asked.iter().filter(|_| self.absence == Absence::Certain).map(|kind| kind.as_str().to_owned());
        let mut kinds: Vec<String> = now.chain(self.absent.iter().cloned()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Waits no longer for an object that may come.
    pub(crate) fn settle(&mut self) {
        if self.absence == Absence::SoFar {
            self.absence = Absence::Certain;
        }
    }

    /// Whether it is certain that there is no other object of this kind.
    pub(crate) fn is_absent(&self, kind: MachineKind) -> bool {
        self.absence == Absence::Certain || self.absent.iter().any(|absent| absent == kind.as_str())
    }

    /// With what is recorded of the same node object. A recorded object proves its pool as long as the node is there: it may have been
    /// deleted since, or another one have taken its name. Its labels are those that it has now, if it is there.
    #[must_use]
    pub(crate) fn or_recorded(self, Self { found: recorded, absent, .. }: Self) -> Self {
        let is_restored = |known: &ProvisionedBy, now: &ProvisionedBy| {
            let same_machine = !now.provider_id.is_empty() && known.provider_id == now.provider_id;
            known.name == now.name && same_machine
        };
        let is_new = |now: &&ProvisionedBy| !recorded.iter().any(|known| known.group() == now.group());
        let new = self.found.iter().filter(is_new).cloned();
        let as_it_is = |known: &ProvisionedBy| {
            let mut of_group = self.found.iter().filter(|now| now.group() == known.group());
            let now = of_group.clone().find(|now| now.uid == known.uid);
            // After a restore from a backup it has another uid.
            now.or_else(|| of_group.find(|now| is_restored(known, now))).unwrap_or(known).clone()
        };
        let found = recorded.iter().map(as_it_is).chain(new).collect();
        Self { found, absent, ..self }
    }

    /// What the objects of this kind whose names count have as the value of a label.
    pub(crate) fn label(&self, kind: MachineKind, key: &str, counts: impl Fn(&str) -> bool) -> LabelOfMachine<'_> {
        let of_kind = self.found.iter().filter(|object| object.kind() == kind.as_str());
        let objects: Vec<&ProvisionedBy> = of_kind.filter(|object| counts(&object.name)).collect();
        let values: Option<Vec<&str>> = objects.iter().map(|object| object.labels().get(key)).collect();
        // Two provisioners may have an object of the same machine, of which only one has this label.
        let Some(values) = values else { return LabelOfMachine::Unknown };
        let mut values = values.into_iter().filter(|value| !value.is_empty());
        match values.next() {
            Some(first) if values.all(|other| other == first) => LabelOfMachine::Value(first),
            Some(_) => LabelOfMachine::None,
            None if self.is_absent(kind) => LabelOfMachine::None,
            None => LabelOfMachine::Unknown,
        }
    }
}

/// The value of a label of the objects that stand for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelOfMachine<'m> {
    /// It is not known whether there is an object, or nobody asked for the label.
    Unknown,
    /// There is no object, or it does not have the label; or several have different values.
    None,
    /// The value.
    Value(&'m str),
}

/// The instance in a provider's ID: what is behind the last `/`.
pub fn instance_of(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or_default()
}

/// Whether the node of a machine with this ID has one of [`node_names`] for certain. On AWS, other names are usual.
pub fn is_named_after(provider_id: &str) -> bool {
    !provider_id.starts_with("aws://") && !node_names(provider_id).is_empty()
}

/// The names that a node has whose name the provider derives from this ID of its machine; none where it does not.
///
/// Sources: GCE names a node as its instance (`cloud-provider-gcp`, `mapInstanceToNodeName`), Azure as its virtual machine, in lower
/// case (`cloud-provider-azure`, `GetNodeNameByProviderID`), unless that is of a uniform scale set, whose machines have numbers; AWS after the
/// ID if its resource names are used (EC2, "Amazon EC2 instance hostnames and domains"), and kOps by the ID alone.
pub fn node_names(provider_id: &str) -> Vec<Cow<'_, str>> {
    let instance = instance_of(provider_id);
    if instance.is_empty() {
        return Vec::new();
    }
    if provider_id.starts_with("gce://") {
        return vec![instance.into()];
    }
    if provider_id.starts_with("azure://") {
        let is_numbered = instance.bytes().all(|byte| byte.is_ascii_digit());
        return if is_numbered { Vec::new() } else { vec![instance.to_ascii_lowercase().into()] };
    }
    let Some(place) = provider_id.strip_prefix("aws:///").filter(|_| instance.starts_with("i-")) else {
        return Vec::new();
    };
    // `us-west-2-lax-1a` and `us-west-2a` are zones of `us-west-2`.
    let zone = place.split('/').next().unwrap_or_default();
    let digits = zone.find(|c: char| c.is_ascii_digit());
    let Some(region) = digits.and_then(|at| zone.get(..=at)) else { return Vec::new() };
    let domain = if region == "us-east-1" { "ec2.internal".to_owned() } else { format!("{region}.compute.internal") };
    vec![instance.into(), format!("{instance}.{domain}").into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::state::ProvisionedDocument;

    #[test]
    fn names_are_derived_from_the_id_where_the_provider_does_so() {
        let azure = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute";
        for (id, names) in [
            ("gce://project/europe-west1-b/gpu-7f3", &["gpu-7f3"][..]),
            (&format!("{azure}/virtualMachines/AKS-gpu-x7"), &["aks-gpu-x7"]),
            (&format!("{azure}/virtualMachineScaleSets/gpu/virtualMachines/3"), &[]),
            ("aws:///eu-central-1a/i-0abc", &["i-0abc", "i-0abc.eu-central-1.compute.internal"]),
            ("aws:///us-east-1b/i-0abc", &["i-0abc", "i-0abc.ec2.internal"]),
            ("aws:///us-west-2-lax-1a/i-0abc", &["i-0abc", "i-0abc.us-west-2.compute.internal"]),
            ("aws:///zone/i-0abc", &[]),
            ("aws:///eu-central-1a/fargate-10.0.0.1", &[]),
            ("vsphere://4237", &[]),
            ("gce://project/zone/", &[]),
            ("", &[]),
        ] {
            assert_eq!(node_names(id), names, "{id}");
        }
        assert_eq!((instance_of("aws:///a/i-0abc"), instance_of("x"), instance_of("")), ("i-0abc", "x", ""));
    }

    #[test]
    fn objects_that_disagree_name_no_pool() {
        let object = |kind: MachineKind, namespace: &str, value: &str| -> ProvisionedBy {
            let object = ProvisionedDocument {
                kind: kind.as_str().into(),
                name: format!("{namespace}/n"),
                labels: [("pool", value)].into_iter().collect(),
                ..ProvisionedDocument::default()
            };
            object.into()
        };
        let (claim, machine) = (MachineKind::NodeClaim, MachineKind::Machine);
        let [gpu, cpu, without, other] = [(claim, "gpu"), (claim, "cpu"), (claim, ""), (machine, "cpu")]
            .map(|(kind, value)| object(kind, "ns", value));
        let label = |found: &[&ProvisionedBy], absence, kind, key| {
            let found = found.iter().copied().cloned().collect();
            let machines = MachinesOfNode { found, absence, absent: vec!["Machine".to_owned()] };
            match machines.label(kind, key, |name| name.starts_with("ns/")) {
                LabelOfMachine::Unknown => "unknown".to_owned(),
                LabelOfMachine::None => "none".to_owned(),
                LabelOfMachine::Value(value) => value.to_owned(),
            }
        };
        let all = Absence::Certain;
        assert_eq!(label(&[&gpu, &gpu], all, claim, "pool"), "gpu");
        assert_eq!(label(&[&gpu, &cpu], all, claim, "pool"), "none");
        assert_eq!(label(&[&without], all, claim, "pool"), "none");
        assert_eq!(label(&[&without], Absence::Unknown, claim, "pool"), "unknown", "there may be one with it");
        let elsewhere = object(claim, "other", "cpu");
        assert_eq!(label(&[&elsewhere], all, claim, "pool"), "none");
        assert_eq!(label(&[&elsewhere, &gpu], all, claim, "pool"), "gpu");
        assert_eq!(label(&[&without, &gpu], all, claim, "pool"), "gpu");
        assert_eq!(label(&[&gpu, &other], all, machine, "pool"), "cpu");
        assert_eq!(label(&[&gpu], all, machine, "pool"), "none", "there is none of the kind");
        assert_eq!(label(&[&gpu], Absence::Unknown, machine, "pool"), "none", "there was none");
        assert_eq!(label(&[], Absence::SoFar, claim, "pool"), "unknown");
        assert_eq!(label(&[&gpu], Absence::Unknown, claim, "pool"), "gpu");
        assert_eq!(label(&[&gpu], all, claim, "zone"), "unknown", "nobody asked for it");
    }

    #[test]
    fn a_recorded_object_is_displaced_by_no_other_and_has_its_present_labels() {
        let named = |name: &str, group: &str, uid: &str, id: &str, pool: &str| -> ProvisionedBy {
            let object = ProvisionedDocument {
                group: group.to_owned().into(),
                kind: "Machine".into(),
                name: name.to_owned(),
                uid: uid.to_owned(),
                provider_id: id.to_owned(),
                labels: [("pool", pool)].into_iter().collect(),
                ..ProvisionedDocument::default()
            };
            object.into()
        };
        let object = |group: &str, uid: &str, id: &str, pool: &str| named("ns/n", group, uid, id, pool);
        let machines = |found: &[&ProvisionedBy]| MachinesOfNode {
            found: found.iter().copied().cloned().collect(),
            ..MachinesOfNode::default()
        };
        let known = object("a", "1", "x://1", "gpu");
        let (moved, restored) = (object("a", "1", "x://1", "cpu"), object("a", "2", "x://1", "cpu"));
        let foreign = named("foreign/n", "a", "2", "x://1", "cpu");
        let (other, of_another_group) = (object("a", "3", "x://3", "cpu"), object("b", "4", "x://1", "gpu"));
        for (now, expected) in [
            (vec![], vec![&known]),
            (vec![&moved], vec![&moved]),
            (vec![&restored], vec![&restored]),
            (vec![&other], vec![&known]),
            (vec![&foreign], vec![&known]),
            (vec![&restored, &known], vec![&known]),
            (vec![&of_another_group], vec![&known, &of_another_group]),
        ] {
            assert_eq!(machines(&now).or_recorded(machines(&[&known])), machines(&expected));
        }
        assert_eq!(machines(&[&other]).or_recorded(MachinesOfNode::default()), machines(&[&other]));
    }
}
