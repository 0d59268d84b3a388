//! Nodes that join: they come before everything else, and a crash between any two writes forgets nothing.

use futures_util::StreamExt as _;
use kube::api::Api;
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, is_pending, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, label};
use super::{POLICY, all_right, delete_all, join_all, names, until_denied};

/// A node that its kubelet registers with the pending taint, as admission would have set it.
fn pending(name: &str, labels: Value) -> Value {
    let mut node = node(name, labels);
    node["spec"] = json!({"taints": [{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]});
    node
}

/// Every version of nodes or ConfigMaps as it comes, until dropped.
async fn versions<K: kube::Resource<DynamicType = ()>>(
    plane: &ControlPlane,
    namespace: Option<&str>,
) -> tokio::sync::mpsc::UnboundedReceiver<(u64, DynamicObject)> {
    let (seen, receiver) = tokio::sync::mpsc::unbounded_channel();
    let (client, resource) = (plane.client(None).await, ApiResource::erase::<K>(&()));
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let (ready, listed) = tokio::sync::oneshot::channel();
    let mut ready = Some(ready);
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object)) => {
                    let version = object.metadata.resource_version.as_deref().unwrap().parse().unwrap();
                    if seen.send((version, object)).is_err() {
                        return;
                    }
                }
                Ok(Event::InitDone) => drop(ready.take().map(|ready| ready.send(()))),
                _ => {}
            }
        }
    });
    listed.await.unwrap();
    receiver
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writes_precede_the_removal_of_the_pending_taint_and_the_rest_follows() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-two", 5);
    delete_all(&admin, &nodes).await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let mut of_nodes = versions::<k8s_openapi::api::core::v1::Node>(cluster.plane, None).await;
    let mut of_records =
        versions::<k8s_openapi::api::core::v1::ConfigMap>(cluster.plane, Some(&nodegate.namespace)).await;
    join_all(cluster.plane, &nodes).await;
    all_right(&admin, &nodes).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in &nodes {
        // What changed at the lift is in the history, later.
        eventually_state(&maps, name, "the rest", |state| state["history"].as_array().is_some_and(|h| !h.is_empty()))
            .await;
    }
    let (mut lifts, mut writes) = (std::collections::HashMap::new(), Vec::new());
    while let Ok((version, node)) = of_nodes.try_recv() {
        let name = node.metadata.name.clone().unwrap();
        let ours =
            node.metadata.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some("nodegate"));
        let node = serde_json::to_value(&node).unwrap();
        if nodes.contains(&name) && ours && !lifts.contains_key(&name) {
            writes.push((name.clone(), version));
            if !is_pending(&node) {
                assert!(label(&node, "node-role.kubernetes.io/worker").is_some(), "lifted before the role is there");
                lifts.insert(name, version);
            }
        }
    }
    while let Ok((version, record)) = of_records.try_recv() {
        let name = record.metadata.name.unwrap().trim_start_matches("node-labels-").to_owned();
        writes.extend(nodes.contains(&name).then_some((name, version)));
    }
    for name in &nodes {
        let lift = lifts[name];
        let before = writes.iter().filter(|(node, version)| node == name && *version <= lift).count();
        let after = writes.iter().filter(|(node, version)| node == name && *version > lift).count();
        assert_eq!(before, 2, "{name}: a record and the change that lifts; {writes:?}");
        assert!((1..=2).contains(&after), "{name}: what is left is recorded together; {writes:?}");
    }
    delete_all(&admin, &nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joining_node_does_not_wait_for_repairs_of_others() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let (old, new) = (names("kept-old", 60), names("kept-new", 20));
    delete_all(&admin, &old).await;
    delete_all(&admin, &new).await;
    // 60 nodes that lack everything need 120 writes, at two a second.
    for name in &old {
        admin.create(&node(name, json!({}))).await.unwrap();
    }
    let serve: &[&str] = &["--writes-per-second", "2"];
    let nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, serve, ..Setup::default() });
    until_led(&nodegate).await;
    for name in &new {
        let kubelet = Requester::kubelet(cluster.plane, name).await;
        kubelet.create(&pending(name, json!({"persist.demo/own": name}))).await.unwrap();
    }
    all_right(&admin, &new).await;
    let mut lacking = 0;
    for name in &old {
        lacking += usize::from(label(&admin.get(name).await, "node-role.kubernetes.io/worker").is_none());
    }
    assert!(lacking > 20, "only {lacking} of 60 old nodes still wait: the 20 that join came after them");
    drop(nodegate);
    delete_all(&admin, &old).await;
    delete_all(&admin, &new).await;
}

/// Somebody else's policy that refuses nodegate one kind of write to what is named so; and a ConfigMap named `mark`, to ask
/// whether it acts.
fn refusal(name: &str, resource: &str, operations: &[&str], prefix: &str, mark: &str) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
         "spec": {"matchConstraints": {"resourceRules": [
                      {"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": [resource]},
                      {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"], "resourceNames": [mark]}]},
                  "matchConditions": [{"name": "nodegate", "expression": "request.userInfo.username.endsWith(':nodegate')"}],
                  "validations": [{"expression": format!("!request.name.startsWith('{prefix}')"), "message": "not now"}]}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
         "spec": {"policyName": name, "validationActions": ["Deny"]}}]})
    .to_string()
}

/// Kills the leader at one place of every join, and starts another: which write is refused says at which.
async fn killed_where_it_is_refused(name: &str, resource: &str, operations: &[&str], prefix: &str) {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-cut", 6);
    delete_all(&admin, &nodes).await;
    let setup = Setup { policies: POLICY, cluster: true, unregistered: true, ..Setup::default() };
    let mut nodegate = Nodegate::start(cluster.plane, &setup);
    let namespace = nodegate.namespace.clone();
    until_led(&nodegate).await;
    let mark = format!("{prefix}-mark");
    let refusal = refusal(name, resource, operations, prefix, &mark);
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(&refusal)).unwrap();
    until_denied(cluster.plane, Some("system:serviceaccount:marked:nodegate"), &mark).await;
    for name in &nodes {
        let kubelet = Requester::kubelet(cluster.plane, name).await;
        kubelet.create(&pending(name, json!({"persist.demo/own": name}))).await.unwrap();
    }
    let are_refused = || {
        let log = nodegate.log();
        let refused: String = log.lines().filter(|line| line.contains("not now")).collect();
        nodes.iter().all(|name| refused.contains(name.as_str()))
    };
    nodegate.eventually("each of them is refused", are_refused).await;
    nodegate.kill();
    cluster.plane.kubectl(&["delete", "-f", "-"], Some(&refusal)).unwrap();
    let _next = Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), ..setup });
    all_right(&admin, &nodes).await;
    let maps = config_maps(cluster.plane, &namespace).await;
    for name in &nodes {
        eventually_state(&maps, name, "whole", |state| {
            state["owned"]["labels"]["node-role.kubernetes.io/worker"] == ""
                && state["owned"]["taints"][0]["key"] == "fleet"
                && state["labels"]["persist.demo/own"] == name.as_str()
                && state["nodeUID"].is_string()
        })
        .await;
    }
    delete_all(&admin, &nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_between_the_record_of_a_join_and_its_change_owns_the_keys_it_sets() {
    killed_where_it_is_refused("no-change", "nodes", &["UPDATE"], "kept-cut").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_between_the_change_of_a_join_and_the_rest_of_its_record_records_the_rest() {
    killed_where_it_is_refused("no-rest", "configmaps", &["UPDATE"], "node-labels-kept-cut").await;
}
