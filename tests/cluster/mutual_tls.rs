//! The API server shows a client certificate, by the very configuration that docs/guides/mutual-tls.md gives, and nobody else
//! is answered.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use tempfile::TempDir;

use super::control_plane::{ApiServer, ControlPlane, exclusive, free_port};
use super::join::example_nodes;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::authority::{self, Authority, Identity};
use crate::eventually::{eventually, holds};
use crate::shared::guides::block;

const DOCUMENTED: &str = include_str!("../../docs/guides/mutual-tls.md");
/// Where the documentation has the API server's files.
const DIRECTORY: &str = "/etc/kubernetes/nodegate";
/// How the documentation names a nodegate that is registered by URL, and one that is by a Service at port 443.
const HOST: &str = "nodegate.example.com:8443";
const SERVICE: &str = "nodegate.nodegate.svc";

/// The YAML block of a documented file.
fn documented(file: &str) -> Value {
    serde_saphyr::from_str(&block("mutual-tls", &format!("# {DIRECTORY}/{file}\n"))).unwrap()
}

/// The files of the API server and of nodegate.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file as a whole.
    fn put(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    /// Gives the API server a certificate.
    fn show(&self, identity: &Identity) {
        self.put("webhook.key", &identity.key);
        self.put("webhook.crt", &identity.certificate);
    }

    /// The arguments of `serve`.
    fn flags(&self) -> [String; 4] {
        let file = self.path("callers.pem").display().to_string();
        ["--client-ca-file".to_owned(), file, "--client-name".to_owned(), "api-server".to_owned()]
    }

    /// Starts an API server with the documented configuration: other paths, and another port of nodegate, nothing else.
    fn documented(&self, plane: &ControlPlane, port: u16) -> ApiServer {
        let flag = format!("--admission-control-config-file={DIRECTORY}/admission.yaml");
        assert!(DOCUMENTED.contains(&format!("`{flag}`")));
        assert_eq!(DOCUMENTED.matches("```yaml").count(), 2, "a documented file that no test uses");
        let here = |text: &str| {
            let text = text.replace(DIRECTORY, &self.0.path().display().to_string());
            text.replace(HOST, &format!("127.0.0.1:{port}")).replace(SERVICE, &format!("{SERVICE}:{port}"))
        };
        for file in ["admission.yaml", "kubeconfig.yaml"] {
            self.put(file, &here(&documented(file).to_string()));
        }
        plane.another_api_server(&[here(&flag)])
    }
}

/// The HTTPS address of a nodegate.
fn address(nodegate: &Nodegate<'_>) -> String {
    format!("127.0.0.1:{}", nodegate.ports().0)
}

/// Calls nodegate as somebody else than the API server, trusting what the API server trusts.
fn call(plane: &ControlPlane, nodegate: &Nodegate<'_>, identity: Option<&Identity>) -> Result<(), String> {
    let bundle =
        ["get", "mutatingwebhookconfiguration", "nodegate", "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}"];
    let ca = BASE64.decode(plane.kubectl(&bundle, None).unwrap()).unwrap();
    let answer = authority::ask(&address(nodegate), &ca, identity, "/mutate").map_err(|error| error.to_string())?;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    Ok(())
}

fn metric(nodegate: &Nodegate<'_>, name: &str) -> u64 {
    let metrics = nodegate.probe("/metrics").unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
    line.trim().parse().unwrap()
}

fn refused(nodegate: &Nodegate<'_>, reason: &str) -> u64 {
    metric(nodegate, &format!("nodegate_callers_refused_total{{reason=\"{reason}\"}}"))
}

/// Has nodegate trust other CAs, and waits until it does.
async fn trust(files: &Files, nodegate: &Nodegate<'_>, bundle: &str) {
    let taken = r#"nodegate_client_ca_reloads_total{result="success"}"#;
    let before = metric(nodegate, taken);
    files.put("callers.pem", bundle);
    nodegate.eventually("the CAs are taken up", || metric(nodegate, taken) > before).await;
}

/// Joins a node of the example as its kubelet: the value of its tier.
async fn join(plane: &ControlPlane, name: &str) -> Option<String> {
    let admin = Requester::admin(plane).await;
    admin.delete(name).await;
    let created = Requester::kubelet(plane, name).await.create(&example_nodes("fako")[name]).await.unwrap();
    admin.delete(name).await;
    label(&created, "hardware.tier").map(str::to_owned)
}

