//! An upgrade from the program of an older version, which `just upgrade-test` builds, and the way back.

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, eventually_state, is_pending, leading, node, setup};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};

const NODE: &str = "kept-upgrade";
const NAMESPACE: &str = "nodegate-upgrade";
const OBJECT: &str = r#"{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "object"},
    "spec": {"rules": [{"name": "r", "match": {"names": ["kept-upgrade"]}, "labels": {"from-object": "yes"}}]}}"#;

/// Starts a version of nodegate where another one ran before.
async fn started<'a>(plane: &'a ControlPlane, program: Option<&str>) -> Nodegate<'a> {
    leading(plane, &Setup { namespace: Some(NAMESPACE), program, ..setup() }).await
}

/// What must be the same whichever version wrote the record last.
fn kept(state: &Value) -> Value {
    let mut owned = state["owned"].clone();
    let taints = owned["taints"].as_array_mut().unwrap_or_else(|| panic!("no taints are owned: {state:#}"));
    taints.sort_by_key(Value::to_string);
    json!({"labels": state["labels"], "taints": state["taints"], "owned": owned, "nodeUID": state["nodeUID"], "future": state["future"]})
}

/// The node goes and comes back; what its kubelet's CREATE returned.
async fn recreated(plane: &ControlPlane, admin: &Requester) -> Value {
    admin.delete(NODE).await;
    let created = Requester::kubelet(plane, NODE).await.create(&node(NODE, json!({}))).await.unwrap();
    admin.eventually(NODE, "complete", |node| !is_pending(node)).await;
    created
}

fn assert_has_everything(node: &Value, team: &str, by: &str) {
    assert_eq!(label(node, "persist.demo/team"), Some(team), "{by} does not restore the label");
    assert!(taints(node).contains(&"dedicated=ml:NoSchedule".to_owned()), "{by} does not restore the taint");
    assert_eq!(label(node, "hardware.tier"), Some("standard"), "{by}");
    assert_eq!(label(node, "from-object"), Some("yes"), "{by} does not know the NodePolicy object");
}

#[tokio::test]
#[ignore = "needs the program of an older version: just upgrade-test"]
async fn what_an_older_version_saved_is_restored_after_the_upgrade_and_after_the_way_back() {
    let older = std::env::var("NODEGATE_OLDER").expect("NODEGATE_OLDER is not set: run `just upgrade-test`");
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    plane.kubectl(&["apply", "-f", "-"], Some(OBJECT)).unwrap();
    let maps = config_maps(plane, NAMESPACE).await;

    // The older version sees the node join, and saves what people set.
    let mut before = started(plane, Some(&older)).await;
    recreated(plane, &admin).await;
    admin.label(NODE, "persist.demo/team", json!("a")).await.unwrap();
    let mut tainted = admin.get(NODE).await;
    let list = tainted["spec"]["taints"].as_array_mut().unwrap();
    list.push(json!({"key": "dedicated", "value": "ml", "effect": "NoSchedule"}));
    admin.merge(NODE, json!({"spec": {"taints": tainted["spec"]["taints"]}})).await.unwrap();
    let is_saved = |state: &Value| {
        state["labels"]["persist.demo/team"] == "a"
            && state["taints"][0]["key"] == "dedicated"
            && state["nodeUID"].is_string()
    };
    let saved = eventually_state(&maps, NODE, "saved", is_saved).await;
    assert_eq!(saved["owned"]["labels"]["hardware.tier"], "standard");
    before.terminate();
    drop(before);

    // The newer one takes it over as it is, restores from it, and goes on saving.
    let mut now = started(plane, None).await;
    let taken_over = eventually_state(&maps, NODE, "there", |state| state["nodeUID"].is_string()).await;
    assert_eq!(kept(&taken_over), kept(&saved), "the upgrade changed the record");
    assert_has_everything(&recreated(plane, &admin).await, "a", "the newer version");
    admin.label(NODE, "persist.demo/team", json!("b")).await.unwrap();
    let newer = eventually_state(&maps, NODE, "saved", |state| state["labels"]["persist.demo/team"] == "b").await;
    now.terminate();
    drop(now);

    // Fields of a version that is newer still, which neither of them knows.
    let mut unknown = newer.clone();
    unknown["future"] = json!({"field": [1]});
    let patch = json!({"data": {"state.json": unknown.to_string()}}).to_string();
    let map = format!("configmap/node-labels-{NODE}");
    plane.kubectl(&["-n", NAMESPACE, "patch", &map, "--type=merge", "-p", &patch], None).unwrap();

    // The way back.
    let before = started(plane, Some(&older)).await;
    assert_has_everything(&recreated(plane, &admin).await, "b", "the older version");
    admin.label(NODE, "persist.demo/team", json!("c")).await.unwrap();
    let back = eventually_state(&maps, NODE, "saved", |state| state["labels"]["persist.demo/team"] == "c").await;
    assert_eq!(back["future"], json!({"field": [1]}), "the older version dropped what it does not know");
    assert_eq!(back["owned"]["labels"], newer["owned"]["labels"], "the older version owns something else");
    drop(before);
    admin.delete(NODE).await;
}
