//! Saved state that somebody makes too large, or that cannot be written: nodes are kept right all the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::DeleteParams;
use nodegate_policy::api::state::SavedState;
use nodegate_stores::state::{ConfigMaps, StateWriter, WriteError};
use serde_json::{Value, json};

use super::super::control_plane::exclusive;
use super::super::keeping::{config_maps, eventually_state, is_pending, node, state, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, label};
use super::{POLICY, delete_all, is_right, names, until_denied, until_told};

/// Forges an enforced label behind the webhook's back, and waits until it is repaired.
async fn is_repaired(admin: &Requester, name: &str) {
    admin.merge_status(name, json!({"metadata": {"labels": {"hardware.tier": "forged"}}})).await.unwrap();
    admin.eventually(name, "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
}

fn metric(nodegate: &Nodegate<'_>, name: &str) -> f64 {
    let text = nodegate.probe("/metrics").unwrap_or_default();
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no metric {name}:\n{text}"))
}

#[tokio::test]
async fn a_kubelet_with_5200_persisted_labels_prevents_no_repair_and_no_record() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-many").await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let mut labels: BTreeMap<String, String> =
        (0..5200).map(|at| (format!("persist.demo/{at:0>40}"), "x".repeat(63))).collect();
    labels.insert("persist.demo/own".to_owned(), "kept-many".to_owned());
    let kubelet = Requester::kubelet(cluster.plane, "kept-many").await;
    kubelet.create(&node("kept-many", json!(labels))).await.unwrap();
    admin.eventually("kept-many", "right", is_right).await;
    is_repaired(&admin, "kept-many").await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    let saved = |state: &Value| state["labels"].as_object().map_or(0, serde_json::Map::len);
    let state = eventually_state(&maps, "kept-many", "some are saved", |state| saved(state) > 0).await;
    assert_eq!(saved(&state), 512);
    until_told(cluster.plane, &nodegate, "kept-many", "TooManyPersistedKeys").await;
    assert!(metric(&nodegate, "nodegate_keys_not_saved_total") > 0.0);
    admin.delete("kept-many").await;
}

#[tokio::test]
async fn a_machine_that_changes_its_uuid_75_times_prevents_no_repair_and_no_record() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-uuid").await;
    let serve: &[&str] = &["--identity", "name+systemUUID"];
    let nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, serve, ..Setup::default() });
    until_led(&nodegate).await;
    let info = |uuid: &str| {
        json!({"nodeInfo": {"systemUUID": uuid, "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
               "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux",
               "osImage": ""}})
    };
    let labels: BTreeMap<String, String> =
        (0..120).map(|at| (format!("persist.demo/{at:0>40}"), "x".repeat(63))).collect();
    let mut machine = node("kept-uuid", json!(labels));
    machine["status"] = info("first");
    let kubelet = Requester::kubelet(cluster.plane, "kept-uuid").await;
    kubelet.create(&machine).await.unwrap();
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    eventually_state(&maps, "kept-uuid", "saved", |state| !state["labels"].is_null()).await;
    for at in 0..75 {
        kubelet.merge_status("kept-uuid", json!({"status": info(&format!("made-up-{at}"))})).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    is_repaired(&admin, "kept-uuid").await;
    let data = maps.get("node-labels-kept-uuid").await.unwrap().data.unwrap();
    assert!(data.len() <= 4, "one is in force and three are kept aside: {:?}", data.keys());
    until_told(cluster.plane, &nodegate, "kept-uuid", "RecordsDropped").await;
    admin.delete("kept-uuid").await;
}

/// Policies that refuse to write ConfigMaps whose names begin so.
fn refusal(prefix: &str) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no-records"},
         "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                      "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]},
                  "validations": [{"expression": format!("!request.name.startsWith('{prefix}')"), "reason": "Forbidden"}]}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "no-records"},
         "spec": {"policyName": "no-records", "validationActions": ["Deny"]}}]})
    .to_string()
}

#[tokio::test]
async fn a_deletion_that_cannot_be_recorded_is_tried_again() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    admin.delete("kept-gone").await;
    let nodegate = Nodegate::start(plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    admin.create(&node("kept-gone", json!({"persist.demo/a": "1"}))).await.unwrap();
    eventually_state(&maps, "kept-gone", "recorded", |state| state["labels"]["persist.demo/a"] == "1").await;
    let refusal = refusal("node-labels-kept-gone");
    plane.kubectl(&["apply", "-f", "-"], Some(&refusal)).unwrap();
    until_denied(plane, None, "node-labels-kept-gone-mark").await;
    admin.label("kept-gone", "persist.demo/a", json!("2")).await.unwrap();
    admin.delete("kept-gone").await;
    let deleted = jiff::Timestamp::now();
    let is_told = || nodegate.log().contains("could not record the deletion of the node");
    nodegate.eventually("the deletion cannot be recorded", is_told).await;
    plane.kubectl(&["delete", "-f", "-"], Some(&refusal)).unwrap();
    let recorded = |state: &Value| state["labels"]["persist.demo/a"] == "2" && state["deletedAt"].is_string();
    let state = eventually_state(&maps, "kept-gone", "recorded again", recorded).await;
    let at: jiff::Timestamp = state["deletedAt"].as_str().unwrap().parse().unwrap();
    assert!((deleted.as_second() - at.as_second()).abs() <= 2, "{at} instead of {deleted}");
}

