//! Labels of GPUs that differ from what the driver for dynamic resource allocation (DRA) publishes of a node.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::shared::cluster::other_objects;
use crate::cli::shared::output;
use nodegate_policy::{NodeFacts, quantity};

/// NVIDIA's driver (`NVIDIA/k8s-dra-driver-gpu`), and the labels that GPU Feature Discovery gives where it runs.
const DRIVER: &str = "gpu.nvidia.com";
const PRODUCT: &str = "nvidia.com/gpu.product";
const COUNT: &str = "nvidia.com/gpu.count";
const MEMORY: &str = "nvidia.com/gpu.memory";
const MIB: f64 = 1024.0 * 1024.0;

/// A label that differs from the devices of its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct DeviceDifference {
    /// The node.
    pub(super) node: String,
    /// The key of the label.
    pub(super) key: String,
    /// Its value.
    pub(super) value: String,
    /// What its ResourceSlices say; several values if its devices differ.
    pub(super) devices: Vec<String>,
}

/// The labels of all nodes that are compared.
#[derive(Debug, Default)]
pub(super) struct Labelled(BTreeMap<String, BTreeMap<&'static str, String>>);

/// What the slices of a node say.
#[derive(Debug, Default)]
struct Devices {
    products: BTreeSet<String>,
    /// In MiB, of each GPU.
    memory: BTreeSet<String>,
    count: usize,
}

impl Labelled {
    /// Adds a node.
    pub(super) fn add(&mut self, node: &NodeFacts<'_>) {
        let labels = [PRODUCT, COUNT, MEMORY].into_iter().filter_map(|key| Some((key, node.label(key)?.to_owned())));
        let labels: BTreeMap<&str, String> = labels.collect();
        if !labels.is_empty() {
            self.0.insert(node.name.to_string(), labels);
        }
    }

    /// Compares them with the ResourceSlices of the cluster. If these cannot be listed, a note says so.
    pub(super) async fn differences(&self, client: &Client) -> Vec<DeviceDifference> {
        if self.0.is_empty() {
            return Vec::new();
        }
        match other_objects::list(client, "resource.k8s.io", "ResourceSlice").await {
            Ok(slices) => self.against(&slices),
            Err(error) => {
                output::note(&format!("note: labels of GPUs are not compared with devices: {error:#}"));
                Vec::new()
            }
        }
    }

    fn against(&self, slices: &[Json]) -> Vec<DeviceDifference> {
        let mut found: BTreeMap<&str, Devices> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| slice["spec"]["driver"] == DRIVER) {
            let Some(node) = slice["spec"]["nodeName"].as_str() else { continue };
            let of_node = found.entry(node).or_default();
            slice["spec"]["devices"].as_array().into_iter().flatten().for_each(|device| of_node.add(device));
        }
        let mut differences = Vec::new();
        for (node, devices) in found.iter().filter(|(_, devices)| devices.count > 0) {
            let Some(labels) = self.0.get(*node) else { continue };
            for (key, value) in labels {
                let says = devices.say(key);
                if !says.is_empty() && !says.contains(value) {
                    let (node, devices) = ((*node).to_owned(), says.into_iter().collect());
                    differences.push(DeviceDifference { node, key: (*key).to_owned(), value: value.clone(), devices });
                }
            }
        }
        differences
    }
}

impl Devices {
    /// Counts whole GPUs: profiles of MIG are parts of them.
    fn add(&mut self, device: &Json) {
        // `basic` until version v1beta1 of the API.
        let device = device.get("basic").unwrap_or(device);
        let text = |name: &str| device["attributes"][name]["string"].as_str();
        if text("type").is_some_and(|kind| kind != "gpu") {
            return;
        }
        self.count += 1;
        // As GPU Feature Discovery writes it (`NVIDIA/k8s-device-plugin`, `internal/lm/resource.go`).
        self.products.extend(text("productName").map(|name| name.replace(' ', "-")));
        let memory = device["capacity"]["memory"]["value"].as_str().and_then(quantity);
        self.memory.extend(memory.map(|bytes| format!("{:.0}", bytes / MIB)));
    }

    fn say(&self, key: &str) -> BTreeSet<String> {
        match key {
            PRODUCT => self.products.clone(),
            MEMORY => self.memory.clone(),
            _ => BTreeSet::from([self.count.to_string()]),
        }
    }
}

/// It as a line without the node.
pub(super) fn in_words(DeviceDifference { node: _, key, value, devices }: &DeviceDifference) -> String {
    format!("label {key}={value}, but its ResourceSlices say {}", devices.join(", "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(node: &str, devices: Json) -> Json {
        json!({"spec": {"driver": DRIVER, "nodeName": node, "devices": devices}})
    }

    fn gpu(product: &str, memory: &str) -> Json {
        json!({"attributes": {"type": {"string": "gpu"}, "productName": {"string": product}},
            "capacity": {"memory": {"value": memory}}})
    }

    fn labelled(nodes: &[(&str, &str, &str, &str)]) -> Labelled {
        let mut all = Labelled::default();
        for (name, product, count, memory) in nodes {
            let labels = json!({PRODUCT: product, COUNT: count, MEMORY: memory});
            let node = json!({"metadata": {"name": name, "labels": labels}}).to_string();
            all.add(&NodeFacts::parse(&node).unwrap());
        }
        all
    }

    #[test]
    fn labels_are_compared_with_whole_gpus() {
        let product = "NVIDIA-H100-80GB-HBM3";
        let nodes = [
            ("right", product, "2", "81559"),
            ("wrong", "NVIDIA-A100", "8", "40960"),
            ("mixed", "NVIDIA-B200", "2", "1"),
        ];
        let h100 = || gpu("NVIDIA H100 80GB HBM3", "81559Mi");
        let mig =
            json!({"attributes": {"type": {"string": "mig"}, "productName": {"string": "NVIDIA H100 80GB HBM3"}}});
        let slices = [
            slice("right", json!([h100(), mig])),
            slice("right", json!([{"basic": h100()}])),
            slice("wrong", json!([h100()])),
            slice("mixed", json!([h100(), gpu("NVIDIA B200", "1Mi")])),
            slice("unlabelled", json!([h100()])),
            json!({"spec": {"driver": "other.example.com", "nodeName": "right", "devices": [h100()]}}),
        ];
        let found = labelled(&nodes).against(&slices);
        let lines: Vec<String> = found.iter().map(|one| format!("{}: {}", one.node, in_words(one))).collect();
        assert_eq!(
            lines,
            [
                "wrong: label nvidia.com/gpu.count=8, but its ResourceSlices say 1",
                "wrong: label nvidia.com/gpu.memory=40960, but its ResourceSlices say 81559",
                &format!("wrong: label nvidia.com/gpu.product=NVIDIA-A100, but its ResourceSlices say {product}"),
            ]
        );
        assert!(labelled(&nodes).against(&[slice("wrong", json!([]))]).is_empty(), "not published yet");
    }
}
