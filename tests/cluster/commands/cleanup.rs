//! `nodegate cleanup` in a cluster.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::{Value, json};

use super::super::barrier::Barrier;
use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, leading, node, state, until_published};
use super::super::nodegate::Setup;
use super::super::requester::{Requester, label, taints};
use super::{Ran, run};
use crate::shared::output::assert_conforms;

const POLICY: &[&str] = &["tests/cluster/keeping.yaml"];
const CONFIGURATIONS: &str = "mutatingwebhookconfiguration,validatingwebhookconfiguration";
const NATIVE: &str = "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings";

fn cleanup(plane: &ControlPlane, namespace: &str, arguments: &[&str]) -> Ran {
    run(plane, None, &[&["cleanup", "--namespace", namespace], arguments].concat())
}

/// The same with JSON, which conforms to the schema.
fn json_of(ran: Ran, code: i32) -> Value {
    let answer: Value = serde_json::from_str(&ran.with(code)).unwrap();
    assert_conforms("cleanup", &answer);
    answer
}

/// The results of all keys of a node, with the reason.
fn keys(answer: &Value, node: &str) -> BTreeMap<String, (String, String)> {
    let nodes = answer["nodes"].as_array().unwrap();
    let keys = nodes.iter().filter(|one| one["node"] == node).flat_map(|node| node["keys"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    keys.map(|key| (text(&key["key"]), (text(&key["result"]), text(&key["why"])))).collect()
}

fn is(result: &str, why: &str) -> (String, String) {
    (result.to_owned(), why.to_owned())
}

/// Stores a ConfigMap.
pub(super) async fn store(maps: &Api<ConfigMap>, name: &str, data: &[(&str, String)]) {
    let data = data.iter().map(|(key, text)| ((*key).to_owned(), text.clone())).collect();
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// Creates a node with a label, and the record that nodegate owns the label.
async fn owned(admin: &Requester, maps: &Api<ConfigMap>, name: &str) {
    admin.delete(name).await;
    let created = admin.create(&node(name, json!({"old.test/tier": "gold"}))).await.unwrap();
    let record = json!({"nodeName": name, "nodeUID": created["metadata"]["uid"], "labels": {}, "owned": {"labels": {"old.test/tier": "gold"}}});
    store(maps, &format!("node-labels-{name}"), &[("state.json", record.to_string())]).await;
}

async fn names(maps: &Api<ConfigMap>) -> Vec<String> {
    let all = maps.list(&Default::default()).await.unwrap().items;
    all.into_iter().filter_map(|map| map.metadata.name).filter(|name| name != "kube-root-ca.crt").collect()
}

#[tokio::test]
async fn cleanup_refuses_while_nodegate_runs_and_then_removes_everything_that_it_set() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    for name in ["kept-clean-1", "kept-clean-2"] {
        admin.delete(name).await;
    }
    let setup = Setup {
        policies: POLICY,
        cluster: true,
        own_certificates: true,
        serve: &["--native-policies", "--stamp-changes"],
        ..Setup::default()
    };
    let mut nodegate = leading(plane, &setup).await;
    let namespace = nodegate.namespace.clone();
    let maps = config_maps(plane, &namespace).await;
    for name in ["kept-clean-1", "kept-clean-2"] {
        admin.create(&node(name, json!({"mine": "stays"}))).await.unwrap();
        let owns = |state: &Value| state["owned"]["taints"][0]["key"] == "fleet" && state["nodeUID"].is_string();
        eventually_state(&maps, name, "owned", owns).await;
    }
    let kept_by = format!("nodegate.dev/kept-by={namespace}");
    let kinds = plane.known_kinds(NATIVE);
    let native = || plane.kubectl(&["get", &kinds, "-l", &kept_by, "-o", "name"], None).unwrap();
    nodegate.eventually("there are native policies", || !native().is_empty()).await;

    // While it runs, everything stays.
    let dry = cleanup(plane, &namespace, &["--exit-code"]);
    assert!(dry.errors.contains("renews the Lease, and the API server calls webhooks of"), "{}", dry.errors);
    assert!(dry.with(1).contains("would be removed"));
    let refused = cleanup(plane, &namespace, &["--confirm"]);
    assert!(refused.code == 2 && refused.errors.contains("nodegate would set everything again"), "{}", refused.errors);
    nodegate.terminate();
    let refused = cleanup(plane, &namespace, &["--confirm"]);
    assert!(refused.code == 2 && !refused.errors.contains("renews the Lease"), "{}", refused.errors);
    assert!(refused.errors.contains(&format!("kubectl delete {CONFIGURATIONS} nodegate")), "{}", refused.errors);
    plane.kubectl(&["delete", CONFIGURATIONS, "nodegate"], None).unwrap();

    // Others change a key, and have an object with a similar name.
    let others = json!({"metadata": {"labels": {"hardware.tier": "mine"}}});
    admin.merge_status("kept-clean-2", others).await.unwrap();
    let pending = json!([{"op": "add", "path": "/spec/taints/-", "value": {"key": "nodegate.dev/pending", "effect": "NoSchedule"}}]);
    let pending = plane.kubectl(&["patch", "node", "kept-clean-1", "--type=json", "-p", &pending.to_string()], None);
    pending.unwrap();
    store(&maps, "node-labels-notes", &[("notes.txt", "mine".to_owned())]).await;
    let before = admin.get("kept-clean-1").await["metadata"]["resourceVersion"].clone();
    let answer = json_of(cleanup(plane, &namespace, &["-o", "json"]), 0);
    let would = is("wouldRemove", "");
    let first = keys(&answer, "kept-clean-1");
    for key in ["hardware.tier", "node-role.kubernetes.io/worker", "fleet", "nodegate.dev/pending"] {
        assert_eq!(first.get(key), Some(&would), "{key}: {first:?}");
    }
    assert_eq!(keys(&answer, "kept-clean-2")["hardware.tier"], is("kept", "changed"));
    assert_eq!(admin.get("kept-clean-1").await["metadata"]["resourceVersion"], before, "a dry run writes nothing");

    let answer = json_of(cleanup(plane, &namespace, &["--confirm", "-o", "json"]), 0);
    assert_eq!(answer["confirmed"], true);
    let clean = admin.get("kept-clean-1").await;
    assert_eq!(label(&clean, "mine"), Some("stays"));
    assert_eq!((label(&clean, "hardware.tier"), label(&clean, "node-role.kubernetes.io/worker")), (None, None));
    assert!(!taints(&clean).iter().any(|taint| taint.contains("fleet") || taint.contains("nodegate.dev")), "{clean:#}");
    assert!(clean["metadata"]["annotations"]["nodegate.dev/last-change"].is_null());
    let changed = admin.get("kept-clean-2").await;
    assert_eq!(
        (label(&changed, "hardware.tier"), label(&changed, "node-role.kubernetes.io/worker")),
        (Some("mine"), None)
    );
    assert_eq!(names(&maps).await, ["node-labels-notes"]);
    assert_eq!(native(), "");
    let left = plane.kubectl(&["-n", &namespace, "get", "secret/nodegate-tls", "lease/nodegate"], None).unwrap_err();
    assert!(left.matches("not found").count() == 2, "{left}");
    let kinds: Vec<&str> =
        answer["objects"].as_array().unwrap().iter().filter_map(|one| one["kind"].as_str()).collect();
    let mutating = ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];
    let mutating = mutating.into_iter().filter(|_| plane.has_mutating_policies());
    for kind in ["ConfigMap", "Secret", "Lease"].into_iter().chain(mutating) {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    assert_eq!(cleanup(plane, &namespace, &["--confirm"]).with(0), "nothing to clean up\n");
    for name in ["kept-clean-1", "kept-clean-2"] {
        admin.delete(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::zombie_processes, reason = "it is waited for unless the test fails")]
async fn an_interrupted_cleanup_goes_on_where_it_was() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let namespace = "cleanup-interrupted";
    plane.kubectl(&["create", "namespace", namespace], None).unwrap();
    let maps = config_maps(plane, namespace).await;
    let nodes: Vec<String> = (0..8).map(|number| format!("interrupted-{number}")).collect();
    for name in &nodes {
        owned(&admin, &maps, name).await;
    }
    let has_label = async |name: &str| label(&admin.get(name).await, "old.test/tier").is_some();
    let count = async || {
        let mut left = 0;
        for name in &nodes {
            left += usize::from(has_label(name).await);
        }
        left
    };
    // Begins, and returns when it has cleaned up two more nodes.
    let begun = async || {
        let mut barrier = Barrier::start(plane, 2).await;
        let child = Command::new(env!("CARGO_BIN_EXE_nodegate"))
            .args(["cleanup", "--confirm", "--namespace", namespace, "--kubeconfig"])
            .arg(plane.kubeconfig_file_through("cleanup", &barrier.server))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        barrier.holds().await;
        (child, barrier)
    };
    let (mut child, _gate) = begun().await;
    // Not SIGINT, which a background job of a shell ignores.
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success() && !child.wait().unwrap().success());
    assert_eq!((count().await, names(&maps).await.len()), (6, nodes.len()), "records go last");

    // The same when the connection is lost.
    let (child, barrier) = begun().await;
    drop(barrier);
    let output = tokio::task::block_in_place(|| child.wait_with_output()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("run the command again to continue"), "{said}");
    assert_eq!((count().await, names(&maps).await.len()), (4, nodes.len()), "records go last");

    let answer = json_of(cleanup(plane, namespace, &["--confirm", "-o", "json"]), 0);
    assert_eq!(answer["nodes"].as_array().unwrap().len(), 4, "the first ones were done: {answer:#}");
    for name in &nodes {
        assert!(!has_label(name).await, "{name}");
        admin.delete(name).await;
    }
    assert_eq!(names(&maps).await, Vec::<String>::new());
}

#[tokio::test]
async fn what_cannot_be_written_fails_with_its_node_and_its_record_stays() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let namespace = "cleanup-refused";
    plane.kubectl(&["create", "namespace", namespace], None).unwrap();
    let maps = config_maps(plane, namespace).await;
    owned(&admin, &maps, "refused-1").await;
    store(&maps, "node-labels-unreadable", &[("state.json", "{".to_owned())]).await;
    // May read everything, and delete ConfigMaps, but not write nodes.
    let rules = json!([
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]},
    ]);
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "cleanup-reader"}, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "cleanup-reader"},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cleanup-reader"},
         "subjects": [{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}]}]})
    .to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&objects)).unwrap();
    let arguments = ["cleanup", "--namespace", namespace, "--confirm", "-o", "json"];
    let ran = run(plane, Some("reader"), &arguments);
    plane.kubectl(&["delete", "-f", "-"], Some(&objects)).unwrap();
    let answer = json_of(ran, 1);
    assert_eq!(keys(&answer, "refused-1")["old.test/tier"], is("failed", ""));
    assert!(answer["nodes"][0]["error"].as_str().unwrap().contains("forbidden"), "{answer:#}");
    // With another --identity the record does not match the node, and nothing would tell what nodegate owns.
    let other = run(plane, None, &[&arguments[..], &["--identity", "systemUUID"]].concat());
    let other = json_of(other, 1);
    assert_eq!((&other["nodes"], &other["objects"][0]["why"]), (&json!([]), &json!("otherMachine")), "{other:#}");
    let whys: Vec<_> = answer["objects"].as_array().unwrap().iter().map(|object| &object["why"]).collect();
    assert_eq!(whys, ["nodeFailed", "unreadable"], "{answer:#}");
    let left = cleanup(plane, namespace, &["--confirm"]);
    let text = left.with(1);
    assert!(
        text.contains("it cannot be read; delete it with kubectl") && text.contains("1 key and 1 object removed"),
        "{text}"
    );
    assert_eq!(names(&maps).await, ["node-labels-unreadable"]);
    admin.delete("refused-1").await;
}

