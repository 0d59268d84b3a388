//! The objects by which provisioners make machines: NodePools of Karpenter and MachineDeployments of Cluster API.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::{Value as Json, json};

use super::declared::{Declared, NextNode, Provisioner, labels_of, taints_of};
use crate::cli::shared::cluster::objects;
use nodegate_policy::api::pools::MachineKind;

/// Karpenter's label with the name of the NodePool (`sigs.k8s.io/karpenter`, `pkg/apis/v1/labels.go`).
pub(in crate::cli) const NODEPOOL: &str = "karpenter.sh/nodepool";
/// The labels of a Machine that Cluster API copies to its node: these, and those of their subdomains
/// (`sigs.k8s.io/cluster-api`, `internal/util/labels`).
const COPIED_BY_CLUSTER_API: [&str; 3] =
    ["node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.cluster.x-k8s.io"];
pub(in crate::cli) const CAPI_LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";
pub(in crate::cli) const CAPI_TAINTS: &str = "capacity.cluster-autoscaler.kubernetes.io/taints";

impl Provisioner {
    /// The objects of a cluster; none if it does not know their kind.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub(in crate::cli) async fn list(self, client: &Client) -> anyhow::Result<Vec<Declared>> {
        let mut found = Vec::new();
        let take = |object: Json| found.push(self.declared(&object));
        objects::each_of_kind(client, (self.group(), self.kind()), "", take).await?;
        Ok(found)
    }

    /// What one of its objects says.
    pub(in crate::cli) fn declared(self, object: &Json) -> Declared {
        match self {
            Self::Karpenter => node_pool(object),
            Self::ClusterApi => machine_deployment(object),
        }
    }
}

fn text<'j>(object: &'j Json, pointer: &str) -> &'j str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// The values that a NodePool lets its nodes have of each label: of its template, and of its requirements.
fn node_pool(object: &Json) -> Declared {
    let name = text(object, "/metadata/name");
    let template = &object["spec"]["template"];
    let mut labels: BTreeMap<String, Vec<String>> =
        labels_of(&template["metadata"]["labels"]).into_iter().map(|(key, value)| (key, vec![value])).collect();
    let requirements = template["spec"]["requirements"].as_array();
    for requirement in requirements.into_iter().flatten().filter(|one| one["operator"] == "In") {
        let values = requirement["values"].as_array().into_iter().flatten().filter_map(Json::as_str);
        labels.entry(text(requirement, "/key").to_owned()).or_insert_with(|| values.map(str::to_owned).collect());
    }
    labels.insert(NODEPOOL.to_owned(), vec![name.to_owned()]);
    let known = labels.iter().filter_map(|(key, values)| match values.as_slice() {
        [value] => Some((key.clone(), value.clone())),
        _ => None,
    });
    let of_machine: BTreeMap<String, String> = known.collect();
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("{name}-next-0"), "labels": of_machine},
        "spec": {"taints": template["spec"]["taints"].as_array().cloned().unwrap_or_default()}});
    let next = NextNode { node, kind: MachineKind::NodeClaim, labels: of_machine, object: format!("{name}-next") };
    Declared {
        provisioner: Some(Provisioner::Karpenter),
        told_by: format!("NodePool {name}"),
        pool: name.to_owned(),
        other_names: Vec::new(),
        cluster: None,
        labels,
        taints: taints_of(&template["spec"]["taints"]),
        startup_taints: taints_of(&template["spec"]["startupTaints"]),
        next_node: Some(next),
        object: object.clone(),
    }
}

fn annotation<'j>(object: &'j Json, key: &str) -> &'j str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

/// The labels that an annotation of a MachineDeployment tells Cluster Autoscaler.
pub(in crate::cli) fn annotated_labels(object: &Json) -> BTreeMap<String, String> {
    // It ignores what is no label.
    let told = annotation(object, CAPI_LABELS).split(',').filter_map(|part| part.split_once('='));
    told.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// What a MachineDeployment tells Cluster Autoscaler, and what its machines are.
fn machine_deployment(object: &Json) -> Declared {
    let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
    let taints = annotation(object, CAPI_TAINTS).split(',').filter_map(|part| {
        let (key, effect) = part.rsplit_once(':')?;
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        Some(((key.to_owned(), effect.to_owned()), value.to_owned()))
    });
    let mut of_machine = labels_of(&object["spec"]["template"]["metadata"]["labels"]);
    of_machine.insert("cluster.x-k8s.io/deployment-name".to_owned(), name.to_owned());
    let is_copied = |key: &str| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let is_in =
            |wanted: &&str| domain == *wanted || domain.strip_suffix(*wanted).is_some_and(|sub| sub.ends_with('.'));
        COPIED_BY_CLUSTER_API.iter().any(is_in)
    };
    let copied = of_machine.iter().filter(|(key, _)| is_copied(key));
    let on_node: BTreeMap<String, String> = copied.map(|(key, value)| (key.clone(), value.clone())).collect();
    let of_template = object["spec"]["template"]["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("{name}-next-0"), "labels": on_node}, "spec": {"taints": of_template}});
    // What is copied from the template is known without annotations (`clusterapi_unstructured.go`); these replace it.
    let mut labels = on_node;
    labels.extend(annotated_labels(object));
    let next =
        NextNode { node, kind: MachineKind::Machine, labels: of_machine, object: format!("{namespace}/{name}-next") };
    Declared {
        provisioner: Some(Provisioner::ClusterApi),
        told_by: format!("MachineDeployment {namespace}/{name}"),
        pool: name.to_owned(),
        other_names: Vec::new(),
        cluster: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        labels: labels.into_iter().map(|(key, value)| (key, vec![value])).collect(),
        taints: taints.collect(),
        startup_taints: BTreeMap::new(),
        next_node: Some(next),
        object: object.clone(),
    }
}
