//! A release from its installation to what is left of it, by the real `helm` at the real API server. What pods would run, this
//! file runs, with the arguments, files and rights of the objects that Helm has applied.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::hooks::run_to_completion;
use super::{CHART, NAMESPACE, RELEASE, helm, items};
use crate::commands;
use crate::control_plane::{Component, ControlPlane, Exclusive, exclusive};
use crate::eventually::eventually_blocking;
use crate::keeping::{is_pending, node};
use crate::requester::{Requester, label};
use crate::tutorials::pod;

const NODES: [&str; 3] = ["life-1", "life-2", "life-3"];

/// Values whose policy gives every node this tier.
pub(super) fn values(tier: &str) -> Value {
    json!({
        "webhooks": {"validatingFailurePolicy": "Fail"},
        "policies": {"files": {"tiers.yaml": {
            "apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "tiers"},
            "spec": {"protect": {"keys": ["hardware.tier"]}, "rules": [{"name": "all", "labels": {"hardware.tier": tier}}]},
        }}},
    })
}

/// A cluster without the release, and what it takes to install it. Fields are dropped in this order.
pub(super) struct Ground {
    pub(super) helm: Helm,
    _controllers: Component,
    pub(super) applied: pod::Release<'static>,
    pub(super) admin: Requester,
    pub(super) plane: &'static ControlPlane,
    _cluster: Exclusive,
}

impl Ground {
    /// A cluster that has none of these nodes; nothing when there is no `helm`.
    pub(super) async fn without(nodes: &[&str]) -> Option<Self> {
        let cluster = exclusive();
        let plane = cluster.plane;
        let helm = Helm { plane, program: helm()?, kubeconfig: plane.kubeconfig_file("helm", None) };
        let admin = Requester::admin(plane).await;
        for name in nodes {
            admin.delete(name).await;
        }
        let applied = pod::Release::in_namespace(plane, NAMESPACE);
        let controllers = "--controllers=job-controller,namespace-controller";
        let _controllers = plane.component("kube-controller-manager", &[controllers]);
        Some(Self { helm, _controllers, applied, admin, plane, _cluster: cluster })
    }
}

/// `helm` for this cluster, with somebody who runs the pods of its hooks meanwhile. Nothing of the release stays when it
/// is dropped.
pub(super) struct Helm {
    plane: &'static ControlPlane,
    program: &'static Path,
    kubeconfig: PathBuf,
}

impl Drop for Helm {
    fn drop(&mut self) {
        let mut command = Command::new(self.program);
        command.args(["uninstall", RELEASE, "--ignore-not-found", "--no-hooks", "--namespace", NAMESPACE]);
        let _ = command.arg("--kubeconfig").arg(&self.kubeconfig).output();
    }
}

impl Helm {
    /// What it prints, if it succeeds; else its error.
    pub(super) fn run(&self, arguments: &[&str], values: Option<&Value>) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new(self.program);
        command.args(arguments).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(&self.kubeconfig);
        if let Some(values) = values {
            std::fs::write(file.path(), values.to_string()).unwrap();
            command.arg("--values").arg(file.path());
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually_blocking(&format!("helm {} ends", arguments.join(" ")), || {
            let has_ended = child.try_wait().unwrap().is_some();
            if !has_ended {
                self.run_pods();
            }
            has_ended
        });
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let [printed, errors] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        if status.success() { Ok(printed) } else { Err(errors) }
    }

    /// Does for pods that run once what a kubelet does.
    fn run_pods(&self) {
        let pods = self.plane.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "json"], None).unwrap();
        let pods: Value = serde_json::from_str(&pods).unwrap();
        for pod in items(&pods["items"]).iter().filter(|pod| pod["status"]["phase"] == "Pending") {
            let spec = &pod["spec"];
            let mut more = Vec::new();
            let kubeconfig;
            if spec["automountServiceAccountToken"] == true {
                let account = spec["serviceAccountName"].as_str().unwrap();
                let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
                let groups: &[&str] = &["system:serviceaccounts", "system:authenticated"];
                kubeconfig = self.plane.kubeconfig_file(account, Some((&user, groups))).display().to_string();
                more = vec!["--kubeconfig", &kubeconfig];
            }
            let (code, errors) = run_to_completion(spec, &more, |name| {
                let map = self.plane.kubectl(&["get", "configmap", name, "-n", NAMESPACE, "-o", "json"], None);
                serde_json::from_str(&map.unwrap()).unwrap()
            });
            let container = &spec["containers"][0];
            let ended = json!({"exitCode": code, "message": errors});
            let status = json!({"status": {
                "phase": if code == 0 { "Succeeded" } else { "Failed" },
                "containerStatuses": [{"name": container["name"], "image": container["image"], "imageID": "", "ready": false,
                                       "restartCount": 0, "state": {"terminated": ended}}],
            }});
            let name = pod["metadata"]["name"].as_str().unwrap();
            let patch = ["patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p"];
            // Helm may have deleted it meanwhile.
            let _ = self.plane.kubectl(&[&patch as &[&str], &[&status.to_string()]].concat(), None);
        }
    }
}

/// A node joins, and has this tier when it is admitted.
pub(super) async fn joins(plane: &ControlPlane, name: &str, tier: &str) {
    let kubelet = Requester::kubelet(plane, name).await;
    let admitted = kubelet.create(&node(name, json!({"hardware.tier": "forged"}))).await.unwrap();
    assert_eq!(label(&admitted, "hardware.tier"), Some(tier), "{name}");
    Requester::admin(plane).await.eventually(name, "done", |node| !is_pending(node)).await;
}