#[tokio::test]
async fn nodes_are_reconciled_while_their_records_are_refused_and_their_keys_stay_owned() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let nodes = names("kept-deny", 2);
    delete_all(&admin, &nodes).await;
    let nodegate = Nodegate::start(plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let quota = refusal("node-labels-kept-deny");
    plane.kubectl(&["apply", "-f", "-"], Some(&quota)).unwrap();
    until_denied(plane, None, "node-labels-kept-deny-mark").await;
    for name in &nodes {
        let kubelet = Requester::kubelet(plane, name).await;
        let created = kubelet.create(&node(name, json!({"team": "ml"}))).await.unwrap();
        assert!(is_pending(&created));
        let right = |node: &Value| is_right(node) && label(node, "team.example.com/quota") == Some("large");
        admin.eventually(name, "right without a record", right).await;
        is_repaired(&admin, name).await;
        until_told(plane, &nodegate, name, "NotRecorded").await;
    }
    assert!(metric(&nodegate, "nodegate_unrecorded_nodes") >= 2.0);
    let maps = config_maps(plane, &nodegate.namespace).await;
    assert!(maps.get_opt("node-labels-kept-deny-0").await.unwrap().is_none(), "it was recorded, so nothing is shown");
    plane.kubectl(&["delete", "-f", "-"], Some(&quota)).unwrap();
    // What admission and the controller gave is known to be owned: it goes with its rule.
    let owned = |state: &Value| state["owned"]["labels"]["team.example.com/quota"] == "large";
    eventually_state(&maps, &nodes[0], "the record is tried again", owned).await;
    admin.label(&nodes[0], "team", Value::Null).await.unwrap();
    admin.eventually(&nodes[0], "removed", |node| label(node, "team.example.com/quota").is_none()).await;
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
async fn annotations_that_do_not_fit_prevent_no_label_no_taint_and_no_release() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    admin.delete("kept-full").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: annotated}\nspec:\n  rules:\n    \
                  - {name: a, match: {names: [kept-full]}, annotations: {example.com/owner: platform}}\n";
    std::fs::write(&file, policy).unwrap();
    let policies: &[&str] = &["tests/cluster/keeping.yaml", file.to_str().unwrap()];
    let nodegate = Nodegate::start(plane, &Setup { policies, cluster: true, unregistered: true, ..Setup::default() });
    until_led(&nodegate).await;
    let mut full = node("kept-full", json!({}));
    // Keys and values of all annotations together have just as many bytes as the API server takes.
    full["metadata"]["annotations"] = json!({"pad": "x".repeat(256 * 1024 - "pad".len())});
    full["spec"] = json!({"taints": [{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]});
    Requester::kubelet(plane, "kept-full").await.create(&full).await.unwrap();
    let right = admin.eventually("kept-full", "right but for the annotation", is_right).await;
    assert!(right["metadata"]["annotations"]["example.com/owner"].is_null());
    is_repaired(&admin, "kept-full").await;
    until_told(plane, &nodegate, "kept-full", "AnnotationsLeftOut").await;
    assert!(metric(&nodegate, "nodegate_annotations_left_out_total") > 0.0);
    admin.delete("kept-full").await;
}

#[tokio::test]
async fn a_record_that_was_deleted_meanwhile_does_not_come_back() {
    let cluster = exclusive();
    let api = config_maps(cluster.plane, "default").await;
    let maps = ConfigMaps::new(cluster.plane.client(None).await, "default", Arc::default());
    let writer = StateWriter::new(maps.clone(), "nodegate");
    let first = SavedState { node_name: "gone".to_owned(), node_uid: Some("x".to_owned()), ..SavedState::default() };
    assert!(writer.write(&SavedState::default(), &first, &[]).await.unwrap().wrote);
    let stored = maps.states().all().pop().unwrap();
    let ended = SavedState { deleted_at: Some("2026-01-14T17:00:00Z".to_owned()), ..(*stored).clone() };
    // Once before this process learned of it, and once after.
    for known in [true, false] {
        api.delete("node-labels-gone", &DeleteParams::default()).await.ok();
        assert_eq!(maps.states().all().is_empty(), !known);
        let written = writer.write(&stored, &ended, &[]).await;
        assert!(matches!(written, Err(WriteError::Changed(_))), "{written:?}");
        assert!(maps.states().all().is_empty());
        assert_eq!(api.get_opt("node-labels-gone").await.unwrap(), None);
    }
    // A new one is written.
    assert!(writer.write(&SavedState::default(), &first, &[]).await.unwrap().wrote);
    assert_eq!(state(&api, "gone").await["nodeUID"], "x");
}
