//! Pools that are proven by who asked for a kubelet's certificate: real TLS bootstrap, with bootstrap tokens that the API server
//! checks and certificates that kube-controller-manager approves and signs.

use std::fs;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::{Method, Request};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::commands::run;
use super::control_plane::{ApiServer, Component, ControlPlane, exclusive};
use super::guard::Guard;
use super::keeping::{config_maps, eventually_state, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::until_older;
use super::requester::{Requester, label, taints};
use crate::authority::Authority;
use crate::eventually::eventually;

const ROLE: &str = "node-role.kubernetes.io/gpu";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRET: &str = "0123456789abcdef";

fn setup() -> Setup<'static> {
    Setup { policies: &["tests/cluster/bootstrap.yaml"], cluster: true, ..Setup::default() }
}

/// An API server that knows client certificates and bootstrap tokens, and the controllers that sign.
pub(crate) struct Signing {
    api: ApiServer,
    _controllers: Component,
    _files: TempDir,
}

impl Signing {
    /// `tokens`: their IDs, and the pools in the names of their groups.
    pub(crate) fn start(plane: &ControlPlane, tokens: &[(String, &str)]) -> Self {
        let (authority, files) = (Authority::new("kubelets"), tempfile::tempdir().unwrap());
        let (certificate, key) = (files.path().join("ca.pem"), files.path().join("ca.key"));
        fs::write(&certificate, &authority.pem).unwrap();
        fs::write(&key, authority.key()).unwrap();
        for (id, group) in tokens {
            let token = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
                "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
                "stringData": {"token-id": id, "token-secret": SECRET, "usage-bootstrap-authentication": "true",
                    "auth-extra-groups": format!("system:bootstrappers:{group}")}});
            plane.ask(Method::POST, "/api/v1/namespaces/kube-system/secrets", Some(&token)).unwrap();
        }
        for (role, group) in [
            ("system:node-bootstrapper", "system:bootstrappers"),
            ("system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers"),
            ("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"),
        ] {
            let kind = "rbac.authorization.k8s.io";
            let binding = json!({"apiVersion": format!("{kind}/v1"), "kind": "ClusterRoleBinding",
                "metadata": {"name": format!("test:{role}")},
                "roleRef": {"apiGroup": kind, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": kind, "kind": "Group", "name": group}]});
            let path = format!("/apis/{kind}/v1/clusterrolebindings");
            plane.ask(Method::POST, &path, Some(&binding)).unwrap();
        }
        let flag = |name: &str, file: &Path| format!("--{name}={}", file.display());
        let api = plane.another_api_server(&[
            flag("client-ca-file", &certificate),
            "--enable-bootstrap-token-auth=true".to_owned(),
        ]);
        let [signing_certificate, signing_key] =
            [flag("cluster-signing-cert-file", &certificate), flag("cluster-signing-key-file", &key)];
        let controllers =
            "--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller";
        let arguments = [controllers, &signing_certificate, &signing_key];
        let controllers = plane.component("kube-controller-manager", &arguments);
        Self { api, _controllers: controllers, _files: files }
    }

    /// Gets a certificate for the name of a node with a bootstrap token.
    pub(crate) async fn bootstrap(&self, token: &str, node: &str) -> Kubelet {
        let client = self.api.client_with(json!({"token": format!("{token}.{SECRET}")})).await;
        self.issue(&client, node).await
    }

    /// Gets another certificate for a kubelet, as it does before its own expires.
    async fn renew(&self, kubelet: &Kubelet) -> Kubelet {
        self.issue(&kubelet.client, &kubelet.node).await
    }

    async fn issue(&self, client: &kube::Client, node: &str) -> Kubelet {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        let key = KeyPair::generate().unwrap();
        let asked = BASE64_STANDARD.encode(params.serialize_request(&key).unwrap().pem().unwrap());
        let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "node-csr-"},
            "spec": {"request": asked, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"]}});
        let created = eventually("the token may ask for a certificate", async || {
            let outcome = post(client, REQUESTS, &request).await;
            outcome.map_err(|error| error.to_string())
        })
        .await;
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{REQUESTS}/{name}");
        let certificate = eventually("the certificate is issued", async || {
            let request: Value = serde_json::from_str(&self.api.ask(Method::GET, &path, None).unwrap()).unwrap();
            request["status"]["certificate"].as_str().map(str::to_owned).ok_or_else(|| request.to_string())
        })
        .await;
        let user = json!({"client-certificate-data": certificate, "client-key-data": BASE64_STANDARD.encode(key.serialize_pem())});
        Kubelet { client: self.api.client_with(user).await, node: node.to_owned(), request: path }
    }

    /// Deletes the request of a certificate, as kube-controller-manager does an hour after it was issued.
    fn clean(&self, kubelet: &Kubelet) {
        self.api.ask(Method::DELETE, &kubelet.request, None).unwrap();
    }
}

async fn post(client: &kube::Client, path: &str, object: &Value) -> Result<Value, kube::Error> {
    let request = Request::post(path).header("Content-Type", "application/json");
    client.request(request.body(object.to_string().into_bytes()).unwrap()).await
}

/// A kubelet with a certificate of its own.
pub(crate) struct Kubelet {
    client: kube::Client,
    node: String,
    request: String,
}

impl Kubelet {
    async fn join(&self) -> Value {
        self.join_as(&node(&self.node, json!({}))).await
    }

    /// Creates its node as this object.
    pub(crate) async fn join_as(&self, object: &Value) -> Value {
        post(&self.client, "/api/v1/nodes", object).await.unwrap()
    }
}

/// How many certificates are recorded of the bootstrap with this token.
fn recorded(state: &Value, token: &str) -> usize {
    let all = state["bootstrappedBy"].as_array().into_iter().flatten();
    let mut of_token = all.filter(|one| one["user"] == format!("system:bootstrap:{token}"));
    of_token.next().and_then(|one| one["certificates"].as_array()).map_or(0, Vec::len)
}

#[tokio::test]
async fn who_asked_for_a_kubelets_certificate_proves_its_pool_through_renewals_and_restarts() {
    let cluster = exclusive();
    let plane = cluster.plane;
    // Without IDs of credentials, before Kubernetes 1.32.
    if !plane.has_mutating_policies() {
        return;
    }
    let _guard = Guard::install(plane, &[]);
    let signing = Signing::start(plane, &[("gpu000".to_owned(), "pool-gpu"), ("cpu000".to_owned(), "pool-cpu")]);
    let mut nodegate = Nodegate::start(plane, &setup());
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let (admin, maps) = (Requester::admin(plane).await, config_maps(plane, &nodegate.namespace).await);

    let gpu = signing.bootstrap("gpu000", "boot-gpu").await;
    let cpu = signing.bootstrap("cpu000", "boot-cpu").await;
    gpu.join().await;
    cpu.join().await;
    admin.eventually("boot-gpu", "it has its role", |node| label(node, ROLE) == Some("")).await;
    let is_cpu = |node: &Value| label(node, "node-role.kubernetes.io/cpu") == Some("");
    let of_cpu = admin.eventually("boot-cpu", "it has its role", is_cpu).await;
    assert_eq!((label(&of_cpu, ROLE), label(&of_cpu, "accelerator")), (None, None), "{of_cpu:#}");

    admin.label("boot-gpu", "team", json!("ml")).await.unwrap();
    eventually_state(&maps, "boot-gpu", "its team is saved", |state| state["labels"]["team"] == "ml").await;
    // A renewal is recorded; then the requests are gone, and nodegate is another process.
    eventually_state(&maps, "boot-gpu", "the first is recorded", |state| recorded(state, "gpu000") == 1).await;
    let renewed = signing.renew(&gpu).await;
    eventually_state(&maps, "boot-gpu", "both are recorded", |state| recorded(state, "gpu000") == 2).await;
    signing.clean(&gpu);
    signing.clean(&renewed);
    let namespace = nodegate.namespace.clone();
    nodegate.terminate();
    let mut nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup() });
    until_led(&nodegate).await;
    admin.label("boot-gpu", ROLE, Value::Null).await.unwrap();
    admin.eventually("boot-gpu", "the record proves its pool", |node| label(node, ROLE) == Some("")).await;
    admin.delete("boot-gpu").await;
    nodegate.until_nodes_are_younger().await;
    renewed.join().await;
    let is_itself = |node: &Value| (label(node, ROLE), label(node, "team")) == (Some(""), Some("ml"));
    admin.eventually("boot-gpu", "the renewed certificate proves it", is_itself).await;

    // The attack: a token of another pool gets a certificate for the name of this node.
    let stolen = signing.bootstrap("cpu000", "boot-gpu").await;
    let told = || {
        nodegate
            .log()
            .lines()
            .any(|line| line.contains("boot-gpu") && line.contains("issued to system:bootstrap:cpu000 (pool cpu)"))
    };
    nodegate.eventually("the certificate is told", told).await;
    let events = ["get", "events.events.k8s.io", "-n", "default", "-o", "jsonpath={.items[*].reason}"];
    let has_event = || plane.kubectl(&events, None).unwrap().contains("CertificateOfAnotherPool");
    nodegate.eventually("an event tells it", has_event).await;
    let is_quarantined = |node: &Value| taints(node).iter().any(|taint| taint == "example.com/quarantine=:NoSchedule");
    let kept = admin.eventually("boot-gpu", "a rule has given it a taint", is_quarantined).await;
    assert_eq!(label(&kept, ROLE), Some(""), "the node keeps what it has proven");
    // The request is gone, and nodegate is another process. Who has the certificate is recorded.
    signing.clean(&stolen);
    let command = ["explain", "boot-gpu", "--namespace", &nodegate.namespace, "-o", "json"];
    let explained: Value = serde_json::from_str(&run(plane, None, &command).with(0)).unwrap();
    let contradiction = &explained["identity"]["contradictions"][0];
    assert_eq!(
        contradiction["evidence"],
        json!({"user": ["system:bootstrap:cpu000"], "pools": ["cpu"]}),
        "{explained:#}"
    );
    let namespace = nodegate.namespace.clone();
    nodegate.terminate();
    let nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup() });
    until_led(&nodegate).await;
    admin.merge("boot-gpu", json!({"spec": {"taints": null}})).await.unwrap();
    admin.eventually("boot-gpu", "it has the taint again", is_quarantined).await;
    nodegate.until_nodes_are_younger().await;
    admin.delete("boot-gpu").await;
    stolen.join().await;
    let joined = admin.eventually("boot-gpu", "it is of the other pool", is_cpu).await;
    let of_gpu = [ROLE, "accelerator", "team"].map(|key| label(&joined, key));
    assert_eq!(of_gpu, [None; 3], "{joined:#}");
    // The machine itself comes back, with a certificate whose request is long gone.
    eventually_state(&maps, "boot-gpu", "both are known", |state| {
        (recorded(state, "gpu000"), recorded(state, "cpu000")) == (2, 1)
    })
    .await;
    admin.delete("boot-gpu").await;
    renewed.join().await;
    admin.eventually("boot-gpu", "it is itself again", is_itself).await;
    for name in ["boot-gpu", "boot-cpu"] {
        admin.delete(name).await;
    }
}
