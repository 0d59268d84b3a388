//! The guard: what kubelets may not assert holds in the API server itself, with every replica dead.

mod installed;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub(crate) use self::installed::Guard;
use self::installed::{until_guarded, until_stripped};
use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Outcome, Requester, Way, label};
use super::sight::has_metric;
use crate::eventually::{eventually, holds};

const TIER: &str = "class.example.com/tier";
const POLICIES: &[&str] = &["tests/cluster/guard.yaml"];
const KUBELETS: [&str; 3] = ["kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"];

fn refused(outcome: Outcome, key: &str) {
    let refusal = outcome.expect_err(key);
    assert_eq!(refusal.code, 403, "{key}: {}", refusal.message);
    assert!(refusal.message.contains("nodegate") && refusal.message.contains("kubelet"), "{}", refusal.message);
}

fn labels(pairs: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
}

/// Starts nodegate with the guard, and kills it once the API server has everything; its webhooks stay registered.
async fn with_every_replica_dead(plane: &ControlPlane) -> (Nodegate<'_>, Guard<'_>) {
    let setup = Setup { policies: POLICIES, cluster: true, ..Setup::default() };
    let mut nodegate = Nodegate::start(plane, &setup);
    drop(Guard::install(plane, &[]));
    // Once more: parameters are followed by a guard that is installed again as well.
    let guard = Guard::install(plane, &[]);
    until_led(&nodegate).await;
    until_guarded(plane, "vault.example.com/x").await;
    nodegate.kill();
    until_stripped(plane, "vault.example.com/x").await;
    until_stripped(plane, "nodegate.dev/probe").await;
    (nodegate, guard)
}

#[tokio::test]
async fn without_a_replica_a_kubelet_cannot_set_protected_persisted_or_own_keys() {
    let cluster = exclusive();
    let _dead = with_every_replica_dead(cluster.plane).await;
    let (admin, kubelet) =
        (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "guarded-1").await);
    admin.delete("guarded-1").await;
    // What it forges as it joins is taken out; what may come with a joining node stays.
    let mut forged = node(
        "guarded-1",
        json!({TIER: "gold", "vault.example.com/a": "x", "nodegate.dev/x": "x",
        "a.nodegate.dev/x": "x", "kept.example.com/a": "mine", "free": "1"}),
    );
    forged["metadata"]["annotations"] = json!({"nodegate.dev/owned": "x", "mine": "x"});
    let created = kubelet.create(&forged).await.expect("a kubelet joins");
    for key in [TIER, "vault.example.com/a", "nodegate.dev/x", "a.nodegate.dev/x"] {
        assert_eq!(label(&created, key), None, "{created:#}");
    }
    assert_eq!(label(&created, "kept.example.com/a"), Some("mine"));
    assert_eq!(label(&created, "free"), Some("1"));
    // What was taken out is left for the leader, who tells it.
    let annotations = &created["metadata"]["annotations"];
    assert_eq!((&annotations["mine"], annotations.as_object().unwrap().len()), (&json!("x"), 2), "{created:#}");
    let mark: Value = serde_json::from_str(annotations["nodegate.dev/admission"].as_str().unwrap()).unwrap();
    let rejected = json!({TIER: "gold", "vault.example.com/a": "x"});
    assert_eq!(mark, json!({"rejected": rejected, "own": 3, "owners": false, "guard": true}));
    admin.label("guarded-1", "vault.example.com/b", json!("given")).await.unwrap();

    for status in [false, true] {
        for way in Way::ALL {
            for (key, value) in [
                (TIER, Some("gold")),
                ("vault.example.com/a", Some("x")),
                ("vault.example.com/b", Some("other")),
                ("kept.example.com/a", Some("other")),
                ("kept.example.com/new", Some("x")),
                ("team", Some("ml")),
                ("nodegate.dev/x", Some("x")),
                ("a.nodegate.dev/x", Some("x")),
            ] {
                refused(kubelet.set_labels("guarded-1", way, status, &labels(&[(key, value)])).await, key);
            }
            // An apply takes away only what an apply has set.
            if !matches!(way, Way::Apply) {
                for key in ["vault.example.com/b", "kept.example.com/a"] {
                    refused(kubelet.set_labels("guarded-1", way, status, &labels(&[(key, None)])).await, key);
                }
            }
        }
        let annotation = json!({"metadata": {"annotations": {"nodegate.dev/last-change": "admin"}}});
        let outcome = if status {
            kubelet.merge_status("guarded-1", annotation).await
        } else {
            kubelet.merge("guarded-1", annotation).await
        };
        refused(outcome, "an annotation of nodegate");
    }
    let stored = admin.get("guarded-1").await;
    for key in [TIER, "vault.example.com/a", "kept.example.com/new", "team", "nodegate.dev/x"] {
        assert_eq!(label(&stored, key), None, "{stored:#}");
    }
    assert_eq!(label(&stored, "vault.example.com/b"), Some("given"));
    let deleted = kubelet.try_delete("guarded-1").await.expect_err("a kubelet may not delete its node");
    assert_eq!(deleted.code, 403, "{}", deleted.message);
    // Everybody else goes on.
    admin.label("guarded-1", TIER, json!("gold")).await.unwrap();
    admin.delete("guarded-1").await;
}

