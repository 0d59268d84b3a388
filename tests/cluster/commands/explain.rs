//! `nodegate explain` in a cluster.

use serde_json::{Value, json};

use super::super::control_plane::exclusive;
use super::super::identity::machine;
use super::super::keeping::{config_maps, eventually_state, is_pending, leading, node, setup};
use super::super::requester::Requester;
use super::cleanup::store;
use super::run;
use crate::shared::output::assert_conforms;

#[tokio::test]
async fn explain_uses_what_is_in_force_and_what_is_recorded() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let nodegate = leading(plane, &setup()).await;
    admin.delete("kept-why").await;
    let kubelet = Requester::kubelet(plane, "kept-why").await;
    kubelet.create(&node("kept-why", json!({"kubernetes.io/arch": "amd64"}))).await.unwrap();
    admin.eventually("kept-why", "not pending", |node| !is_pending(node)).await;
    admin.label("kept-why", "note", json!("mine")).await.unwrap();
    let maps = config_maps(plane, &nodegate.namespace).await;
    let recorded =
        |state: &Value| state["history"].as_array().is_some_and(|all| all.iter().any(|change| change["key"] == "note"));
    eventually_state(&maps, "kept-why", "has recorded the label", recorded).await;

    // The policies of --policy are known to nodegate only, and no flag names them here.
    let arguments = ["explain", "kept-why", "--namespace", &nodegate.namespace, "-o", "json"];
    let ran = run(plane, None, &arguments);
    assert_eq!(ran.errors, "");
    let answer: Value = serde_json::from_str(&ran.with(0)).unwrap();
    assert_conforms("explain", &answer);
    let entry = |key: &str| {
        let found = answer["entries"].as_array().unwrap().iter().find(|entry| entry["key"] == key);
        found.unwrap_or_else(|| panic!("{key} is not explained: {answer:#}"))
    };
    let rule = json!({"kind": "rule", "policy": "keeping", "rule": "role", "priority": 0, "mode": "enforced"});
    for key in ["hardware.tier", "node-role.kubernetes.io/worker", "fleet"] {
        assert_eq!((&entry(key)["source"], &entry(key)["owned"]), (&rule, &json!(true)), "{key}: {answer:#}");
    }
    // Admission set it in the CREATE; the other one was deferred, so the controller wrote it a moment later.
    let created = admin.get("kept-why").await["metadata"]["creationTimestamp"].clone();
    assert_eq!(entry("hardware.tier")["since"], created);
    let second = |time: &Value| time.as_str().unwrap()[..19].to_owned();
    assert!(second(&entry("node-role.kubernetes.io/worker")["since"]) >= second(&created), "{answer:#}");
    // The API server does not record who writes single taints.
    assert_eq!(entry("node.kubernetes.io/not-ready")["source"]["kind"], "unknown");
    // This kubelet's client names no field manager.
    assert_eq!(entry("kubernetes.io/arch")["source"]["manager"], "unknown");
    assert_eq!((&entry("note")["source"]["kind"], &entry("note")["owned"]), (&json!("user"), &json!(false)));
    assert!(entry("note")["since"].is_string());
    assert_eq!(answer["missing"], json!([]));

    let why_not = run(
        plane,
        None,
        &["explain", "kept-why", "--why-not", "team.example.com/quota", "--namespace", &nodegate.namespace],
    );
    let expected = "rule keeping/by-label (priority 0): false on node kept-why\n  false    label team In [ml]   (label team is absent)\n";
    assert_eq!(why_not.with(0), expected);
    let absent = run(plane, None, &["explain", "kept-nobody", "--namespace", &nodegate.namespace]);
    assert!(absent.code == 2 && absent.errors.contains("no node kept-nobody in the cluster"), "{}", absent.errors);
    // Where nobody serves, that is said, and the node is explained as far as it goes.
    let elsewhere =
        run(plane, None, &["explain", "kept-why", "--namespace", "default", "--policy", "tests/cluster/keeping.yaml"]);
    assert!(
        elsewhere.errors.contains("ConfigMap nodegate-in-force does not exist in namespace default"),
        "{}",
        elsewhere.errors
    );
    assert!(elsewhere.errors.contains("no saved state for node kept-why"), "{}", elsewhere.errors);
    assert!(elsewhere.with(0).contains("hardware.tier"));
    admin.delete("kept-why").await;
}

