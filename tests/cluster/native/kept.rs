//! Native policies that the leader keeps: equal to the export of what is in force, and in force without it.

use std::process::Command;

use serde_json::{Value, json};

use super::{KINDS, Removed};
use crate::control_plane::{ControlPlane, exclusive, run};
use crate::eventually::{eventually, holds};
use crate::keeping::{node, until_led};
use crate::nodegate::{Nodegate, Setup};
use crate::requester::{Requester, label};

fn policy(tier: &str, more: &str) -> String {
    format!(
        r#"{{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {{"name": "kept"}}, "spec": {{
            "rules": [{{"name": "tier", "match": {{"names": ["native-kept-*"]}}, "labels": {{"kept.test/tier": "{tier}"}}}},
                      {{"name": "computed", "labelExpressions": {{"kept.test/name": "node.metadata.name"}}}}],
            "governance": {{"reserved": [{{"name": "mine", "keys": ["kept.test/reserved"{more}]}}]}}}}}}"#
    )
}

/// Objects kept for a nodegate, without what the API server and the keeper add.
fn kept(plane: &ControlPlane, keeper: &str) -> Vec<Value> {
    let selector = format!("nodegate.dev/kept-by={keeper}");
    let text = plane.kubectl(&["get", KINDS, "-l", &selector, "-o", "json"], None).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    sorted(list["items"].as_array().unwrap().clone())
}

/// By kind and name, with the fields that an export has.
fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(|object| (object["kind"].to_string(), object["metadata"]["name"].to_string()));
    let plain = |object: Value| {
        let mut spec = object["spec"].clone();
        if let Some(constraints) = spec["matchConstraints"].as_object_mut() {
            for added in ["matchPolicy", "namespaceSelector", "objectSelector"] {
                constraints.remove(added);
            }
        }
        json!({"kind": object["kind"], "name": object["metadata"]["name"], "spec": spec})
    };
    objects.into_iter().map(plain).collect()
}

/// What `nodegate export` prints for a policy.
fn exported(policy: &str, keeper: &str) -> Vec<Value> {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), policy).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["export", "admission-policies", "-o", "json", "--self-user"]);
    command.arg(format!("system:serviceaccount:{keeper}:nodegate")).arg("--policy").arg(file.path());
    let list: Value = serde_json::from_str(&run(&mut command, None).unwrap()).unwrap();
    sorted(list["items"].as_array().unwrap().clone())
}

/// Waits until what is kept is what an export of the policy has.
async fn until_kept(plane: &ControlPlane, keeper: &str, what: &str, policy: &str) {
    let wanted = exported(policy, keeper);
    eventually(what, async || {
        let kept = kept(plane, keeper);
        holds(kept == wanted, || format!("{:#} instead of {:#}", Value::Array(kept), json!(wanted)))
    })
    .await;
}

