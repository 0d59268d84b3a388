//! What an autoscaler knows about a pool, and which provisioner creates its machines.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::TemplateFormat;
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::{ProvisionedDocument, SavedState};
use nodegate_policy::{Absence, Assertions, Bootstrapper, MachinesOfNode, Witness};

/// Taints: the value by key and effect.
pub(in crate::cli) type Taints = BTreeMap<(String, String), String>;

/// What an autoscaler knows of one pool.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Declared {
    /// Who makes its machines, if an object of theirs says it.
    pub(in crate::cli) provisioner: Option<Provisioner>,
    /// What tells it, as `KIND NAME`.
    pub(in crate::cli) told_by: String,
    /// The name of the pool.
    pub(in crate::cli) pool: String,
    /// Other names that nodes may know the pool by.
    pub(in crate::cli) other_names: Vec<String>,
    /// The namespace of the object, or the cluster that tags name: pools of one name are different pools elsewhere.
    pub(in crate::cli) cluster: Option<String>,
    /// The values that each label may have.
    pub(in crate::cli) labels: BTreeMap<String, Vec<String>>,
    /// The taints that nodes keep.
    pub(in crate::cli) taints: Taints,
    /// The taints that go away.
    pub(in crate::cli) startup_taints: Taints,
    /// What the next node will be, if that is said.
    pub(in crate::cli) next_node: Option<NextNode>,
    /// The object that says it.
    pub(in crate::cli) object: Json,
}

impl Declared {
    /// Whether what is printed in this format is about it.
    pub(in crate::cli) fn is_meant(&self, format: Option<TemplateFormat>) -> bool {
        self.provisioner.is_none_or(|one| one.is_meant(format))
    }

    pub(in crate::cli) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.pool.as_str()).chain(self.other_names.iter().map(String::as_str))
    }
}

/// Who makes machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Provisioner {
    Karpenter,
    ClusterApi,
}

/// The next node of a pool, as far as its provisioner says it.
#[derive(Clone, Debug)]
pub(in crate::cli) struct NextNode {
    pub(in crate::cli) node: Json,
    pub(super) kind: MachineKind,
    /// The labels of the provisioner's object for its machine.
    pub(super) labels: BTreeMap<String, String>,
    pub(super) object: String,
}

impl Witness for NextNode {
    fn bootstrapper(&self, _certificate: &str, _saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>> {
        None
    }

    fn machines(&self, _kinds: &[MachineKind], _node: &str, _instances: Option<&[&str]>) -> MachinesOfNode {
        let labels = self.labels.clone().into_iter().collect();
        let document = ProvisionedDocument {
            kind: self.kind.as_str().into(),
            name: self.object.clone(),
            labels,
            ..ProvisionedDocument::default()
        };
        MachinesOfNode { found: vec![document.into()], absence: Absence::Certain, ..MachinesOfNode::default() }
    }

    fn assertions(&self, _node: &str, _provider_id: Option<&str>, _saved: Option<&SavedState>) -> Assertions {
        Assertions::default()
    }
}

impl Provisioner {
    pub(in crate::cli) const ALL: [Self; 2] = [Self::Karpenter, Self::ClusterApi];

    pub(in crate::cli) fn group(self) -> &'static str {
        match self {
            Self::Karpenter => "karpenter.sh",
            Self::ClusterApi => "cluster.x-k8s.io",
        }
    }

    pub(in crate::cli) fn kind(self) -> &'static str {
        match self {
            Self::Karpenter => "NodePool",
            Self::ClusterApi => "MachineDeployment",
        }
    }

    /// Whether an object of this API version and kind is one of its objects.
    pub(in crate::cli) fn is_of(self, version: &str, kind: &str) -> bool {
        self.kind() == kind && version.split_once('/').is_some_and(|(group, _)| group == self.group())
    }

    /// Whether what is printed in this format is about its pools.
    pub(in crate::cli) fn is_meant(self, format: Option<TemplateFormat>) -> bool {
        match format {
            None => true,
            Some(TemplateFormat::NodepoolPatch) => self == Self::Karpenter,
            Some(TemplateFormat::CapiAnnotations) => self == Self::ClusterApi,
            Some(TemplateFormat::AsgTags | TemplateFormat::VmssTags | TemplateFormat::Flags) => false,
        }
    }
}

/// The texts of a mapping.
pub(in crate::cli) fn labels_of(labels: &Json) -> BTreeMap<String, String> {
    let entries = labels.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The taints of a list.
pub(in crate::cli) fn taints_of(taints: &Json) -> Taints {
    let text = |taint: &Json, field: &str| taint[field].as_str().unwrap_or_default().to_owned();
    let taints = taints.as_array().into_iter().flatten();
    taints.map(|taint| ((text(taint, "key"), text(taint, "effect")), text(taint, "value"))).collect()
}
