//! The chart installed and taken away by the real `helm` at the real API server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{CHART, NAMESPACE, RELEASE, helm, is_hook, run_helm};
use crate::control_plane::{ControlPlane, exclusive, run};
use crate::keeping::until_led;
use crate::nodegate::{Nodegate, Setup};

/// An installed release. It has no pods: nobody starts any here.
pub(super) struct Release<'a> {
    plane: &'a ControlPlane,
    program: &'static Path,
    kubeconfig: PathBuf,
    values: Value,
}

impl<'a> Release<'a> {
    /// Installs the chart; nothing when there is no `helm`.
    pub(super) fn install(plane: &'a ControlPlane, mut values: Value) -> Option<Self> {
        values["crds"] = json!({"install": false});
        let release = Self { plane, program: helm()?, kubeconfig: plane.kubeconfig_file("helm", None), values };
        release.helm(&["install", RELEASE, CHART, "--create-namespace"]);
        Some(release)
    }

    pub(super) fn upgrade(&self) {
        self.helm(&["upgrade", RELEASE, CHART]);
    }

    pub(super) fn uninstall(self) {
        self.take_away(&[]).unwrap();
    }

    fn take_away(&self, more: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.program);
        command.args(["uninstall", RELEASE, "--namespace", NAMESPACE, "--kubeconfig"]).arg(&self.kubeconfig);
        run(command.args(more), None)
    }

    fn helm(&self, arguments: &[&str]) {
        let kubeconfig = self.kubeconfig.display().to_string();
        let arguments = [arguments, &["--namespace", NAMESPACE, "--kubeconfig", &kubeconfig]].concat();
        run_helm(self.program, &arguments, &self.values).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    }

    /// How to start one of its pods, with the rights of its account.
    pub(super) fn setup(&self) -> Setup<'static> {
        let serve = &["--keep-failure-policy", "--cert-name=nodegate.nodegate.svc"];
        Setup { namespace: Some(NAMESPACE), own_rights: true, own_certificates: true, serve, ..Setup::default() }
    }
}

/// Nothing stays for the next test, whatever became of this one: not what a failed one installed, nor what its pods made.
impl Drop for Release<'_> {
    fn drop(&mut self) {
        let _ = self.take_away(&["--ignore-not-found"]);
        let made = ["delete", "secret/nodegate-tls", "lease/nodegate", "--ignore-not-found", "-n", NAMESPACE];
        let _ = self.plane.kubectl(&made, None);
    }
}

/// Collects the deletions of one object until the returned task is awaited: resource version, and whether it was a hook's.
async fn deletions(client: &kube::Client, group: &str, kind: &str) -> tokio::task::JoinHandle<Vec<(u64, bool)>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    let api: Api<DynamicObject> = if kind == "Deployment" {
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    };
    let since = api.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
    let only = WatchParams::default().fields(&format!("metadata.name={RELEASE}")).timeout(20);
    let mut events = api.watch(&only, &since).await.unwrap().boxed();
    tokio::spawn(async move {
        let mut seen = Vec::new();
        // Ends some time after the last one.
        while let Ok(Some(event)) = timeout(Duration::from_secs(8), events.next()).await {
            if let WatchEvent::Deleted(object) = event.unwrap() {
                let version = object.metadata.resource_version.as_deref().unwrap().parse().unwrap();
                seen.push((version, is_hook(&serde_json::to_value(&object).unwrap())));
            }
        }
        seen
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uninstall_deletes_the_webhook_configurations_before_the_pods_and_leaves_nothing() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let Some(release) = Release::install(plane, json!({"webhooks": {"validatingFailurePolicy": "Fail"}})) else {
        return;
    };
    // The leader is at work meanwhile: it brings nothing back.
    let nodegate = Nodegate::start_unregistered(plane, &release.setup());
    until_led(&nodegate).await;
    let client = plane.client(None).await;
    let webhooks = "admissionregistration.k8s.io";
    let mutating = deletions(&client, webhooks, "MutatingWebhookConfiguration").await;
    let validating = deletions(&client, webhooks, "ValidatingWebhookConfiguration").await;
    let pods = deletions(&client, "apps", "Deployment").await;
    tokio::task::block_in_place(|| release.uninstall());
    let (mutating, validating, pods) = (mutating.await.unwrap(), validating.await.unwrap(), pods.await.unwrap());
    assert_eq!(pods.len(), 1, "{pods:?}");
    for configuration in [mutating, validating] {
        let [(_, false), (last, true)] = configuration[..] else {
            panic!("the object, then the hook: {configuration:?}")
        };
        assert!(last < pods[0].0, "{configuration:?} after the pods: {pods:?}");
    }
    let kinds = "all,configmap,secret,serviceaccount,role,rolebinding,clusterrole,clusterrolebinding,poddisruptionbudget,\
                 mutatingwebhookconfiguration,validatingwebhookconfiguration";
    let selector = format!("app.kubernetes.io/instance={RELEASE}");
    let left = plane.kubectl(&["get", kinds, "-A", "-l", &selector, "-o", "name"], None).unwrap();
    assert_eq!(left, "");
}
