//! From the node preparation Job: workers labelled, control planes tainted, before the real scheduler.

use serde_json::{Value, json};

use super::fleet::{self, create_pod, pod, ready_node};
use super::pod::Release;
use super::script::Tutorial;
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::eventually_blocking;
use crate::requester::{Requester, taints};
use crate::shared::tools::there;

const NODES: [&str; 6] = ["gpu-worker-0", "gpu-worker-1", "gpu-worker-2", "master-0", "master-1", "master-2"];
const TAINT: &str = "llm-d-lab=control-plane:NoSchedule";

/// The cluster after the Job has run, and after one worker and one control plane have joined since.
fn prepare(plane: &ControlPlane) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "node-preparation"}});
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "prepare", "image": "oc"}]});
    let wave = json!({"argocd.argoproj.io/sync-wave": "-1"});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "node-preparation", "namespace": "node-preparation", "annotations": wave},
        "spec": {"template": {"spec": spec}}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [namespace, job]});
    plane.kubectl(&["apply", "-f", "-"], Some(&list.to_string())).unwrap();
    let control_plane = json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    for name in NODES {
        let (role, taints) =
            if name.starts_with("master") { ("control-plane", &control_plane) } else { ("worker", &json!([])) };
        ready_node(plane, name, json!({format!("node-role.kubernetes.io/{role}"): ""}), taints.clone());
    }
    for name in ["gpu-worker-0", "gpu-worker-1"] {
        plane.kubectl(&["label", "node", name, "llm-d-lab-deployer=true", "--overwrite"], None).unwrap();
    }
    for name in ["master-0", "master-1"] {
        plane.kubectl(&["taint", "node", name, TAINT], None).unwrap();
    }
}

/// A pod as the GPU operator creates it, for one node: it tolerates every taint of a control plane but one.
fn driver(plane: &ControlPlane, name: &str, node: &str) {
    let tolerations = json!([{"key": "benchmark.llm-d.ai/test-gpu-amd64", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]);
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    create_pod(plane, name, json!({"tolerations": tolerations, "affinity": required(&term)}));
}

/// A pod as the network operator creates it: it tolerates everything, but wants a worker that is no master.
fn network_driver(plane: &ControlPlane, name: &str) {
    let role =
        |role: &str, operator: &str| json!({"key": format!("node-role.kubernetes.io/{role}"), "operator": operator});
    let term = json!({"matchExpressions": [role("worker", "Exists"), role("master", "DoesNotExist")]});
    create_pod(plane, name, json!({"tolerations": [{"operator": "Exists"}], "affinity": required(&term)}));
}

fn required(term: &Value) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}})
}

#[tokio::test]
async fn a_user_of_the_preparation_job_taints_control_planes_before_any_driver_and_cleans_up() {
    if !there(&["helm"]) {
        return;
    }
    let cluster = exclusive();
    let plane = cluster.plane;
    let _nodes = fleet::Nodes::new(plane, &NODES);
    prepare(plane);
    let release = Release::in_namespace(plane, "nodegate");
    let mut tutorial = Tutorial::open(plane, "llm-d-lab-node-preparation.md");
    let admin = Requester::admin(plane).await;

    tutorial.until("nodegate plan");
    assert!(!taints(&admin.get("master-2").await).contains(&TAINT.to_owned()), "plan writes nothing");
    tutorial.until("helm install");
    let mut stand_in = release.pod().await;
    tutorial.until("custom-columns=NAME");
    // A control plane that joins now has the taint before anything can be scheduled on it.
    admin.delete("master-2").await;
    let joining = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "master-2"},
        "spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]},
        "status": admin.get("master-1").await["status"]});
    let created = Requester::kubelet(plane, "master-2").await.create(&joining).await.unwrap();
    assert!(taints(&created).contains(&TAINT.to_owned()), "{:?}", taints(&created));
    let scheduler = plane.component("kube-scheduler", &[]);
    driver(plane, "driver-worker", "gpu-worker-2");
    driver(plane, "driver-master", "master-2");
    network_driver(plane, "network-driver");
    let node_of = |name: &str| pod(plane, name)["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    eventually_blocking("scheduled on a worker", || node_of("network-driver").starts_with("gpu-worker-"));
    eventually_blocking("scheduled on the worker", || {
        pod(plane, "driver-worker")["spec"]["nodeName"] == "gpu-worker-2"
    });
    let refused = |pod: &Value| pod["status"]["conditions"].to_string().contains("had untolerated taint");
    eventually_blocking("refused by the control plane", || refused(&pod(plane, "driver-master")));
    assert!(pod(plane, "driver-master")["spec"]["nodeName"].is_null());
    drop(scheduler);
    plane.kubectl(&["delete", "pod", "driver-worker", "driver-master", "network-driver", "--force"], None).unwrap();

    tutorial.until("kubectl -n node-preparation delete job");
    assert!(taints(&admin.get("master-0").await).contains(&TAINT.to_owned()), "the Job's removal changes no node");
    tutorial.until("kubectl delete mutatingwebhookconfiguration");
    stand_in.nodegate.terminate();
    let left = tutorial.until("nodegate cleanup --confirm");
    assert!(
        left.lines().last().is_some_and(|line| line == "release \"nodegate\" uninstalled"),
        "no label is left: {left}"
    );
    for name in NODES {
        assert!(!taints(&admin.get(name).await).iter().any(|taint| taint.starts_with("llm-d-lab")), "{name}");
    }
    tutorial.finish();
    plane.kubectl(&["delete", "namespace", "node-preparation", "--wait=false"], None).unwrap();
}
