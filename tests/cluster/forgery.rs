//! A kubelet that forges what the API server lets it write of its own Node: who claims its keys, and nodegate's own keys.

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::keeping::{config_maps, eventually_state, leading, node, tells, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

const ROLE: &str = "node-role.kubernetes.io/worker";
const TIER: &str = "class.example.com/tier";

fn setup() -> Setup<'static> {
    Setup { policies: &["tests/cluster/forgery.yaml"], cluster: true, ..Setup::default() }
}

/// Field managers by the names of people and controllers, who claim these labels.
fn claims(keys: &[&str]) -> Value {
    let labels: serde_json::Map<String, Value> = keys.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
    let claim = |manager: &str| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2020-01-01T00:00:00Z",
               "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": labels}}})
    };
    json!([claim("kubectl"), claim("kube-controller-manager")])
}

fn claimants(node: &Value, key: &str) -> Vec<String> {
    let entries = node["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let claims = |entry: &&Value| entry["fieldsV1"]["f:metadata"]["f:labels"].get(format!("f:{key}")).is_some();
    entries.iter().filter(claims).map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn forged_managed_fields_do_not_keep_a_label_whose_rule_is_gone() {
    let cluster = exclusive();
    let nodegate = leading(cluster.plane, &setup()).await;
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "forger-1").await);
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    admin.delete("forger-1").await;
    // It knows what it will be given, sends that itself, and has others claim it.
    let mut forged = node("forger-1", json!({TIER: "gold", "class.example.com/extra": "forged"}));
    forged["metadata"]["managedFields"] = claims(&[TIER, ROLE]);
    let created = kubelet.create(&forged).await.unwrap();
    // The API server keeps claims on what is not there yet, by whatever name, and the kubelet's own claim is true.
    assert!(claimants(&created, ROLE).contains(&"kubectl".to_owned()), "{created:#}");
    assert!(!claimants(&created, TIER).is_empty(), "{created:#}");
    assert_eq!(label(&created, "class.example.com/extra"), None);
    admin.eventually("forger-1", "given", |node| label(node, ROLE).is_some()).await;
    let manager = json!({"metadata": {"managedFields": claims(&[TIER, ROLE])}});
    let forged = kubelet.merge("forger-1", manager).await.unwrap();
    assert!(claimants(&forged, ROLE).contains(&"kubectl".to_owned()), "{forged:#}");
    let owned = |state: &Value| state["owned"]["labels"][TIER] == "gold" && state["owned"]["labels"][ROLE] == "";
    eventually_state(&maps, "forger-1", "both owned", owned).await;
    admin.label("forger-1", "retired", json!("yes")).await.unwrap();
    admin
        .eventually("forger-1", "both removed", |node| label(node, ROLE).is_none() && label(node, TIER).is_none())
        .await;
    admin.delete("forger-1").await;
}

#[tokio::test]
async fn wiped_managed_fields_do_not_make_nodegate_remove_foreign_labels() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "forger-2").await);
    admin.delete("forger-2").await;
    kubelet.create(&node("forger-2", json!({}))).await.unwrap();
    admin.eventually("forger-2", "given", |node| label(node, ROLE).is_some()).await;
    admin.label("forger-2", "class.example.com/by-hand", json!("x")).await.unwrap();
    admin.label("forger-2", "node-restriction.kubernetes.io/quarantine", json!("yes")).await.unwrap();
    let wiped = kubelet.merge("forger-2", json!({"metadata": {"managedFields": [{}]}})).await.unwrap();
    assert!(claimants(&wiped, "class.example.com/by-hand").is_empty(), "{wiped:#}");
    // The leader processes the node as it is now.
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    eventually_state(&maps, "forger-2", "what was set by hand is told", |state| {
        let by_hand = [("class.example.com/by-hand", "x"), ("node-restriction.kubernetes.io/quarantine", "yes")];
        by_hand.iter().all(|(key, value)| tells(state, key, None, Some(value)))
    })
    .await;
    admin.label("forger-2", "retired", json!("yes")).await.unwrap();
    let left = admin.eventually("forger-2", "removed", |node| label(node, ROLE).is_none()).await;
    assert_eq!(label(&left, TIER), None);
    assert_eq!(label(&left, "class.example.com/by-hand"), Some("x"));
    assert_eq!(label(&left, "node-restriction.kubernetes.io/quarantine"), Some("yes"));
    admin.delete("forger-2").await;
}

