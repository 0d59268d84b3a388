//! What the chart permits is what the controller needs: it runs with exactly that, on an API server with RBAC.

use serde_json::{Value, json};

use super::{ACCOUNT, NAMESPACE, Objects, RELEASE, items};
use crate::commands;
use crate::control_plane::{ControlPlane, exclusive, run};
use crate::keeping::{config_maps, eventually_state, is_pending, node, until_led};
use crate::machines::Provisioners;
use crate::nodegate::{Nodegate, Setup};
use crate::requester::{Requester, label};

/// The account, its rights and its fence, applied; the text to delete them by.
pub(super) fn permit(plane: &ControlPlane, objects: &Objects) -> String {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&namespace)).unwrap();
    let rights = ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]
        .into_iter()
        .chain(["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]);
    let items: Vec<&Value> = rights.flat_map(|kind| objects.kind(kind)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&list)).unwrap();
    list
}

fn may(plane: &ControlPlane, verb: &str, resource: &str, namespace: &str) -> bool {
    let account = format!("system:serviceaccount:{}", ACCOUNT.replace('/', ":"));
    let (resource, part) = resource.split_once('#').unwrap_or((resource, ""));
    let part = format!("--subresource={part}");
    let answer = plane.kubectl(&["auth", "can-i", verb, resource, &part, "--as", &account, "-n", namespace], None);
    answer.is_ok_and(|answer| answer.trim() == "yes")
}

#[test]
fn with_certificates_of_others_the_account_may_write_neither_secrets_nor_webhooks() {
    let writes = |values: &Value, resource: &str| -> Option<Vec<Value>> {
        let objects = Objects::render(values)?;
        let roles = objects.kind("ClusterRole").into_iter().chain(objects.kind("Role"));
        // People get these, not the account.
        let of_people = |name: &str| name.ends_with("-command-line") || name.ends_with("-cleanup");
        let roles = roles.filter(|role| !of_people(role["metadata"]["name"].as_str().unwrap()));
        let rules = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap());
        let named =
            |rule: &Value| items(&rule["resources"]).iter().any(|name| name.as_str().unwrap().starts_with(resource));
        let reads =
            |rule: &Value| items(&rule["verbs"]).iter().all(|verb| verb == "get" || verb == "list" || verb == "watch");
        Some(rules.filter(|rule| named(rule) && !reads(rule)).collect())
    };
    for resource in ["secrets", "mutatingwebhook"] {
        for values in [
            json!({"tls": {"existingSecret": "mine", "caBundle": "-----BEGIN CERTIFICATE-----"}}),
            json!({"tls": {"certManager": {"enabled": true}}}),
        ] {
            let Some(found) = writes(&values, resource) else { return };
            assert_eq!(found, Vec::<Value>::new(), "{values}: {resource}");
        }
        assert_ne!(
            writes(&json!({}), resource).unwrap_or_default(),
            Vec::<Value>::new(),
            "{resource}: nothing is looked at"
        );
    }
}

