//! What the devices of a stored node give it.

use serde_json::{Value as Json, json};

use super::owned_labels;
use super::scene::{Scene, set};
use crate::{DeviceSlice, NodeDevices, PolicySet};

const COUNT: &str = "nvidia.com/gpu.count";
const PRODUCT: &str = "nvidia.com/gpu.product";

fn policy() -> PolicySet {
    let name = "devices.filter(d, d.driver == 'gpu.nvidia.com')";
    let product = format!("{name}[0].attributes['gpu.nvidia.com'].productName.replace(' ', '-')");
    set(json!({"rules": [{"name": "dra", "match": {"expression": format!("{name}.size() > 0")},
        "labelExpressions": {COUNT: format!("string({name}.size())"), PRODUCT: product}}]}))
}

fn devices(driver: &str, count: usize) -> Option<NodeDevices> {
    let device = |at| json!({"name": format!("gpu-{at}"), "attributes": {"productName": {"string": "NVIDIA H100"}}});
    let devices: Vec<Json> = (0..count).map(device).collect();
    let pool = json!({"name": "n1", "generation": 1, "resourceSliceCount": 1});
    let slice = json!({"spec": {"driver": driver, "nodeName": "n1", "pool": pool, "devices": devices}});
    NodeDevices::of(&[DeviceSlice::read(&slice)?])
}

#[test]
fn labels_follow_the_devices_and_stay_while_these_are_unknown() {
    let none = Scene::new(json!({})).settle(&policy());
    assert_eq!((none.label(COUNT), owned_labels(&none)), (None, vec![]), "nothing is known");
    let scene = Scene { devices: devices("gpu.nvidia.com", 8), ..none }.settle(&policy());
    assert_eq!((scene.label(COUNT), scene.label(PRODUCT)), (Some("8"), Some("NVIDIA-H100")));
    let scene = Scene { devices: devices("gpu.nvidia.com", 7), ..scene }.settle(&policy());
    assert_eq!(scene.label(COUNT), Some("7"));
    // The driver restarts.
    let scene = Scene { devices: None, ..scene }.settle(&policy());
    assert_eq!((scene.label(COUNT), owned_labels(&scene)), (Some("7"), vec![COUNT, PRODUCT]));
    let scene = Scene { devices: devices("other.example.com", 1), ..scene };
    scene.keep(&policy(), |plan| {
        let gone: Vec<&str> = plan.removals.iter().map(|removal| removal.key.as_str()).collect();
        assert_eq!(gone, [COUNT, PRODUCT], "there is no GPU any more");
    });
}

#[test]
fn a_kubelet_chooses_its_devices() {
    let rule = json!({"name": "dra", "match": {"expression": "devices.size() > 0"}, "labels": {"node-role.kubernetes.io/gpu": ""}});
    let errors = crate::simulate::compile_inline(&json!({"rules": [rule]})).unwrap_err();
    let errors = errors.iter().map(ToString::to_string).collect::<String>();
    assert!(errors.contains("devices in an expression"), "{errors}");
    let mut trusting = rule;
    trusting["trustKubelet"] = json!(true);
    let compiled = set(json!({"rules": [trusting]}));
    assert!(compiled.reads_devices() && !set(json!({})).reads_devices());
}
