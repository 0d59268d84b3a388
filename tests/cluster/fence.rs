//! The fence: a stolen token of nodegate's own account is not the cluster.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::guard::Guard;
use crate::eventually::eventually;

const NAMESPACE: &str = "fenced";
const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

fn resource(kind: &str) -> ApiResource {
    match kind {
        "ConfigMap" => ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&()),
        "Secret" => ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&()),
        "Lease" => ApiResource::erase::<k8s_openapi::api::coordination::v1::Lease>(&()),
        "ControllerRevision" => ApiResource::erase::<k8s_openapi::api::apps::v1::ControllerRevision>(&()),
        "ClusterReport" => {
            ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("openreports.io", "v1alpha1", "ClusterReport"))
        }
        kind => ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind)),
    }
}

fn code<T>(result: &Result<T, kube::Error>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => {
            assert!(status.code != 403 || status.message.contains("nodegate's account"), "{}", status.message);
            status.code
        }
        Err(other) => panic!("{other}"),
    }
}

/// Whoever has stolen the token, with every right that RBAC could give.
async fn thief(plane: &ControlPlane) -> kube::Client {
    let account = format!("system:serviceaccount:{NAMESPACE}:nodegate");
    plane.client(Some((&account, &["system:masters"]))).await
}

fn install(plane: &ControlPlane) -> (Guard<'_>, String) {
    let _ = plane.kubectl(&["create", "namespace", NAMESPACE], None);
    let account = format!("{NAMESPACE}/nodegate");
    let guard = Guard::install(plane, &["--service-account", &account]);
    let render = concat!(env!("CARGO_MANIFEST_DIR"), "/webhook-config/webhooks-fail.yaml");
    let configurations = std::fs::read_to_string(render).unwrap();
    // Nobody is called: these tests are about who may write them.
    let configurations = configurations.replace("resources:\n    - nodes", "resources:\n    - podtemplates");
    plane.kubectl(&["apply", "-f", "-"], Some(&configurations)).unwrap();
    (guard, configurations)
}

/// Waits until the API server knows of both policies.
async fn until_fenced(client: &kube::Client) {
    let configurations: Api<DynamicObject> = Api::all_with(client.clone(), &resource(KINDS[0]));
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource("ConfigMap"));
    let label = Patch::Merge(json!({"metadata": {"labels": {"probe": "x"}}}));
    let probe: DynamicObject = serde_json::from_value(json!({"metadata": {"name": "probe"}})).unwrap();
    let (patching, creating) = (
        PatchParams { dry_run: true, ..PatchParams::default() },
        PostParams { dry_run: true, ..PostParams::default() },
    );
    eventually("it is fenced", async || {
        configurations.patch("nodegate", &patching, &label).await.is_err()
            && maps.create(&creating, &probe).await.is_err()
    })
    .await;
}

/// Changes that would make it another webhook, as operations of a JSON patch.
fn takeovers(first: &Value) -> Vec<Value> {
    let mut more = first.clone();
    more["name"] = json!("evil.nodegate.dev");
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let remove = |path: &str| json!([{"op": "remove", "path": path}]);
    vec![
        add("/webhooks/0/clientConfig/service/name", json!("evil")),
        add("/webhooks/0/clientConfig/service/namespace", json!("evil")),
        add("/webhooks/0/clientConfig/service/path", json!("/evil")),
        add("/webhooks/0/clientConfig", json!({"url": "https://evil.example.com/"})),
        add("/webhooks/0/rules/0/resources", json!(["*"])),
        add("/webhooks/0/rules/-", first["rules"][0].clone()),
        add("/webhooks/0/matchConditions", json!([])),
        remove("/webhooks/0/matchConditions"),
        add("/webhooks/0/namespaceSelector", json!({"matchLabels": {"a": "b"}})),
        add("/webhooks/0/objectSelector", json!({"matchLabels": {"a": "b"}})),
        add("/webhooks/0/timeoutSeconds", json!(30)),
        add("/webhooks/0/sideEffects", json!("NoneOnDryRun")),
        add("/webhooks/0/matchPolicy", json!("Exact")),
        add("/webhooks/0/name", json!("other.nodegate.dev")),
        add("/webhooks/-", more),
        remove("/webhooks/0"),
        remove("/webhooks"),
        add("/metadata/labels", json!({"a": "b"})),
        add("/metadata/finalizers", json!(["example.com/a"])),
        add("/metadata/ownerReferences", json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}])),
        add("/metadata/annotations", json!({"cert-manager.io/inject-ca-from": "evil/evil"})),
    ]
}