#[tokio::test]
async fn nodegates_own_keys_from_a_kubelet_are_stripped_or_refused() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "forger-3").await);
    admin.delete("forger-3").await;
    let mut forged = node("forger-3", json!({"nodegate.dev/owned": "all"}));
    forged["metadata"]["annotations"] = json!({"nodegate.dev/owned": "all"});
    let own = |node: &Value, field: &str| node["metadata"][field]["nodegate.dev/owned"].clone();
    let created = kubelet.create(&forged).await.unwrap();
    assert_eq!((own(&created, "labels"), own(&created, "annotations")), (Value::Null, Value::Null));
    let both =
        json!({"metadata": {"labels": {"nodegate.dev/owned": "all"}, "annotations": {"nodegate.dev/owned": "all"}}});
    let updated = kubelet.merge("forger-3", both.clone()).await.unwrap();
    assert_eq!((own(&updated, "labels"), own(&updated, "annotations")), (Value::Null, Value::Null));
    let log = nodegate.log();
    let told = log.lines().find(|line| line.contains("corrected a kubelet's write")).unwrap_or_else(|| panic!("{log}"));
    let told: Value = serde_json::from_str(told).unwrap();
    let told = ["node", "user", "rules"].map(|field| told[field].as_str().unwrap_or_default().to_owned());
    assert_eq!(told, ["forger-3", "system:node:forger-3", "nodegate/own-keys"], "{log}");
    assert_eq!(kubelet.merge_status("forger-3", both).await.unwrap_err().code, 403);
    let annotation = json!({"metadata": {"annotations": {"nodegate.dev/owned": "all"}}});
    assert_eq!(kubelet.merge_status("forger-3", annotation.clone()).await.unwrap_err().code, 403);
    // Where an administrator wrote it, nothing is decided by it.
    admin.merge_status("forger-3", annotation).await.unwrap();
    admin.label("forger-3", "retired", json!("yes")).await.unwrap();
    admin.eventually("forger-3", "removed all the same", |node| label(node, TIER).is_none()).await;
    let stamp = json!({"metadata": {"annotations": {"nodegate.dev/last-change": "admin"}}});
    assert_eq!(kubelet.merge_status("forger-3", stamp).await.unwrap_err().code, 403);
    admin.delete("forger-3").await;
}

#[tokio::test]
async fn while_nodegate_is_down_the_api_server_refuses_restricted_labels_and_rules_are_repaired_later() {
    let cluster = exclusive();
    let mut nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let namespace = nodegate.namespace.clone();
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "forger-4").await);
    admin.delete("forger-4").await;
    kubelet.create(&node("forger-4", json!({}))).await.unwrap();
    admin.eventually("forger-4", "given", |node| label(node, ROLE).is_some()).await;
    nodegate.kill();
    for key in ["node-restriction.kubernetes.io/tenant", "node-role.kubernetes.io/control-plane"] {
        assert_eq!(kubelet.label("forger-4", key, json!("x")).await.unwrap_err().code, 403, "{key}");
    }
    kubelet.label("forger-4", TIER, json!("forged")).await.unwrap();
    // What remains (docs/security.md): nobody can tell later who set a protected label that no rule gives.
    kubelet.label("forger-4", "class.example.com/extra", json!("forged")).await.unwrap();
    let _back = Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), ..setup() });
    let repaired = admin.eventually("forger-4", "repaired", |node| label(node, TIER) == Some("gold")).await;
    assert_eq!(label(&repaired, "class.example.com/extra"), Some("forged"));
    admin.delete("forger-4").await;
}

