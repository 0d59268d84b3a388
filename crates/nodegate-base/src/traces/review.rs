//! The span of a review.

use std::net::IpAddr;

use axum::http::HeaderMap;
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::Span;

use super::{Traces, text, traceparent};
use crate::metrics::{Endpoint, Outcome};

/// Maximum number of rules in an attribute.
const RULES_MAX: usize = 32;

/// What a span says of a review that was read and answered. Nothing of it is a value of a label or a name of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reviewed {
    /// The name of the node.
    pub node: String,
    /// The uid of the request.
    pub uid: String,
    /// `CREATE` or `UPDATE`.
    pub operation: &'static str,
    /// Whether it is about `nodes/status`.
    pub status: bool,
    /// Whether nothing will be stored.
    pub dry_run: bool,
    /// The number of operations of the patch.
    pub patch_operations: usize,
    /// The rules that give the node something, or that the write violates, as `policy/rule`.
    pub rules: Vec<String>,
}

impl Reviewed {
    fn attributes(self) -> impl Iterator<Item = KeyValue> {
        let Self { node, uid, operation, status, dry_run, patch_operations, rules } = self;
        let rules: Vec<StringValue> = rules.into_iter().take(RULES_MAX).map(|rule| text(rule).into()).collect();
        let operations = i64::try_from(patch_operations).unwrap_or(i64::MAX);
        [
            KeyValue::new("k8s.node.name", text(node)),
            KeyValue::new("nodegate.request.uid", text(uid)),
            KeyValue::new("nodegate.request.operation", operation),
            KeyValue::new("nodegate.request.resource", if status { "nodes/status" } else { "nodes" }),
            KeyValue::new("nodegate.request.dry_run", dry_run),
            KeyValue::new("nodegate.patch.operations", operations),
        ]
        .into_iter()
        .chain((!rules.is_empty()).then(|| KeyValue::new("nodegate.rules", Value::Array(Array::String(rules)))))
    }
}

/// The span of a review that is sampled. If it is dropped before [`ReviewSpan::end`], the caller has gone away.
#[derive(Debug)]
pub struct ReviewSpan(Span);

impl Traces {
    /// Starts the span of a review, as a child of the caller's span. `None` if traces are not sent, or if this one is not
    /// sampled.
    pub fn review(&self, endpoint: Endpoint, headers: &HeaderMap, peer: Option<IpAddr>) -> Option<ReviewSpan> {
        let tracer = self.0.as_ref()?;
        let (name, route) = match endpoint {
            Endpoint::Mutate => ("POST /mutate", "/mutate"),
            Endpoint::Validate => ("POST /validate", "/validate"),
        };
        let parent = traceparent::parent(headers);
        let context = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let mut span = tracer.build_with_context(tracer.span_builder(name).with_kind(SpanKind::Server), &context);
        if !span.is_recording() {
            return None;
        }
        span.set_attributes([
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("http.route", route),
            KeyValue::new("url.path", route),
            KeyValue::new("url.scheme", "https"),
        ]);
        if let Some(peer) = peer {
            span.set_attribute(KeyValue::new("client.address", peer.to_string()));
        }
        Some(ReviewSpan(span))
    }
}

impl ReviewSpan {
    /// Ends the span with what became of the review.
    pub fn end(mut self, outcome: Outcome, status: u16, reviewed: Option<Reviewed>) {
        let span = &mut self.0;
        span.set_attributes([
            KeyValue::new("http.response.status_code", i64::from(status)),
            KeyValue::new("nodegate.outcome", outcome.as_str()),
        ]);
        match outcome {
            Outcome::Allowed | Outcome::Patched => span.set_attribute(KeyValue::new("nodegate.allowed", true)),
            Outcome::Denied => span.set_attribute(KeyValue::new("nodegate.allowed", false)),
            Outcome::Invalid | Outcome::Error | Outcome::Timeout | Outcome::Shed => {
                span.set_attribute(KeyValue::new("error.type", status.to_string()));
            }
        }
        // Of a server's span, an answer 4xx is an error of the caller, not of the span (semantic conventions).
        if status >= 500 {
            span.set_status(Status::error(outcome.as_str()));
        }
        span.set_attributes(reviewed.into_iter().flat_map(Reviewed::attributes));
        span.end();
    }
}