#[tokio::test]
async fn nodegates_account_cannot_redirect_its_webhooks_and_can_do_its_work() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let (guard, configurations) = install(plane);
    let client = thief(plane).await;
    until_fenced(&client).await;
    for kind in KINDS {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        let there = serde_json::to_value(api.get("nodegate").await.unwrap()).unwrap();
        let first = &there["webhooks"][0];
        let plain = PatchParams::default();
        for operations in takeovers(first) {
            let patch = Patch::Json::<()>(serde_json::from_value(operations.clone()).unwrap());
            assert_eq!(code(&api.patch("nodegate", &plain, &patch).await), 403, "{kind}: {operations}");
        }
        let mut evil = there.clone();
        evil["webhooks"][0]["clientConfig"] = json!({"url": "https://evil.example.com/"});
        let webhooks = json!({"webhooks": evil["webhooks"]});
        assert_eq!(code(&api.patch("nodegate", &plain, &Patch::Merge(webhooks)).await), 403, "{kind}: merge patch");
        let replacement: DynamicObject = serde_json::from_value(evil.clone()).unwrap();
        assert_eq!(code(&api.replace("nodegate", &PostParams::default(), &replacement).await), 403, "{kind}: PUT");
        let mut slow = there["webhooks"].clone();
        slow[0]["timeoutSeconds"] = json!(30);
        let applied = json!({"apiVersion": there["apiVersion"], "kind": kind, "metadata": {"name": "nodegate"},
                             "webhooks": slow});
        let apply = PatchParams::apply("thief").force();
        assert_eq!(code(&api.patch("nodegate", &apply, &Patch::Apply(applied)).await), 403, "{kind}: apply");
        let strategic = json!({"webhooks": [{"name": first["name"], "timeoutSeconds": 30}]});
        assert_eq!(code(&api.patch("nodegate", &plain, &Patch::Strategic(strategic)).await), 403, "{kind}: strategic");
        assert_eq!(code(&api.delete("nodegate", &DeleteParams::default()).await), 403, "{kind}: DELETE");
        let mut other = there.clone();
        other["metadata"] = json!({"name": "another"});
        let other: DynamicObject = serde_json::from_value(other).unwrap();
        assert_eq!(code(&api.create(&PostParams::default(), &other).await), 403, "{kind}: CREATE");

        // What it has to do.
        let ca = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap().cert.pem();
        let ca = serde_json::to_value(k8s_openapi::ByteString(ca.into_bytes())).unwrap();
        let add = |path: &str, value: Value| {
            Patch::Json::<()>(serde_json::from_value(json!([{"op": "add", "path": path, "value": value}])).unwrap())
        };
        let bundle = add("/webhooks/0/clientConfig/caBundle", ca);
        assert_eq!(code(&api.patch("nodegate", &plain, &bundle).await), 200, "{kind}: caBundle");
        let own = Patch::Merge(json!({"metadata": {"annotations": {"nodegate.dev/x": "y"}}}));
        assert_eq!(code(&api.patch("nodegate", &plain, &own).await), 200, "{kind}: its annotation");
        let policy = if first["failurePolicy"] == "Fail" { "Ignore" } else { "Fail" };
        let arming = api.patch("nodegate", &plain, &add("/webhooks/0/failurePolicy", json!(policy))).await;
        let allowed = if kind.starts_with("Validating") { 200 } else { 403 };
        assert_eq!(code(&arming), allowed, "{kind}: failurePolicy");
    }
    plane.kubectl(&["delete", "-f", "-"], Some(&configurations)).expect("an administrator may do everything");
    drop(guard);
}

