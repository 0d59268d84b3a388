//! `nodegate plan` in a cluster.

use std::fs;

use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, is_pending, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::Requester;
use super::run;
use crate::eventually::eventually;
use crate::shared::output::assert_conforms;

const HEAD: &str = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: planned}\nspec:\n  rules:\n";
const BEFORE: &str = "    - {name: all, match: {names: ['plan-*']}, labels: {tier: tin, pool: p}, removeAfter: 1s}\n";
const AFTER: &str = "    - {name: one, match: {names: [plan-1]}, labels: {tier: gold}, taints: [{key: drain, effect: NoExecute}], evict: true}\n";

/// Pods on both nodes, one that waits, and a DaemonSet.
fn create_pods(plane: &ControlPlane) {
    let pod = |name: &str, spec: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        pod["spec"]["containers"] = json!([{"name": "c", "image": "none"}]);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        pod
    };
    let labels = json!({"app": "agent"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}], "nodeSelector": {"tier": "gold"}, "tolerations": [{"operator": "Exists"}]}});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "plan-agent", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": template}});
    let waits = json!({"nodeSelector": {"tier": "gold"}, "tolerations": [{"operator": "Exists"}]});
    let items = [
        pod("plan-evicted", json!({"nodeName": "plan-1"})),
        pod("plan-stays", json!({"nodeName": "plan-2"})),
        pod("plan-stranded", json!({"nodeName": "plan-2", "nodeSelector": {"pool": "p"}})),
        pod("plan-waits", waits),
        set,
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    plane.kubectl(&["apply", "-f", "-"], Some(&list.to_string())).unwrap();
}

#[tokio::test]
async fn a_plan_shows_what_then_happens_to_nodes_and_pods() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let directory = tempfile::tempdir().unwrap();
    let served = directory.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("policy.yaml"), format!("{HEAD}{BEFORE}")).unwrap();
    let given = directory.path().join("given.yaml");
    fs::write(&given, format!("{HEAD}{AFTER}")).unwrap();
    let (served, given) = (served.to_str().unwrap().to_owned(), given.to_str().unwrap().to_owned());
    let nodegate = Nodegate::start(plane, &Setup { policies: &[&served], cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    for name in ["plan-1", "plan-2"] {
        admin.delete(name).await;
        Requester::kubelet(plane, name).await.create(&node(name, json!({}))).await.unwrap();
        admin.eventually(name, "not pending", |node| !is_pending(node)).await;
        eventually_state(&maps, name, "owns its labels", |state| state["owned"]["labels"]["tier"] == "tin").await;
    }
    create_pods(plane);

    let arguments = ["plan", "--policy", &given, "--namespace", &nodegate.namespace];
    let ran = run(plane, None, &[&arguments as &[&str], &["--exit-code"]].concat());
    assert_eq!(ran.errors, "");
    let text = ran.with(1);
    let line = |start: &str| {
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no line starts with {start:?}:\n{text}"))
    };
    line("policies: planned (replaces planned)");
    line("~ label tier=gold, was tin (rule planned/one): plan-1");
    line("- label tier=tin (not assigned by rule planned/all anymore, removed after 1 s): plan-2");
    line("- label pool=p (not assigned by rule planned/all anymore, removed after 1 s): plan-1, plan-2");
    line("+ taint drain:NoExecute (rule planned/one): plan-1");
    line("evicted: pod default/plan-evicted on plan-1: taint drain:NoExecute is not tolerated");
    line(
        "unschedulable: pod default/plan-stranded on plan-2: nodeSelector pool=p does not match; no node accepts such a pod anymore",
    );
    line("schedulable: pod default/plan-waits on plan-1: ");
    line("DaemonSet default/plan-agent: starts pods on plan-1");
    assert!(!text.contains("plan-stays"), "{text}");
    let plan: Value =
        serde_json::from_str(&run(plane, None, &[&arguments as &[&str], &["-o", "json"]].concat()).with(0)).unwrap();
    assert_conforms("plan", &plan);
    assert_eq!(plan["policies"]["replaced"], json!(["planned"]));
    // A policy under another name is added to the ones in force, or replaces all of them.
    let other = directory.path().join("other.yaml");
    fs::write(
        &other,
        format!("{HEAD}{AFTER}").replace("name: planned", "name: other").replace("tier: gold", "more: x"),
    )
    .unwrap();
    let other = ["plan", "--policy", other.to_str().unwrap(), "--namespace", &nodegate.namespace, "--no-pods"];
    let added = run(plane, None, &other).with(0);
    assert!(
        added.starts_with("policies: other, planned (adds other)\n+ label more=x (rule other/one): plan-1\n"),
        "{added}"
    );
    assert!(added.contains("The effect on pods is unknown: --no-pods is set\n"), "{added}");
    let only = run(plane, None, &[&other as &[&str], &["--only"]].concat()).with(0);
    assert!(
        only.starts_with("policies: other (adds other; removes planned)\n") && only.contains("\n- label pool=p ("),
        "{only}"
    );
    // Where nodegate has never run, everything that is given is new.
    let nothing = run(plane, None, &["plan", "--namespace", "default"]);
    assert!(
        nothing.code == 2 && nothing.errors.contains("there is nothing to plan: no policies are given"),
        "{}",
        nothing.errors
    );
    let first = run(plane, None, &["plan", "--namespace", "default", "--policy", &given, "--no-pods"]);
    assert!(
        first.errors.contains("note: no policies are in force: ConfigMap nodegate-in-force does not exist"),
        "{}",
        first.errors
    );
    assert!(first.with(0).starts_with("policies: planned (adds planned)\n"));

    // What was planned comes true, and then nothing remains to be changed.
    fs::write(directory.path().join("served/policy.yaml"), format!("{HEAD}{AFTER}")).unwrap();
    let labels = |node: &Value, key: &str| node["metadata"]["labels"].get(key).cloned();
    let tainted = |node: &Value| node["spec"]["taints"].to_string().contains("\"drain\"");
    let planned =
        |node: &Value| labels(node, "tier") == Some(json!("gold")) && labels(node, "pool").is_none() && tainted(node);
    admin.eventually("plan-1", "as planned", planned).await;
    let bare = |node: &Value| labels(node, "tier").is_none() && labels(node, "pool").is_none();
    admin.eventually("plan-2", "as planned", bare).await;
    let in_force = ["plan", "--namespace", &nodegate.namespace, "--exit-code"];
    let settled = eventually("nothing remains to be changed", async || {
        let ran = run(plane, None, &in_force);
        if ran.code == 0 { Ok(ran.output) } else { Err(format!("{}{}", ran.output, ran.errors)) }
    })
    .await;
    assert!(settled.starts_with("policies: planned (as in force)\n"), "{settled}");
    for name in ["plan-evicted", "plan-stays", "plan-stranded", "plan-waits"] {
        plane.kubectl(&["delete", "pod", name, "--force", "--ignore-not-found"], None).unwrap();
    }
    plane.kubectl(&["delete", "daemonset", "plan-agent"], None).unwrap();
    for name in ["plan-1", "plan-2"] {
        admin.delete(name).await;
    }
}