#[tokio::test]
async fn a_part_is_cleaned_up_while_nodegate_runs_as_far_as_no_rule_assigns_it() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let mut nodegate = leading(plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() }).await;
    let namespace = nodegate.namespace.clone();
    let maps = config_maps(plane, &namespace).await;
    let gone = json!({"nodeName": "kept-gone-long-ago", "nodeUID": "x", "labels": {"persist.demo/a": "b"}});
    store(&maps, "node-labels-kept-gone-long-ago", &[("state.json", gone.to_string())]).await;
    admin.delete("kept-part").await;
    admin.create(&node("kept-part", json!({"old.test/tier": "gold"}))).await.unwrap();
    let owns = |state: &Value| state["owned"]["taints"][0]["key"] == "fleet" && state["nodeUID"].is_string();
    let mut record = eventually_state(&maps, "kept-part", "owned", owns).await;
    // As if a rule had assigned it before.
    record["owned"]["labels"]["old.test/tier"] = json!("gold");
    let patch = json!({"data": {"state.json": record.to_string()}}).to_string();
    plane.kubectl(&["-n", &namespace, "patch", "configmap", "node-labels-kept-part", "-p", &patch], None).unwrap();

    until_published(&maps).await;

    let unknown = cleanup(plane, &namespace, &["--policy", "nothing", "--confirm"]);
    assert!(unknown.code == 2 && unknown.errors.contains("policy nothing is not in force"), "{}", unknown.errors);
    let absent = cleanup(plane, &namespace, &["--node", "nowhere", "--confirm"]);
    assert!(absent.code == 2 && absent.errors.contains("no node nowhere in the cluster"), "{}", absent.errors);
    let part = json_of(cleanup(plane, &namespace, &["--node", "kept-part", "--confirm", "-o", "json"]), 1);
    let results = keys(&part, "kept-part");
    assert_eq!(results["old.test/tier"], is("removed", ""));
    assert_eq!(results["hardware.tier"], is("kept", "assigned"));
    assert_eq!(part["objects"], json!([]));
    // Somebody goes on writing the record that is to be deleted.
    let is_done = AtomicBool::new(false);
    let old = std::thread::scope(|scope| {
        scope.spawn(|| {
            let annotate = ["annotate", "configmap/node-labels-kept-gone-long-ago", "-n", &namespace, "--overwrite"];
            for write in (0..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                let _ = plane.kubectl(&[&annotate as &[&str], &[&format!("write={write}")]].concat(), None);
            }
        });
        let ran = cleanup(plane, &namespace, &["--decommissioned", "--confirm", "-o", "json"]);
        is_done.store(true, Ordering::Relaxed);
        json_of(ran, 0)
    });
    assert_eq!(old["objects"][0]["name"], "node-labels-kept-gone-long-ago");
    assert_eq!((old["objects"].as_array().unwrap().len(), old["nodes"].as_array().unwrap().len()), (1, 0), "{old:#}");
    assert!(state(&maps, "kept-gone-long-ago").await.is_null());

    // Stopped, the same policy gives up its keys, and the record of the rest stays.
    nodegate.terminate();
    plane.kubectl(&["delete", CONFIGURATIONS, "nodegate"], None).unwrap();
    let policy = json_of(cleanup(plane, &namespace, &["--policy", "keeping", "--confirm", "-o", "json"]), 0);
    assert_eq!(keys(&policy, "kept-part")["fleet"], is("removed", ""));
    assert_eq!(label(&admin.get("kept-part").await, "hardware.tier"), None);
    let record = state(&maps, "kept-part").await;
    assert!(record["owned"].is_null() && record["nodeName"] == "kept-part", "{record:#}");
    let node = cleanup(plane, &namespace, &["--node", "kept-part", "--confirm"]).with(0);
    assert!(node.contains("0 keys and 1 object removed"), "{node}");
    admin.delete("kept-part").await;
}

