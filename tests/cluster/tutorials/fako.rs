//! From the node labeling Job: the table of names as a policy, once as a Job and then all the time.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::fleet::{self, create_pod, pod, ready_node};
use super::job;
use super::pod::Release;
use super::script::Tutorial;
use crate::commands::finish;
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::eventually_blocking;
use crate::keeping::node;
use crate::requester::{Requester, label};
use crate::shared::tools::there;

const NODES: [&str; 7] = ["yeezyai", "pgbee", "pgmac01", "pgmac02", "pglenovo01", "pglenovo02", "thinkpad01"];
const GPU: [&str; 9] = [
    "nvidia.com/gpu=true",
    "node-role.kubernetes.io/gpu-worker=true",
    "gpu.nvidia.present=true",
    "gpu.count=2",
    "gpu.rtx5070=true",
    "gpu.rtx3050=true",
    "accelerator=nvidia-gpu",
    "hardware.tier=dual-gpu",
    "node-type=gpu-compute",
];

/// The Job as it stands in its repository.
fn old_job() -> Value {
    let container = json!({"name": "label", "image": "kubectl", "command": ["sh", "-c", "kubectl label nodes …"]});
    let spec = json!({"serviceAccountName": "node-labeler", "restartPolicy": "Never", "containers": [container]});
    let name = json!({"name": "label-nodes-for-voice-pipeline", "namespace": "node-labeling"});
    let account = json!({"name": "node-labeler", "namespace": "node-labeling"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": name,
         "spec": {"ttlSecondsAfterFinished": 300, "template": {"spec": spec}}},
    ]})
}

/// What the Job's script sets on a node.
fn labels(name: &str) -> Vec<&'static str> {
    match name {
        "yeezyai" => GPU.to_vec(),
        "pgbee" | "pgmac01" | "pgmac02" => vec!["hardware.tier=high-performance", "voice-pipeline=enabled"],
        _ => vec!["hardware.tier=standard"],
    }
}

/// The cluster after the Job has run.
fn prepare(plane: &ControlPlane, file: &std::path::Path) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "node-labeling"}}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&namespace)).unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, old_job().to_string()).unwrap();
    plane.kubectl(&["apply", "-f", file.to_str().unwrap()], None).unwrap();
    for name in NODES {
        ready_node(plane, name, json!({}), json!([]));
        plane.kubectl(&[&["label", "node", name, "--overwrite"], &labels(name)[..]].concat(), None).unwrap();
    }
}

#[test]
fn a_name_without_a_node_is_no_error() {
    let mut plan = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    plan.args(["plan", "--policy", "examples/fako/policy.yaml", "examples/fako/nodes/pgbee.yaml"]);
    plan.current_dir(env!("CARGO_MANIFEST_DIR")).env_clear().stdin(Stdio::null());
    let planned = finish(&mut plan);
    assert_eq!((planned.code, planned.errors.as_str()), (0, ""));
    assert!(planned.output.ends_with("\n1 node: 1 to change, 0 with deferred changes\n"), "{}", planned.output);
}

/// The two workloads of the Job's documentation, before the real scheduler.
fn workloads_are_scheduled_by_the_labels(plane: &ControlPlane) {
    let scheduler = plane.component("kube-scheduler", &[]);
    let tolerations = json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]);
    let selector = json!({"nvidia.com/gpu": "true", "hardware.tier": "dual-gpu"});
    create_pod(plane, "gpu", json!({"nodeSelector": selector, "tolerations": tolerations}));
    let tiers = json!([{"key": "hardware.tier", "operator": "In", "values": ["high-performance"]}]);
    let preferred = json!([{"weight": 100, "preference": {"matchExpressions": tiers}}]);
    let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    create_pod(plane, "voice", json!({"nodeSelector": {"voice-pipeline": "enabled"}, "affinity": affinity}));
    let node_of = |name: &str| pod(plane, name)["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    eventually_blocking("scheduled", || !node_of("gpu").is_empty() && !node_of("voice").is_empty());
    assert_eq!(node_of("gpu"), "yeezyai");
    assert!(["pgbee", "pgmac01", "pgmac02"].contains(&node_of("voice").as_str()), "{}", node_of("voice"));
    drop(scheduler);
    plane.kubectl(&["delete", "pod", "gpu", "voice", "--force"], None).unwrap();
}