#[tokio::test]
async fn without_a_replica_a_kubelet_cannot_set_protected_keys_at_any_size_or_depth() {
    let cluster = exclusive();
    let _dead = with_every_replica_dead(cluster.plane).await;
    let (admin, kubelet) =
        (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "guarded-2").await);
    admin.delete("guarded-2").await;
    kubelet.create(&node("guarded-2", json!({}))).await.unwrap();
    let condition = json!({"type": "Ready", "status": "True", "message": "<".repeat(1_250_000)});
    kubelet.merge_status("guarded-2", json!({"status": {"conditions": [condition]}})).await.expect("its status");
    refused(kubelet.label("guarded-2", TIER, json!("gold")).await, TIER);
    let deep = (0..150).fold(json!({}), |inner, _| json!({"f:x": inner}));
    let claim = json!({"manager": "x", "operation": "Update", "apiVersion": "v1", "time": "2020-01-01T00:00:00Z",
                       "fieldsType": "FieldsV1", "fieldsV1": deep});
    // By kubectl: the answer is nested too deep for this client.
    let patch = json!({"metadata": {"managedFields": [claim]}}).to_string();
    let who = ["--as=system:node:guarded-2", "--as-group=system:nodes", "--as-group=system:authenticated"];
    let arguments = ["patch", "node", "guarded-2", "--type=merge", "-p", &patch];
    cluster.plane.kubectl(&[&arguments[..], &who].concat(), None).expect("its claims");
    refused(kubelet.label("guarded-2", TIER, json!("gold")).await, TIER);
    admin.delete("guarded-2").await;

    // More labels than the API server looks through: the node joins with those that every kubelet has.
    let mut many: Map<String, Value> = (0..5_000).map(|number| (format!("l{number}"), json!(""))).collect();
    many.insert(TIER.to_owned(), json!("gold"));
    for key in KUBELETS {
        many.insert(key.to_owned(), json!("guarded-2"));
    }
    let created = kubelet.create(&node("guarded-2", Value::Object(many.clone()))).await.expect("it joins");
    let there = created["metadata"]["labels"].as_object().unwrap();
    assert_eq!(there.keys().map(String::as_str).collect::<Vec<_>>(), [KUBELETS[2], KUBELETS[0], KUBELETS[1]]);
    // Nor does it get one among thousands later, whoever set them.
    let refusal =
        kubelet.merge("guarded-2", json!({"metadata": {"labels": many}})).await.expect_err("thousands of labels");
    assert_eq!(refusal.code, 403, "{}", refusal.message);
    many.remove(TIER);
    admin.merge("guarded-2", json!({"metadata": {"labels": many}})).await.unwrap();
    let refusal = kubelet.label("guarded-2", TIER, json!("gold")).await.expect_err("one more");
    assert!(refusal.message.contains("more than 1000 labels"), "{}", refusal.message);
    let ready = json!({"type": "Ready", "status": "True"});
    kubelet.merge_status("guarded-2", json!({"status": {"conditions": [ready]}})).await.expect("a heartbeat");
    admin.delete("guarded-2").await;
}

