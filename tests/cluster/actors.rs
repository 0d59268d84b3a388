//! With everything on enforce and a failure policy of `Fail`, whoever keeps a cluster running keeps doing so: the writes are
//! those that each of them is known to make, under its own name.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{is_pending, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::{eventually, holds};

const NODE: &str = "actor-1";
const OTHER: &str = "actor-2";

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {
            "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "spec": {"taints": [
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"},
            {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]},
        "status": {"capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [condition("Ready", "True")]}})
}

fn condition(kind: &str, status: &str) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"type": kind, "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now, "reason": "Kubelet"})
}

/// A service account that RBAC lets do anything, and that is nobody else: its group is not an administrator's.
async fn account(plane: &ControlPlane, namespace: &str, name: &str) -> Requester {
    let user = format!("system:serviceaccount:{namespace}:{name}");
    permit(plane, &user);
    let group = format!("system:serviceaccounts:{namespace}");
    Requester::user(plane, &user, &["system:serviceaccounts", &group, "system:authenticated"]).await
}

fn permit(plane: &ControlPlane, user: &str) {
    let binding = format!("actor-{}", user.replace([':', '/'], "-"));
    let user = format!("--user={user}");
    let made = plane.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=cluster-admin", &user], None);
    assert!(made.is_ok() || made.as_ref().is_err_and(|error| error.contains("already exists")), "{made:?}");
}

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

/// The node as it is, with some fields replaced: what a client-go Update sends.
async fn put(requester: &Requester, change: impl Fn(&mut Value)) -> Value {
    let mut node = requester.get(NODE).await;
    change(&mut node);
    requester.replace(&node).await.unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

fn add_taint(node: &mut Value, key: &str, effect: &str) {
    let taints = node["spec"].as_object_mut().unwrap().entry("taints").or_insert_with(|| json!([]));
    taints.as_array_mut().unwrap().push(json!({"key": key, "effect": effect}));
}

fn remove_taint(node: &mut Value, key: &str) {
    let taints = node["spec"]["taints"].as_array_mut().unwrap_or_else(|| panic!("there is no taint {key}"));
    let before = taints.len();
    taints.retain(|taint| taint["key"] != key);
    assert_eq!(taints.len() + 1, before, "there is no taint {key}");
}

async fn kubelet_joins_restarts_and_reports(plane: &ControlPlane, admin: &Requester) {
    let kubelet = Requester::kubelet(plane, NODE).await;
    let created = kubelet.create(&node()).await.unwrap();
    assert_eq!(label(&created, "hardware.tier"), Some("standard"));
    assert_eq!(kubelet.create(&node()).await.unwrap_err().code, 409, "a restarted kubelet finds its node");
    // What updateDefaultLabels reconciles, and a heartbeat, in one patch of nodes/status.
    let status = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1",
        "node.kubernetes.io/instance-type": "m7i.large", "beta.kubernetes.io/instance-type": "m7i.large"}},
        "status": {"conditions": [condition("Ready", "True")]}});
    kubelet.merge_status(NODE, status).await.unwrap();
    let annotated =
        json!({"metadata": {"annotations": {"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd.sock"}}});
    kubelet.merge(NODE, annotated).await.unwrap();
    admin.eventually(NODE, "led to its end", |node| !is_pending(node)).await;
}

async fn cloud_controller_initialises(plane: &ControlPlane) {
    let controller = account(plane, "kube-system", "cloud-node-controller").await;
    let done = put(&controller, |node| {
        remove_taint(node, "node.cloudprovider.kubernetes.io/uninitialized");
        node["spec"]["providerID"] = json!("aws:///z1/i-0123456789");
        node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = json!("p5.48xlarge");
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("z1");
    })
    .await;
    // What the instance type says comes in that very write and is not held against the controller.
    assert_eq!(label(&done, "gpu.count"), Some("8"), "{done:#}");
}