#[tokio::test]
async fn the_record_is_that_of_the_machine_and_an_unreadable_one_is_said() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let namespace = "explain-machine";
    plane.kubectl(&["create", "namespace", namespace], None).unwrap();
    let maps = config_maps(plane, namespace).await;
    admin.delete("machine-1").await;
    let mut node = machine("machine-1", "B");
    node["metadata"]["labels"] = json!({"old.test/tier": "gold"});
    let uid = admin.create(&node).await.unwrap()["metadata"]["uid"].clone();
    // Another machine had the name before, so that its record has the usual name.
    let record = |machine: &str, owned: Value, more: Value| {
        let mut record = json!({"nodeName": "machine-1", "nodeUID": uid, "identity": format!("systemUUID={machine}"), "owned": {"labels": owned},
            "history": [{"id": 1, "time": "2099-01-01T00:00:00Z", "by": machine, "how": "user", "field": "label", "key": "old.test/tier", "new": "gold"}]});
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record.to_string()
    };
    let other = record("A", json!({}), json!({"deletedAt": "2026-01-01T00:00:00Z"}));
    store(&maps, "node-labels-machine-1", &[("state.json", other)]).await;
    store(
        &maps,
        "node-labels-machine-1-0123456789abcdef",
        &[("state.json", record("B", json!({"old.test/tier": "gold"}), json!({})))],
    )
    .await;
    let explain = |more: &[&str]| {
        let arguments = ["explain", "machine-1", "--namespace", namespace, "-o", "json"];
        let answer: Value = serde_json::from_str(&run(plane, None, &[&arguments[..], more].concat()).with(0)).unwrap();
        assert_conforms("explain", &answer);
        let entries = answer["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["key"] == "old.test/tier").unwrap();
        let since = entry["since"].as_str().unwrap_or_default() == "2099-01-01T00:00:00Z";
        (entry["owned"].clone(), since, answer["savedStateUnknown"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(explain(&["--identity", "systemUUID"]), (json!(true), true, String::new()));
    let (owned, _, why) = explain(&[]);
    assert!(owned == false && why == "namespace explain-machine has no saved state for node machine-1", "{why}");
    let history = run(plane, None, &["history", "machine-1", "--namespace", namespace]).with(0);
    assert!(history.contains("(B)") && !history.contains("(A)"), "{history}");

    plane.kubectl(&["-n", namespace, "delete", "configmap", "--all"], None).unwrap();
    store(&maps, "node-labels-machine-1", &[("state.json", "{\"nodeName\": 1".to_owned())]).await;
    let (owned, _, why) = explain(&[]);
    assert!(
        owned == false
            && why.starts_with("saved state in ConfigMap node-labels-machine-1 is not used: it is unreadable: "),
        "{why}"
    );
    let table = run(plane, None, &["explain", "machine-1", "--all", "--namespace", namespace]);
    assert!(
        table.errors.contains("note: it is unknown what nodegate owns: saved state in ConfigMap"),
        "{}",
        table.errors
    );
    assert!(table.with(0).contains("  unknown  "));
    let history = run(plane, None, &["history", "machine-1", "--namespace", namespace]);
    assert!(
        history.code == 2
            && history
                .errors
                .contains("node-labels-machine-1 of namespace explain-machine is not used: it is unreadable")
    );
    let all = run(plane, None, &["history", "--all", "--namespace", namespace]);
    assert!(
        all.errors.contains("note: saved state in ConfigMap node-labels-machine-1 is not used: it is unreadable"),
        "{}",
        all.errors
    );
    admin.delete("machine-1").await;
    plane.kubectl(&["delete", "namespace", namespace, "--wait=false"], None).unwrap();
}