#[tokio::test]
async fn hundreds_of_guarded_keys_stay_within_the_api_servers_budget() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _guard = Guard::install(plane, &[]);
    let lines = |kind: &str| -> String {
        (0..250).map(|number| format!("{kind}{number}.example.com/x\n{kind}-all{number}.example.com/\n")).collect()
    };
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "nodegate", "annotations": {"nodegate.dev/protected": lines("p"), "nodegate.dev/persisted": lines("q")}}});
    plane.kubectl(&["create", "-f", "-"], Some(&configuration.to_string())).unwrap();
    until_guarded(plane, "q-all249.example.com/x").await;
    until_stripped(plane, "p-all249.example.com/x").await;
    let (admin, kubelet) = (Requester::admin(plane).await, Requester::kubelet(plane, "guarded-3").await);
    admin.delete("guarded-3").await;
    let mut many: Map<String, Value> = (0..900).map(|number| (format!("l{number}"), json!(""))).collect();
    many.insert("p-all7.example.com/x".to_owned(), json!("forged"));
    let created = kubelet.create(&node("guarded-3", Value::Object(many))).await.expect("it joins");
    assert_eq!(label(&created, "p-all7.example.com/x"), None);
    admin.merge("guarded-3", json!({"metadata": {"labels": (0..900).map(|number| (format!("l{number}"), json!(""))).collect::<Map<_, _>>()}})).await.unwrap();
    kubelet.label("guarded-3", "free", json!("1")).await.expect("a free label among 900");
    kubelet.label("guarded-3", "topology.kubernetes.io/zone", json!("a")).await.expect("what it reconciles");
    refused(kubelet.label("guarded-3", "p7.example.com/x", json!("1")).await, "an exact key");
    refused(kubelet.label("guarded-3", "q-all7.example.com/y", json!("1")).await, "a prefix");
    admin.delete("guarded-3").await;
    plane.kubectl(&["delete", "validatingwebhookconfiguration", "nodegate"], None).unwrap();
}

#[tokio::test]
async fn an_honest_kubelet_is_never_refused() {
    let cluster = exclusive();
    let plane = cluster.plane;
    plane.install_definition();
    let nodegate = Nodegate::start(plane, &Setup { policies: POLICIES, cluster: true, ..Setup::default() });
    let _guard = Guard::install(plane, &[]);
    until_led(&nodegate).await;
    until_guarded(plane, "vault.example.com/x").await;
    let (admin, kubelet) = (Requester::admin(plane).await, Requester::kubelet(plane, "guarded-4").await);
    admin.delete("guarded-4").await;
    // The guard takes out what it may not set, before nodegate sees the request, and says so.
    let forged = kubelet.create(&node("guarded-4", json!({TIER: "gold", "vault.example.com/x": "y"}))).await.unwrap();
    let mark = forged["metadata"]["annotations"]["nodegate.dev/admission"].as_str().unwrap();
    let mark: Value = serde_json::from_str(mark).unwrap();
    assert_eq!(mark["rejected"], json!({TIER: "gold", "vault.example.com/x": "y"}));
    admin.delete("guarded-4").await;
    let joining = node("guarded-4", json!({"kubernetes.io/hostname": "guarded-4", "pool": "a"}));
    let created = kubelet.create(&joining).await.unwrap();
    assert_eq!(label(&created, TIER), Some("standard"), "what a rule gives comes after what is taken out: {created:#}");
    assert_eq!(kubelet.create(&joining).await.unwrap_err().code, 409, "a restarted kubelet");
    // The value of a rule has just changed: the write of a kubelet meets it before or after the controller does.
    for round in 0..10 {
        let policy = json!({
            "apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "changing"},
            "spec": {"protect": {"keys": ["class.example.com/changing"]}, "persist": {"labels": ["team"]}, "rules": [
                {"name": "value", "match": {"names": ["guarded-*"]},
                 "labels": {"class.example.com/changing": format!("v{round}"), "kept.example.com/given": format!("v{round}")}}]},
        });
        plane.kubectl(&["apply", "-f", "-"], Some(&policy.to_string())).unwrap();
        for step in 0..10 {
            let beat = json!({"type": "Ready", "status": "True", "message": format!("{round} {step}")});
            kubelet.merge_status("guarded-4", json!({"status": {"conditions": [beat]}})).await.expect("a heartbeat");
            let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": format!("z{round}{step}")}}});
            kubelet.merge_status("guarded-4", zone.clone()).await.expect("what it reconciles");
            kubelet.merge("guarded-4", zone).await.expect("the same through nodes");
            kubelet.label("guarded-4", "pool", json!(format!("p{round}{step}"))).await.expect("a free label");
            let attach = json!({"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": format!("{step}")}}});
            kubelet.merge_status("guarded-4", attach).await.expect("its annotation");
        }
    }
    admin
        .eventually("guarded-4", "the last value", |node| label(node, "class.example.com/changing") == Some("v9"))
        .await;
    admin.delete("guarded-4").await;
    drop(nodegate);
}

