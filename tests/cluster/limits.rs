//! What nodegate adds is never what makes a write invalid.

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: noted}
spec:
  persist: {taints: [maintenance]}
  rules:
    - name: noted
      match: {names: ["full-*"]}
      labels: {noted.example.com/tier: gold}
      annotations: {noted.example.com/by-rule: given}
      taints: [{key: dedicated, value: noted, effect: NoSchedule}]
"#;
const NOTE: &str = "noted.example.com/by-rule";
const TIER: &str = "noted.example.com/tier";

/// Annotations of exactly so many bytes more, keys and values together.
fn filling(bytes: usize) -> Value {
    const KEY: &str = "fill.example.com/all";
    json!({KEY: "x".repeat(bytes - KEY.len())})
}

/// What all annotations of a node have together.
fn annotated(node: &Value) -> usize {
    let all = node["metadata"]["annotations"].as_object().into_iter().flatten();
    all.map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum()
}

fn left_out(nodegate: &Nodegate<'_>) -> bool {
    nodegate.probe("/metrics").unwrap().lines().any(|line| line.contains("left_out") && !line.ends_with(" 0"))
}

#[tokio::test]
async fn a_node_whose_annotations_are_full_can_be_written_and_can_join() {
    const MOST: usize = 262_144;
    let cluster = exclusive();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, POLICY).unwrap();
    let policies = [file.to_str().unwrap()];
    let setup = Setup { policies: &policies, serve: &["--stamp-changes"], ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    let admin = Requester::admin(cluster.plane).await;

    // A living node: its kubelet takes the annotation away and fills all there is, where nodegate cannot patch.
    let kubelet = Requester::kubelet(cluster.plane, "full-1").await;
    admin.delete("full-1").await;
    let created = kubelet.create(&super::keeping::node("full-1", json!({}))).await.unwrap();
    assert_eq!(created["metadata"]["annotations"][NOTE], "given");
    let others = annotated(&created) - NOTE.len() - "given".len();
    let mut annotations = filling(MOST - others);
    annotations[NOTE] = Value::Null;
    let patch = json!({"metadata": {"annotations": annotations, "labels": {TIER: null}}});
    let full = kubelet.merge_status("full-1", patch).await.unwrap();
    assert_eq!(annotated(&full), MOST);
    cluster.plane.kubectl(&["taint", "nodes", "full-1", "maintenance=disk:NoSchedule"], None).unwrap();
    let tainted = admin.get("full-1").await;
    assert!(taints(&tainted).contains(&"maintenance=disk:NoSchedule".to_owned()), "{tainted:#}");
    assert_eq!(label(&tainted, TIER), Some("gold"), "labels do not fail with an annotation");
    assert_eq!(annotated(&tainted), MOST, "{:?}", tainted["metadata"]["annotations"].as_object().unwrap().keys());
    assert!(left_out(&nodegate), "{:?}", nodegate.probe("/metrics"));

    // Once there is room, the next write brings it.
    admin.merge("full-1", json!({"metadata": {"annotations": {"fill.example.com/all": null}}})).await.unwrap();
    let written = admin.label("full-1", "any", json!("write")).await.unwrap();
    assert_eq!(written["metadata"]["annotations"][NOTE], "given");

    // A node that joins so.
    let kubelet = Requester::kubelet(cluster.plane, "full-2").await;
    admin.delete("full-2").await;
    let mut joining = super::keeping::node("full-2", json!({}));
    joining["metadata"]["annotations"] = filling(MOST);
    let joined = kubelet.create(&joining).await.unwrap();
    assert_eq!(label(&joined, TIER), Some("gold"));
    assert!(taints(&joined).contains(&"dedicated=noted:NoSchedule".to_owned()), "{:?}", taints(&joined));
    assert_eq!(joined["metadata"]["annotations"].get(NOTE), None);
    admin.delete("full-1").await;
    admin.delete("full-2").await;
}
