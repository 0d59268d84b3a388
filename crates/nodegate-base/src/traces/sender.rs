//! Sends batches with OTLP over HTTP: <https://opentelemetry.io/docs/specs/otlp/#otlphttp>.

use std::io::Write as _;
use std::time::Duration;

use axum::body::Bytes;
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, StatusCode};

use super::settings::{Compression, TraceSettings};
use crate::http_client::{body, in_words};
use crate::telemetry::brief;

/// Maximum size of an answer that is read, in bytes.
const ANSWER_MAX: usize = 64 * 1024;

/// Why a batch was not taken.
#[derive(Debug)]
pub(super) enum Failed {
    /// It can be sent again.
    Temporary {
        /// The reason.
        why: String,
        /// The delay that the collector asks for.
        after: Option<Duration>,
    },
    /// It would be refused again.
    Final(String),
    /// The collector took a part of it.
    Rejected {
        /// How many spans it did not take.
        spans: u64,
        /// The reason.
        why: String,
    },
}

/// Writes batches as protobuf.
pub(super) struct Encoder {
    resource: ResourceAttributesWithSchema,
    compression: Compression,
}

impl Encoder {
    pub(super) fn new(resource: &Resource, compression: Compression) -> Self {
        Self { resource: resource.into(), compression }
    }

    pub(super) fn encode(&self, batch: Vec<SpanData>) -> Bytes {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let plain = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        match self.compression {
            Compression::None => plain.into(),
            Compression::Gzip => gzip(&plain).into(),
        }
    }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    // Writing to a Vec cannot fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default()
}

/// Sends batches to one collector.
#[derive(Clone, Debug)]
pub struct Sender {
    settings: TraceSettings,
    client: Client,
}

impl Sender {
    /// Sends to the endpoint of the settings, with a client that trusts it.
    pub fn new(settings: TraceSettings, client: Client) -> Self {
        Self { settings, client }
    }

    pub(super) fn endpoint(&self) -> url::Url {
        self.settings.shown_endpoint()
    }

    pub(super) fn compression(&self) -> Compression {
        self.settings.compression
    }

    /// Sends a batch once.
    pub(super) async fn send(&self, batch: Bytes) -> Result<(), Failed> {
        let limit = self.settings.timeout;
        let mut request = self
            .client
            .post(self.settings.endpoint.clone())
            .headers(self.settings.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .timeout(limit)
            .body(batch);
        if self.settings.compression == Compression::Gzip {
            request = request.header(CONTENT_ENCODING, "gzip");
        }
        let temporary = |error: &reqwest::Error| Failed::Temporary { why: brief(in_words(error, limit)), after: None };
        let response = request.send().await.map_err(|error| temporary(&error))?;
        let status = response.status();
        if status.is_success() {
            // The status decides; the body only tells what was rejected.
            return partly(&body(response, ANSWER_MAX, limit).await.unwrap_or_default());
        }
        let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let why = refusal(status);
        // The statuses that the specification lists as retryable.
        match status.as_u16() {
            429 | 502 | 503 | 504 => Err(Failed::Temporary { why, after: after.map(Duration::from_secs) }),
            _ => Err(Failed::Final(why)),
        }
    }
}

fn refusal(status: StatusCode) -> String {
    match status {
        StatusCode::NOT_FOUND => {
            format!(
                "it answered {status}; OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is, so it needs the path, usually /v1/traces"
            )
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("it answered {status}; check OTEL_EXPORTER_OTLP_HEADERS")
        }
        _ => format!("it answered {status}"),
    }
}

/// Whether the collector took everything. An answer that is not OTLP is taken for a success, as its status says.
fn partly(body: &[u8]) -> Result<(), Failed> {
    let answer = ExportTraceServiceResponse::decode(body).ok().and_then(|answer| answer.partial_success);
    let Some(partial) = answer.filter(|partial| partial.rejected_spans > 0) else { return Ok(()) };
    let spans = u64::try_from(partial.rejected_spans).unwrap_or_default();
    Err(Failed::Rejected { spans, why: format!("it rejected {spans} spans: {}", brief(partial.error_message)) })
}
