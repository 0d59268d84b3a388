//! The examples of this repository: what the command prints is what `kubectl apply` takes, and the API server has
//! nothing to remark about the expressions.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::control_plane::exclusive;
use super::Removed;

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
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
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
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let list = cluster.plane.kubectl(&["get", "validatingadmissionpolicies", "-o", "json"], None).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let policies = list["items"].as_array().unwrap();
        assert!(policies.len() >= 6);
        for policy in policies {
            let remarks = &policy["status"]["typeChecking"]["expressionWarnings"];
            assert!(remarks.is_null(), "{}: {remarks:#}", policy["metadata"]["name"]);
        }
        let checked = |policy: &Value| policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
        if policies.iter().all(checked) {
            return;
        }
        assert!(Instant::now() < deadline, "types are not checked: {list:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