async fn kubeadm_marks(plane: &ControlPlane) {
    permit(plane, "kubernetes-admin");
    let who: (&str, &[&str]) = ("kubernetes-admin", &["kubeadm:cluster-admins", "system:authenticated"]);
    let kubeadm = Requester::user(plane, who.0, who.1).await;
    // It changes what it has read and sends the difference; taints are one list.
    let mut taints = kubeadm.get(NODE).await["spec"]["taints"].clone();
    taints
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}));
    let marks = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "",
        "node.kubernetes.io/exclude-from-external-load-balancers": ""}}, "spec": {"taints": taints}});
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(plane.client(Some(who)).await);
    nodes.patch(NODE, &PatchParams::default(), &Patch::Strategic(marks)).await.unwrap();
    put(&kubeadm, |node| remove_taint(node, "node-role.kubernetes.io/control-plane")).await;
}

async fn discovery_and_vendors_label(plane: &ControlPlane) {
    let nfd = account(plane, "node-feature-discovery", "node-feature-discovery").await;
    let features = json!({"metadata": {
        "labels": {"feature.node.kubernetes.io/cpu-cpuid.AVX512F": "true", "feature.node.kubernetes.io/pci-0302_10de.present": "true",
                   "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"},
        "annotations": {"nfd.node.kubernetes.io/feature-labels": "cpu-cpuid.AVX512F"}}});
    nfd.merge(NODE, features).await.unwrap();
    nfd.merge_status(NODE, json!({"status": {"capacity": {"feature.node.kubernetes.io/epc": "1"}}})).await.unwrap();
    let operator = account(plane, "gpu-operator", "gpu-operator").await;
    put(&operator, |node| {
        for key in ["gpu.present", "gpu.deploy.driver", "gpu.deploy.container-toolkit", "gpu.deploy.device-plugin"] {
            node["metadata"]["labels"][format!("nvidia.com/{key}")] = json!("true");
        }
        node["metadata"]["annotations"]["nvidia.com/gpu-driver-upgrade-enabled"] = json!("true");
    })
    .await;
    let mig = account(plane, "gpu-operator", "nvidia-mig-manager").await;
    mig.merge(NODE, labels(json!({"nvidia.com/mig.config.state": "success"}))).await.unwrap();
    let amd = account(plane, "kube-amd-gpu", "amd-gpu-operator-node-labeller").await;
    amd.merge(NODE, labels(json!({"amd.com/gpu.vram": "64G"}))).await.unwrap();
    amd.merge(NODE, labels(json!({"amd.com/gpu.vram": null}))).await.unwrap();
}

async fn provisioners_and_autoscalers_write(plane: &ControlPlane) {
    let capi = account(plane, "capi-system", "capi-manager").await;
    let machine = json!({"metadata": {
        "labels": {"node-role.kubernetes.io/storage": "", "node-restriction.kubernetes.io/tenant": "a", "node.cluster.x-k8s.io/pool": "p"},
        "annotations": {"cluster.x-k8s.io/machine": "m-1", "cluster.x-k8s.io/labels-from-machine": "node.cluster.x-k8s.io/pool"}}});
    capi.merge(NODE, machine).await.unwrap();
    let karpenter = account(plane, "kube-system", "karpenter").await;
    put(&karpenter, |node| {
        remove_taint(node, "karpenter.sh/unregistered");
        for (key, value) in [
            ("karpenter.sh/registered", "true"),
            ("karpenter.sh/nodepool", "default"),
            ("karpenter.sh/capacity-type", "spot"),
            ("karpenter.k8s.aws/instance-gpu-name", "h100"),
            ("karpenter.sh/initialized", "true"),
        ] {
            node["metadata"]["labels"][key] = json!(value);
        }
    })
    .await;
    put(&karpenter, |node| add_taint(node, "karpenter.sh/disrupted", "NoSchedule")).await;
    put(&karpenter, |node| remove_taint(node, "karpenter.sh/disrupted")).await;
    let autoscaler = account(plane, "kube-system", "cluster-autoscaler").await;
    for (key, effect) in
        [("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"), ("ToBeDeletedByClusterAutoscaler", "NoSchedule")]
    {
        put(&autoscaler, |node| add_taint(node, key, effect)).await;
        put(&autoscaler, |node| remove_taint(node, key)).await;
    }
}

