//! `nodegate report` in a cluster.

use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, is_pending, leading, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::Requester;
use super::init::kubectl;
use super::run;
use crate::eventually::eventually;
use crate::shared::commands::plugin_in;
use crate::shared::output::assert_conforms;

/// A native policy of which each evaluation fails.
const BROKEN: &str = "nodegate-broken";
/// The name of one that denies what it should.
const DENYING: &str = "nodegate-denying";

/// Lets the API server evaluate a native policy that fails, and another one that denies. Under `Ignore`, nobody but its counter tells of
/// the failure, if it is new enough: whether it does.
async fn fail_natively(plane: &ControlPlane) -> bool {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let policy = |name: &str, expression: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name}, "spec": {"failurePolicy": "Ignore", "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": expression}]}})
    };
    let binding = |name: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}})
    };
    let (broken, denying) = ("object.data['absent'] == 'x'", "object.metadata.name != 'report-denied'");
    let all = json!({"apiVersion": "v1", "kind": "List",
        "items": [policy(BROKEN, broken), binding(BROKEN), policy(DENYING, denying), binding(DENYING)]});
    plane.kubectl(&["apply", "-f", "-"], Some(&all.to_string())).unwrap();
    eventually("the other policy denies", async || {
        let create = ["create", "configmap", "report-denied", "--dry-run=server"];
        plane.kubectl(&create, None).err().ok_or_else(|| "it was created".to_owned())
    })
    .await;
    let counted = eventually("the policy is in force", async || {
        plane
            .kubectl(&["create", "configmap", "report-native", "--from-literal=a=b", "--dry-run=server"], None)
            .unwrap();
        let metrics = plane.kubectl(&["get", "--raw", "/metrics"], None).unwrap();
        let is_it = |line: &&str| line.contains("policy_check_total{") && line.contains(BROKEN);
        metrics.lines().find(is_it).map(str::to_owned).ok_or_else(|| "it was not evaluated".to_owned())
    })
    .await;
    let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
    plane.kubectl(&["delete", kinds, BROKEN, DENYING], None).unwrap();
    counted.contains("error_type=")
}

#[tokio::test]
async fn a_report_shows_the_fleet_by_label_and_the_pods_whose_label_has_gone() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let policies: &[&str] = &["tests/cluster/keeping.yaml"];
    let nodegate = leading(plane, &Setup { policies, cluster: true, ..Setup::default() }).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    for name in ["kept-r1", "other-r2"] {
        admin.delete(name).await;
        Requester::kubelet(plane, name).await.create(&node(name, json!({"pool": "p"}))).await.unwrap();
        admin.eventually(name, "not pending", |node| !is_pending(node)).await;
    }
    eventually_state(&maps, "kept-r1", "owns its label and knows who set it", |state| {
        state["owned"]["labels"]["hardware.tier"] == "standard" && state["history"][0]["how"] == "admission"
    })
    .await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "report-stranded", "namespace": "default"},
        "spec": {"nodeName": "other-r2", "nodeSelector": {"pool": "p"}, "containers": [{"name": "c", "image": "none"}]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&pod.to_string())).unwrap();
    let is_counted = fail_natively(plane).await;
    let arguments = ["report", "--namespace", &nodegate.namespace, "--stranded-pods", "-o", "json"];
    let report = || serde_json::from_str::<Value>(&run(plane, None, &arguments).with(0)).unwrap();
    assert_eq!(report()["stranded"], json!([]));
    admin.label("other-r2", "pool", Value::Null).await.unwrap();
    let report = report();
    assert_conforms("report", &report);
    let native =
        |policy| report["nativeFailures"].as_array().unwrap().iter().find(|failure| failure["policy"] == policy);
    let kind = native(BROKEN).and_then(|failure| failure["errorType"].as_str());
    assert!(native(DENYING).is_none(), "a denial is no failure: {:#}", report["nativeFailures"]);
    assert_eq!(kind, is_counted.then_some("invalid_error"), "{:#}", report["nativeFailures"]);
    // The policies are known to the server only.
    assert_eq!((&report["policies"]["names"], &report["nodes"]), (&json!(["keeping"]), &json!(2)));
    assert_eq!(report["by"]["hardware.tier"], json!({"standard": 1}));
    assert_eq!((&report["unmanaged"], &report["drift"]), (&json!(["other-r2"]), &json!([])));
    let stranded = &report["stranded"][0];
    assert_eq!((&stranded["name"], &stranded["node"]), (&json!("report-stranded"), &json!("other-r2")));
    assert_eq!(stranded["cause"], json!({"kind": "nodeSelector", "key": "pool", "value": "p"}));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    let html = ["report", "--namespace", &nodegate.namespace, "--stranded-pods", "--html", file.to_str().unwrap()];
    assert_eq!(run(plane, None, &html).with(0), "");
    let page = std::fs::read_to_string(&file).unwrap();
    // What admission set is in the history, and the cluster has the name of its context.
    for expected in [
        "Fleet report: test",
        "other-r2",
        "default/report-stranded",
        "&quot;standard&quot;",
        "No writes without nodegate’s",
    ]
    .into_iter()
    .chain(is_counted.then_some(BROKEN))
    {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    let nobody = run(plane, Some("nobody"), &html);
    assert!(
        nobody.code == 2 && std::fs::read_to_string(&file).unwrap() == page,
        "the old page stays: {}",
        nobody.errors
    );
    plane.kubectl(&["delete", "pod", "report-stranded", "--force"], None).unwrap();
    for name in ["kept-r1", "other-r2"] {
        admin.delete(name).await;
    }
    let empty = run(plane, None, &arguments);
    assert!(empty.code == 2 && empty.errors.contains("the cluster has no nodes"), "{}{}", empty.output, empty.errors);
}

