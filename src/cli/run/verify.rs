//! `nodegate verify`: calls the webhooks as the API server does.

mod record;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::{Api, Client};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::cli::Findings;
use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::cluster::serve_flags::ConfigurationArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::parse_name;
use crate::cli::shared::output;
use nodegate_base::http_client::{self, trusting};
use nodegate_base::kube_error::in_words;

/// Maximum size of an answer, in bytes.
const ANSWER_MAX: usize = 1024 * 1024;
/// The ID of the reviews that are sent.
const UID: &str = "00000000-0000-4000-8000-000000000000";
/// How long the API server waits if a configuration does not say.
const TIMEOUT_SECONDS: i32 = 10;

/// Call the webhooks as the API server does, and show the answers
///
/// Reads the webhook configurations, connects to the addresses that they name, and trusts only their caBundle. Each webhook gets the
/// review of a dry run: it changes nothing. Services have addresses only in the cluster: the pod of `helm test` runs this command.
///
/// If nodegate asks callers for client certificates, it refuses this command.
///
/// With --record, it calls no webhook and needs none. It writes as whom the API server authenticates kubelets, for a bug report or a
/// preset for your platform.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    configuration: ConfigurationArgs,
    /// Write what the API server knows of the last kubelets that asked for certificates into this directory instead, which is
    /// empty or does not exist: for each node a review, and test.yaml with what presets for pools make of them. Names,
    /// addresses, account numbers and unknown words are replaced, each by the same pseudonym in all files
    #[arg(long, value_name = "DIR", conflicts_with = "webhook_configuration")]
    record: Option<PathBuf>,
    /// Record this node; may be repeated, up to 20 times
    #[arg(long = "node", value_name = "NODE", value_parser = parse_name, requires = "record")]
    nodes: Vec<String>,
}

/// A webhook as the API server knows it.
struct Webhook {
    name: String,
    client_config: WebhookClientConfig,
    timeout: Duration,
    /// Whether it is called for NodePolicy objects instead of nodes.
    of_policies: bool,
}

impl Webhook {
    fn new(
        name: &str,
        client: &WebhookClientConfig,
        timeout: Option<i32>,
        rules: Option<&Vec<RuleWithOperations>>,
    ) -> Self {
        let resources = rules.into_iter().flatten().flat_map(|rule| rule.resources.iter().flatten());
        Self {
            name: name.to_owned(),
            client_config: client.clone(),
            timeout: Duration::from_secs(timeout.unwrap_or(TIMEOUT_SECONDS).unsigned_abs().into()),
            of_policies: resources.into_iter().any(|resource| resource == "nodepolicies"),
        }
    }

    /// The URL that the API server calls.
    fn url(&self) -> String {
        match (&self.client_config.url, &self.client_config.service) {
            (Some(url), _) => url.clone(),
            (None, Some(service)) => format!(
                "https://{}.{}.svc:{}{}",
                service.name,
                service.namespace,
                service.port.unwrap_or(443),
                service.path.as_deref().unwrap_or("/")
            ),
            (None, None) => String::new(),
        }
    }

    /// Calls it. The error is a sentence.
    async fn call(&self) -> Result<(), String> {
        let ca = self.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice()).unwrap_or_default();
        if ca.is_empty() {
            return Err("its caBundle is empty, so the API server trusts no certificate; a nodegate with a certificate of its own writes it, see the log of the leader".to_owned());
        }
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(trusting(roots(ca)?, None)?)
            .redirect(Policy::none())
            .no_proxy()
            .timeout(self.timeout)
            .build()
            .map_err(|error| format!("could not create the client: {error}"))?;
        let request = client.post(self.url()).header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = request.body(review(self.of_policies).to_string()).send().await;
        let response = sent.map_err(|error| http_client::in_words(&error, self.timeout))?;
        if !response.status().is_success() {
            return Err(format!("it answered {}", response.status()));
        }
        is_answer(&http_client::body(response, ANSWER_MAX, self.timeout).await?)
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("its caBundle is not PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("its caBundle contains no CA: {error}"))?;
    }
    if roots.is_empty() { Err("its caBundle contains no certificate".to_owned()) } else { Ok(roots) }
}