fn kubectl_works(plane: &ControlPlane) {
    for arguments in [
        &["cordon", NODE][..],
        &["uncordon", NODE],
        &["drain", NODE, "--ignore-daemonsets", "--force", "--timeout=20s"],
        &["uncordon", NODE],
        &["label", "node", NODE, "example.com/rack=r7"],
        &["label", "node", NODE, "example.com/rack-"],
        &["label", "node", NODE, "nvidia.com/mig.config=all-1g.10gb"],
        &["taint", "node", NODE, "dedicated=ml:NoSchedule"],
        &["taint", "node", NODE, "dedicated-"],
        &["annotate", "node", NODE, "example.com/Note=anything"],
        &["annotate", "node", NODE, "example.com/Note-"],
    ] {
        plane.kubectl(arguments, None).unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"));
    }
}

/// The real kube-controller-manager taints a node whose kubelet is silent, and takes the taints away when it is back.
async fn node_lifecycle_taints(plane: &ControlPlane, admin: &Requester) {
    // Where no node at all reports, it takes itself for cut off and evicts nobody.
    let (kubelet, other) = (Requester::kubelet(plane, NODE).await, Requester::kubelet(plane, OTHER).await);
    let mut alive = node();
    alive["metadata"]["name"] = json!(OTHER);
    alive["metadata"]["labels"]["kubernetes.io/hostname"] = json!(OTHER);
    other.create(&alive).await.unwrap();
    let flags =
        ["--controllers=node-lifecycle-controller", "--node-monitor-grace-period=4s", "--node-monitor-period=1s"];
    let _manager = plane.component("kube-controller-manager", &flags);
    let heartbeat = || json!({"status": {"conditions": [condition("Ready", "True")]}});
    let mut was_lost = false;
    eventually("the taints come and go", async || {
        // How often a kubelet reports.
        tokio::time::sleep(Duration::from_millis(500)).await;
        other.merge_status(OTHER, heartbeat()).await.unwrap();
        if was_lost {
            kubelet.merge_status(NODE, heartbeat()).await.unwrap();
        }
        let now = taints(&admin.get(NODE).await);
        was_lost |= ["NoSchedule", "NoExecute"]
            .iter()
            .all(|effect| now.iter().any(|taint| *taint == format!("node.kubernetes.io/unreachable=:{effect}")));
        let is_back = was_lost && !now.iter().any(|taint| taint.contains("node.kubernetes.io/"));
        holds(is_back, || format!("lost: {was_lost}, taints: {now:?}"))
    })
    .await;
    admin.delete(OTHER).await;
}

#[tokio::test]
async fn cluster_components_can_do_their_work_with_everything_enforced_and_others_cannot() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    admin.delete(NODE).await;
    admin.delete(OTHER).await;
    let policies: &[&str] = &["tests/cluster/actors.yaml"];
    let render: &[&str] = &["--failure-policy", "Fail"];
    let nodegate = Nodegate::start(plane, &Setup { policies, render, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    kubelet_joins_restarts_and_reports(plane, &admin).await;
    cloud_controller_initialises(plane).await;
    kubeadm_marks(plane).await;
    discovery_and_vendors_label(plane).await;
    provisioners_and_autoscalers_write(plane).await;
    kubectl_works(plane);
    node_lifecycle_taints(plane, &admin).await;
    // Somebody else with the same rights is refused each of these.
    let stranger = account(plane, "team", "ci").await;
    for forbidden in [
        json!({"feature.node.kubernetes.io/cpu-cpuid.AVX512F": null}),
        json!({"nvidia.com/gpu.product": "NVIDIA-H200"}),
        json!({"node-restriction.kubernetes.io/tenant": "b"}),
        json!({"node.kubernetes.io/instance-type": "t3.nano"}),
        json!({"example.com/Rack_Row": "1"}),
        json!({"kubernetes.io/hostname": "other"}),
    ] {
        let refusal = stranger.merge(NODE, labels(forbidden.clone())).await;
        assert_eq!(refusal.as_ref().err().map(|refusal| refusal.code), Some(403), "{forbidden}: {refusal:?}");
    }
    let done = admin.get(NODE).await;
    assert_eq!((label(&done, "hardware.tier"), label(&done, "node-type")), (Some("standard"), Some("compute")));
    admin.delete(NODE).await;
}
