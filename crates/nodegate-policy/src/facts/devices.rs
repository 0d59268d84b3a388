//! The devices that drivers for dynamic resource allocation (DRA) publish of a node.
//!
//! A driver publishes the devices of a node as pools, each in one slice or in several of the same generation. Older slices, and pools
//! of which slices are missing, say nothing (`k8s.io/api/resource/v1`, `ResourcePool`).

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

/// The `spec` of a ResourceSlice, as far as it is about the devices of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// The node.
    pub node: String,
    /// The driver that publishes them.
    pub driver: String,
    pool: String,
    generation: i64,
    expected: u64,
    devices: Vec<Json>,
}

/// The devices of a node as JSON, in the form that expressions read: a list of objects with `driver`, `pool`, `name`, and by domain
/// `attributes` and `capacity`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDevices(Box<str>);

impl DeviceSlice {
    /// What a ResourceSlice says; `None` if it is not about the devices of one node.
    pub fn read(slice: &Json) -> Option<Self> {
        let spec = &slice["spec"];
        let (node, driver, pool) = (spec["nodeName"].as_str()?, spec["driver"].as_str()?, &spec["pool"]);
        let devices = spec["devices"].as_array().into_iter().flatten();
        Some(Self {
            node: node.to_owned(),
            driver: driver.to_owned(),
            pool: pool["name"].as_str().unwrap_or_default().to_owned(),
            generation: pool["generation"].as_i64().unwrap_or_default(),
            expected: pool["resourceSliceCount"].as_u64().unwrap_or(1),
            devices: devices.map(|device| device_of(driver, pool, device)).collect(),
        })
    }
}

impl NodeDevices {
    /// The devices in the slices of a node; `None` if there is no slice, or if not all of a pool are there.
    pub fn of<'s>(slices: impl IntoIterator<Item = &'s DeviceSlice>) -> Option<Self> {
        let mut pools: BTreeMap<(&str, &str), Vec<&DeviceSlice>> = BTreeMap::new();
        for slice in slices {
            let of_pool = pools.entry((&slice.driver, &slice.pool)).or_default();
            match of_pool.first().map(|first| first.generation) {
                Some(newest) if newest > slice.generation => {}
                Some(newest) if newest == slice.generation => of_pool.push(slice),
                _ => *of_pool = vec![slice],
            }
        }
        let is_whole = |slices: &Vec<&DeviceSlice>| {
            slices.first().is_some_and(|slice| u64::try_from(slices.len()).is_ok_and(|count| count >= slice.expected))
        };
        if pools.is_empty() || !pools.values().all(is_whole) {
            return None;
        }
        let mut devices: Vec<&Json> = pools.values().flatten().flat_map(|slice| &slice.devices).collect();
        devices.sort_by_key(|device| ["driver", "pool", "name"].map(|key| device[key].as_str()));
        Some(Self(json!(devices).to_string().into()))
    }

    /// These devices, written as expressions read them.
    pub(crate) fn given(devices: &[Json]) -> Self {
        Self(json!(devices).to_string().into())
    }

    /// The JSON.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// A device as expressions read it.
fn device_of(driver: &str, pool: &Json, device: &Json) -> Json {
    // `basic` until version v1beta1 of the API.
    let of = device.get("basic").unwrap_or(device);
    // Exactly one of `bool`, `int`, `string`, `version` and their lists.
    let attribute =
        |value: &Json| value.as_object().and_then(|value| value.values().next()).cloned().unwrap_or_default();
    let capacity = |value: &Json| value.get("value").unwrap_or(value).clone();
    json!({"driver": driver, "pool": pool["name"], "name": device["name"],
        "attributes": by_domain(driver, &of["attributes"], attribute),
        "capacity": by_domain(driver, &of["capacity"], capacity)})
}

/// Entries by the domain of their names, and then by name. One without a domain is of the driver (`k8s.io/api/resource/v1`,
/// `QualifiedName`).
fn by_domain(driver: &str, entries: &Json, value: impl Fn(&Json) -> Json) -> Json {
    let mut domains: BTreeMap<&str, Map<String, Json>> = BTreeMap::new();
    for (name, entry) in entries.as_object().into_iter().flatten() {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().insert(name.to_owned(), value(entry));
    }
    json!(domains)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn slice(pool: &str, (generation, count): (i64, u64), devices: Json) -> DeviceSlice {
        let pool = json!({"name": pool, "generation": generation, "resourceSliceCount": count});
        let spec = json!({"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices});
        DeviceSlice::read(&json!({"spec": spec})).unwrap()
    }

    fn names(slices: &[DeviceSlice]) -> Option<Vec<String>> {
        let devices: Vec<Json> = serde_json::from_str(NodeDevices::of(slices)?.text()).unwrap();
        Some(devices.iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn only_whole_pools_of_the_newest_generation_count() {
        let gpu = |name: &str| json!([{"name": name}]);
        let (first, second) = (slice("a", (1, 2), gpu("b")), slice("a", (1, 2), gpu("a")));
        assert_eq!(names(&[]), None);
        assert_eq!(names(std::slice::from_ref(&first)), None);
        assert_eq!(names(&[first.clone(), second.clone()]).unwrap(), ["a", "b"]);
        let (newer, other) = (slice("a", (2, 1), gpu("c")), slice("b", (1, 2), gpu("d")));
        assert_eq!(names(&[first, newer.clone(), second]).unwrap(), ["c"]);
        assert_eq!(names(&[newer, other]), None, "another pool is not whole");
        assert_eq!(names(&[slice("a", (1, 1), json!([]))]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn attributes_and_capacities_are_by_domain() {
        let device = json!({"name": "gpu-0", "attributes": {"productName": {"string": "H100"}, "example.com/index": {"int": 3}},
            "capacity": {"memory": {"value": "80Gi"}}});
        let expected = json!([{"driver": "gpu.nvidia.com", "pool": "a", "name": "gpu-0",
            "attributes": {"gpu.nvidia.com": {"productName": "H100"}, "example.com": {"index": 3}},
            "capacity": {"gpu.nvidia.com": {"memory": "80Gi"}}}]);
        let beta = json!({"name": "gpu-0", "basic": {"attributes": device["attributes"],
            "capacity": {"memory": "80Gi"}}});
        for device in [device, beta] {
            let devices = NodeDevices::of(&[slice("a", (1, 1), json!([device]))]).unwrap();
            assert_eq!(serde_json::from_str::<Json>(devices.text()).unwrap(), expected);
        }
        assert_eq!(DeviceSlice::read(&json!({"spec": {"driver": "d", "allNodes": true}})), None);
    }
}
