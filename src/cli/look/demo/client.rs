//! Acts as the API server: sends reviews over HTTPS and applies patches.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value as Json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cli::look::demo::fleet::review;
use nodegate_base::http_client::trusting;

/// A connection to the webhook, kept open as the API server does.
pub(super) struct ApiServer {
    sender: SendRequest<Full<Bytes>>,
}

/// The outcome of a write.
pub(super) struct Written {
    /// The stored node, or the reason for the denial.
    pub(super) outcome: Result<Json, String>,
    pub(super) warnings: Vec<String>,
    pub(super) audit: Json,
    /// Time spent in the webhook, both reviews together.
    pub(super) time: Duration,
}

impl ApiServer {
    /// Connects to the webhook, trusting the CA in `ca_file`.
    pub(super) async fn connect(address: std::net::SocketAddr, ca_file: &Path) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca_file)? {
            roots.add(certificate?)?;
        }
        let config = trusting(roots, None).map_err(anyhow::Error::msg)?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let tls = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost")?, stream).await?;
        let (sender, connection) = handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    async fn ask(&mut self, path: &str, review: &Json) -> anyhow::Result<Json> {
        let request = Request::post(format!("{path}?timeout=2s"))
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(serde_json::to_vec(review)?)))?;
        let response = self.sender.send_request(request).await.context("the webhook does not answer")?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status.is_success(), "{path} answered {status}: {}", String::from_utf8_lossy(&body));
        let reply: Json = serde_json::from_slice(&body)?;
        anyhow::ensure!(reply["response"]["uid"] == review["request"]["uid"], "{path} answered with another uid");
        Ok(reply["response"].clone())
    }

    /// Sends a write through both webhooks, as the API server does with the rendered configurations: writes to
    /// `nodes/status` are not mutated, and a kubelet's CREATE is not validated.
    pub(super) async fn write(
        &mut self,
        node: &Json,
        old: Option<&Json>,
        status: bool,
        user: &(String, Vec<String>),
    ) -> anyhow::Result<Written> {
        let mut node = node.clone();
        let (mut warnings, mut audit, mut time) = (Vec::new(), Json::Null, Duration::ZERO);
        let mut take = |reply: &Json| {
            warnings
                .extend(reply["warnings"].as_array().into_iter().flatten().filter_map(Json::as_str).map(str::to_owned));
        };
        if !status {
            let start = Instant::now();
            let reply = self.ask("/mutate", &review(&node, old, status, user)?).await?;
            time += start.elapsed();
            if let Some(patch) = reply["patch"].as_str() {
                let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch)?)?;
                json_patch::patch(&mut node, &patch)?;
            }
            take(&reply);
            audit = reply["auditAnnotations"].clone();
        }
        let joining = old.is_none() && user.0.starts_with("system:node:");
        if joining {
            return Ok(Written { outcome: Ok(node), warnings, audit, time });
        }
        let start = Instant::now();
        let reply = self.ask("/validate", &review(&node, old, status, user)?).await?;
        time += start.elapsed();
        take(&reply);
        let denial = reply["status"]["message"].as_str().unwrap_or_default().to_owned();
        let outcome = if reply["allowed"] == true { Ok(node) } else { Err(denial) };
        Ok(Written { outcome, warnings, audit, time })
    }
}
