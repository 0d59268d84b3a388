//! Reads what autoscalers are told from files: NodePools, MachineDeployments, and groups with tags.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value as Json;

use super::TemplateFormat;
use super::declared::{Declared, Provisioner, Taints, labels_of};
use super::tags::{ASG, Tags, VMSS};
use crate::cli::shared::node_files::{self, Wanted};

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
