//! Labels of GPUs that differ from what the driver for dynamic resource allocation (DRA) publishes of a node.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::shared::cluster::objects;
use crate::cli::shared::output;
use nodegate_policy::{DeviceSlice, NodeDevices, NodeFacts, quantity};

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

/// The slices of the driver, by node.
type Slices = BTreeMap<String, Vec<DeviceSlice>>;

/// What slices say of whole GPUs.
#[derive(Debug, Default)]
struct Devices {
    /// The UUIDs of GPUs, also of those of which only MIG devices are published.
    gpus: BTreeSet<String>,
    products: BTreeSet<String>,
    /// In MiB, of each GPU.
    memory: BTreeSet<String>,
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

    /// Compares them with the ResourceSlices of the cluster.
    ///
    /// # Errors
    /// Returns why they cannot be listed, and prints it as a note.
    pub(super) async fn differences(&self, client: &Client) -> Result<Vec<DeviceDifference>, String> {
        let mut found = BTreeMap::new();
        if !self.0.is_empty() {
            let fields = format!("spec.driver={DRIVER}");
            let kind = ("resource.k8s.io", "ResourceSlice");
            let listed = objects::each_of_kind(client, kind, &fields, |slice| self.take(&slice, &mut found)).await;
            listed.map_err(|error| {
                let why = format!("labels of GPUs are not compared with devices: {error:#}");
                output::note(&format!("note: {why}"));
                why
            })?;
        }
        Ok(self.against(&found))
    }

    /// Adds a slice to those of its node.
    fn take(&self, slice: &Json, found: &mut Slices) {
        let is_compared = |slice: &DeviceSlice| slice.driver == DRIVER && self.0.contains_key(&slice.node);
        if let Some(slice) = DeviceSlice::read(slice).filter(is_compared) {
            found.entry(slice.node.clone()).or_default().push(slice);
        }
    }

    fn against(&self, found: &Slices) -> Vec<DeviceDifference> {
        let mut differences = Vec::new();
        for (node, labels) in &self.0 {
            let known = found.get(node).and_then(NodeDevices::of);
            let Some(devices) = known.as_ref().and_then(Devices::of) else { continue };
            for (key, value) in labels {
                let says = devices.say(key);
                // Time slicing and MPS add it (`NVIDIA/k8s-device-plugin`, `internal/lm/resource.go`).
                let plain = value.strip_suffix("-SHARED").unwrap_or(value);
                if !says.is_empty() && !says.contains(plain) {
                    let (node, devices) = (node.clone(), says.into_iter().collect());
                    differences.push(DeviceDifference { node, key: (*key).to_owned(), value: value.clone(), devices });
                }
            }
        }
        differences
    }
}

impl Devices {
    /// All devices of a node; `None` if there is no GPU.
    fn of(known: &NodeDevices) -> Option<Self> {
        let (mut all, devices) = (Self::default(), serde_json::from_str::<Vec<Json>>(known.text()).ok()?);
        devices.iter().for_each(|device| all.add(device));
        (!all.gpus.is_empty()).then_some(all)
    }

    /// Adds a GPU, or the one that a MIG device is a part of: where that mode is on, the driver does not publish the GPU itself
    /// (`NVIDIA/k8s-dra-driver-gpu`, `cmd/gpu-kubelet-plugin/nvlib.go`).
    fn add(&mut self, device: &Json) {
        let text = |name: &str| device["attributes"][DRIVER][name].as_str();
        let is_whole = text("type").is_none_or(|kind| kind == "gpu");
        let gpu = if is_whole { text("uuid").or(device["name"].as_str()) } else { text("parentUUID") };
        let Some(gpu) = gpu else { return };
        self.gpus.insert(gpu.to_owned());
        // As GPU Feature Discovery writes them (`NVIDIA/k8s-device-plugin`, `internal/lm/resource.go`, `nvml-device.go`).
        self.products.extend(text("productName").map(|name| name.replace(' ', "-")));
        let memory = device["capacity"][DRIVER]["memory"].as_str().filter(|_| is_whole).and_then(quantity);
        self.memory.extend(memory.map(|bytes| format!("{:.0}", (bytes / MIB).floor())));
    }