/// The dry run of a write that no policy may deny: a kubelet's CREATE, or a NodePolicy without rules.
fn review(of_policies: bool) -> Value {
    let name = "nodegate-verify";
    let (group, version, kind, resource) = match of_policies {
        true => ("nodegate.dev", "v1alpha1", "NodePolicy", "nodepolicies"),
        false => ("", "v1", "Node", "nodes"),
    };
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if of_policies {
        object["spec"] = json!({});
    }
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": resource},
            "name": name,
            "operation": "CREATE",
            "userInfo": {"username": format!("system:node:{name}"), "groups": ["system:nodes", "system:authenticated"]},
            "object": object,
            "oldObject": null,
            "dryRun": true,
        }
    })
}

/// Whether the body is what the API server takes for an answer to [`review`], and permits the write.
fn is_answer(body: &[u8]) -> Result<(), String> {
    let answer: Value =
        serde_json::from_slice(body).map_err(|_| "its answer is not JSON, so it is not nodegate".to_owned())?;
    if answer["kind"] != "AdmissionReview" || answer["response"]["uid"] != UID {
        return Err("its answer is not an AdmissionReview for the request, so it is not nodegate".to_owned());
    }
    if answer["response"]["allowed"] != true {
        let message = answer["response"]["status"]["message"].as_str().unwrap_or("without a message");
        return Err(format!("it denies a write that no policy may deny: {message}"));
    }
    Ok(())
}

pub(in crate::cli) fn run(args: &VerifyArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(verify(args, invocation))
}

async fn verify(args: &VerifyArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let place = match args.record {
        Some(_) => args.connect.reading_place(invocation).await?,
        None => args.connect.place_to_read(invocation).await?,
    };
    let place = place.context("no cluster is selected; set --kubeconfig")?;
    if let Some(directory) = &args.record {
        return record::record(&place.client().await?, directory, &args.nodes).await;
    }
    let client = place.client().await?;
    let webhooks = registered(&client, &args.configuration.name(&client).await).await?;
    let mut table = output::table(&["webhook", "url", "result"]);
    let mut findings = Findings::None;
    for webhook in webhooks {
        let result = webhook.call().await;
        if result.is_err() {
            findings = Findings::Some;
        }
        table.add_row([webhook.name.clone(), webhook.url(), result.err().unwrap_or_else(|| "answers".to_owned())]);
    }
    output::print(&format!("{}\n", table.trim_fmt()))?;
    Ok(findings)
}

/// The webhooks of both configurations.
///
/// # Errors
/// Returns an error if a configuration is missing or cannot be read.
async fn registered(client: &Client, name: &str) -> anyhow::Result<Vec<Webhook>> {
    let unreadable =
        |error: &kube::Error| anyhow::anyhow!("could not read the webhook configurations: {}", in_words(error));
    let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let mutating = mutating.get_opt(name).await.map_err(|error| unreadable(&error))?;
    let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let validating = validating.get_opt(name).await.map_err(|error| unreadable(&error))?;
    let (Some(mutating), Some(validating)) = (&mutating, &validating) else {
        let kind = if mutating.is_none() { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
        bail!(
            "there is no {kind} {name}, so the API server does not call nodegate; apply it (`nodegate render webhooks`), or name another one with --webhook-configuration"
        );
    };
    let mutating = mutating.webhooks.iter().flatten();
    let mutating =
        mutating.map(|hook| Webhook::new(&hook.name, &hook.client_config, hook.timeout_seconds, hook.rules.as_ref()));
    let validating = validating.webhooks.iter().flatten();
    let validating =
        validating.map(|hook| Webhook::new(&hook.name, &hook.client_config, hook.timeout_seconds, hook.rules.as_ref()));
    let webhooks: Vec<Webhook> = mutating.chain(validating).collect();
    if webhooks.is_empty() {
        bail!("the webhook configurations {name} have no webhooks; apply them again (`nodegate render webhooks`)");
    }
    Ok(webhooks)
}