#[tokio::test]
async fn nodegates_account_can_write_only_its_own_config_maps_secrets_and_leases() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let (guard, configurations) = install(plane);
    let client = thief(plane).await;
    until_fenced(&client).await;
    let of = |kind: &str, namespace: &str| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &resource(kind))
    };
    let create = async |kind: &str, namespace: &str, metadata: Value, rest: Value| {
        let mut object = rest;
        object["metadata"] = metadata;
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        code(&of(kind, namespace).create(&PostParams::default(), &object).await)
    };
    let pair = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}});
    let token = json!({"type": "kubernetes.io/service-account-token"});
    for (kind, namespace, metadata, rest, expected) in [
        ("ConfigMap", NAMESPACE, json!({"name": "node-labels-n1"}), json!({}), 200),
        ("ConfigMap", NAMESPACE, json!({"name": "nodegate-in-force"}), json!({}), 200),
        ("ConfigMap", NAMESPACE, json!({"name": "nodegate-pools"}), json!({}), 200),
        ("ConfigMap", NAMESPACE, json!({"name": "nodegate-inventory-07"}), json!({}), 200),
        ("ConfigMap", NAMESPACE, json!({"name": "nodegate-policies"}), json!({}), 403),
        ("ConfigMap", NAMESPACE, json!({"generateName": "node-labels-"}), json!({}), 200),
        ("ConfigMap", NAMESPACE, json!({"generateName": "other-"}), json!({}), 403),
        ("ConfigMap", "default", json!({"name": "node-labels-n1"}), json!({}), 403),
        ("Lease", NAMESPACE, json!({"name": "nodegate"}), json!({}), 200),
        ("Lease", NAMESPACE, json!({"name": "other"}), json!({}), 403),
        ("Secret", NAMESPACE, json!({"name": "other"}), pair.clone(), 403),
        ("Secret", NAMESPACE, json!({"name": "nodegate-tls"}), json!({"type": "Opaque"}), 403),
        (
            "Secret",
            NAMESPACE,
            json!({"name": "nodegate-tls", "annotations": {"kubernetes.io/service-account.name": "admin"}}),
            token,
            403,
        ),
        ("Secret", NAMESPACE, json!({"name": "nodegate-tls"}), pair, 200),
    ] {
        let got = create(kind, namespace, metadata.clone(), rest).await;
        assert!(got == expected, "{kind} {metadata} in {namespace}: {got} instead of {expected}");
    }
    let admin: Api<DynamicObject> = Api::namespaced_with(plane.client(None).await, NAMESPACE, &resource("ConfigMap"));
    let foreign: DynamicObject = serde_json::from_value(json!({"metadata": {"name": "policies-of-files"}})).unwrap();
    admin.create(&PostParams::default(), &foreign).await.unwrap();
    let maps = of("ConfigMap", NAMESPACE);
    let patch = Patch::Merge(json!({"data": {"a": "b"}}));
    assert_eq!(code(&maps.patch("policies-of-files", &PatchParams::default(), &patch).await), 403);
    assert_eq!(code(&maps.delete("policies-of-files", &DeleteParams::default()).await), 403);
    assert_eq!(code(&maps.patch("node-labels-n1", &PatchParams::default(), &patch).await), 200);
    assert_eq!(code(&maps.delete("node-labels-n1", &DeleteParams::default()).await), 200);
    assert_eq!(code(&of("Secret", NAMESPACE).delete("nodegate-tls", &DeleteParams::default()).await), 403);
    plane.kubectl(&["delete", "-f", "-"], Some(&configurations)).unwrap();
    drop(guard);
    plane.kubectl(&["delete", "configmap,secret,lease", "-n", NAMESPACE, "--all"], None).unwrap();
}