#[tokio::test]
async fn native_policies_follow_the_policies_in_force_and_are_enforced_without_a_replica() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _removed = Removed(plane);
    plane.install_definition();
    plane.kubectl(&["apply", "-f", "-"], Some(&policy("first", ""))).unwrap();
    // Somebody else's, under a name like ours.
    let foreign = r#"{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "nodegate-9",
        "labels": {"app.kubernetes.io/managed-by": "nodegate"}}, "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""],
        "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["podtemplates"]}]}, "validations": [{"expression": "true"}]}}"#;
    plane.kubectl(&["apply", "-f", "-"], Some(foreign)).unwrap();
    let setup = Setup { cluster: true, serve: &["--native-policies"], ..Setup::default() };
    let mut nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    let keeper = nodegate.namespace.clone();
    until_kept(plane, &keeper, "the export", &policy("first", "")).await;
    let status = || {
        let text = plane.kubectl(&["get", "npol", "kept", "-o", "jsonpath={.status.native}"], None).unwrap();
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    eventually("the status", async || {
        let status = status();
        holds(status["holding"] == 2 && status["notHolding"] == 1, || status)
    })
    .await;
    let rules = status()["rules"].as_array().unwrap().clone();
    assert!(rules[0]["rule"].as_str().unwrap().contains("computed") && rules[0]["holds"] == false, "{rules:?}");
    assert!(rules[0]["reason"].as_str().unwrap().contains("computed"), "{rules:?}");

    // Policies change: the native ones follow, and what is no longer wanted goes.
    let second = policy("second", r#", "kept.test/more""#);
    plane.kubectl(&["apply", "-f", "-"], Some(&second)).unwrap();
    until_kept(plane, &keeper, "the change", &second).await;
    // Drift: changed, added to, deleted.
    let versions = || {
        plane
            .kubectl(
                &["get", KINDS, "-l", "nodegate.dev/kept-by", "-o", "jsonpath={.items[*].metadata.resourceVersion}"],
                None,
            )
            .unwrap()
    };
    let before = versions();
    for arguments in [
        vec![
            "patch",
            "validatingadmissionpolicy",
            "nodegate-enforce",
            "--type=json",
            "-p",
            r#"[{"op": "replace", "path": "/spec/failurePolicy", "value": "Fail"}]"#,
        ],
        vec![
            "patch",
            "mutatingadmissionpolicy",
            "nodegate",
            "--type=merge",
            "-p",
            r#"{"spec": {"matchConstraints": {"objectSelector": {"matchLabels": {"never": "x"}}}}}"#,
        ],
        vec![
            "patch",
            "validatingadmissionpolicybinding",
            "nodegate-enforce",
            "--type=merge",
            "-p",
            r#"{"spec": {"validationActions": ["Audit"]}}"#,
        ],
        vec!["delete", "mutatingadmissionpolicybinding", "nodegate"],
    ] {
        plane.kubectl(&arguments, None).unwrap();
        until_kept(plane, &keeper, &arguments.join(" "), &second).await;
    }
    assert_ne!(versions(), before);
    let settled = versions();
    // Nothing is written where nothing differs: a rule that changes nothing native, and looks by the way.
    let same = second.replace("node.metadata.name", "string(node.metadata.name)");
    plane.kubectl(&["apply", "-f", "-"], Some(&same)).unwrap();
    let path = "jsonpath={.status.observedGeneration} {.metadata.generation}";
    eventually("the policy was taken up", async || {
        let text = plane.kubectl(&["get", "npol", "kept", "-o", path], None).unwrap();
        holds(text.split_once(' ').is_some_and(|(seen, there)| seen == there), || text)
    })
    .await;
    assert_eq!(versions(), settled);
    let foreign =
        ["get", "validatingadmissionpolicy", "nodegate-9", "-o", "jsonpath={.spec.validations[0].expression}"];
    assert_eq!(plane.kubectl(&foreign, None).unwrap(), "true", "somebody else's object is left alone");

    nodegate.kill();
    let (admin, kubelet) = (Requester::admin(plane).await, Requester::kubelet(plane, "native-kept-1").await);
    admin.delete("native-kept-1").await;
    let mut joins = node("native-kept-1", json!({}));
    let mark = r#"{"rejected":{"kept.test/tier":"forged"}}"#;
    joins["metadata"]["annotations"] = json!({"nodegate.dev/admission": mark, "nodegate.dev/other": "x"});
    let created = kubelet.create(&joins).await.unwrap();
    assert_eq!(label(&created, "kept.test/tier"), Some("second"), "{created:#}");
    // The API server calls policies again after the webhook, whose mark must stay.
    let annotations = json!({"nodegate.dev/admission": mark});
    assert_eq!(created["metadata"]["annotations"], annotations, "{created:#}");
    let change = json!({"metadata": {"annotations": {"nodegate.dev/admission": "{}"}}});
    let refusal = kubelet.merge_status("native-kept-1", change).await.unwrap_err();
    assert!(refusal.message.contains("own-keys"), "{}", refusal.message);
    let refusal = admin.label("native-kept-1", "kept.test/reserved", json!("x")).await.unwrap_err();
    assert!(refusal.message.contains("kept.test/reserved"), "{}", refusal.message);
    admin.delete("native-kept-1").await;
    drop(nodegate);

    // They stay when nodegate is gone. What the guide says takes them away, and nothing else.
    let guide = include_str!("../../../docs/guides/uninstall.md");
    let is_of_policies = |line: &&str| line.starts_with("kubectl delete mutatingadmissionpolicies,");
    let command: Vec<&str> = guide.lines().find(is_of_policies).unwrap().split(' ').skip(1).collect();
    plane.kubectl(&command, None).unwrap();
    assert_eq!(kept(plane, &keeper), [json!(null); 0]);
    assert_eq!(plane.kubectl(&foreign, None).unwrap(), "true");
}