#[tokio::test]
async fn only_the_api_server_is_answered_and_the_ca_changes_without_a_restart() {
    let cluster = exclusive();
    let (old, new, other) = (Authority::new("old"), Authority::new("new"), Authority::new("other"));
    let files = Files::new();
    files.put("callers.pem", &old.pem);
    files.show(&old.client("api-server"));
    let flags = files.flags();
    let listen = free_port();
    let setup = Setup {
        policies: &["examples/fako/policy.yaml"],
        serve: &flags.each_ref().map(String::as_str),
        listen: Some(listen),
        ..Setup::default()
    };
    let plane = &files.documented(cluster.plane, listen);
    let nodegate = Nodegate::start(plane, &setup);
    assert_eq!(join(plane, "pgbee").await.as_deref(), Some("high-performance"));

    for (identity, reason, alert) in [
        (None, "no_certificate", "CertificateRequired"),
        (Some(other.client("api-server")), "unknown_ca", "UnknownCA"),
        (Some(old.client("kubelet")), "name_not_allowed", "AccessDenied"),
    ] {
        let error = call(plane, &nodegate, identity.as_ref()).expect_err(reason);
        assert!(error.contains(alert), "{reason}: {error}");
        nodegate.eventually(reason, || refused(&nodegate, reason) == 1).await;
    }
    call(plane, &nodegate, Some(&old.client("api-server"))).unwrap();

    trust(&files, &nodegate, &format!("{}{}", old.pem, new.pem)).await;
    call(plane, &nodegate, Some(&new.client("api-server"))).unwrap();
    assert_eq!(join(plane, "pgmac01").await.as_deref(), Some("high-performance"), "still with the old certificate");
    files.show(&new.client("api-server"));
    trust(&files, &nodegate, &new.pem).await;
    let is_ended = || nodegate.log().contains("no longer accepted");
    nodegate.eventually("the old certificate's connection ends", is_ended).await;
    // The API server closes its connections when it notices its new certificate, the one at which it does so included. How
    // soon that is depends on when it looks next.
    eventually("it is answered with the new certificate", async || {
        let tier = join(plane, "pgmac02").await;
        holds(tier.as_deref() == Some("high-performance"), || nodegate.log())
    })
    .await;
    call(plane, &nodegate, Some(&old.client("api-server"))).expect_err("the old CA is out");

    // And nobody is answered for being the API server: neither with another certificate nor without one.
    trust(&files, &nodegate, &other.pem).await;
    for (api_server, reason) in [(&**plane, "unknown_ca"), (cluster.plane, "no_certificate")] {
        let before = refused(&nodegate, reason);
        assert_eq!(join(api_server, "pglenovo01").await, None, "without its labels, as the failure policy says");
        nodegate.eventually(reason, || refused(&nodegate, reason) > before).await;
        // Whether the alert or the end of the connection is logged is a race inside of the API server.
        assert!(api_server.api_server_log().contains("failing open mutate.nodegate.dev"));
    }
}

#[tokio::test]
async fn with_a_cluster_the_api_server_is_answered_as_well_wherever_the_certificate_is_from() {
    let cluster = exclusive();
    let ca = Authority::new("callers");
    for (own_certificates, service) in [(true, true), (true, false), (false, false)] {
        let files = Files::new();
        files.put("callers.pem", &ca.pem);
        files.show(&ca.client("api-server"));
        let (flags, listen) = (files.flags(), free_port());
        let setup = Setup {
            policies: &["examples/fako/policy.yaml"],
            serve: &[&flags.each_ref().map(String::as_str)[..], &["--cert-name", SERVICE]].concat(),
            cluster: true,
            own_certificates,
            service,
            listen: Some(listen),
            ..Setup::default()
        };
        let plane = &files.documented(cluster.plane, listen);
        let nodegate = Nodegate::start(plane, &setup);
        assert_eq!(join(plane, "pgbee").await.as_deref(), Some("high-performance"));
        call(plane, &nodegate, None).expect_err("a caller without a certificate");
        // The caller is told before it is counted.
        nodegate.eventually("it is counted", || refused(&nodegate, "no_certificate") == 1).await;
        call(plane, &nodegate, Some(&ca.client("api-server"))).unwrap();
    }
}