#[tokio::test]
async fn violations_are_judged_by_the_policies_in_force_in_the_namespace_that_the_registration_names() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    admin.delete("report-v1").await;
    admin.create(&node("report-v1", json!({"colour": "purple"}))).await.unwrap();
    // It runs with policies from files, which the command does not get.
    let policies: &[&str] = &["tests/cluster/unseen.yaml"];
    let nodegate = Nodegate::start(plane, &Setup { policies, cluster: true, unregistered: true, ..Setup::default() });
    until_led(&nodegate).await;
    let webhook = json!({"name": "mutate.nodegate.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore", "clientConfig": {"service": {"name": "nodegate", "namespace": nodegate.namespace}},
        "rules": [{"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}]});
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "labels"}, "webhooks": [webhook]})
    .to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&configuration)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    plugin_in(directory.path());
    let note = format!(" and namespace {}\n", nodegate.namespace);
    let found = eventually("the leader publishes its policies", async || {
        let ran = kubectl(plane, directory.path(), &["nodegate", "report", "--violations"]);
        assert!(ran.errors.contains(&note), "{}", ran.errors);
        if ran.errors.lines().count() == 1 { Ok(ran) } else { Err(format!("{}{}", ran.output, ran.errors)) }
    })
    .await;
    let table = found.with(1);
    // With a file it finds the same namespace.
    let of_file = run(plane, None, &["report", "--violations"]);
    assert_eq!(of_file.errors, format!("note: using namespace {}\n", nodegate.namespace));
    assert_eq!(of_file.with(1), table);
    // So it does with policies, which differ from the ones in force there.
    let given = ["report", "--violations", "--policy", "tests/cluster/keeping.yaml"];
    let other = run(plane, None, &given);
    let note = format!("note: using namespace {}\n", nodegate.namespace);
    assert!(other.code == 2 && other.errors.starts_with(&note), "{}", other.errors);
    assert_eq!(other.errors.matches("note:").count(), 1, "{}", other.errors);
    assert!(other.errors.contains("differ from the ones in force"), "{}", other.errors);
    let same = run(plane, None, &["report", "--violations", "--policy", "tests/cluster/unseen.yaml"]);
    assert_eq!((same.errors.as_str(), same.output.as_str(), same.code), (note.as_str(), table.as_str(), 1));
    assert!(
        table.contains("report-v1") && table.contains("colours") && table.contains("policies: unseen ("),
        "{table}"
    );
    plane.kubectl(&["delete", "mutatingwebhookconfiguration", "labels"], None).unwrap();
    admin.delete("report-v1").await;
}
