//! What the leader sees of nodes: whatever one of them holds, and when it sees none.

use std::time::Duration;

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, eventually_state, is_pending, leading, node, tells, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::for_a_while;

const POLICY: &[&str] = &["tests/cluster/keeping.yaml"];
const ROLE: &str = "node-role.kubernetes.io/worker";

fn setup() -> Setup<'static> {
    Setup { policies: POLICY, cluster: true, ..Setup::default() }
}

/// A request of a kubelet whose answer is not read as an object: no reader of this process takes what it stored.
async fn send(plane: &ControlPlane, kubelet: &str, method: &str, path: &str, body: String) {
    let user = format!("system:node:{kubelet}");
    let client = plane.client(Some((&user, &["system:nodes", "system:authenticated"]))).await;
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = hyper::Request::builder().method(method).uri(path).header("content-type", kind);
    client.request_text(request.body(body.into_bytes()).unwrap()).await.unwrap();
}

fn read_by_kubectl(plane: &ControlPlane, name: &str, what: &str) -> String {
    plane.kubectl(&["get", "node", name, "-o", &format!("jsonpath={what}")], None).unwrap()
}

pub(super) fn has_metric(nodegate: &Nodegate<'_>, line: &str) -> bool {
    nodegate.probe("/metrics").is_some_and(|text| text.contains(&format!("\n{line}\n")))
}

fn events(plane: &ControlPlane, name: &str) -> String {
    let of = format!("regarding.name={name}");
    plane
        .kubectl(
            &["get", "events.events.k8s.io", "-A", "--field-selector", &of, "-o", "jsonpath={.items[*].reason}"],
            None,
        )
        .unwrap()
}

/// No line of the log holds an object or a list.
fn assert_brief(nodegate: &Nodegate<'_>) {
    let log = nodegate.log();
    let longest = log.lines().max_by_key(|line| line.len()).unwrap_or_default();
    assert!(longest.len() < 8 * 1024, "a line of {} bytes: {}", longest.len(), &longest[..1024]);
}

