//! Guard and fence as files of the control plane, as docs/reference/native-policies.md says: nobody has to install anything in the
//! cluster, and nobody can take it away.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::control_plane::{ApiServer, ControlPlane, exclusive, run};
use crate::eventually::{eventually, holds};
use crate::keeping::node;
use crate::requester::{Requester, label};
use crate::shared::guides::block_of;

const DOCUMENT: &str = "docs/reference/native-policies.md";
const DIRECTORY: &str = "/etc/kubernetes/nodegate";
const ACCOUNT: (&str, &[&str]) =
    ("system:serviceaccount:nodegate:nodegate", &["system:serviceaccounts", "system:masters"]);

/// The block of the document that contains a text, with this directory instead of the documented one.
fn documented(part: &str, directory: &Path) -> String {
    block_of(DOCUMENT, part).replace(DIRECTORY, &directory.display().to_string())
}

/// Writes the files by the documented commands, as a person types them, from these policies.
fn write(directory: &Path, policy: &str) {
    fs::create_dir_all(directory.join("policies")).unwrap();
    fs::write(directory.join("policies/guard.yaml"), policy).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_nodegate")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let script = documented("nodegate render guard --static", directory);
    let _ = run(Command::new("bash").args(["-c", &script]).env("PATH", path), None);
}

/// An API server with the documented configuration; nothing if this version reads no policies from files.
fn started(plane: &ControlPlane, directory: &Path) -> Option<ApiServer> {
    let flag = format!("--admission-control-config-file={DIRECTORY}/admission.yaml");
    assert!(include_str!("../../docs/reference/native-policies.md").contains(&format!("`{flag}`")));
    if plane.minor_version() < 37 {
        return None;
    }
    fs::write(directory.join("admission.yaml"), documented("kind: AdmissionConfiguration", directory)).unwrap();
    Some(plane.another_api_server(&[flag.replace(DIRECTORY, &directory.display().to_string())]))
}

const POLICY: &str = include_str!("guard.yaml");
const TIER: &str = "class.example.com/tier";

#[tokio::test]
async fn policies_in_files_hold_from_the_first_request_on_and_nobody_can_delete_them() {
    let cluster = exclusive();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    write(directory, POLICY);
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("filed-1").await;
    let Some(plane) = started(cluster.plane, directory) else { return };
    let kubelet = Requester::kubelet(&plane, "filed-1").await;
    // Nothing is installed: neither webhooks nor policies.
    let forged = json!({TIER: "gold", "vault.example.com/a": "x", "nodegate.dev/x": "x", "team": "mine", "free": "1"});
    let created = kubelet.create(&node("filed-1", forged)).await.expect("a kubelet joins");
    let [tier, vault, own, team, free] =
        [TIER, "vault.example.com/a", "nodegate.dev/x", "team", "free"].map(|key| label(&created, key));
    assert_eq!((tier, vault, own, team, free), (None, None, None, Some("mine"), Some("1")), "{created:#}");
    for key in [TIER, "vault.example.com/b", "nodegate.dev/x", "team"] {
        for status in [false, true] {
            let patch = json!({"metadata": {"labels": {key: "forged"}}});
            let outcome = match status {
                false => kubelet.merge("filed-1", patch).await,
                true => kubelet.merge_status("filed-1", patch).await,
            };
            let refusal = outcome.expect_err(key);
            assert!(refusal.message.contains("a kubelet may not"), "{key}: {}", refusal.message);
        }
    }
    kubelet
        .merge("filed-1", json!({"metadata": {"labels": {"free": "2"}}}))
        .await
        .expect("this label is the kubelet's");
    Requester::admin(&plane).await.label("filed-1", TIER, json!("gold")).await.expect("it only restricts kubelets");

    // The fence holds for an account that may do everything.
    let account = Requester::user(&plane, ACCOUNT.0, ACCOUNT.1).await;
    let cordon = account.merge("filed-1", json!({"spec": {"unschedulable": true}})).await.expect_err("the fence");
    assert!(
        cordon.message.contains("nodegate's account may change nothing in a node's spec except taints"),
        "{}",
        cordon.message
    );

    for kind in ["validatingadmissionpolicy", "mutatingadmissionpolicy", "validatingadmissionpolicybinding"] {
        assert_eq!(plane.kubectl(&["get", kind, "-o", "name"], None).unwrap(), "", "nothing to delete");
    }
    admin.delete("filed-1").await;

    let name = "nodegate-guard.static.k8s.io";
    let refused = plane.kubectl(&["delete", "validatingadmissionpolicy", name], None).unwrap_err();
    assert!(refused.contains("not found"), "{refused}");
    let policy = fs::read_to_string(directory.join("validating/guard.yaml")).unwrap();
    let refused = plane.kubectl(&["apply", "-f", "-"], Some(&policy)).unwrap_err();
    assert!(refused.contains(".static.k8s.io"), "no request makes one of such a name: {refused}");

    // With a mistake, the files stay as they are.
    write(directory, "kind: NodePolicy\n");
    assert_eq!(fs::read_to_string(directory.join("validating/guard.yaml")).unwrap(), policy);
    // Another key is guarded without a restart.
    write(directory, &POLICY.replace("vault.example.com/*", "later.example.com/*"));
    let join = json!({"later.example.com/x": "forged"});
    eventually("changed files are read", async || {
        admin.delete("filed-1").await;
        let created = kubelet.create(&node("filed-1", join.clone())).await.unwrap();
        holds(label(&created, "later.example.com/x").is_none(), || format!("{created:#}"))
    })
    .await;
    admin.delete("filed-1").await;
}
