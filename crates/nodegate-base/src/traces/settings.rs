//! The settings of traces.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderMap;
use url::Url;

/// How traces are made and sent.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The URL of the collector for traces.
    pub endpoint: Url,
    /// Headers of every request. They are secrets.
    pub headers: HeaderMap,
    /// Maximum time of a request.
    pub timeout: Duration,
    /// How requests are compressed.
    pub compression: Compression,
    /// Files for TLS.
    pub tls: TlsFiles,
    /// Which reviews and reconciles have a span.
    pub sampling: Sampling,
    /// What sends the spans.
    pub resource: BTreeMap<String, String>,
    /// How spans are collected into requests.
    pub batches: Batches,
}

impl TraceSettings {
    /// The endpoint for logs and errors: without its query, in which a collector may want a token.
    pub fn shown_endpoint(&self) -> Url {
        let mut url = self.endpoint.clone();
        url.set_query(None);
        url.set_fragment(None);
        url
    }
}

/// How requests are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// With gzip.
    Gzip,
}

/// Files (PEM) for TLS to the collector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CAs of the collector, with the variable that names the file; without it, those of the system.
    pub ca: Option<(String, PathBuf)>,
    /// nodegate's own certificate and its key, each with the variable that names the file.
    pub identity: Option<[(String, PathBuf); 2]>,
}

/// Which reviews and reconciles have a span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// This share of traces, from 0 to 1.
    Ratio(f64),
    /// What the caller samples, and everything without a caller's span.
    ParentBasedAlwaysOn,
    /// Only what the caller samples.
    ParentBasedAlwaysOff,
    /// What the caller samples, and this share of those without a caller's span.
    ParentBasedRatio(f64),
}

/// How spans are collected into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Maximum number of spans that wait. More are dropped.
    pub queue: usize,
    /// Maximum number of spans of a request.
    pub size: usize,
    /// How long a request waits for more spans.
    pub delay: Duration,
}
