//! Commands tell what came of what they did, and by which policies.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, eventually_state, leading, node, setup, until_led};
use super::last_good::leave_policies_unjudged;
use super::native::Removed;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::eventually::{eventually, for_a_while, holds};

/// Runs `nodegate` as an administrator, whose writes admission decides on, to its end: exit code, output and errors.
fn command(plane: &ControlPlane, namespace: &str, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(arguments)
        .args(["--namespace", namespace, "--kubeconfig"])
        .arg(plane.kubeconfig_file("told", Some(("alice", &["system:masters"]))))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn policy(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn tier(value: &str) -> Value {
    json!({"rules": [{"name": "tier", "match": {"names": ["told-*"]}, "labels": {"tier": value}, "removeAfter": "0s"}]})
}

async fn published(plane: &ControlPlane, namespace: &str, policies: &str) -> Value {
    let (maps, names) = (config_maps(plane, namespace).await, serde_json::from_str::<Value>(policies).unwrap());
    eventually(&format!("{policies} are published"), async || {
        let map = maps.get_opt("nodegate-in-force").await.unwrap();
        let text = map.and_then(|map| map.data?.get("policies.json").cloned()).unwrap_or_default();
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        if told["names"] == names { Ok(told) } else { Err(format!("{told:#}")) }
    })
    .await
}

/// The lines of a log with this message.
fn lines(log: &str, message: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

#[tokio::test]
async fn events_and_logs_tell_what_a_node_got_and_who_was_denied() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let nodegate = leading(plane, &setup()).await;
    admin.delete("kept-told").await;
    let kubelet = Requester::kubelet(plane, "kept-told").await;
    let created = kubelet.create(&node("kept-told", json!({}))).await.unwrap();
    let uid = created["metadata"]["uid"].as_str().unwrap().to_owned();
    let selector = format!("--field-selector=involvedObject.uid={uid},type=Normal");
    let notes = eventually("three events tell it", async || {
        let text = plane.kubectl(&["get", "events", "-n", "default", &selector, "-o", "json"], None).unwrap();
        let events: Value = serde_json::from_str(&text).unwrap();
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let all = events["items"].as_array().unwrap().iter();
        let notes: BTreeMap<_, _> = all.map(|event| (text(event, "reason"), text(event, "message"))).collect();
        if notes.len() == 3 { Ok(notes) } else { Err(format!("{notes:#?}\n{}", nodegate.log())) }
    })
    .await;
    let by = |key: &str| format!("{key} (policy keeping, rule role)");
    let admitted = format!("set at admission: {}, {}", by("hardware.tier=standard"), by("fleet=kept:NoSchedule"));
    let completed = format!("set by the controller after admission: {}", by("node-role.kubernetes.io/worker=\"\""));
    assert_eq!(notes.get("Admitted"), Some(&admitted), "{notes:#?}\n{}", nodegate.log());
    assert_eq!(notes.get("Completed"), Some(&completed), "{notes:#?}");
    assert!(notes.contains_key("Released"), "{notes:#?}");
    let changes = lines(&nodegate.log(), "changed");
    let change = format!(
        "+{} -startup-taint.cluster-autoscaler.kubernetes.io/nodegate:NoSchedule",
        by("node-role.kubernetes.io/worker=\"\"")
    );
    assert!(changes.iter().any(|line| line["change"] == change && line["level"] == "INFO"), "{changes:#?}");

    // The kubelet asserts a persisted key again and again; others are still told.
    let assertion = json!({"metadata": {"labels": {"persist.demo/a": "forged"}}});
    for _ in 0..15 {
        kubelet.merge_status("kept-told", assertion.clone()).await.unwrap_err();
    }
    let denied = lines(&nodegate.log(), "denied a write");
    assert_eq!(denied.len(), 10, "{denied:#?}");
    let line = &denied[0];
    assert_eq!(
        (&line["level"], &line["node"], &line["user"]),
        (&json!("INFO"), &json!("kept-told"), &json!("system:node:kept-told"))
    );
    assert!(line["denial"].as_str().unwrap().contains("persist.demo/a"), "{line:#}");
    admin.delete("kept-told").await;
}

#[tokio::test]
async fn an_existing_node_has_an_event_for_each_change_of_the_policies_and_none_for_repairs() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    admin.delete("told-events").await;
    // One that was there before nodegate is no exception.
    admin.delete("kept-before").await;
    admin.create(&node("kept-before", json!({}))).await.unwrap();
    let nodegate = leading(plane, &setup()).await;
    let before = [
        "get",
        "events",
        "-n",
        "default",
        "--field-selector=involvedObject.name=kept-before,reason=PolicyApplied",
        "-o=name",
    ];
    nodegate.eventually("it is told", || !plane.kubectl(&before, None).unwrap().is_empty()).await;
    admin.create(&node("told-events", json!({}))).await.unwrap();
    let of = "--field-selector=involvedObject.name=told-events,reason=PolicyApplied";
    let notes = || {
        let path = "-o=jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
        let text = plane.kubectl(&["get", "events", "-n", "default", of, path], None).unwrap();
        text.lines().map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let until = async |expected: &[&str]| {
        let expected: BTreeSet<String> = expected.iter().map(|note| (*note).to_owned()).collect();
        eventually("these events, and no others", async || {
            let notes = notes();
            holds(notes == expected, || format!("{notes:#?}\n{}", nodegate.log()))
        })
        .await;
    };
    let tainted = |value: &str| {
        let mut spec = tier(value);
        spec["rules"][0]["taints"] = json!([{"key": "told", "value": value, "effect": "NoSchedule"}]);
        spec
    };
    let apply =
        |value: &str| plane.kubectl(&["apply", "-f", "-"], Some(&policy("told-events", &tainted(value)))).unwrap();
    let by = "(policy told-events, rule tier)";
    let set =
        |value: &str| format!("set because of the policies in force: tier={value} {by}, told={value}:NoSchedule {by}");
    apply("gold");
    until(&[&set("gold")]).await;
    admin.label("told-events", "tier", json!("forged")).await.unwrap();
    admin.label("told-events", "tier", Value::Null).await.unwrap();
    admin.eventually("told-events", "repaired", |node| label(node, "tier") == Some("gold")).await;
    apply("silver");
    until(&[&set("gold"), &set("silver")]).await;
    plane.kubectl(&["delete", "nodepolicy", "told-events"], None).unwrap();
    until(&[&set("gold"), &set("silver"), "removed because of the policies in force: tier, told:NoSchedule"]).await;
    admin.delete("told-events").await;
    admin.delete("kept-before").await;
    drop(nodegate);
}

#[tokio::test]
async fn history_reports_policy_and_rule_of_a_revert_that_a_rule_undoes() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    admin.delete("told-1").await;
    let nodegate = Nodegate::start(plane, &Setup { cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("told-1", json!({"tier": "tin"}))).await.unwrap();
    let maps = config_maps(plane, &nodegate.namespace).await;
    eventually_state(&maps, "told-1", "recorded", |state| state["nodeUID"].is_string()).await;
    plane.kubectl(&["apply", "-f", "-"], Some(&policy("fleet", &tier("gold")))).unwrap();
    admin.eventually("told-1", "gold", |node| label(node, "tier") == Some("gold")).await;
    let gold = |state: &Value| {
        let history = state["history"].as_array()?;
        Some(history.iter().find(|change| change["new"] == "gold")?["id"].clone())
    };
    let told = eventually_state(&maps, "told-1", "its history tells it", |state| gold(state).is_some()).await;
    let id = gold(&told).unwrap();
    let revert = || command(plane, &nodegate.namespace, &["history", "told-1", "--revert", &id.to_string()]);
    let (code, text, errors) = revert();
    assert_eq!(code, 1, "{text}{errors}");
    let expected = r#"label tier of node told-1 is still "gold", not "tin": rule fleet/tier sets it to "gold"; change that rule first (kubectl edit nodepolicy fleet)"#;
    assert_eq!(text.trim(), expected);

    // Where admission was not asked the controller does it later.
    let registrations = ["delete", "mutatingwebhookconfiguration", "nodegate"];
    plane.kubectl(&registrations, None).unwrap();
    let told = eventually("it is told that it will not last", async || {
        let (code, text, errors) = revert();
        assert_eq!(code, 1, "{text}{errors}");
        if text.contains("but nodegate will change it") { Ok(text) } else { Err(text) }
    })
    .await;
    assert!(told.contains(r#"is "tin" now, but nodegate will change it: rule fleet/tier sets it to "gold""#), "{told}");
    admin.delete("told-1").await;
    drop(nodegate);
}

#[tokio::test]
async fn commands_print_the_policies_they_use_and_refuse_others_than_those_in_force() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    admin.delete("told-2").await;
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, spec: &Value| {
        let file = directory.path().join(format!("{name}.yaml"));
        std::fs::write(&file, policy(name, spec)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (ours, other) = (write("ours", &tier("gold")), write("other", &tier("tin")));
    let nodegate = Nodegate::start(plane, &Setup { cluster: true, policies: &[ours.as_str()], ..Setup::default() });
    let namespace = nodegate.namespace.as_str();
    until_led(&nodegate).await;
    leave_policies_unjudged(plane, &nodegate).await;
    let object = json!({"governance": {"expressions": [
        {"name": "slots", "expression": "int(object.metadata.labels[?'slots'].orValue('1')) > 0", "message": "no slots"},
    ]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&policy("judging", &object))).unwrap();
    let told = published(plane, namespace, r#"["judging", "ours"]"#).await;
    admin.create(&node("told-2", json!({}))).await.unwrap();

    let (code, text, errors) = command(plane, namespace, &["report", "--violations", "--policy", &ours, "-o", "json"]);
    assert_eq!((code, text.as_str()), (2, ""), "{errors}");
    let (code, text, errors) = command(plane, namespace, &["apply", "--policy", &ours, "-o", "json"]);
    assert_eq!(code, 0, "{text}{errors}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["policies"], told);
    // An update with faults leaves the set as it is, also for who reads it only once.
    let faulty = json!({"governance": {"expressions": [{"name": "slots", "expression": "1 +"}]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&policy("judging", &faulty))).unwrap();
    let (code, text, errors) = command(plane, namespace, &["apply", "--policy", &ours]);
    assert_eq!(code, 0, "{text}{errors}");
    assert!(text.contains("policies: judging, ours (sha256:"), "{text}");
    assert!(errors.contains("generation 1 stays in force"), "{errors}");

    let (code, text, errors) = command(plane, namespace, &["apply", "--policy", &other]);
    assert_eq!((code, text.as_str()), (2, ""), "{errors}");
    for part in ["given:    judging, other (sha256:", "in force: judging, ours (sha256:", "--force"] {
        assert!(errors.contains(part), "{part} in\n{errors}");
    }
    // With --force, what admission gives back is told, and the node is as it was.
    let (code, text, errors) = command(plane, namespace, &["apply", "--policy", &other, "--force"]);
    assert_eq!(code, 1, "{text}{errors}");
    assert!(text.contains(r#"node told-2: label tier is "gold", not "tin": "#), "{text}");
    assert_eq!(label(&admin.get("told-2").await, "tier"), Some("gold"));

    // An expression without an answer is a finding.
    plane.kubectl(&["delete", "nodepolicy", "judging"], None).unwrap();
    let object = policy("judging", &object);
    published(plane, namespace, r#"["ours"]"#).await;
    std::fs::write(directory.path().join("judging.yaml"), object).unwrap();
    admin.label("told-2", "slots", json!("many")).await.unwrap();
    let judging = directory.path().join("judging.yaml").to_str().unwrap().to_owned();
    let (code, text, errors) = command(plane, namespace, &["report", "--violations", "--policy", &judging, "--force"]);
    assert_eq!(code, 1, "{text}{errors}");
    assert!(text.contains("unknown") && text.contains("policies: judging (sha256:"), "{text}");
    assert!(errors.contains("the policies in force in the cluster differ: ours (sha256:"), "{errors}");
    // Where nobody serves that is said.
    let (code, _, errors) = command(plane, "default", &["report", "--violations", "--policy", &judging]);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("ConfigMap nodegate-in-force in namespace default does not exist"), "{errors}");
    admin.delete("told-2").await;
    drop(nodegate);
}

#[tokio::test]
async fn an_outage_of_the_api_server_is_two_lines() {
    let cluster = exclusive();
    let _removed = Removed(cluster.plane);
    cluster.plane.install_definition();
    let setup = Setup {
        policies: &["tests/cluster/keeping.yaml"],
        cluster: true,
        own_certificates: true,
        serve: &["--native-policies"],
        // So long that the outage does not end the leadership, which would be lines of its own.
        lease_seconds: 60,
        environment: &[("RUST_LOG", ""), ("LOG_LEVEL", "INFO")],
        ..Setup::default()
    };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    // Until the first certificates and native policies are written. Nothing tells that a log goes no further.
    let quiet = async || {
        eventually("the log rests", async || {
            let before = nodegate.log().lines().count();
            for_a_while(Duration::from_secs(3)).await;
            if nodegate.log().lines().count() == before { Ok(before) } else { Err(nodegate.log()) }
        })
        .await
    };
    let before = quiet().await;
    cluster.plane.restart_api_server(Duration::from_secs(8));
    let is_over = || !lines(&nodegate.log(), "the API server answers again").is_empty();
    nodegate.eventually("the end of the outage is told", is_over).await;
    quiet().await;
    let log = nodegate.log();
    let told: Vec<Value> = log.lines().skip(before).map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages: Vec<_> = told.iter().map(|line| (&line["level"], &line["message"])).collect();
    let expected = [
        (&json!("WARN"), &json!("cannot reach the API server; retrying")),
        (&json!("INFO"), &json!("the API server answers again")),
    ];
    assert_eq!(messages, expected, "{told:#?}");
}
