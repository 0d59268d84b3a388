//! What sends traces: the client of the collector, with what it trusts.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use reqwest::Client;
use reqwest::redirect::Policy;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use nodegate_base::http_client::{USER_AGENT, system_roots, trusting};
use nodegate_base::metrics::Metrics;
use nodegate_base::traces::{Exporter, Sender, TlsFiles, TraceSettings, Traces};

/// Starts what sends traces, if there are settings. Without them nothing exists.
///
/// # Errors
/// Returns an error that names variable and file if a certificate or a key cannot be read.
pub(super) fn start(
    settings: Option<TraceSettings>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Traces, Option<Exporter>)> {
    let Some(settings) = settings else { return Ok((Traces::default(), None)) };
    let builder = Client::builder().redirect(Policy::none()).referer(false).user_agent(USER_AGENT);
    let client = builder.tls_backend_preconfigured(tls(&settings)?).build();
    let client = client.context("could not create the client of the collector of traces")?;
    tracing::info!(endpoint = %settings.shown_endpoint(), "sending traces");
    let (traces, exporter) = Traces::start(&settings, Sender::new(settings.clone(), client), metrics.clone());
    Ok((traces, Some(exporter)))
}

fn tls(settings: &TraceSettings) -> anyhow::Result<rustls::ClientConfig> {
    let TlsFiles { ca, identity } = &settings.tls;
    let mut roots = RootCertStore::empty();
    match ca {
        Some((variable, file)) => {
            for certificate in certificates(variable, file)? {
                roots.add(certificate).with_context(|| format!("{variable}={}: it contains no CA", file.display()))?;
            }
        }
        // Over plain HTTP nobody has to be trusted.
        None if settings.endpoint.scheme() == "https" => {
            roots = system_roots();
            if roots.is_empty() {
                bail!(
                    "{}: this system has no CA certificates; set OTEL_EXPORTER_OTLP_CERTIFICATE to a file (PEM) with the CA of the collector",
                    settings.shown_endpoint()
                );
            }
        }
        None => {}
    }
    let identity = match identity {
        Some([(variable, file), (key_variable, key_file)]) => {
            let key = PrivateKeyDer::from_pem_file(key_file).with_context(|| {
                format!("{key_variable}={}: could not read a private key (PEM)", key_file.display())
            })?;
            Some((certificates(variable, file)?, key))
        }
        None => None,
    };
    trusting(roots, identity).map_err(|why| anyhow!("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: {why}"))
}

fn certificates(variable: &str, file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let named = || format!("{variable}={}: could not read certificates (PEM)", file.display());
    let found: Vec<_> =
        CertificateDer::pem_file_iter(file).with_context(named)?.collect::<Result<_, _>>().with_context(named)?;
    if found.is_empty() {
        bail!("{variable}={}: the file contains no certificate (PEM)", file.display());
    }
    Ok(found)
}