#[tokio::test]
async fn the_charts_roles_for_cleanup_are_enough() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let Some(chart) = crate::chart::manifests(&json!({"nativePolicies": {"enabled": true}})) else { return };
    // Other tests leave objects in the namespace of the chart.
    let namespace = "cleanup-roles";
    let chart = chart.replace("\n  namespace: \"nodegate\"\n", "\n  namespace: cleanup-roles\n");
    plane.kubectl(&["create", "namespace", namespace], None).unwrap();
    let is_role = |text: &&str| text.contains("Role\nmetadata:\n  name: nodegate-cleanup\n");
    let roles: Vec<&str> = chart.split("\n---\n").filter(is_role).collect();
    assert_eq!(roles.len(), 2);
    let subject = "subjects: [{kind: User, name: cleaner, apiGroup: rbac.authorization.k8s.io}]";
    let binding = |kind: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}Binding\nmetadata: {{name: cleaner, namespace: {namespace}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: nodegate-cleanup}}\n{subject}"
        )
    };
    let rights = format!("{}\n---\n{}\n---\n{}", roles.join("\n---\n"), binding("Role"), binding("ClusterRole"));
    plane.kubectl(&["apply", "-f", "-"], Some(&rights)).unwrap();
    let maps = config_maps(plane, namespace).await;
    owned(&admin, &maps, "permitted-1").await;
    let record = json!({"nodeName": "permitted-2", "nodeUID": "u", "labels": {}}).to_string();
    store(&maps, "node-labels-permitted-2", &[("state.json", record), ("notes.txt", "mine".to_owned())]).await;
    store(&maps, "nodegate-in-force", &[]).await;
    let label = format!("{{nodegate.dev/kept-by: {namespace}}}");
    let objects = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: nodegate-tls, namespace: {namespace}}}\ndata: {{phase: YQ==}}\n---\n\
         apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: nodegate, namespace: {namespace}}}\n---\n\
         apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {{name: cleaner, labels: {label}}}\n\
         spec: {{policyName: absent, validationActions: [Audit], matchResources: {{namespaceSelector: {{matchLabels: {{a: absent}}}}}}}}"
    );
    plane.kubectl(&["apply", "--server-side", "--field-manager=nodegate", "-f", "-"], Some(&objects)).unwrap();

    let answer =
        json_of(run(plane, Some("cleaner"), &["cleanup", "--namespace", namespace, "--confirm", "-o", "json"]), 0);
    let kinds: Vec<_> = answer["objects"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    let expected = ["ConfigMap", "ConfigMap", "ConfigMap", "Lease", "Secret", "ValidatingAdmissionPolicyBinding"];
    assert_eq!(kinds, expected, "{answer:#}");
    let rest = maps.get("node-labels-permitted-2").await.unwrap().data.unwrap_or_default();
    assert_eq!(rest.keys().collect::<Vec<_>>(), ["notes.txt"], "the data of others");
    plane.kubectl(&["delete", "-f", "-"], Some(&rights)).unwrap();
    admin.delete("permitted-1").await;
}