#[tokio::test]
async fn deeply_nested_managed_fields_of_a_node_do_not_stop_a_new_leader() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    for name in ["kept-deep", "kept-beside", "kept-new"] {
        admin.delete(name).await;
    }
    let (deep, beside) =
        (Requester::kubelet(cluster.plane, "kept-deep").await, Requester::kubelet(cluster.plane, "kept-beside").await);
    deep.create(&node("kept-deep", json!({}))).await.unwrap();
    beside.create(&node("kept-beside", json!({}))).await.unwrap();
    let nested = format!("{}{}{}", r#"{"f:a":"#.repeat(150), "{}", "}".repeat(150));
    let claim = format!(
        r#"{{"metadata":{{"managedFields":[{{"manager":"kubelet","operation":"Update","apiVersion":"v1",
            "time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{nested}}}]}}}}"#
    );
    send(cluster.plane, "kept-deep", "PATCH", "/api/v1/nodes/kept-deep", claim).await;
    let stored = cluster.plane.kubectl(&["get", "--raw", "/api/v1/nodes/kept-deep"], None).unwrap();
    assert!(stored.contains(&r#"{"f:a":"#.repeat(150)), "it was not stored, so nothing is shown: {stored}");

    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    admin.eventually("kept-beside", "kept", |node| label(node, ROLE).is_some()).await;
    let kubelet = Requester::kubelet(cluster.plane, "kept-new").await;
    kubelet.create(&node("kept-new", json!({}))).await.unwrap();
    let new = admin.eventually("kept-new", "not pending", |node| !is_pending(node)).await;
    assert!(label(&new, ROLE).is_some());
    // It is itself kept like any other.
    let labels = || read_by_kubectl(cluster.plane, "kept-deep", "{.metadata.labels}");
    nodegate.eventually("the deep node is kept as well", || labels().contains(ROLE)).await;
    assert!(has_metric(&nodegate, "nodegate_unreadable_nodes 0"));
    assert_brief(&nodegate);
    for name in ["kept-deep", "kept-beside", "kept-new"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn a_node_with_many_empty_images_does_not_exhaust_the_leaders_memory() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    for name in ["kept-images", "kept-beside"] {
        admin.delete(name).await;
    }
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    Requester::kubelet(cluster.plane, "kept-images").await.create(&node("kept-images", json!({}))).await.unwrap();
    admin.eventually("kept-images", "kept", |node| label(node, ROLE).is_some()).await;
    let images = format!(r#"{{"status":{{"images":[{}]}}}}"#, vec!["{}"; 390_000].join(","));
    send(cluster.plane, "kept-images", "PATCH", "/api/v1/nodes/kept-images/status", images).await;
    nodegate.eventually("it is counted", || has_metric(&nodegate, "nodegate_nodes_read_in_part 1")).await;
    nodegate.eventually("and named", || events(cluster.plane, "kept-images").contains("ReadInPart")).await;
    // What it holds is in the way of nothing, its own repair neither.
    send(
        cluster.plane,
        "kept-images",
        "PATCH",
        "/api/v1/nodes/kept-images/status",
        r#"{"metadata":{"labels":{"hardware.tier":"forged"}}}"#.to_owned(),
    )
    .await;
    let tier = || read_by_kubectl(cluster.plane, "kept-images", "{.metadata.labels.hardware\\.tier}");
    nodegate.eventually("it is repaired", || tier() == "standard").await;
    Requester::kubelet(cluster.plane, "kept-beside").await.create(&node("kept-beside", json!({}))).await.unwrap();
    admin.eventually("kept-beside", "kept", |node| label(node, ROLE).is_some() && !is_pending(node)).await;
    let peak = nodegate.peak_memory();
    assert!(peak < 256 << 20, "{peak} bytes");
    assert_brief(&nodegate);
    for name in ["kept-images", "kept-beside"] {
        admin.delete(name).await;
    }
}

/// Everything that nodegate may, but for seeing nodes.
const BLIND: &str = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "sightless"}, "rules": [
    {"apiGroups": [""], "resources": ["configmaps", "secrets", "events", "namespaces"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": ["coordination.k8s.io", "admissionregistration.k8s.io", "nodegate.dev", "events.k8s.io", "authentication.k8s.io", "apps"],
     "resources": ["*"], "verbs": ["*"]}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_cannot_watch_nodes_releases_its_lease_and_strands_no_node() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let admin = Requester::admin(plane).await;
    admin.delete("kept-unseen").await;
    let namespace = "nodegate-sightless";
    let binding = format!("--user=system:serviceaccount:{namespace}:nodegate");
    let bind = |name: &str, role: &str| {
        plane.kubectl(&["create", "clusterrolebinding", name, &format!("--clusterrole={role}"), &binding], None)
    };
    plane.kubectl(&["apply", "-f", "-"], Some(BLIND)).unwrap();
    let _ = bind("sightless", "sightless");
    let _ = bind("seeing", "cluster-admin");
    // The term outlives the pause of the API server.
    let setup =
        Setup { policies: POLICY, namespace: Some(namespace), own_rights: true, lease_seconds: 20, ..Setup::default() };
    let nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    plane.kubectl(&["delete", "clusterrolebinding", "seeing"], None).unwrap();
    // Rights are asked for when a watch begins: the one there is goes on until its connection ends.
    tokio::task::block_in_place(|| plane.restart_api_server(Duration::ZERO));
    let is_told = || nodegate.probe("/readyz").is_some_and(|text| text.contains("cannot watch nodes"));
    nodegate.eventually("readiness tells", is_told).await;
    let holder =
        || plane.kubectl(&["-n", namespace, "get", "lease", "nodegate", "-o", "jsonpath={.spec.holderIdentity}"], None);
    nodegate.eventually("the Lease is given up", || holder().is_ok_and(|holder| holder.is_empty())).await;
    assert!(has_metric(&nodegate, "nodegate_node_watch_failing 1") && has_metric(&nodegate, "nodegate_leading 0"));
    let attempts = || nodegate.log().matches("this replica does not try to become leader").count();
    let before = attempts();
    let is_ready = || nodegate.probe("/readyz").is_some_and(|text| text.starts_with("HTTP/1.1 200"));
    nodegate.eventually("it goes on serving", is_ready).await;
    let kubelet = Requester::kubelet(plane, "kept-unseen").await;
    let created = kubelet.create(&node("kept-unseen", json!({}))).await.unwrap();
    assert!(!is_pending(&created) && taints(&created).contains(&"fleet=kept:NoSchedule".to_owned()), "{created:#}");
    nodegate.eventually("it would lead if it saw nodes", || attempts() > before).await;
    assert!(holder().unwrap().is_empty(), "it leads again although it sees nothing");
    assert_brief(&nodegate);

    bind("seeing", "cluster-admin").unwrap();
    admin.eventually("kept-unseen", "kept by who sees again", |node| label(node, ROLE).is_some()).await;
    assert!(has_metric(&nodegate, "nodegate_node_watch_failing 0"));
    admin.delete("kept-unseen").await;
    plane.kubectl(&["delete", "clusterrolebinding", "seeing", "sightless"], None).unwrap();
    plane.kubectl(&["delete", "clusterrole", "sightless"], None).unwrap();
}

fn owns(state: &Value, key: &str) -> bool {
    state["owned"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
}

#[tokio::test]
async fn taints_set_at_admission_right_after_the_registration_are_owned() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-first").await;
    let mut nodegate = Nodegate::start_unregistered(cluster.plane, &setup());
    until_led(&nodegate).await;
    nodegate.register(&setup());
    nodegate.until_nodes_are_younger().await;
    let kubelet = Requester::kubelet(cluster.plane, "kept-first").await;
    let created = kubelet.create(&node("kept-first", json!({}))).await.unwrap();
    assert!(taints(&created).contains(&"fleet=kept:NoSchedule".to_owned()), "{created:#}");
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    let state = eventually_state(&maps, "kept-first", "recorded", |state| state["nodeUID"].is_string()).await;
    assert!(owns(&state, "fleet"), "{state:#}");
    admin.delete("kept-first").await;
}

#[tokio::test]
async fn a_taint_set_by_a_rule_is_removed_with_its_label_and_one_set_by_hand_stays() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    for name in ["older-1", "older-2"] {
        admin.delete(name).await;
        // They are there before the webhook is.
        admin.create(&node(name, json!({}))).await.unwrap();
    }
    let setup = Setup { policies: &["tests/cluster/sight.yaml"], ..setup() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in ["older-1", "older-2"] {
        eventually_state(&maps, name, "recorded", |state| state["nodeUID"].is_string()).await;
    }
    let by_hand = "dedicated=ml:NoSchedule".to_owned();
    let set = json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]);
    admin.merge("older-2", json!({"spec": {"taints": set}})).await.unwrap();
    let is_told = |state: &Value| tells(state, "dedicated:NoSchedule", None, Some("ml"));
    eventually_state(&maps, "older-2", "its taint is told", is_told).await;
    for name in ["older-1", "older-2"] {
        let labelled = admin.label(name, "team", json!("ml")).await.unwrap();
        assert!(taints(&labelled).contains(&by_hand), "{name}: {labelled:#}");
        let owned = |state: &Value| state["owned"]["labels"]["team.example.com/quota"] == "large";
        let state = eventually_state(&maps, name, "recorded", owned).await;
        assert_eq!(owns(&state, "dedicated"), name == "older-1", "{name}: {state:#}");
    }
    for name in ["older-1", "older-2"] {
        admin.label(name, "team", Value::Null).await.unwrap();
        let ended =
            admin.eventually(name, "without the rule", |node| label(node, "team.example.com/quota").is_none()).await;
        assert_eq!(taints(&ended).contains(&by_hand), name == "older-2", "{name}: {:?}", taints(&ended));
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn nodes_and_changes_admitted_while_every_replica_was_down_are_reported_and_repaired() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    for name in ["guarded-1", "guarded-2", "guarded-3"] {
        admin.delete(name).await;
    }
    let setup = Setup { policies: &["tests/cluster/unseen.yaml"], ..setup() };
    let mut nodegate = leading(cluster.plane, &setup).await;
    let namespace = nodegate.namespace.clone();
    let maps = config_maps(cluster.plane, &namespace).await;
    for name in ["guarded-1", "guarded-3"] {
        Requester::kubelet(cluster.plane, name).await.create(&node(name, json!({}))).await.unwrap();
        eventually_state(&maps, name, "recorded", |state| state["nodeUID"].is_string()).await;
    }
    nodegate.kill();
    let kubelet = Requester::kubelet(cluster.plane, "guarded-1").await;
    kubelet.label("guarded-1", "class.example.com/tier", json!("forged")).await.unwrap();
    let kubelet = Requester::kubelet(cluster.plane, "guarded-2").await;
    kubelet.create(&node("guarded-2", json!({"colour": "purple"}))).await.unwrap();

    let back = Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), ..setup });
    for name in ["guarded-1", "guarded-2"] {
        back.eventually(name, || events(cluster.plane, name).contains("AdmittedUnseen")).await;
        admin.eventually(name, "repaired", |node| label(node, "class.example.com/tier") == Some("gold")).await;
    }
    assert!(!events(cluster.plane, "guarded-3").contains("AdmittedUnseen"), "nothing happened to it");
    // A node that has no name yet when admission reviews it was reviewed all the same.
    let unnamed = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"generateName": "guarded-"}}"#;
    let created = cluster.plane.kubectl(&["create", "-f", "-", "-o", "name"], Some(unnamed)).unwrap();
    let generated = created.trim().strip_prefix("node/").unwrap();
    admin.eventually(generated, "labelled", |node| label(node, "class.example.com/tier") == Some("gold")).await;
    eventually_state(&maps, generated, "recorded", |state| state["nodeUID"].is_string()).await;
    assert!(!events(cluster.plane, generated).contains("AdmittedUnseen"), "{}", events(cluster.plane, generated));
    admin.delete(generated).await;
    assert!(has_metric(&back, "nodegate_admitted_unseen_total 2"));
    // What the node violates since is counted, and `report --violations` shows it.
    let violating = r#"nodegate_violating_nodes{policy="unseen",rule="colours",mode="enforce"} 1"#;
    back.eventually("the violation is counted", || has_metric(&back, violating)).await;
    for name in ["guarded-1", "guarded-2", "guarded-3"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn a_missing_right_is_one_line_with_the_command_that_grants_it() {
    let cluster = exclusive();
    // Nobody has given this account any right.
    let setup = Setup { own_rights: true, environment: &[("RUST_LOG", "info")], ..setup() };
    let nodegate = Nodegate::spawn(cluster.plane, &setup);
    let namespace = nodegate.namespace.clone();
    let lease = format!(
        "kubectl -n {namespace} create role nodegate-list-leases --verb=list --resource=leases.coordination.k8s.io"
    );
    nodegate.eventually("the command is logged", || nodegate.log().contains(&lease)).await;
    // It tries again all the time, and says nothing of that.
    for_a_while(Duration::from_secs(20)).await;
    let log = nodegate.log();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.iter().all(|line| !line.contains("is forbidden") && !line.contains("Api(Status")), "{log}");
    let granting: Vec<&&str> = lines.iter().filter(|line| line.contains("lacks a right")).collect();
    let rights: std::collections::BTreeSet<String> =
        granting.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["command"].to_string()).collect();
    assert!(rights.len() == granting.len() && granting.len() >= 3 && lines.len() < 40, "{log}");
    // The commands work.
    let command = |right: &str| {
        let line = granting.iter().find(|line| line.contains(right)).unwrap();
        serde_json::from_str::<Value>(line).unwrap()["command"].as_str().unwrap().to_owned()
    };
    for part in command("create role nodegate-list-leases").split(" && ") {
        let words: Vec<&str> = part.split(' ').skip(1).collect();
        cluster.plane.kubectl(&words, None).unwrap();
    }
    let account = format!("--as=system:serviceaccount:{namespace}:nodegate");
    let may = cluster
        .plane
        .kubectl(&["auth", "can-i", "list", "leases.coordination.k8s.io", "-n", &namespace, &account], None);
    assert_eq!(may.unwrap().trim(), "yes");
}
