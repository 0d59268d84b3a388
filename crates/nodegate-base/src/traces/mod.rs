//! OpenTelemetry traces: one span per review and per reconcile, sent to a collector with OTLP over HTTP.
//!
//! # Guarantees
//! - Without settings there is no tracer: [`Traces::default`] holds nothing, a review or a reconcile checks one `Option`, and no
//!   task, thread, queue or client exists.
//! - A span never waits: if the queue is full, the span is dropped and counted.
//! - What a caller sends decides neither the number of attributes nor their length.

mod environment;
mod export;
mod outage;
mod review;
mod sender;
mod settings;
mod steps;
mod traceparent;

use std::sync::Arc;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanLimits};

use crate::metrics::Metrics;

pub use environment::SettingError;
pub use export::Exporter;
pub use review::{ReviewSpan, Reviewed};
pub use sender::Sender;
pub use settings::{Batches, Compression, Sampling, TlsFiles, TraceSettings};
pub use steps::{Ended, InSpan, Step, inject};

/// Maximum number of attributes of a span. The code sets fewer.
const ATTRIBUTES_MAX: u32 = 32;
/// Maximum length of a text in an attribute, in bytes.
const TEXT_MAX: usize = 256;

/// Starts spans, if traces are sent. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<SdkTracer>);

impl Traces {
    /// Starts the task that sends spans. Must be called in a Tokio runtime.
    pub fn start(settings: &TraceSettings, sender: Sender, metrics: Arc<Metrics>) -> (Self, Exporter) {
        let resource = Resource::builder_empty()
            .with_attributes(settings.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())))
            .build();
        let (queue, exporter) = export::start(&settings.batches, sender, &resource, metrics);
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampler(settings.sampling))
            .with_span_limits(SpanLimits {
                max_attributes_per_span: ATTRIBUTES_MAX,
                max_events_per_span: 0,
                max_links_per_span: 0,
                max_attributes_per_event: 0,
                max_attributes_per_link: 0,
            })
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        let scope = InstrumentationScope::builder("nodegate").with_version(env!("CARGO_PKG_VERSION")).build();
        (Self(Some(provider.tracer_with_scope(scope))), exporter)
    }
}

fn sampler(sampling: Sampling) -> Sampler {
    match sampling {
        Sampling::AlwaysOn => Sampler::AlwaysOn,
        Sampling::AlwaysOff => Sampler::AlwaysOff,
        Sampling::Ratio(ratio) => Sampler::TraceIdRatioBased(ratio),
        Sampling::ParentBasedAlwaysOn => Sampler::ParentBased(Box::new(Sampler::AlwaysOn)),
        Sampling::ParentBasedAlwaysOff => Sampler::ParentBased(Box::new(Sampler::AlwaysOff)),
        Sampling::ParentBasedRatio(ratio) => Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))),
    }
}

/// A text as an attribute, not longer than [`TEXT_MAX`].
fn text(text: impl Into<String>) -> String {
    let mut text = text.into();
    crate::text::cut(&mut text, TEXT_MAX);
    text
}