/// What people label by hand stays as they write it, while nodegate is called.
fn labels_of_people_are_theirs(plane: &ControlPlane) {
    for (change, value) in
        [("custom-label=value", "value"), ("custom-label=new-value", "new-value"), ("custom-label-", "")]
    {
        plane.kubectl(&["label", "node", "pgbee", change, "--overwrite"], None).unwrap();
        let stored = plane.kubectl(&["get", "node", "pgbee", "-o", "jsonpath={.metadata.labels.custom-label}"], None);
        assert_eq!(stored.unwrap(), value, "{change}");
    }
    let forced = plane.kubectl(&["label", "node", "pgbee", "hardware.tier=standard", "--overwrite"], None);
    forced.expect("it is no error");
    let tier = plane.kubectl(&["get", "node", "pgbee", "-o", "jsonpath={.metadata.labels.hardware\\.tier}"], None);
    assert_eq!(tier.unwrap(), "high-performance", "but a rule keeps its value");
}

#[tokio::test]
async fn a_user_of_the_labeling_job_runs_the_same_table_as_a_job_then_as_a_webhook_and_cleans_up() {
    if !there(&["helm"]) {
        return;
    }
    let cluster = exclusive();
    let plane = cluster.plane;
    let _nodes = fleet::Nodes::new(plane, &NODES);
    let release = Release::in_namespace(plane, "nodegate");
    let mut tutorial = Tutorial::open(plane, "fako-node-labeling-job.md");
    let file = tutorial.directory().join("apps/base/node-labeling/label-nodes-job.yaml");
    prepare(plane, &file);
    let admin = Requester::admin(plane).await;

    let spec = admin.get("yeezyai").await["spec"].clone();
    tutorial.until("nodegate plan");
    assert_eq!(label(&admin.get("pgbee").await, "node-type"), None, "plan writes nothing");
    tutorial.until("examples/apply-job/job.yaml");
    let first = job::run_as_its_account(plane, "nodegate-apply", "nodegate");
    assert!(tutorial.printed_like(&first), "{first}");
    let again = job::run_as_its_account(plane, "nodegate-apply", "nodegate");
    assert_eq!(again, first, "the second run changes nothing, and says the same");
    tutorial.until("nodegate report --by hardware.tier");
    workloads_are_scheduled_by_the_labels(plane);
    tutorial.until("helm install");
    let stand_in = release.pod().await;
    // A machine that the glob of the table matches, and that joins now.
    let kubelet = Requester::kubelet(plane, "pgmac03").await;
    let joined = kubelet.create(&node("pgmac03", json!({}))).await.unwrap();
    assert_eq!(label(&joined, "hardware.tier"), Some("high-performance"));
    admin.delete("pgmac03").await;
    labels_of_people_are_theirs(plane);
    tutorial.until("nodegate cleanup --decommissioned --confirm");
    assert_eq!(label(&admin.get("pglenovo02").await, "hardware.tier"), None, "no rule assigns it anymore");
    assert_eq!(label(&admin.get("pglenovo01").await, "hardware.tier"), Some("standard"));
    let maps = plane.kubectl(&["get", "configmaps", "-n", "nodegate", "-o", "name"], None).unwrap();
    assert!(maps.contains("node-labels-pglenovo01") && !maps.contains("node-labels-thinkpad01"), "{maps}");
    tutorial.until("kubectl delete -f apps/base");
    let gone = plane.kubectl(&["-n", "node-labeling", "get", "jobs", "-o", "name"], None).unwrap();
    assert_eq!(gone, "");
    tutorial.until("helm uninstall");
    drop(stand_in);
    assert_eq!(label(&admin.get("yeezyai").await, "gpu.count"), Some("2"), "labels stay");
    assert_eq!(admin.get("yeezyai").await["spec"], spec, "without rules for taints the spec stays as it is");
    tutorial.finish();
    plane.kubectl(&["delete", "jobs", "--all", "-n", "node-labeling"], None).unwrap();
    plane.kubectl(&["delete", "clusterrolebinding", "nodegate-apply"], None).unwrap();
}
