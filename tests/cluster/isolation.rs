//! A test begins with an empty control plane, whatever another one left in it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::requester::Requester;
use crate::eventually::{eventually, holds};

const KINDS: &str = "mutatingwebhookconfigurations,validatingwebhookconfigurations,mutatingadmissionpolicies,mutatingadmissionpolicybindings,\
    validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,nodes,namespaces,leases,configmaps,secrets,pods,clusterroles";

/// All objects of these kinds, and the labels of a namespace.
fn contents(plane: &ControlPlane) -> String {
    let objects = plane.kubectl(&["get", KINDS, "--all-namespaces", "-o", "name"], None).unwrap();
    let labels = plane.kubectl(&["get", "namespace", "kube-system", "-o", "jsonpath={.metadata.labels}"], None);
    format!("{objects}{}", labels.unwrap())
}

/// What stops whoever comes next: nodes and namespaces that nobody can delete, a dead webhook that must not fail, a policy that
/// denies all nodes and one that changes them.
fn leave_everything(plane: &ControlPlane) {
    plane.install_definition();
    let held = |name: &str| json!({"name": name, "finalizers": ["test.example.com/never"]});
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": held(name)});
    let policy =
        json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": held("left"), "spec": {}});
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["nodes", "configmaps"]});
    let admission = |kind: &str, name: &str, body: Value| {
        let mut object =
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        object
    };
    let webhook = json!({"webhooks": [{"name": "left.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"url": "https://127.0.0.1:9/"}, "rules": [rule], "matchConditions": [{"name": "nodes", "expression": "request.resource.resource == 'nodes'"}]}]});
    let matched = json!({"resourceRules": [rule]});
    let denies = json!({"spec": {"matchConstraints": matched, "validations": [{"expression": "false", "message": "left behind"}]}});
    let changes = json!({"spec": {"matchConstraints": matched, "reinvocationPolicy": "Never", "mutations": [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {\"left\": \"behind\"}}}"}}]}});
    let items = [
        node("left-1"),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "left"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "namespace": "left", "finalizers": ["test.example.com/never"]}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "left", "namespace": "kube-system"}}),
        policy,
        admission("MutatingAdmissionPolicy", "left", changes),
        admission("MutatingAdmissionPolicyBinding", "left", json!({"spec": {"policyName": "left"}})),
        admission("ValidatingAdmissionPolicy", "left", denies),
        admission(
            "ValidatingAdmissionPolicyBinding",
            "left",
            json!({"spec": {"policyName": "left", "validationActions": ["Deny"]}}),
        ),
        admission("ValidatingWebhookConfiguration", "left", webhook),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&list)).unwrap();
    plane.kubectl(&["delete", "namespace", "left", "--wait=false"], None).unwrap();
    plane.kubectl(&["label", "namespace", "kube-system", "left=behind"], None).unwrap();
    plane.kubectl(&["delete", "clusterrole", "view"], None).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_panics_half_way_leaves_nothing_to_the_next_one() {
    let cluster = exclusive();
    let before = contents(cluster.plane);
    let admin = Requester::admin(cluster.plane).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "next-1"}});
    leave_everything(cluster.plane);
    eventually("what was left acts", async || match admin.create(&node).await {
        Ok(created) => {
            admin.delete("next-1").await;
            Err(created.to_string())
        }
        Err(refusal) => holds(refusal.message.contains("left behind"), || refusal.message),
    })
    .await;
    let half_way = catch_unwind(AssertUnwindSafe(move || {
        let _cluster = cluster;
        panic!("half-way, on purpose");
    }));
    assert!(half_way.is_err());

    let cluster = exclusive();
    assert_eq!(contents(cluster.plane), before);
    let created = Requester::admin(cluster.plane).await.create(&node).await.unwrap();
    assert!(created["metadata"]["labels"].is_null(), "{created:#}");
}
