//! Compares what autoscalers know of pools with what the nodes of these pools will have.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value as Json;

use super::TemplateFormat;
use super::document::{Difference, Differences, PoolTemplate, Templates, Wrong};
use super::formats::{ASG, Tags, VMSS};
use super::provisioners::{NextNode, Provisioner};
use crate::cli::shared::node_files::{self, Wanted};
use nodegate_policy::explain::FieldName;

/// Taints: the value by key and effect.
pub(super) type Taints = BTreeMap<(String, String), String>;

/// What an autoscaler knows of one pool.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    /// Who makes its machines, if an object of theirs says it.
    pub(super) provisioner: Option<Provisioner>,
    /// What tells it, as `KIND NAME`.
    pub(super) told_by: String,
    /// The name of the pool.
    pub(super) pool: String,
    /// Other names that nodes may know the pool by.
    pub(super) other_names: Vec<String>,
    /// The values that each label may have.
    pub(super) labels: BTreeMap<String, Vec<String>>,
    /// The taints that nodes keep.
    pub(super) taints: Taints,
    /// The taints that go away.
    pub(super) startup_taints: Taints,
    /// What the next node will be, if that is said.
    pub(super) next_node: Option<NextNode>,
    /// The object that says it.
    pub(super) object: Json,
}

impl Declared {
    /// Whether what is printed in this format is about it.
    pub(super) fn is_meant(&self, format: Option<TemplateFormat>) -> bool {
        self.provisioner.is_none_or(|one| one.is_meant(format))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.pool.as_str()).chain(self.other_names.iter().map(String::as_str))
    }
}

/// The texts of a mapping.
pub(super) fn labels_of(labels: &Json) -> BTreeMap<String, String> {
    let entries = labels.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The taints of a list.
pub(super) fn taints_of(taints: &Json) -> Taints {
    let text = |taint: &Json, field: &str| taint[field].as_str().unwrap_or_default().to_owned();
    let taints = taints.as_array().into_iter().flatten();
    taints.map(|taint| ((text(taint, "key"), text(taint, "effect")), text(taint, "value"))).collect()
}

/// Reads what autoscalers are told from a file.
///
/// # Errors
/// Returns an error if the file cannot be read, or has something else.
pub(super) fn read(file: &Path, format: Option<TemplateFormat>) -> anyhow::Result<Vec<Declared>> {
    match format {
        Some(TemplateFormat::AsgTags) => tagged(file, &ASG, auto_scaling_groups),
        Some(TemplateFormat::VmssTags) => tagged(file, &VMSS, scale_sets),
        None | Some(TemplateFormat::CapiAnnotations | TemplateFormat::NodepoolPatch | TemplateFormat::Flags) => {
            let wanted = Wanted {
                kinds: &["NodePool", "MachineDeployment"],
                expected: "NodePools or MachineDeployments, as kubectl prints them; tags need --format asg-tags or vmss-tags",
            };
            let (_, objects) = node_files::objects(file, wanted)?;
            let of_kind = |kind: &str| Provisioner::ALL.into_iter().find(|one| one.kind() == kind);
            let declared = objects.iter().filter_map(|object| Some(of_kind(object.kind)?.declared(&object.json)));
            Ok(declared.collect())
        }
    }
}

/// A group with tags.
struct Tagged {
    name: String,
    other_names: Vec<String>,
    tags: BTreeMap<String, String>,
}

fn tagged(file: &Path, words: &Tags, groups: fn(&Json) -> Option<Vec<Tagged>>) -> anyhow::Result<Vec<Declared>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let json: Json = serde_json::from_str(&text)
        .with_context(|| format!("{}: expected JSON, as printed by `{}`", file.display(), words.command))?;
    let Some(groups) = groups(&json) else {
        bail!("{}: expected the output of `{}`", file.display(), words.command);
    };
    let declared = groups.into_iter().map(|Tagged { name, other_names, tags }| {
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
        Some(Tagged { name, other_names, tags })
    };
    json["AutoScalingGroups"].as_array()?.iter().map(group).collect()
}

/// The scale sets that `az vmss list` prints.
fn scale_sets(json: &Json) -> Option<Vec<Tagged>> {
    let set = |set: &Json| {
        let name = set["name"].as_str()?.to_owned();
        let tags = labels_of(&set["tags"]);
        let other_names = tags.get("aks-managed-poolName").cloned().into_iter().collect();
        Some(Tagged { name, other_names, tags })
    };
    json.as_array()?.iter().map(set).collect()
}

/// What differs between what nodes will have and what autoscalers are told.
pub(super) fn differences(templates: &Templates, declared: &[Declared], format: Option<TemplateFormat>) -> Differences {
    let mut found = Differences { pools: templates.pools.len(), differences: Vec::new(), not_found: Vec::new() };
    for pool in &templates.pools {
        let mut told = declared.iter().filter(|one| one.names().any(|name| name == pool.pool)).peekable();
        if told.peek().is_none() && !pool.same.is_empty() {
            found.not_found.push(pool.pool.clone());
        }
        told.for_each(|declared| of_pool(pool, declared, format, &mut found.differences));
    }
    found
}

fn of_pool(pool: &PoolTemplate, declared: &Declared, format: Option<TemplateFormat>, found: &mut Vec<Difference>) {
    for expected in &pool.same {
        // What the words of an autoscaler cannot say is not missing in them.
        if format.is_some_and(|format| super::formats::refused(format, pool, expected).is_some()) {
            continue;
        }
        let at = || (expected.key.clone(), expected.effect.clone().unwrap_or_default());
        let wrong = match expected.field {
            FieldName::Taint => match (declared.taints.get(&at()), declared.startup_taints.contains_key(&at())) {
                (_, true) => Some((Wrong::StartupTaint, None)),
                (Some(value), false) if *value == expected.value => None,
                (Some(value), false) => Some((Wrong::Value, Some(value.clone()))),
                (None, false) => Some((Wrong::Missing, None)),
            },
            // Of several values, the autoscaler may choose another.
            FieldName::Label | FieldName::Annotation => match declared.labels.get(&expected.key) {
                Some(values) if *values == [expected.value.as_str()] => None,
                Some(values) => Some((Wrong::Value, Some(values.join(", ")))),
                None => Some((Wrong::Missing, None)),
            },
        };
        if let Some((because, told)) = wrong {
            let (pool, told_by, expected) = (pool.pool.clone(), declared.told_by.clone(), expected.clone());
            found.push(Difference { pool, told_by, because, expected, told });
        }
    }
}
