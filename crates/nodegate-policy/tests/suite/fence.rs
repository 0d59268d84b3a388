//! What the fence refuses, one of the native policies that ship with nodegate.

use nodegate_policy::native::{FenceOptions, fence};
use serde_json::{Value as Json, json};

use crate::evaluation::Policy;
use crate::guard::{refused, user};

const CONFIGURATIONS: &str = "validatingwebhookconfigurations";
const ACCOUNT: &str = "system:serviceaccount:nodegate:nodegate";

/// What the fence refuses: a write of `resource` by somebody.
fn fenced(who: &str, resource: &str, name: &str, operation: &str, before: &Json, after: &Json) -> Vec<String> {
    let options = FenceOptions {
        name: "nodegate".to_owned(),
        user: ACCOUNT.to_owned(),
        namespace: "nodegate".to_owned(),
        config_maps: vec!["nodegate-in-force".to_owned()],
        prefixes: vec!["nodegate-state-".to_owned()],
        generations: "nodepolicy-".to_owned(),
        secret: "nodegate-tls".to_owned(),
        lease: "nodegate".to_owned(),
    };
    let request = json!({
        "operation": operation, "name": name, "namespace": before["metadata"]["namespace"].as_str().or(after["metadata"]["namespace"].as_str()).unwrap_or_default(),
        "resource": {"resource": resource}, "userInfo": user(who),
    });
    // The API server chooses the policy by the resource.
    let policies: Vec<Policy> = Policy::all(&fence(&options))
        .into_iter()
        .filter(|policy| {
            let rules = policy.object["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
            rules.iter().any(|rule| rule["resources"].as_array().unwrap().contains(&json!(resource)))
        })
        .collect();
    assert_eq!(policies.len(), 1);
    refused(&policies, &[("object", after), ("oldObject", before), ("request", &request)])
}

fn configuration() -> Json {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "metadata": {"name": "nodegate", "resourceVersion": "1", "annotations": {"team": "a"}, "labels": {"l": "1"}},
        "webhooks": [
            {"name": "a", "failurePolicy": "Ignore", "clientConfig": {"caBundle": "eA==", "service": {"name": "nodegate"}}},
            {"name": "b", "failurePolicy": "Ignore", "clientConfig": {"caBundle": "eA=="}},
        ],
    })
}

#[test]
fn the_fence_lets_nodegates_account_change_only_its_own_annotations_outside_of_the_webhooks() {
    let before = configuration();
    let update = |who: &str, path: &str, value: Json| {
        let mut after = before.clone();
        match after.pointer_mut(path) {
            Some(there) => *there = value,
            None => {
                let (parent, key) = path.rsplit_once('/').unwrap();
                after.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value;
            }
        }
        fenced(who, CONFIGURATIONS, "nodegate", "UPDATE", &before, &after)
    };
    for (path, value) in
        [("/metadata/annotations/nodegate.dev~1protected", json!("a\n")), ("/metadata/resourceVersion", json!("2"))]
    {
        assert_eq!(update(ACCOUNT, path, value), [""; 0], "{path}");
    }
    let metadata =
        "nodegate's account may change no metadata of a webhook configuration except nodegate.dev annotations";
    let annotations =
        "nodegate's account may change no annotations of a webhook configuration except those of nodegate.dev";
    let rest = "nodegate's account may change no other fields of a webhook configuration";
    for (path, value, message) in [
        ("/metadata/labels/l", json!("2"), metadata),
        ("/metadata/ownerReferences", json!([]), metadata),
        ("/metadata/labels", Json::Null, metadata),
        ("/metadata/annotations/team", json!("b"), annotations),
        ("/metadata/annotations/other", json!("b"), annotations),
        ("/metadata/annotations", json!({}), annotations),
        ("/apiVersion", json!("admissionregistration.k8s.io/v2"), rest),
        ("/spec", json!({}), rest),
    ] {
        assert_eq!(update(ACCOUNT, path, value.clone()), [message], "{path}");
        assert_eq!(update("admin", path, value), [""; 0], "others are not affected: {path}");
    }
    assert_eq!(
        fenced(ACCOUNT, CONFIGURATIONS, "nodegate", "CREATE", &Json::Null, &before),
        ["nodegate's account may not create or delete webhook configurations"]
    );
}

#[test]
fn the_fence_lets_nodegates_account_write_only_its_own_objects() {
    let object = |namespace: &str, kind: &str| json!({"metadata": {"namespace": namespace}, "type": kind});
    let write = |resource: &str, name: &str, operation: &str, object: Json| {
        fenced(ACCOUNT, resource, name, operation, &Json::Null, &object)
    };
    for (resource, name, kind) in [
        ("configmaps", "nodegate-in-force", ""),
        ("configmaps", "nodegate-state-n", ""),
        ("secrets", "nodegate-tls", "kubernetes.io/tls"),
        ("leases", "nodegate", ""),
    ] {
        assert_eq!(write(resource, name, "CREATE", object("nodegate", kind)), [""; 0], "{name}");
        assert_eq!(
            write(resource, name, "CREATE", object("other", kind)),
            ["nodegate's account may write only in namespace nodegate"]
        );
    }
    let secret = "nodegate's account may write no Secret except nodegate-tls of type kubernetes.io/tls";
    for (resource, name, kind, message) in [
        (
            "configmaps",
            "other",
            "",
            "nodegate's account may write no ConfigMaps except nodegate-state-*, nodegate-in-force",
        ),
        ("secrets", "other", "kubernetes.io/tls", secret),
        ("secrets", "nodegate-tls", "kubernetes.io/service-account-token", secret),
        ("leases", "other", "", "nodegate's account may write no Lease except nodegate"),
        (
            "events",
            "e",
            "",
            "nodegate's account may write no events except its own, in namespaces default and nodegate",
        ),
    ] {
        assert_eq!(write(resource, name, "CREATE", object("nodegate", kind)), [message]);
    }
    assert_eq!(write("secrets", "nodegate-tls", "DELETE", object("nodegate", "kubernetes.io/tls")), [secret]);
}