#[tokio::test]
async fn the_parameters_follow_the_policies_and_are_restored() {
    let cluster = exclusive();
    let plane = cluster.plane;
    plane.install_definition();
    let nodegate = Nodegate::start(plane, &Setup { policies: POLICIES, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let read = || {
        let arguments = ["get", "validatingwebhookconfiguration", "nodegate", "-o", "json"];
        let there: Value = serde_json::from_str(&plane.kubectl(&arguments, None).unwrap()).unwrap();
        let annotations = &there["metadata"]["annotations"];
        (annotations["nodegate.dev/protected"].clone(), annotations["nodegate.dev/persisted"].clone())
    };
    let until = async |wanted: (&str, &str)| {
        eventually(&format!("{wanted:?}"), async || {
            let there = read();
            holds(there == (json!(wanted.0), json!(wanted.1)), || format!("{there:?}"))
        })
        .await;
    };
    let (protected, persisted) = (format!("{TIER}\nvault.example.com/\n"), "kept.example.com/\nteam\n");
    until((&protected, persisted)).await;
    let policy = r#"{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "more"},
        "spec": {"protect": {"keys": ["aa"]}}}"#;
    plane.kubectl(&["apply", "-f", "-"], Some(policy)).unwrap();
    until((&format!("aa\n{protected}"), persisted)).await;
    plane.kubectl(&["delete", "npol", "more"], None).unwrap();
    until((&protected, persisted)).await;
    // One that is registered anew has no parameters yet, and nobody has changed them.
    let anew = ["get", "validatingwebhookconfiguration", "nodegate", "-o", "json"];
    let mut anew: Value = serde_json::from_str(&plane.kubectl(&anew, None).unwrap()).unwrap();
    anew["metadata"] = json!({"name": "nodegate"});
    plane.kubectl(&["replace", "--force", "-f", "-"], Some(&anew.to_string())).unwrap();
    until((&protected, persisted)).await;
    let by_others = "the guard's parameters were changed by another writer";
    assert!(!nodegate.log().contains(by_others), "{}", nodegate.log());
    for annotation in ["nodegate.dev/protected=", "nodegate.dev/persisted-", "others=stay"] {
        let arguments = ["annotate", "--overwrite", "validatingwebhookconfiguration", "nodegate", annotation];
        plane.kubectl(&arguments, None).unwrap();
        until((&protected, persisted)).await;
    }
    let others = ["get", "validatingwebhookconfiguration", "nodegate", "-o", "jsonpath={.metadata.annotations.others}"];
    assert_eq!(plane.kubectl(&others, None).unwrap(), "stay");
    assert!(nodegate.log().contains(by_others), "{}", nodegate.log());
    drop(nodegate);
}

#[tokio::test]
async fn a_policy_whose_keys_the_guard_cannot_be_told_says_so_until_it_can() {
    let cluster = exclusive();
    let plane = cluster.plane;
    plane.install_definition();
    let nodegate = Nodegate::start(plane, &Setup { policies: POLICIES, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let annotated = |text: Value| {
        let patch = json!({"metadata": {"annotations": {"example.com/large": text}}}).to_string();
        let arguments =
            ["patch", "validatingwebhookconfiguration", "nodegate", "--type=merge", "--patch-file=/dev/stdin"];
        plane.kubectl(&arguments, Some(&patch)).unwrap();
    };
    // All annotations of an object have 256 KiB.
    annotated(json!("x".repeat(200_000)));
    let keys: Vec<String> =
        (0..300).map(|n| format!("{}.example.com/key-{n}", "a".repeat(60) + &".b".repeat(80))).collect();
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "many"},
        "spec": {"protect": {"keys": keys}}});
    plane.kubectl(&["create", "-f", "-"], Some(&policy.to_string())).unwrap();
    let told = || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="GuardNotCurrent")].message}"#;
        plane.kubectl(&["get", "npol", "many", "-o", path], None).unwrap()
    };
    let is_told = || told().contains("kubelets can set them while no replica answers");
    nodegate.eventually("the status tells it", is_told).await;
    assert!(
        told().contains("webhook configuration nodegate: ") && told().contains("metadata.annotations"),
        "{}",
        told()
    );
    let gauge = "nodegate_guard_not_current 1";
    assert!(has_metric(&nodegate, gauge));
    annotated(Value::Null);
    nodegate.eventually("it is told no more", || told().is_empty() && !has_metric(&nodegate, gauge)).await;
    plane.kubectl(&["delete", "npol", "many"], None).unwrap();
    drop(nodegate);
}

