//! Collects ended spans into batches, and sends them in a task of their own.
//!
//! # Guarantees
//! - Whoever ends a span does not wait: the queue is bounded, and spans that do not fit are dropped and counted.
//! - One batch is on its way at a time, so a slow collector costs no more memory than the queue and one batch.
//! - [`Exporter::stop`] returns after [`FLUSH`] at the latest.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::outage::{News, Outage};
use super::sender::{Encoder, Failed, Sender};
use super::settings::Batches;
use crate::metrics::{Metrics, SpanFate};

/// How long the end of the process waits for spans to be sent.
const FLUSH: Duration = Duration::from_secs(3);
/// The delays before a batch is sent again.
const RETRIES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_secs(8))
    .with_max_times(3);
/// How often the log says that spans were rejected.
const TELL_OF_REJECTED: Duration = Duration::from_secs(60);
/// The longest delay that a collector can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Takes ended spans from the SDK.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: Arc<Metrics>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        match self.spans.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => self.metrics.traces.ended(SpanFate::Dropped, 1),
        }
    }

    /// [`Exporter::stop`] flushes.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that sends spans.
#[derive(Debug)]
pub struct Exporter {
    task: JoinHandle<()>,
    stopping: CancellationToken,
}

impl Exporter {
    /// Sends what has ended so far, for at most three seconds, and ends the task.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        if timeout(FLUSH, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!(
                "the collector of traces did not take the last spans within {} seconds; they are lost",
                FLUSH.as_secs()
            );
        }
    }
}

/// Starts the task.
pub(super) fn start(
    batches: &Batches,
    sender: Sender,
    resource: &Resource,
    metrics: Arc<Metrics>,
) -> (Queue, Exporter) {
    let (spans, queued) = mpsc::channel(batches.queue);
    let stopping = CancellationToken::new();
    metrics.traces.begin();
    let worker = Worker {
        queued,
        batches: *batches,
        encoder: Encoder::new(resource, sender.compression()),
        sender,
        metrics: metrics.clone(),
        outage: Outage::default(),
        told_of_rejected: None,
        stopping: stopping.clone(),
    };
    (Queue { spans, metrics }, Exporter { task: tokio::spawn(worker.run()), stopping })
}

struct Worker {
    queued: Receiver<SpanData>,
    batches: Batches,
    encoder: Encoder,
    sender: Sender,
    metrics: Arc<Metrics>,
    outage: Outage,
    /// When the log last said that spans were rejected.
    told_of_rejected: Option<Instant>,
    stopping: CancellationToken,
}

impl Worker {
    async fn run(mut self) {
        while let Some(batch) = self.batch().await {
            self.send(batch).await;
        }
    }

    /// The next batch: as many spans as a request may have, or those of the time that a request waits. `None` when there is
    /// none anymore.
    async fn batch(&mut self) -> Option<Vec<SpanData>> {
        let Self { queued, batches, stopping, .. } = self;
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            first = queued.recv_many(&mut batch, batches.size) => if first == 0 { return None },
            () = stopping.cancelled() => {
                queued.close();
                return (queued.recv_many(&mut batch, batches.size).await > 0).then_some(batch);
            }
        }
        let deadline = Instant::now() + batches.delay;
        while batch.len() < batches.size {
            let room = batches.size - batch.len();
            tokio::select! {
                more = timeout_at(deadline, queued.recv_many(&mut batch, room)) => if !matches!(more, Ok(1..)) { break },
                () = stopping.cancelled() => break,
            }
        }
        Some(batch)
    }

    /// Sends a batch, and again a few times if that can help. Once the process ends, there is one attempt.
    async fn send(&mut self, batch: Vec<SpanData>) {
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let body = self.encoder.encode(batch);
        let mut delays = RETRIES.build();
        let failed = loop {
            let (why, asked) = match self.sender.send(body.clone()).await {
                Ok(()) => return self.taken(spans),
                Err(Failed::Rejected { spans: rejected, why }) => {
                    let rejected = rejected.min(spans);
                    self.taken(spans - rejected);
                    return self.rejected(rejected, &why);
                }
                Err(Failed::Final(why)) => break why,
                Err(Failed::Temporary { why, after }) => (why, after),
            };
            let Some(delay) = delays.next().filter(|_| !self.stopping.is_cancelled()) else { break why };
            tokio::select! {
                () = sleep(asked.map_or(delay, |asked| asked.min(RETRY_AFTER_MAX))) => {}
                () = self.stopping.cancelled() => {}
            }
        };
        self.lost(spans, &failed);
    }

    /// Notes that the collector took a batch, but not all spans in it.
    fn rejected(&mut self, spans: u64, why: &str) {
        self.metrics.traces.ended(SpanFate::Failed, spans);
        let now = Instant::now();
        if self.told_of_rejected.is_none_or(|told| now - told >= TELL_OF_REJECTED) {
            self.told_of_rejected = Some(now);
            let endpoint = self.sender.endpoint();
            tracing::warn!(%endpoint, spans, error = why, "the collector of traces rejected spans");
        }
    }

    fn taken(&mut self, spans: u64) {
        self.metrics.traces.ended(SpanFate::Sent, spans);
        if let Some(News::Ended { after, spans }) = self.outage.taken(Instant::now().into_std()) {
            tracing::info!(seconds = after.as_secs(), lost = spans, "the collector of traces takes spans again");
        }
    }

    fn lost(&mut self, spans: u64, why: &str) {
        self.metrics.traces.ended(SpanFate::Failed, spans);
        if self.outage.lost(spans, Instant::now().into_std()) == Some(News::Begun) {
            let endpoint = self.sender.endpoint();
            tracing::warn!(%endpoint, error = why, "cannot send traces; spans are lost until the collector takes them again");
        }
    }
}
