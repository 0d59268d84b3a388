//! From k8s-auto-labeller: files, labels that it has set, and pods on a node that has lost its label.

use serde_json::{Value, json};

use super::fleet::{self, ready_node};
use super::pod::Release;
use super::script::Tutorial;
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::eventually_blocking;
use crate::shared::tools::there;

const USB: &str = "feature.node.kubernetes.io/usb-fe_1a6e_089a.present";
const DEVICE_TREE: &str = "beta.devicetree.org/fsl-imx8mq-phanbell";
const FILE: &str = "kkohtaka.org/edgetpu
feature.node.kubernetes.io/usb-fe_1a6e_089a.present
feature.node.kubernetes.io/pci-0880_1ac1.present
beta.devicetree.org/fsl-imx8mq-phanbell
";

/// What k8s-auto-labeller is in the cluster.
fn old_program() -> Value {
    let labels = json!({"app": "k8s-auto-labeller"});
    let account = json!({"name": "auto-labeller", "namespace": "kube-system"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"serviceAccountName": "auto-labeller",
        "containers": [{"name": "labeller", "image": "adaptant/k8s-auto-labeller"}]}});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "k8s-auto-labeller", "namespace": "kube-system"},
         "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "auto-labeller"},
         "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "update"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "auto-labeller"},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "auto-labeller"},
         "subjects": [{"kind": "ServiceAccount", "name": "auto-labeller", "namespace": "kube-system"}]},
    ]})
}

/// A pod of a ReplicaSet on a node, with this affinity.
fn replica(plane: &ControlPlane, name: &str, node: &str, affinity: &Value) {
    let labels = json!({"app": "detector"});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "detector", "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}}});
    plane.kubectl(&["apply", "-f", "-"], Some(&set.to_string())).unwrap();
    let uid = plane.kubectl(&["get", "replicaset", "detector", "-o", "jsonpath={.metadata.uid}"], None).unwrap();
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "detector", "uid": uid, "controller": true});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": node, "affinity": affinity, "terminationGracePeriodSeconds": 0,
                 "containers": [{"name": "c", "image": "none"}]}});
    plane.kubectl(&["create", "-f", "-"], Some(&pod.to_string())).unwrap();
    let running = r#"{"status": {"phase": "Running"}}"#;
    plane.kubectl(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", running], None).unwrap();
}

/// A pod that needs the label.
fn detector(plane: &ControlPlane, name: &str, node: &str) {
    let terms = json!([{"matchExpressions": [{"key": "accelerators/edgetpu", "operator": "Exists"}]}]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    replica(plane, name, node, &json!({"nodeAffinity": required}));
}

fn pods(plane: &ControlPlane) -> String {
    plane.kubectl(&["get", "pods", "-n", "default", "-o", "name"], None).unwrap()
}

/// The cluster as k8s-auto-labeller leaves it.
fn prepare(plane: &ControlPlane) {
    plane.kubectl(&["apply", "-f", "-"], Some(&old_program().to_string())).unwrap();
    for (name, labels) in
        [("edge-1", json!({USB: "true"})), ("edge-2", json!({DEVICE_TREE: "1"})), ("plain-1", json!({}))]
    {
        ready_node(plane, name, labels, json!([]));
    }
    for name in ["edge-1", "edge-2"] {
        let label = ["label", "node", name, "accelerators/edgetpu=true", "--field-manager=k8s-auto-labeller"];
        plane.kubectl(&label, None).unwrap();
    }
    detector(plane, "detector-a", "edge-1");
}

#[tokio::test]
async fn a_user_of_k8s_auto_labeller_takes_over_its_labels_moves_stranded_pods_and_goes_back() {
    if !there(&["helm", "descheduler"]) {
        return;
    }
    let cluster = exclusive();
    let plane = cluster.plane;
    let _nodes = fleet::Nodes::new(plane, &["edge-1", "edge-2", "plain-1"]);
    prepare(plane);
    let release = Release::in_namespace(plane, "nodegate");
    let mut tutorial = Tutorial::open(plane, "k8s-auto-labeller.md");
    std::fs::create_dir_all(tutorial.directory().join("labels/accelerators")).unwrap();
    std::fs::write(tutorial.directory().join("labels/accelerators/edgetpu"), FILE).unwrap();

    let before = plane.kubectl(&["get", "node", "edge-1", "-o", "jsonpath={.metadata.resourceVersion}"], None);
    tutorial.until("nodegate plan --labels-dir");
    let after = plane.kubectl(&["get", "node", "edge-1", "-o", "jsonpath={.metadata.resourceVersion}"], None);
    assert_eq!(before, after, "plan writes nothing");
    tutorial.until("helm install");
    let pod = release.pod().await;
    let explained = tutorial.until("nodegate explain");
    assert!(explained.contains("rule labels-dir/") && explained.contains("yes"), "{explained}");
    let stranded = tutorial.until("report --stranded-pods");
    assert!(stranded.contains("default/detector-a on edge-1"), "{stranded}");
    assert!(pods(plane).contains("detector-a"));
    // The second plugin of its policy: a pod that does not tolerate a taint of its node.
    replica(plane, "intolerant", "plain-1", &json!({}));
    plane.kubectl(&["taint", "node", "plain-1", "maintenance=soon:NoSchedule"], None).unwrap();
    tutorial.until("descheduler --policy-config-file");
    eventually_blocking("evicted by the descheduler", || !pods(plane).contains("detector-a"));
    eventually_blocking("evicted for a taint", || !pods(plane).contains("intolerant"));

    detector(plane, "detector-b", "edge-1");
    let plan = tutorial.until("nodegate plan --policy edgetpu-gone.yaml");
    assert!(plan.contains("evicted: 1 pod of default/ReplicaSet/detector on edge-1: taint "), "{plan}");
    // The controller that evicts finds the pods of a node by an index that it does not make itself; the DaemonSet controller does.
    let eviction =
        plane.component("kube-controller-manager", &["--controllers=taint-eviction-controller,daemonset-controller"]);
    tutorial.until("kubectl apply -f edgetpu-gone.yaml");
    eventually_blocking("evicted for the taint", || !pods(plane).contains("detector-b"));
    drop(eviction);
    tutorial.until("kubectl delete -f k8s-auto-labeller.yaml");
    let gone = plane.kubectl(&["-n", "kube-system", "get", "deployment", "k8s-auto-labeller"], None).unwrap_err();
    assert!(gone.contains("not found"), "{gone}");
    tutorial.until("helm uninstall");
    drop(pod);
    let replicas = ["-n", "kube-system", "get", "deployment", "k8s-auto-labeller", "-o", "jsonpath={.spec.replicas}"];
    assert_eq!(plane.kubectl(&replicas, None).unwrap(), "1");
    let left = plane.kubectl(&["get", "nodes", "-l", "accelerators/edgetpu=true", "-o", "name"], None).unwrap();
    assert_eq!(left, "node/edge-1\nnode/edge-2\n", "labels stay for the old program");
    tutorial.finish();
    plane.kubectl(&["delete", "replicaset", "detector"], None).unwrap();
    plane.kubectl(&["delete", "--ignore-not-found", "-f", "-"], Some(&old_program().to_string())).unwrap();
}
