//! Gatekeeper as a plain process: its definitions and mutators in the cluster, and the command that starts it.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::peer::{LABELS, TAINT, built};

/// The namespace of its objects.
const NAMESPACE: &str = "gatekeeper-system";
/// The CRDs must be served within this time.
const SERVED: Duration = Duration::from_secs(60);

/// Installs it in the cluster: the command for an address, or a line that says why there is none.
pub(crate) fn install(plane: &ControlPlane, certs: &Path) -> Result<Box<dyn Fn(&str) -> Command>, String> {
    let program = built("gatekeeper")?;
    let definitions = program.with_file_name("gatekeeper-crds.yaml");
    plane.kubectl(&["apply", "--server-side", "-f", &definitions.to_string_lossy()], None)?;
    let _ = plane.kubectl(&["create", "namespace", NAMESPACE], None);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": mutators()}).to_string();
    let deadline = Instant::now() + SERVED;
    while let Err(error) = plane.kubectl(&["apply", "-f", "-"], Some(&list)) {
        if Instant::now() > deadline {
            return Err(format!("gatekeeper is left out: {error}"));
        }
        thread::sleep(Duration::from_millis(500));
    }
    let (kubeconfig, certs) = (plane.kubeconfig_file("gatekeeper", None), certs.to_owned());
    Ok(Box::new(move |address| {
        let (host, port) = address.rsplit_once(':').expect("an address");
        let mut command = Command::new(&program);
        command.args(["--operation=mutation-webhook", "--operation=mutation-controller", "--disable-cert-rotation"]);
        command.args(["--debug-use-fake-pod", "--health-addr=127.0.0.1:0", "--metrics-backend=", "--host", host]);
        command.args(["--port", port, "--cert-dir"]).arg(&certs).arg("--kubeconfig").arg(&kubeconfig);
        command.env("POD_NAME", "gatekeeper").env("POD_NAMESPACE", NAMESPACE);
        command
    }))
}

/// What the rules of [`super::peer::policy`] do, as Gatekeeper's objects.
fn mutators() -> Vec<Value> {
    let matching = |more: Value| {
        let mut condition = json!({"scope": "Cluster", "kinds": [{"apiGroups": [""], "kinds": ["Node"]}]});
        condition.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        condition
    };
    let conditions = [
        json!({"name": "bench-*"}),
        json!({"name": "bench-*"}),
        json!({"labelSelector": {"matchLabels": {"pool": "gpu"}}}),
        json!({"labelSelector": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}}),
    ];
    let mut mutators: Vec<Value> = LABELS
        .iter()
        .zip(conditions)
        .enumerate()
        .map(|(at, ((key, value), condition))| {
            json!({"apiVersion": "mutations.gatekeeper.sh/v1", "kind": "AssignMetadata", "metadata": {"name": format!("bench-{at}")},
                "spec": {"match": matching(condition), "location": format!("metadata.labels.\"{key}\""), "parameters": {"assign": {"value": value}}}})
        })
        .collect();
    mutators.push(json!({"apiVersion": "mutations.gatekeeper.sh/v1", "kind": "ModifySet", "metadata": {"name": "bench-taint"},
        "spec": {
            "applyTo": [{"groups": [""], "versions": ["v1"], "kinds": ["Node"]}],
            "match": matching(json!({"name": "bench-*"})),
            "location": "spec.taints",
            "parameters": {"operation": "merge", "values": {"fromList": [{"key": TAINT, "value": "gpu", "effect": "NoSchedule"}]}},
        }}));
    mutators
}