    fn say(&self, key: &str) -> BTreeSet<String> {
        match key {
            PRODUCT => self.products.clone(),
            MEMORY => self.memory.clone(),
            _ => BTreeSet::from([self.gpus.len().to_string()]),
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

    const H100: &str = "NVIDIA H100 80GB HBM3";

    /// A slice of the pool with the name of the node: this generation, of so many slices.
    fn slice(node: &str, (generation, count): (u64, u64), devices: Json) -> Json {
        let pool = json!({"name": node, "generation": generation, "resourceSliceCount": count});
        json!({"spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}})
    }

    fn gpu(uuid: &str, product: &str, memory: &str) -> Json {
        let text = |text: &str| json!({"string": text});
        json!({"name": uuid, "attributes": {"type": text("gpu"), "uuid": text(uuid), "productName": text(product)},
            "capacity": {"memory": {"value": memory}}})
    }

    fn mig(parent: &str) -> Json {
        let text = |text: &str| json!({"string": text});
        json!({"attributes": {"type": text("mig"), "parentUUID": text(parent), "productName": text(H100)},
            "capacity": {"memory": {"value": "9728Mi"}}})
    }

    fn differences(labels: (&str, &str, &str), slices: &[&Json]) -> Vec<String> {
        let mut all = Labelled::default();
        let (product, count, memory) = labels;
        let labels = json!({PRODUCT: product, COUNT: count, MEMORY: memory});
        let node = json!({"metadata": {"name": "n", "labels": labels}}).to_string();
        all.add(&NodeFacts::parse(&node).unwrap());
        let mut found = BTreeMap::new();
        slices.iter().for_each(|slice| all.take(slice, &mut found));
        all.against(&found).iter().map(in_words).collect()
    }

    #[test]
    fn labels_are_compared_with_whole_gpus() {
        let right = ("NVIDIA-H100-80GB-HBM3", "2", "81559");
        let h100 = |uuid: &str| gpu(uuid, H100, "81559Mi");
        let none: [&str; 0] = [];
        let two = slice("n", (1, 1), json!([h100("a"), h100("b")]));
        assert_eq!(differences(right, &[&two]), none);
        assert_eq!(
            differences(("NVIDIA-A100", "8", "40960"), &[&two]),
            [
                "label nvidia.com/gpu.count=8, but its ResourceSlices say 2",
                "label nvidia.com/gpu.memory=40960, but its ResourceSlices say 81559",
                "label nvidia.com/gpu.product=NVIDIA-A100, but its ResourceSlices say NVIDIA-H100-80GB-HBM3",
            ]
        );
        let shared = ("NVIDIA-H100-80GB-HBM3-SHARED", "2", "81559");
        assert_eq!(differences(shared, &[&two]), none);
        let partitioned = slice("n", (1, 1), json!([h100("a"), mig("b"), mig("b")]));
        assert_eq!(differences(right, &[&partitioned]), none, "a GPU in MIG mode is one all the same");
        assert_eq!(differences(right, &[&slice("n", (1, 1), json!([mig("a"), mig("b")]))]), none);
        let basic = slice("n", (1, 1), json!([{"name": "a", "basic": h100("a")}, {"name": "b", "basic": h100("b")}]));
        assert_eq!(differences(right, &[&basic]), none);
        let odd = slice("n", (1, 1), json!([gpu("a", H100, "17071734784")]));
        assert_eq!(
            differences((right.0, "1", "16280"), &[&odd]),
            none,
            "feature discovery cuts off what is no whole MiB"
        );
        let other = json!({"spec": {"driver": "other.example.com", "nodeName": "n", "devices": [h100("a")]}});
        assert_eq!(differences(right, &[&other]), none);
    }

    #[test]
    fn only_whole_pools_of_the_newest_generation_count() {
        let right = ("NVIDIA-H100-80GB-HBM3", "2", "81559");
        let h100 = |uuid: &str| gpu(uuid, H100, "81559Mi");
        let none: [&str; 0] = [];
        let old = slice("n", (1, 1), json!([h100("old"), h100("a"), h100("b")]));
        let new = slice("n", (2, 1), json!([h100("a"), h100("b")]));
        assert_eq!(differences(right, &[&old, &new]), none);
        assert_eq!(differences(right, &[&new, &old]), none);
        let half = slice("n", (1, 2), json!([h100("a")]));
        assert_eq!(differences(right, &[&half]), none, "the other slice is to come");
        assert_eq!(differences(right, &[&half, &slice("n", (1, 2), json!([h100("b")]))]), none);
        assert_eq!(differences(right, &[&slice("n", (1, 1), json!([]))]), none, "not published yet");
    }
}
