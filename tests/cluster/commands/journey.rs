//! What a new user does after the demo, one command after the other: `init` from their own nodes, `test`, `plan`, `apply`,
//! `explain`, `report`, `cleanup`. No server runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::requester::{Requester, label};
use super::{finish, run};

const NAMESPACE: &str = "journey";
const NODES: [&str; 5] = ["gpu-1", "gpu-2", "gpu-3", "web-1", "web-2"];

/// Runs a command in the cluster, and prints it as a user would see it (`cargo test -- --nocapture`).
fn step(plane: &ControlPlane, arguments: &[&str], code: i32) -> String {
    let ran = run(plane, None, arguments);
    println!("$ nodegate {}\n{}{}", arguments.join(" "), ran.output, ran.errors);
    ran.with(code)
}

async fn create(admin: &Requester) {
    for name in NODES {
        admin.delete(name).await;
        let (tier, team) = if name.starts_with("gpu") { ("gpu", "vision") } else { ("standard", "shop") };
        let labels = json!({"hardware.example.com/tier": tier, "team.owner": team, "kubernetes.io/hostname": name,
            "node.kubernetes.io/instance-type": "m5.large"});
        admin
            .create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}))
            .await
            .unwrap();
    }
}

/// The policy that `init` has written, with one more label for nodes with GPUs.
fn changed(policy: &Path) {
    let text = fs::read_to_string(policy).unwrap();
    let tier = "      hardware.example.com/tier: gpu\n";
    assert_eq!(text.matches(tier).count(), 1, "{text}");
    fs::write(policy, text.replace(tier, &format!("{tier}      hardware.example.com/rack: r7\n"))).unwrap();
}

#[tokio::test]
async fn a_new_user_gets_from_the_first_policy_to_the_cleanup() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let _ = plane.kubectl(&["create", "namespace", NAMESPACE], None);
    create(&admin).await;
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("policy").display().to_string();
    let policy = format!("{at}/policy.yaml");
    let namespace = ["--namespace", NAMESPACE];
    let with_policy = ["--policy", policy.as_str(), "--namespace", NAMESPACE];
    let command = |name: &'static str, rest: &[&'static str]| [&[name] as &[&str], rest, &with_policy].concat();

    step(plane, &["init", "--dir", &at], 0);
    let tests = finish(Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["test", &at])).with(0);
    println!("$ nodegate test\n{tests}");
    let same = step(plane, &command("plan", &["--exit-code"]), 0);
    assert!(same.contains("5 nodes"), "{same}");

    changed(Path::new(&policy));
    let plan = step(plane, &command("plan", &["--exit-code"]), 1);
    assert!(plan.contains("+ label hardware.example.com/rack=r7"), "{plan}");
    step(plane, &command("apply", &[]), 0);
    assert_eq!(label(&admin.get("gpu-2").await, "hardware.example.com/rack"), Some("r7"));
    let after = step(plane, &command("plan", &["--exit-code"]), 0);
    assert!(!after.contains("hardware.example.com/rack"), "{after}");

    let why = step(plane, &[&["explain", "gpu-2", "hardware.example.com/rack"] as &[&str], &with_policy].concat(), 0);
    assert!(why.contains("r7") && why.contains("rule fleet/gpu"), "{why}");
    let not = step(
        plane,
        &[&["explain", "web-1", "--why-not", "hardware.example.com/rack"] as &[&str], &with_policy].concat(),
        0,
    );
    assert!(not.contains("fleet/gpu"), "{not}");
    step(plane, &command("report", &[]), 0);
    let page = directory.path().join("page.html");
    step(plane, &[&["report", "--html", page.to_str().unwrap()] as &[&str], &with_policy].concat(), 0);
    assert!(
        fs::read_to_string(&page).unwrap().contains("Note: cannot tell which policies are in force"),
        "no server has run"
    );
    let history = step(plane, &[&["history", "gpu-2"] as &[&str], &namespace].concat(), 0);
    assert!(history.contains("`nodegate serve` records changes"), "no server has run: {history}");

    let dry = step(plane, &[&["cleanup"] as &[&str], &namespace].concat(), 0);
    assert!(dry.contains("hardware.example.com/rack"), "{dry}");
    step(plane, &[&["cleanup", "--confirm"] as &[&str], &namespace].concat(), 0);
    let cleaned = admin.get("gpu-2").await;
    assert_eq!(cleaned["metadata"]["labels"]["hardware.example.com/rack"], json!(null));
    assert_eq!(label(&cleaned, "hardware.example.com/tier"), Some("gpu"), "what was there before stays");
    step(plane, &[&["cleanup", "--exit-code"] as &[&str], &namespace].concat(), 0);
    for name in NODES {
        admin.delete(name).await;
    }
}
