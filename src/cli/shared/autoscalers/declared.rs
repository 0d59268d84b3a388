//! What NodePools, MachineDeployments and tags say to autoscalers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value as Json;

use super::TemplateFormat;
use super::formats::{ASG, Tags, VMSS};
use super::provisioners::{NextNode, Provisioner};
use crate::cli::shared::node_files::{self, Wanted};

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

/// Reads what autoscalers are told from a file.
///
/// # Errors
/// Returns an error if the file cannot be read, or has something else.
pub(in crate::cli) fn read(file: &Path, format: Option<TemplateFormat>) -> anyhow::Result<Vec<Declared>> {
    match format {
        Some(TemplateFormat::AsgTags) => tagged(file, &ASG, auto_scaling_groups),
        Some(TemplateFormat::VmssTags) => tagged(file, &VMSS, scale_sets),
        None | Some(TemplateFormat::CapiAnnotations | TemplateFormat::NodepoolPatch | TemplateFormat::Flags) => {
            let wanted = Wanted {
                kinds: &["NodePool", "MachineDeployment"],
                expected: "NodePools or MachineDeployments, as kubectl prints them; tags need --format asg-tags or vmss-tags",
            };
            let (_, objects) = node_files::objects(file, wanted)?;
            let declared = objects.iter().map(|object| {
                let version = object.json["apiVersion"].as_str().unwrap_or_default();
                let made_by = Provisioner::ALL.into_iter().find(|one| one.is_of(version, object.kind));
                let Some(made_by) = made_by else {
                    let known = Provisioner::ALL.map(|one| format!("{} of {}", one.kind(), one.group())).join(" or ");
                    bail!("{}: expected {known}, found {} of {version:?}", file.display(), object.kind);
                };
                Ok(made_by.declared(&object.json))
            });
            declared.collect()
        }
    }
}

/// A group with tags.
struct Tagged {
    name: String,
    other_names: Vec<String>,
    cluster: Option<String>,
    tags: BTreeMap<String, String>,
}

fn tagged(file: &Path, words: &Tags, groups: fn(&Json) -> Option<Vec<Tagged>>) -> anyhow::Result<Vec<Declared>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let json: Json = serde_json::from_str(&text)
        .with_context(|| format!("{}: expected JSON, as printed by `{}`", file.display(), words.command))?;
    let Some(groups) = groups(&json) else {
        bail!("{}: expected the output of `{}`", file.display(), words.command);
    };
    let declared = groups.into_iter().map(|Tagged { name, other_names, cluster, tags }| {
        let mut labels = BTreeMap::new();
        let mut taints = Taints::new();
        for (tag, value) in &tags {
            if let Some(key) = words.label(tag) {
                labels.insert(key, vec![value.clone()]);
            } else if let (Some(key), Some((value, effect))) = (words.taint(tag), value.rsplit_once(':')) {
                taints.insert((key, effect.to_owned()), value.to_owned());
            }
        }
        let told_by = format!("{} {name}", words.kind);
        let (startup_taints, object) = (Taints::new(), Json::Null);
        let provisioner = None;
        Declared {
            provisioner,
            told_by,
            pool: name,
            other_names,
            cluster,
            labels,
            taints,
            startup_taints,
            next_node: None,
            object,
        }
    });
    Ok(declared.collect())
}

/// The groups that `aws autoscaling describe-auto-scaling-groups` prints.
fn auto_scaling_groups(json: &Json) -> Option<Vec<Tagged>> {
    let group = |group: &Json| {
        let name = group["AutoScalingGroupName"].as_str()?.to_owned();
        let tags = group["Tags"].as_array().into_iter().flatten();
        let tag = |tag: &Json| {
            let text = |field: &str| tag[field].as_str().map(str::to_owned);
            Some((text("Key")?, text("Value").unwrap_or_default()))
        };
        let tags: BTreeMap<String, String> = tags.filter_map(tag).collect();
        let names = ["eks:nodegroup-name", "alpha.eksctl.io/nodegroup-name", "kops.k8s.io/instancegroup"];
        let other_names = names.iter().filter_map(|name| tags.get(*name).cloned()).collect();
        let clusters = ["eks:cluster-name", "alpha.eksctl.io/cluster-name", "KubernetesCluster"];
        let cluster = clusters.iter().find_map(|name| tags.get(*name).cloned());
        Some(Tagged { name, other_names, cluster, tags })
    };
    json["AutoScalingGroups"].as_array()?.iter().map(group).collect()
}

/// The scale sets that `az vmss list` prints.
fn scale_sets(json: &Json) -> Option<Vec<Tagged>> {
    let set = |set: &Json| {
        let name = set["name"].as_str()?.to_owned();
        let tags = labels_of(&set["tags"]);
        let other_names = tags.get("aks-managed-poolName").cloned().into_iter().collect();
        // AKS has a resource group for the machines of each cluster.
        let cluster = set["resourceGroup"].as_str().map(str::to_lowercase);
        Some(Tagged { name, other_names, cluster, tags })
    };
    json.as_array()?.iter().map(set).collect()
}