#[test]
fn the_fence_lets_nodegates_account_add_neither_owners_nor_finalizers() {
    let with = |field: &str, list: Json| json!({"metadata": {"namespace": "nodegate", field: list}, "reportingController": "nodegate"});
    let message = "nodegate's account may add neither owners nor finalizers to an object";
    for (resource, name) in [("configmaps", "nodegate-in-force"), ("leases", "nodegate"), ("events", "n.1")] {
        for field in ["ownerReferences", "finalizers"] {
            let (one, none) = (with(field, json!(["a"])), with(field, json!([])));
            let write = |operation: &str, before: &Json, after: &Json| {
                fenced(ACCOUNT, resource, name, operation, before, after)
            };
            assert_eq!(write("CREATE", &Json::Null, &one), [message], "{resource} {field}");
            assert_eq!(write("CREATE", &Json::Null, &none), [""; 0], "{resource} {field}");
            assert_eq!(write("UPDATE", &none, &one), [message], "{resource} {field}");
            // What others have set may stay, and may go.
            assert_eq!(write("UPDATE", &one, &one), [""; 0], "{resource} {field}");
            assert_eq!(write("UPDATE", &one, &none), [""; 0], "{resource} {field}");
        }
    }
}

#[test]
fn the_fence_lets_nodegates_account_store_only_generations_of_policies() {
    let owned = |kind: &str| json!({"metadata": {"namespace": "nodegate", "ownerReferences": [{"apiVersion": "nodegate.dev/v1alpha1", "kind": kind, "name": "p", "uid": "u"}]}});
    let write = |name: &str, operation: &str, before: &Json, after: &Json| {
        fenced(ACCOUNT, "controllerrevisions", name, operation, before, after)
    };
    let good = owned("NodePolicy");
    assert_eq!(write("nodepolicy-u-1", "CREATE", &Json::Null, &good), [""; 0]);
    assert_eq!(write("nodepolicy-u-1", "DELETE", &good, &Json::Null), [""; 0]);
    let message = "nodegate's account may write no ControllerRevisions except nodepolicy-* of NodePolicies";
    // Those of a DaemonSet of the namespace are what its pods are rolled back to.
    assert_eq!(write("agent-6d5f", "CREATE", &Json::Null, &good), [message]);
    assert_eq!(write("agent-6d5f", "DELETE", &good, &Json::Null), [message]);
    assert_eq!(write("nodepolicy-u-1", "CREATE", &Json::Null, &owned("DaemonSet")), [message]);
    let mut stuck = good;
    stuck["metadata"]["finalizers"] = json!(["example.com/stuck"]);
    let message = "nodegate's account may add neither owners nor finalizers to an object";
    assert_eq!(write("nodepolicy-u-1", "CREATE", &Json::Null, &stuck), [message]);
}

#[test]
fn the_fence_lets_nodegates_account_change_only_labels_annotations_and_taints_of_a_node() {
    let before = json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"a": "1"}},
        "spec": {"providerID": "p"}, "status": {"phase": "Running"},
    });
    let update = |who: &str, resource: &str, path: &str, value: &Json| {
        let mut after = before.clone();
        let (parent, key) = path.rsplit_once('/').unwrap();
        after.pointer_mut(parent).unwrap()[key] = value.clone();
        fenced(who, resource, "n", "UPDATE", &before, &after)
    };
    for (path, value) in [
        ("/metadata/labels", json!({"a": "2", "b": "1"})),
        ("/metadata/labels", json!({})),
        ("/metadata/annotations", json!({"a": "1"})),
        ("/metadata/resourceVersion", json!("2")),
        ("/metadata/managedFields", json!([{"manager": "nodegate"}])),
        ("/spec/taints", json!([{"key": "a", "effect": "NoSchedule"}])),
    ] {
        assert_eq!(update(ACCOUNT, "nodes", path, &value), [""; 0], "{path}");
    }
    let metadata = "nodegate's account may change no metadata of a node except labels and annotations";
    let spec = "nodegate's account may change nothing in a node's spec except taints";
    let rest = "nodegate's account may change nothing of a node except labels, annotations and taints";
    for (path, value, message) in [
        ("/metadata/ownerReferences", json!([{"kind": "ConfigMap", "name": "gone", "uid": "x"}]), metadata),
        ("/metadata/finalizers", json!(["example.com/a"]), metadata),
        ("/metadata/uid", json!("v"), metadata),
        ("/spec/unschedulable", json!(true), spec),
        ("/spec/podCIDR", json!("10.0.0.0/24"), spec),
        ("/spec/providerID", Json::Null, spec),
        ("/status", json!({}), rest),
        ("/new", json!({}), rest),
    ] {
        for resource in ["nodes", "nodes/status"] {
            assert_eq!(update(ACCOUNT, resource, path, &value), [message], "{resource} {path}");
            assert_eq!(update("admin", resource, path, &value), [""; 0], "others are not affected: {path}");
        }
    }
    for operation in ["CREATE", "DELETE"] {
        let refused = fenced(ACCOUNT, "nodes", "n", operation, &Json::Null, &before);
        assert_eq!(refused, ["nodegate's account may not create or delete nodes"]);
    }
}
