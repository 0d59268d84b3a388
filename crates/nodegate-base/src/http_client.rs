//! HTTP clients: whom they trust, how much of an answer they read, and what their errors say.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The header `User-Agent` of requests to others than the API server.
pub const USER_AGENT: &str = concat!("nodegate/", env!("CARGO_PKG_VERSION"));

/// The CAs that the system trusts; none if it has none.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// TLS that trusts these CAs, with this client certificate.
///
/// # Errors
/// Returns a sentence.
pub fn trusting(
    roots: RootCertStore,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    match identity {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("the client certificate and its key cannot be used: {error}")),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Reads a body as it arrives. `limit` is the maximum time of the request.
///
/// # Errors
/// Returns a sentence if the body is larger than `max` bytes, of which no more are in memory, or if it breaks off.
pub async fn body(mut response: Response, max: usize, limit: Duration) -> Result<Vec<u8>, String> {
    let too_large = || format!("its answer is larger than {} KiB", max / 1024);
    if response.content_length().is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| in_words(&error, limit))? {
        if body.len() + chunk.len() > max {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An error without the URL, which the message about it names already, or which may hold a secret, and with the innermost reason. `limit` is
/// the maximum time of the request.
pub fn in_words(error: &reqwest::Error, limit: Duration) -> String {
    if error.is_timeout() {
        return match limit.subsec_millis() {
            0 => format!("it did not answer within {} seconds", limit.as_secs()),
            _ => format!("it did not answer within {} ms", limit.as_millis()),
        };
    }
    let mut source: &dyn Error = error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    let what = if error.is_redirect() {
        return source.to_string();
    } else if error.is_connect() {
        "could not connect"
    } else {
        "the request failed"
    };
    format!("{what}: {source}")
}