#[tokio::test]
async fn what_the_guard_takes_from_a_joining_kubelet_is_told_as_what_the_webhook_takes() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let (dead, _guard) = with_every_replica_dead(plane).await;
    let namespace = Some(&*dead.namespace);
    let nodegate = Nodegate::start(plane, &Setup { policies: POLICIES, cluster: true, namespace, ..Setup::default() });
    until_led(&nodegate).await;
    let admin = Requester::admin(plane).await;
    admin.delete("guarded-5").await;
    let mut forged = node("guarded-5", json!({TIER: "gold", "vault.example.com/x": "y", "nodegate.dev/x": "y"}));
    forged["metadata"]["annotations"] = json!({"nodegate.dev/admission": "{"});
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.json");
    std::fs::write(&file, forged.to_string()).unwrap();
    let who = ["--as=system:node:guarded-5", "--as-group=system:nodes", "--as-group=system:authenticated"];
    let arguments = ["create", "-f", file.to_str().unwrap()];
    let (joined, told) = plane.kubectl_with_stderr(&[&arguments[..], &who].concat());
    assert!(joined, "{told}");
    // The guard leaves only the number of nodegate's own keys.
    for line in [
        format!(r#"nodegate: label {TIER} is kept at "standard" by rule guarded/tier"#),
        "nodegate: label vault.example.com/x may not be asserted by a kubelet and was removed".to_owned(),
        "nodegate: 1 label or annotation may not be asserted by a kubelet and was removed".to_owned(),
    ] {
        assert!(told.contains(&line), "{line:?} is not in {told}");
    }
    let stripped = "nodegate_decision_notes_total{note=\"stripped\",policy=\"guarded\",rule=\"protect\"} 1";
    let metrics = nodegate.probe("/metrics").unwrap();
    assert!(metrics.contains(stripped), "{metrics}");
    assert!(!told.contains("nodegate.dev/admission"), "the guard's mark is none that a kubelet sent: {told}");
    let of = ["get", "events.events.k8s.io", "-A", "--field-selector", "regarding.name=guarded-5,reason=ClaimRejected"];
    let events = || plane.kubectl(&[&of[..], &["-o", "jsonpath={.items[*].note}"]].concat(), None).unwrap();
    let claims =
        [format!(r#"{TIER}="gold" (guarded/tier)"#), r#"vault.example.com/x="y" (guarded/protect)"#.to_owned()];
    nodegate.eventually("told", || claims.iter().all(|claim| events().contains(claim))).await;
    admin.delete("guarded-5").await;
}

/// A node of a kubelet that names its own CSINode as the owner: with that, it could delete its node at will.
fn owned(name: &str) -> Value {
    let mut owned = node(name, json!({"kubernetes.io/hostname": name}));
    let owner = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "name": name, "uid": "u"});
    owned["metadata"]["ownerReferences"] = json!([owner]);
    owned
}

#[tokio::test]
async fn a_kubelet_joins_without_the_owners_that_it_names() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let name = "guard-owned";
    let (admin, kubelet) = (Requester::admin(plane).await, Requester::kubelet(plane, name).await);
    let guard = Guard::install(plane, &[]);
    let created = eventually("the guard drops the owners", async || {
        admin.delete(name).await;
        let created = kubelet.create(&owned(name)).await.unwrap();
        if created["metadata"]["ownerReferences"].is_null() { Ok(created) } else { Err(format!("{created:#}")) }
    })
    .await;
    // What was dropped is left for the leader, who tells it.
    let mark = &created["metadata"]["annotations"]["nodegate.dev/admission"];
    assert_eq!(mark, r#"{"owners":true,"own":0,"guard":true}"#, "{created:#}");
    drop(guard);
    let _nodegate = Nodegate::start(plane, &Setup { policies: POLICIES, ..Setup::default() });
    admin.delete(name).await;
    // The webhook does it as well, without the guard.
    let created = kubelet.create(&owned(name)).await.unwrap();
    assert_eq!(created["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(created["metadata"]["annotations"]["nodegate.dev/admission"], r#"{"owners":true}"#);
    admin.delete(name).await;
}