/// The objects of the release that exist, as `kind/name`, without those that belong to another object.
fn of_the_release(plane: &ControlPlane) -> Vec<String> {
    let kinds = "all,configmap,secret,serviceaccount,role,rolebinding,clusterrole,clusterrolebinding,poddisruptionbudget,networkpolicy,\
                 mutatingwebhookconfiguration,validatingwebhookconfiguration,validatingadmissionpolicy,validatingadmissionpolicybinding,\
                 mutatingadmissionpolicy,mutatingadmissionpolicybinding,crd";
    let selector = format!("app.kubernetes.io/instance={RELEASE}");
    let found = plane.kubectl(&["get", &plane.known_kinds(kinds), "-A", "-l", &selector, "-o", "json"], None).unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    let own = items(&found["items"]).iter().filter(|object| object["metadata"]["ownerReferences"].is_null());
    own.map(|object| format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_release_is_installed_tested_upgraded_rolled_back_and_uninstalled_and_one_command_removes_the_rest() {
    let Some(Ground { plane, helm, admin, applied, .. }) = &Ground::without(&NODES).await else { return };

    let printed = helm.run(&["install", RELEASE, CHART, "--create-namespace"], Some(&values("gold"))).unwrap();
    assert!(printed.contains("helm test nodegate"), "{printed}");
    let first = applied.pod().await;
    joins(plane, "life-1", "gold").await;
    // The guard protects what the policy protects.
    let forged = Requester::kubelet(plane, "life-1").await.label("life-1", "hardware.tier", json!("forged")).await;
    assert!(forged.is_err() || label(&admin.get("life-1").await, "hardware.tier") == Some("gold"), "{forged:?}");
    let tested = helm.run(&["test", RELEASE], None).unwrap();
    assert!(tested.contains("Phase:          Succeeded"), "{tested}");

    // An upgrade to a broken policy changes nothing.
    let data = || applied.object("configmap", "nodegate-policies")["data"].clone();
    let before = (data(), applied.object("deployment", "nodegate")["metadata"]["generation"].clone());
    let mut broken = values("not a value");
    broken["image"] = json!({"tag": "next"});
    let refused = helm.run(&["upgrade", RELEASE, CHART], Some(&broken)).unwrap_err();
    assert!(refused.contains("pre-upgrade hooks failed"), "{refused}");
    assert_eq!((data(), applied.object("deployment", "nodegate")["metadata"]["generation"].clone()), before);
    let left = |kinds: &str| plane.kubectl(&["get", kinds, "-n", NAMESPACE, "-o", "name"], None).unwrap();
    assert!(left("jobs").contains("nodegate-check-"), "its logs can be read");

    applied.call_the_service();
    drop(first);
    helm.run(&["upgrade", RELEASE, CHART], Some(&values("platinum"))).unwrap();
    assert!(!left("configmaps").contains("nodegate-check"), "{}", left("configmaps"));
    let second = applied.pod().await;
    joins(plane, "life-2", "platinum").await;
    admin.eventually("life-1", "repaired", |node| label(node, "hardware.tier") == Some("platinum")).await;

    // Two is the upgrade that failed, three the last one.
    applied.call_the_service();
    drop(second);
    helm.run(&["rollback", RELEASE, "1"], None).unwrap();
    let third = applied.pod().await;
    joins(plane, "life-3", "gold").await;
    admin.eventually("life-2", "as before", |node| label(node, "hardware.tier") == Some("gold")).await;
    drop(third);
    let tested = helm.run(&["test", RELEASE], None).unwrap_err();
    assert!(tested.contains("failed"), "nobody serves: {tested}");

    let printed = helm.run(&["uninstall", RELEASE], None).unwrap();
    assert!(printed.contains("[CustomResourceDefinition] nodepolicies.nodegate.dev"), "{printed}");
    documented_and_removable(plane, admin).await;
}

/// What an uninstallation leaves is what the guide says, and its commands remove it.
async fn documented_and_removable(plane: &ControlPlane, admin: &Requester) {
    let guide = include_str!("../../../docs/guides/uninstall.md");
    let stays: Vec<String> = of_the_release(plane);
    for what in &stays {
        let name = what.rsplit('/').next().unwrap();
        let documented = ["nodepolicies.nodegate.dev", "nodegate-check", "nodegate-test"];
        assert!(documented.iter().any(|known| name.starts_with(known) && guide.contains(known)), "{what} of {stays:?}");
    }
    let kinds = "configmaps,secrets,leases,controllerrevisions";
    let made = plane.kubectl(&["get", kinds, "-n", NAMESPACE, "-o", "name"], None).unwrap();
    for name in ["node-labels-life-1", "nodegate-in-force", "nodegate-tls", "lease.coordination.k8s.io/nodegate"] {
        assert!(made.contains(name), "{name} stays: {made}");
    }
    assert_eq!(label(&admin.get("life-1").await, "hardware.tier"), Some("gold"), "nodes keep their labels");

    // Those who want the labels off their nodes, too.
    let cleaned = commands::run(plane, None, &["cleanup", "--namespace", NAMESPACE, "--confirm"]);
    assert_eq!(cleaned.code, 0, "{}{}", cleaned.output, cleaned.errors);
    assert_eq!(label(&admin.get("life-1").await, "hardware.tier"), None);
    // Everything else.
    let command = "kubectl delete namespace/nodegate crd/nodepolicies.nodegate.dev";
    assert!(guide.contains(command), "docs/guides/uninstall.md lacks: {command}");
    plane.kubectl(&command.split(' ').skip(1).collect::<Vec<_>>(), None).unwrap();
    assert_eq!(of_the_release(plane), [""; 0]);
    for name in NODES {
        admin.delete(name).await;
    }
}