#[tokio::test]
async fn what_a_joining_kubelet_asserts_in_vain_is_told() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let admin = Requester::admin(cluster.plane).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    let kubelet = Requester::kubelet(cluster.plane, "forger-4").await;
    admin.delete("forger-4").await;
    // It also has somebody claim what would tell on it.
    let mut forged = node("forger-4", json!({TIER: "dual-gpu", "class.example.com/extra": "x"}));
    forged["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "name": "forger-4", "uid": "u"}]);
    forged["metadata"]["managedFields"] = json!([{"manager": "kubectl", "operation": "Update", "apiVersion": "v1",
        "time": "2020-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:annotations": {"f:nodegate.dev/admission": {}}}}}]);
    let created = kubelet.create(&forged).await.unwrap();
    assert_eq!((label(&created, TIER), label(&created, "class.example.com/extra")), (Some("gold"), None));
    let row = |state: &Value, key: &str, value: &str, rule: &str| {
        state["history"].as_array().into_iter().flatten().any(|change| {
            change["how"] == "rejected" && change["key"] == key && change["new"] == value && change["rule"] == rule
        })
    };
    eventually_state(&maps, "forger-4", "told", |state| {
        row(state, TIER, "dual-gpu", "forgery/in-service")
            && row(state, "class.example.com/extra", "x", "forgery/protect")
            && state["history"].to_string().contains("nodegate/owners")
    })
    .await;
    let of = [
        "get",
        "events.events.k8s.io",
        "-A",
        "--field-selector",
        "regarding.name=forger-4,reason=ClaimRejected,type=Warning",
    ];
    // The record is written first, and the event by another task.
    let events = || cluster.plane.kubectl(&[&of[..], &["-o", "jsonpath={.items[*].note}"]].concat(), None).unwrap();
    let claim = r#"class.example.com/tier="dual-gpu" (forgery/in-service)"#;
    nodegate.eventually("an event", || events().contains(claim) && events().contains("(nodegate/owners)")).await;
    for rule in ["in-service", "protect"] {
        let counted = format!("nodegate_claims_rejected_total{{policy=\"forgery\",rule=\"{rule}\"}} 1");
        nodegate.eventually("counted", || nodegate.probe("/metrics").unwrap().contains(&counted)).await;
    }
    assert!(nodegate.log().contains("what the kubelet claimed when the node joined was rejected"));
    let arguments = |command: &'static str| [command, "--namespace", &nodegate.namespace];
    let report = super::commands::run(cluster.plane, None, &arguments("report"));
    let line = r#"class.example.com/tier="dual-gpu" (forgery/in-service): forger-4"#;
    assert!(report.output.contains(line), "{}{}", report.output, report.errors);
    let history =
        super::commands::run(cluster.plane, None, &[&arguments("history")[..], &["forger-4"]].concat()).with(0);
    assert!(
        history.contains("rejected (forgery/in-service)") && history.contains(r#"kubelet asserted "dual-gpu""#),
        "{history}"
    );
    admin.delete("forger-4").await;

    // The guard names none of too many.
    admin.delete("forger-5").await;
    let mut many = node("forger-5", json!({}));
    many["metadata"]["annotations"] = json!({"nodegate.dev/admission": r#"{"more":17}"#});
    Requester::kubelet(cluster.plane, "forger-5").await.create(&many).await.unwrap();
    let of = ["get", "events.events.k8s.io", "-A", "--field-selector", "regarding.name=forger-5,reason=ClaimRejected"];
    let told = || cluster.plane.kubectl(&[&of[..], &["-o", "jsonpath={.items[*].note}"]].concat(), None).unwrap();
    nodegate.eventually("told", || told().contains("other values: 17 keys. This was rejected")).await;
    let counted = "nodegate_claims_rejected_total{policy=\"nodegate\",rule=\"unnamed\"} 17";
    nodegate.eventually("counted", || nodegate.probe("/metrics").unwrap().contains(counted)).await;
    eventually_state(&maps, "forger-5", "its history tells it", |state| {
        state["history"].as_array().into_iter().flatten().any(|change| {
            change["how"] == "rejected" && change["key"] == "17 keys" && change["rule"] == "nodegate/unnamed"
        })
    })
    .await;
    let report = super::commands::run(cluster.plane, None, &arguments("report"));
    assert!(report.output.contains("17 keys (nodegate/unnamed): forger-5"), "{}{}", report.output, report.errors);
    admin.delete("forger-5").await;
}
