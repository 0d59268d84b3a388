//! The examples of this repository: what the command prints is what `kubectl apply` takes, and the API server has
//! nothing to remark about the expressions.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::super::control_plane::exclusive;
use super::super::requester::{Outcome, Refusal, Requester, label, taints};
use super::Removed;
use crate::eventually::{eventually, eventually_blocking, holds};

/// What `nodegate export admission-policies` prints, and what it says of what is not in it.
fn exported(arguments: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["export", "admission-policies", "--self-user", super::SELF_USER])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

#[test]
fn examples_are_applied_and_their_expressions_have_the_right_types() {
    let cluster = exclusive();
    let _removed = Removed(cluster.plane);
    // Types are checked by this controller, not by the API server.
    let controllers = ["--controllers=validatingadmissionpolicy-status-controller"];
    let _controllers = cluster.plane.component("kube-controller-manager", &controllers);
    for example in ["accelerators", "autoscaler-groups", "cpu-classes", "fako", "gpu-fleet", "llm-d-lab"] {
        let policy = format!("{}/examples/{example}/policy.yaml", env!("CARGO_MANIFEST_DIR"));
        assert!(Path::new(&policy).is_file(), "{policy}");
        let name = format!("native-{example}");
        for format in ["yaml", "json"] {
            let (objects, _) = exported(&["--policy", &policy, "--name", &name, "-o", format]);
            cluster.plane.kubectl(&["apply", "-f", "-"], Some(&objects)).unwrap();
        }
    }
    // No example has all kinds of entries.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let policy = json!({
        "apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "kinds"}, "spec": super::directed::policy(),
    });
    std::fs::write(&file, policy.to_string()).unwrap();
    let (objects, left_out) = exported(&["--policy", file.to_str().unwrap(), "--name", "native-kinds"]);
    assert_eq!(left_out, "");
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(&objects)).unwrap();
    eventually_blocking("types are checked", || {
        let list = cluster.plane.kubectl(&["get", "validatingadmissionpolicies", "-o", "json"], None).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let policies = list["items"].as_array().unwrap();
        assert!(policies.len() >= 6);
        for policy in policies {
            let remarks = &policy["status"]["typeChecking"]["expressionWarnings"];
            assert!(remarks.is_null(), "{}: {remarks:#}", policy["metadata"]["name"]);
        }
        let checked = |policy: &Value| policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
        holds(policies.iter().all(checked), || format!("{list:#}"))
    });
}

/// The refusal of a write, or the node that was written.
fn refused(outcome: Outcome) -> Result<Refusal, String> {
    match outcome {
        Err(refusal) => Ok(refusal),
        Ok(node) => Err(format!("{node:#}")),
    }
}

#[tokio::test]
async fn a_table_of_machines_stays_within_the_limits_of_expressions() {
    let cluster = exclusive();
    let _removed = Removed(cluster.plane);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let rules: Vec<String> = (0..400)
        .map(|at| {
            format!("{{name: m{at}, match: {{names: [\"table-{at}-*\", other-{at}]}}, labels: {{tier: tier-{}}}, taints: [{{key: t{}, effect: NoSchedule}}]}}", at % 7, at % 3)
        })
        .collect();
    let header = "apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {name: table}";
    // One more reads what all of them give, and a namespace is reserved, so that their gifts are evaluated there, too.
    let reader = "{name: reader, match: {selector: {matchLabels: {tier: tier-6}}}, labels: {top: \"true\"}}";
    // An expression may read all of it.
    let reserved = r#"governance: {reserved: [{name: tiers, keys: [tier, top]}], naming: [{name: words, keys: ["*"], pattern: kebab-case}],
        expressions: [{name: whole, expression: '!("forbidden" in object.metadata.labels) || object.metadata.labels["tier"] == "x"'}]}"#;
    let text = format!("{{{header}, spec: {{rules: [{}, {reader}], {reserved}}}}}", rules.join(", "));
    std::fs::write(&file, text).unwrap();
    let (objects, left_out) = exported(&["--policy", file.to_str().unwrap(), "--name", "native-table"]);
    assert_eq!(left_out, "");
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(&objects)).unwrap();
    let admin = Requester::admin(cluster.plane).await;
    let node =
        |number: u32| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("table-{number}-a")}});
    let made = eventually("the mutating policies act", async || {
        admin.delete("table-398-a").await;
        let made = admin.create(&node(398)).await.unwrap();
        if label(&made, "tier").is_some() { Ok(made) } else { Err(format!("{made:#}")) }
    })
    .await;
    assert_eq!((label(&made, "tier"), label(&made, "top")), (Some("tier-6"), Some("true")));
    assert!(taints(&made).contains(&"t2=:NoSchedule".to_owned()), "{made:#}");
    // What a rule gives is set back, and not held against the requester.
    let kept = admin.label("table-398-a", "tier", json!(null)).await.unwrap();
    assert_eq!(label(&kept, "tier"), Some("tier-6"));
    let other = |value: &str| json!({"metadata": {"labels": {"top": value}}});
    // The validating policies may be in force later than the mutating ones.
    let mut count = 0;
    let refusal = eventually("another value is refused", async || {
        count += 1;
        refused(admin.merge_status("table-398-a", other(&format!("no-{count}"))).await)
    })
    .await;
    assert!(refusal.code == 403 && refusal.message.contains("rule tiers"), "{refusal:?}");
    // Nor do many labels lead beyond the limits of what CEL may cost.
    let many: serde_json::Map<String, Value> = (0..300).map(|at| (format!("label-{at}"), json!("x"))).collect();
    for (key, entry) in [("forbidden", "rule whole"), ("Not_Kebab", "rule words")] {
        let mut labels = many.clone();
        labels.insert(key.to_owned(), json!("x"));
        let gone: serde_json::Map<String, Value> = labels.keys().map(|key| (key.clone(), Value::Null)).collect();
        let (labels, gone) = (json!({"metadata": {"labels": labels}}), json!({"metadata": {"labels": gone}}));
        let refusal = eventually(&format!("{entry} refuses"), async || {
            let refusal = refused(admin.merge_status("table-398-a", labels.clone()).await);
            if refusal.is_err() {
                admin.merge_status("table-398-a", gone.clone()).await.unwrap();
            }
            refusal
        })
        .await;
        assert!(refusal.code == 403 && refusal.message.contains(entry), "{refusal:?}");
    }
    admin.delete("table-398-a").await;
}