#[tokio::test]
async fn the_account_can_do_its_work_and_nothing_more() {
    let cluster = exclusive();
    let Some(objects) = Objects::render(&json!({})) else { return };
    let plane = cluster.plane;
    let rights = permit(plane, &objects);
    plane.install_definition();
    let admin = Requester::admin(plane).await;
    for name in ["kept-rights", "kept-gone"] {
        admin.delete(name).await;
    }
    let policies: &[&str] = &["tests/cluster/keeping.yaml"];
    let setup = Setup {
        policies,
        namespace: Some(NAMESPACE),
        own_rights: true,
        render: &["--service-account", ACCOUNT],
        ..Setup::default()
    };
    let nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    let object = r#"{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "object"},
        "spec": {"rules": [{"name": "r", "labels": {"from-object": "x"}}]}}"#;
    plane.kubectl(&["apply", "-f", "-"], Some(object)).unwrap();
    // Everything it does: deferred labels, the pending taint, saved state, repair, removal, status.
    let kubelet = Requester::kubelet(plane, "kept-rights").await;
    kubelet.create(&node("kept-rights", json!({"persist.demo/a": "b", "team": "ml"}))).await.unwrap();
    admin
        .eventually("kept-rights", "done", |node| {
            !is_pending(node)
                && label(node, "node-role.kubernetes.io/worker").is_some()
                && label(node, "from-object").is_some()
        })
        .await;
    let maps = config_maps(plane, NAMESPACE).await;
    eventually_state(&maps, "kept-rights", "saved", |state| state["labels"]["persist.demo/a"] == "b").await;
    let conditions = ["get", "npol", "object", "-o", "jsonpath={.status.conditions[*].type}"];
    let is_accepted = || plane.kubectl(&conditions, None).unwrap().contains("Accepted");
    nodegate.eventually("the policy has a status", is_accepted).await;
    admin.label("kept-rights", "team", Value::Null).await.unwrap();
    admin.eventually("kept-rights", "removed", |node| label(node, "team.example.com/quota").is_none()).await;
    // What is in force is recorded and published.
    let exists = |kind: &str, part: &str| {
        plane.kubectl(&["get", kind, "-n", NAMESPACE, "-o", "name"], None).unwrap().contains(part)
    };
    let are_there = || exists("controllerrevisions", "nodepolicy-") && exists("configmaps", "nodegate-in-force");
    nodegate.eventually("both are there", are_there).await;
    // An event: what cannot be read is told.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "node-labels-kept-gone", "namespace": NAMESPACE},
                     "data": {"state.json": "{"}});
    plane.kubectl(&["apply", "-f", "-"], Some(&map.to_string())).unwrap();
    let reasons = ["get", "events.events.k8s.io", "-n", "default", "-o", "jsonpath={.items[*].reason}"];
    let is_told = || plane.kubectl(&reasons, None).unwrap().contains("UnreadableState");
    nodegate.eventually("an event tells it", is_told).await;
    let refused: Vec<String> =
        nodegate.log().lines().filter(|line| line.contains("orbidden")).map(str::to_owned).collect();
    assert!(refused.is_empty(), "{refused:#?}");

    // kubectl asks only for what the API server has.
    Provisioners::install(plane);
    for (verb, resource, namespace) in [
        ("create", "nodes", ""),
        ("delete", "nodes", ""),
        ("update", "nodes", ""),
        ("patch", "nodes#status", ""),
        ("get", "secrets/another", NAMESPACE),
        ("delete", "secrets/nodegate-tls", NAMESPACE),
        ("get", "configmaps", "default"),
        ("get", "pods", NAMESPACE),
        ("patch", "leases/another", NAMESPACE),
        ("update", "controllerrevisions", NAMESPACE),
        ("list", "controllerrevisions", "default"),
        ("create", "nodepolicies.nodegate.dev", ""),
        ("patch", "nodepolicies.nodegate.dev", ""),
        ("get", "mutatingwebhookconfigurations/another", ""),
        ("delete", "mutatingwebhookconfigurations/nodegate", ""),
        ("patch", "validatingwebhookconfigurations/another", ""),
        ("delete", "validatingwebhookconfigurations/nodegate", ""),
        ("create", "serviceaccounts#token", NAMESPACE),
        ("impersonate", "users", ""),
        ("get", "certificatesigningrequests.certificates.k8s.io", ""),
        ("update", "certificatesigningrequests.certificates.k8s.io#approval", ""),
        ("get", "nodeclaims.karpenter.sh", ""),
        ("patch", "machines.cluster.x-k8s.io", ""),
    ] {
        assert!(!may(plane, verb, resource, namespace), "{RELEASE} may {verb} {resource} in {namespace:?}");
    }
    for (verb, resource) in [
        ("patch", "nodes"),
        ("watch", "certificatesigningrequests.certificates.k8s.io"),
        ("list", "nodeclaims.karpenter.sh"),
        ("watch", "machines.cluster.x-k8s.io"),
        ("watch", "machines.machine.openshift.io"),
    ] {
        assert!(may(plane, verb, resource, ""), "{RELEASE} may not {verb} {resource}");
    }
    // A reader's rights are enough for the commands that write nothing, and for nothing else.
    let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "nodegate-reader"});
    let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}]);
    let bindings = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reader"}, "roleRef": role("ClusterRole"), "subjects": subjects},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "reader", "namespace": NAMESPACE}, "roleRef": role("Role"), "subjects": subjects},
    ]}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&bindings)).unwrap();
    let change = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: more}\nspec: {rules: [{name: r, labels: {more: x}}]}\n";
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), change).unwrap();
    for command in [
        &["plan", "--policy", file.path().to_str().unwrap()] as &[&str],
        &["explain", "kept-rights"],
        &["history", "kept-rights"],
        &["report", "--stranded-pods"],
        &["migrate", "status", "old.example.com/key", "new.example.com/key", "--exit-code"],
    ] {
        let ran = commands::run(plane, Some("reader"), &[command, &["--namespace", NAMESPACE]].concat());
        assert!(ran.code == 0 && !ran.errors.contains("could not"), "{command:?}: {}", ran.errors);
    }
    for (verb, resource) in [("patch", "nodes"), ("update", "configmaps"), ("create", "configmaps"), ("get", "secrets")]
    {
        let allowed = plane.kubectl(&["auth", "can-i", verb, resource, "--as", "reader", "-n", NAMESPACE], None);
        assert!(allowed.is_err(), "a reader may {verb} {resource}");
    }
    plane.kubectl(&["delete", "-f", "-"], Some(&bindings)).unwrap();
    drop(nodegate);
    // The command line's rights, as the example binds them, are enough for `apply`.
    let job = include_str!("../../../examples/apply-job/job.yaml");
    let bindings: Vec<&str> = job.split("\n---\n").filter(|document| !document.contains("kind: Job")).collect();
    let bindings = bindings.join("\n---\n");
    plane.kubectl(&["apply", "-f", "-"], Some(&bindings)).unwrap();
    let user = format!("system:serviceaccount:{NAMESPACE}:nodegate-apply");
    let kubeconfig = plane.kubeconfig_file("apply", Some((&user, &["system:serviceaccounts", "system:authenticated"])));
    admin.label("kept-rights", "hardware.tier", json!("forged")).await.unwrap();
    let mut apply = super::nodegate();
    apply.args(["apply", "--policy", policies[0], "--namespace", NAMESPACE, "--kubeconfig"]).arg(kubeconfig);
    let text = run(apply.current_dir(env!("CARGO_MANIFEST_DIR")), None).unwrap();
    assert!(text.contains("1 changed"), "{text}");
    for name in ["kept-rights", "kept-gone"] {
        admin.delete(name).await;
    }
    plane.kubectl(&["delete", "-f", "-"], Some(&bindings)).unwrap();
    plane.kubectl(&["delete", "configmap", "-n", NAMESPACE, "--all"], None).unwrap();
    plane.kubectl(&["delete", "-f", "-"], Some(&rights)).unwrap();
}