#[tokio::test]
async fn nodegates_account_can_write_only_generations_of_policies_and_its_own_reports() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let (guard, configurations) = install(plane);
    let reports = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/openreports.io_clusterreports.yaml");
    plane.kubectl(&["apply", "-f", reports], None).unwrap();
    plane.until_established(&["-f", reports]);
    let client = thief(plane).await;
    until_fenced(&client).await;
    let of = |client: kube::Client, kind: &str| -> Api<DynamicObject> {
        match kind {
            "ClusterReport" => Api::all_with(client, &resource(kind)),
            kind => Api::namespaced_with(client, NAMESPACE, &resource(kind)),
        }
    };
    let owner =
        |kind: &str, api: &str| json!([{"apiVersion": api, "kind": kind, "name": "gone", "uid": "no-such-uid"}]);
    let policy = owner("NodePolicy", "nodegate.dev/v1alpha1");
    for (kind, metadata, expected) in [
        ("ControllerRevision", json!({"name": "nodepolicy-a"}), 200),
        ("ControllerRevision", json!({"name": "nodepolicy-b", "ownerReferences": policy}), 200),
        ("ControllerRevision", json!({"name": "nodepolicy-c", "ownerReferences": owner("DaemonSet", "apps/v1")}), 403),
        ("ControllerRevision", json!({"name": "nodepolicy-d", "finalizers": ["example.com/stay"]}), 403),
        ("ControllerRevision", json!({"generateName": "nodepolicy-"}), 200),
        ("ControllerRevision", json!({"generateName": "agent-"}), 403),
        ("ControllerRevision", json!({"name": "agent-1"}), 403),
        ("ClusterReport", json!({"name": "nodegate-n1"}), 200),
        ("ClusterReport", json!({"name": "nodegate-n2", "ownerReferences": owner("Node", "v1")}), 403),
        ("ClusterReport", json!({"name": "nodegate-n3", "finalizers": ["example.com/stay"]}), 403),
        ("ClusterReport", json!({"name": "scanner"}), 403),
    ] {
        let mut object = json!({"metadata": metadata, "apiVersion": resource(kind).api_version, "kind": kind});
        if kind == "ControllerRevision" {
            object["revision"] = json!(1);
            object["data"] = json!({});
        }
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let got = code(&of(client.clone(), kind).create(&PostParams::default(), &object).await);
        assert!(got == expected, "{kind} {metadata}: {got} instead of {expected}");
    }
    for (kind, foreign, own, rest) in [
        ("ControllerRevision", "agent-7", "nodepolicy-a", json!({"revision": 1, "data": {}})),
        ("ClusterReport", "scanner", "nodegate-n1", json!({})),
    ] {
        let mut object = rest;
        object["metadata"] = json!({"name": foreign});
        object["apiVersion"] = json!(resource(kind).api_version);
        object["kind"] = json!(kind);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        of(plane.client(None).await, kind).create(&PostParams::default(), &object).await.unwrap();
        let stolen = of(client.clone(), kind);
        assert_eq!(code(&stolen.delete(foreign, &DeleteParams::default()).await), 403, "{foreign}");
        let owners = Patch::Merge(json!({"metadata": {"ownerReferences": owner("Node", "v1")}}));
        assert_eq!(code(&stolen.patch(own, &PatchParams::default(), &owners).await), 403, "{own}");
        assert_eq!(code(&stolen.delete(own, &DeleteParams::default()).await), 200, "{own}");
    }
    plane.kubectl(&["delete", "-f", "-"], Some(&configurations)).unwrap();
    plane.kubectl(&["delete", "-f", reports], None).unwrap();
    drop(guard);
    plane.kubectl(&["delete", "controllerrevision", "-n", NAMESPACE, "--all"], None).unwrap();
}

