//! Reviews as the API server sends them, with a node of about 5 KB.

use serde_json::{Value, json};

const CREATE: &str = include_str!("../../tests/data/admission-reviews/kubelet-create.json");
const UPDATE: &str = include_str!("../../tests/data/admission-reviews/admin-label-update.json");

/// Brings the node to the size it has on a real machine: more conditions' text, images, labels.
fn grow(node: &mut Value, name: &str) {
    node["metadata"]["name"] = json!(name);
    for at in 0..12 {
        node["metadata"]["labels"][format!("feature.node.kubernetes.io/cpu-cpuid.F{at}")] = json!("true");
    }
    node["metadata"]["annotations"] = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    let images = (0..24).map(|at| json!({"names": [format!("registry.example.com/team/image-{at}@sha256:{at:064}")], "sizeBytes": 123_456_789 + at}));
    node["status"]["images"] = images.collect();
}

/// A kubelet's CREATE; compact, as the API server writes it.
pub(crate) fn kubelet_create(name: &str) -> Vec<u8> {
    let mut review: Value = serde_json::from_str(CREATE).expect("a recording");
    grow(&mut review["request"]["object"], name);
    review["request"]["name"] = json!(name);
    review["request"]["userInfo"]["username"] = json!(format!("system:node:{name}"));
    serde_json::to_vec(&review).expect("JSON")
}

/// An administrator's change of a label.
#[allow(dead_code, reason = "not every bench sends one")]
pub(crate) fn admin_update(name: &str) -> Vec<u8> {
    let mut review: Value = serde_json::from_str(UPDATE).expect("a recording");
    grow(&mut review["request"]["object"], name);
    grow(&mut review["request"]["oldObject"], name);
    review["request"]["name"] = json!(name);
    serde_json::to_vec(&review).expect("JSON")
}

/// The same of a node whose kubelet filled a condition with so many characters, each of which the API server writes with
/// six bytes, in both objects.
#[allow(dead_code, reason = "not every bench sends one")]
pub(crate) fn filled_update(name: &str, characters: usize) -> Vec<u8> {
    filled(&admin_update(name), &["object", "oldObject"], characters)
}

/// A kubelet's CREATE of a node with such a condition.
#[allow(dead_code, reason = "not every bench sends one")]
pub(crate) fn filled_create(name: &str, characters: usize) -> Vec<u8> {
    filled(&kubelet_create(name), &["object"], characters)
}

fn filled(review: &[u8], objects: &[&str], characters: usize) -> Vec<u8> {
    const PLACE: &str = "this is where the text goes";
    let mut review: Value = serde_json::from_slice(review).expect("JSON");
    for object in objects {
        let condition = json!({"type": "Filled", "status": "True", "message": PLACE});
        review["request"][object]["status"]["conditions"].as_array_mut().expect("conditions").push(condition);
    }
    review.to_string().replace(PLACE, &"\\u003c".repeat(characters)).into_bytes()
}
