//! The spans of a reconcile.

use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use axum::http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;
use pin_project_lite::pin_project;

use super::{Traces, text, traceparent};

/// A part of a reconcile that has a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Compares the node with its record.
    Plan,
    /// Writes the record.
    WriteRecord,
    /// Writes the change.
    WriteNode,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::WriteRecord => "write record",
            Self::WriteNode => "write node",
        }
    }

    fn kind(self) -> SpanKind {
        match self {
            Self::Plan => SpanKind::Internal,
            Self::WriteRecord | Self::WriteNode => SpanKind::Client,
        }
    }
}

/// What a span ends with.
pub trait Ended {
    /// What kind of failure it was, if it failed: a word or an HTTP status. The text of an error stays in the log, because it
    /// can contain the values of labels.
    fn error_type(&self) -> Option<String>;
}

impl<T: Ended, E: Ended> Ended for Result<T, E> {
    fn error_type(&self) -> Option<String> {
        match self {
            Ok(ended) => ended.error_type(),
            Err(error) => error.error_type(),
        }
    }
}

/// The HTTP status, if there is one.
impl Ended for kube::Error {
    fn error_type(&self) -> Option<String> {
        Some(match self {
            Self::Api(status) => status.code.to_string(),
            _ => "unreachable".to_owned(),
        })
    }
}

pin_project! {
    /// A future in a span, which ends with it.
    ///
    /// It is a future of its own because an `async fn` would hold the future that it is given twice: once as its argument, and
    /// once while it waits.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct InSpan<F> {
        #[pin]
        work: F,
        context: Option<Context>,
    }
}

impl<F> Future for InSpan<F>
where
    F: Future<Output: Ended>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let current = this.context.clone().map(Context::attach);
        let polled = this.work.poll(cx);
        drop(current);
        if let Poll::Ready(ended) = &polled
            && let Some(context) = this.context.take()
        {
            if let Some(kind) = ended.error_type() {
                context.span().set_attribute(KeyValue::new("error.type", text(kind)));
                context.span().set_status(Status::error(""));
            }
            context.span().end();
        }
        polled
    }
}

impl Traces {
    /// Runs the reconcile of a node in a span of its own, which is the root of a trace.
    pub fn reconcile<F>(&self, node: &str, urgency: &'static str, work: F) -> InSpan<F> {
        let begun = |tracer: &SdkTracer| {
            let span = tracer.build_with_context(tracer.span_builder("reconcile"), &Context::new());
            let context = Context::new().with_span(span);
            context.span().is_recording().then_some(context)
        };
        let context = self.0.as_ref().and_then(begun);
        if let Some(context) = &context {
            context.span().set_attribute(KeyValue::new("k8s.node.name", text(node)));
            context.span().set_attribute(KeyValue::new("nodegate.urgency", urgency));
        }
        InSpan { work, context }
    }

    /// Runs a step in a span, if its reconcile has one.
    pub fn step<F>(&self, step: Step, work: F) -> InSpan<F> {
        InSpan { work, context: self.begun(step) }
    }

    /// Runs a step that does not wait.
    pub fn step_now<T>(&self, step: Step, work: impl FnOnce() -> T) -> T {
        let context = self.begun(step);
        let done = work();
        if let Some(context) = context {
            context.span().end();
        }
        done
    }

    /// The span of a step; `None` if its reconcile has none.
    fn begun(&self, step: Step) -> Option<Context> {
        let tracer = self.0.as_ref()?;
        let parent = Context::current();
        if !parent.span().is_recording() {
            return None;
        }
        let span = tracer.build_with_context(tracer.span_builder(step.name()).with_kind(step.kind()), &parent);
        Some(parent.with_span(span))
    }
}

/// Passes the span in which this is called on, in a request that it makes.
pub fn inject(headers: &mut HeaderMap) {
    let context = Context::current();
    let span = context.span();
    if !span.span_context().is_valid() {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(&traceparent::header(span.span_context())) {
        headers.insert(traceparent::HEADER, value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span, SpanData, SpanProcessor};

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Seen(Arc<Mutex<Vec<SpanData>>>);

    impl SpanProcessor for Seen {
        fn on_start(&self, _span: &mut Span, _context: &Context) {}

        fn on_end(&self, span: SpanData) {
            self.0.lock().unwrap().push(span);
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    fn traces(sampler: Sampler) -> (Traces, Seen) {
        let seen = Seen::default();
        let provider = SdkTracerProvider::builder().with_sampler(sampler).with_span_processor(seen.clone()).build();
        (Traces(Some(provider.tracer("test"))), seen)
    }

    struct Failed;

    impl Ended for HeaderMap {
        fn error_type(&self) -> Option<String> {
            None
        }
    }

    impl Ended for Failed {
        fn error_type(&self) -> Option<String> {
            Some("conflict".to_owned())
        }
    }

    /// Two steps that wait, of which the second one fails: what the first one sends.
    async fn reconcile(traces: &Traces) -> Result<HeaderMap, Failed> {
        traces.step_now(Step::Plan, || {});
        let sending = async {
            tokio::task::yield_now().await;
            let mut headers = HeaderMap::new();
            inject(&mut headers);
            Ok(headers)
        };
        let sent = traces.step(Step::WriteRecord, sending).await?;
        tokio::task::yield_now().await;
        let failing = async {
            tokio::task::yield_now().await;
            Err(Failed)
        };
        let failed: Result<HeaderMap, Failed> = traces.step(Step::WriteNode, failing).await;
        assert!(failed.is_err());
        Ok(sent)
    }

    #[tokio::test]
    async fn the_steps_of_concurrent_reconciles_are_children_of_their_own() {
        let (traces, seen) = traces(Sampler::AlwaysOn);
        let of = |node| traces.reconcile(node, "routine", reconcile(&traces));
        let (Ok(one), Ok(two)) = tokio::join!(of("one"), of("two")) else { panic!("they do not fail") };
        let seen = seen.0.lock().unwrap();
        for (node, headers) in [("one", one), ("two", two)] {
            let named = KeyValue::new("k8s.node.name", node);
            let root = seen.iter().find(|span| span.attributes.contains(&named)).unwrap();
            let children = seen.iter().filter(|span| span.parent_span_id == root.span_context.span_id());
            let children: Vec<_> = children.map(|span| (&*span.name, span.status == Status::error(""))).collect();
            assert_eq!(children, [("plan", false), ("write record", false), ("write node", true)]);
            let record = seen.iter().find(|span| {
                span.name == "write record" && span.span_context.trace_id() == root.span_context.trace_id()
            });
            assert_eq!(headers[traceparent::HEADER], traceparent::header(&record.unwrap().span_context));
        }
        assert_eq!(seen.len(), 8);
    }

    #[tokio::test]
    async fn without_a_sampled_reconcile_steps_have_no_spans_and_requests_no_header() {
        let (unsampled, seen) = traces(Sampler::AlwaysOff);
        for traces in [unsampled, Traces::default()] {
            let Ok(sent) = traces.reconcile("one", "routine", reconcile(&traces)).await else {
                panic!("it does not fail")
            };
            assert!(sent.is_empty());
        }
        assert!(seen.0.lock().unwrap().is_empty());
    }
}