/// A node with what real nodes have, for the API server's limit on the cost of expressions.
fn a_full_node(name: &str) -> Value {
    let many =
        |prefix: &str| -> Value { (0..60).map(|at| (format!("{prefix}.example.com/k{at}"), json!("x"))).collect() };
    let names = |at: usize| json!(format!("registry.example.com/image-{at}@sha256:{}", "0".repeat(64)));
    let images: Vec<Value> = (0..50).map(|at| json!({"names": [names(at)], "sizeBytes": 100})).collect();
    json!({
        "metadata": {"name": name, "labels": many("l"), "annotations": many("a")},
        "spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"], "providerID": "demo://1"},
        "status": {"images": images, "capacity": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

#[tokio::test]
async fn nodegates_account_can_change_only_labels_annotations_and_taints_of_a_node() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let (guard, configurations) = install(plane);
    let client = thief(plane).await;
    until_fenced(&client).await;
    let (admin, thief): (Api<Node>, Api<Node>) = (Api::all(plane.client(None).await), Api::all(client.clone()));
    let _ = admin.delete("fenced", &DeleteParams::default()).await;
    let node: Node = serde_json::from_value(a_full_node("fenced")).unwrap();
    admin.create(&PostParams::default(), &node).await.unwrap();
    let plain = PatchParams::default();
    let probe = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let trying = PatchParams { dry_run: true, ..PatchParams::default() };
    eventually("it is fenced", async || thief.patch("fenced", &trying, &probe).await.is_err()).await;
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "none"}]);
    for patch in [
        json!({"metadata": {"ownerReferences": owner}}),
        json!({"metadata": {"ownerReferences": owner, "labels": {"a": "b"}}}),
        json!({"metadata": {"finalizers": ["example.com/a"]}}),
        json!({"spec": {"unschedulable": true}}),
    ] {
        assert_eq!(code(&thief.patch("fenced", &plain, &Patch::Merge(&patch)).await), 403, "{patch}");
        // The API server itself ignores a change of the spec there.
        if patch["metadata"].is_object() {
            let status = thief.patch_status("fenced", &plain, &Patch::Merge(&patch)).await;
            assert_eq!(code(&status), 403, "status: {patch}");
        }
    }
    let status = json!({"status": {"capacity": {"cpu": "9"}}});
    assert_eq!(code(&thief.patch_status("fenced", &plain, &Patch::Merge(&status)).await), 403);
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fenced", "ownerReferences": owner}});
    let apply = PatchParams::apply("thief").force();
    assert_eq!(code(&thief.patch("fenced", &apply, &Patch::Apply(&applied)).await), 403);
    assert_eq!(code(&thief.delete("fenced", &DeleteParams::default()).await), 403);
    assert_eq!(
        code(&thief.create(&PostParams::default(), &serde_json::from_value(a_full_node("fenced-2")).unwrap()).await),
        403
    );

    // What it has to do.
    for patch in [
        json!({"metadata": {"labels": {"l.example.com/k1": "y", "l.example.com/k2": null, "new": "1"}}}),
        json!({"metadata": {"annotations": {"a.example.com/k1": null, "nodegate.dev/x": "1"}}}),
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        json!({"spec": {"taints": null}}),
    ] {
        assert_eq!(code(&thief.patch("fenced", &plain, &Patch::Merge(&patch)).await), 200, "{patch}");
    }
    // The garbage collector would delete these as well.
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource("ConfigMap"));
    let leases: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource("Lease"));
    for (api, name) in [(&maps, "node-labels-owned"), (&leases, "nodegate")] {
        let object =
            |metadata: Value| -> DynamicObject { serde_json::from_value(json!({"metadata": metadata})).unwrap() };
        let owned = object(json!({"name": name, "ownerReferences": owner}));
        assert_eq!(code(&api.create(&PostParams::default(), &owned).await), 403, "{name}");
        assert_eq!(code(&api.create(&PostParams::default(), &object(json!({"name": name}))).await), 200, "{name}");
        for field in [json!({"ownerReferences": owner}), json!({"finalizers": ["example.com/a"]})] {
            let patch = Patch::Merge(json!({"metadata": field}));
            assert_eq!(code(&api.patch(name, &plain, &patch).await), 403, "{name}: {field}");
        }
    }
    let event = |namespace: &str, controller: &str, extra: Value| -> DynamicObject {
        let mut metadata = extra;
        (metadata["generateName"], metadata["namespace"]) = (json!("e-"), json!(namespace));
        serde_json::from_value(json!({
            "metadata": metadata, "eventTime": "2026-11-24T00:00:00.000000Z", "reportingController": controller,
            "reportingInstance": "i", "action": "Reconcile", "reason": "Demo", "type": "Normal",
            "regarding": {"kind": "Node", "name": "fenced", "namespace": if namespace == "default" { Value::Null } else { json!(namespace) }},
        }))
        .unwrap()
    };
    let gvk = kube::core::GroupVersionKind::gvk("events.k8s.io", "v1", "Event");
    let events = |namespace: &str| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk))
    };
    for (namespace, controller, metadata, expected) in [
        ("default", "nodegate", json!({}), 200),
        (NAMESPACE, "nodegate", json!({}), 200),
        ("default", "kubelet", json!({}), 403),
        ("kube-system", "nodegate", json!({}), 403),
        ("default", "nodegate", json!({"finalizers": ["example.com/a"]}), 403),
        ("default", "nodegate", json!({"ownerReferences": owner}), 403),
    ] {
        let created =
            events(namespace).create(&PostParams::default(), &event(namespace, controller, metadata.clone())).await;
        assert_eq!(code(&created), expected, "{namespace} {controller} {metadata}");
    }
    admin.delete("fenced", &DeleteParams::default()).await.unwrap();
    plane.kubectl(&["delete", "-f", "-"], Some(&configurations)).unwrap();
    drop(guard);
    plane.kubectl(&["delete", "configmap,lease", "-n", NAMESPACE, "--all"], None).unwrap();
}
