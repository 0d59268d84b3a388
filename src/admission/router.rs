//! The HTTP side: bounds on bytes, time and number of reviews; faults stay with their request.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::Context;
use super::intake::{Intake, Received, Refused, Room};
use super::respond::{Answer, Rejection, mutate_within, validate_within};
use crate::metrics::{Endpoint, Outcome};
use crate::policy::cel::Budget;

const MIB: usize = 1024 * 1024;

/// Largest review that is read unless more is asked for. An UPDATE review holds two objects. etcd takes 1.5 MiB for one, in
/// protobuf; as JSON the API server writes six bytes for some characters, and empty entries become up to seven times
/// as large. That is 21 MiB, and leaves room for the rest of the review.
pub const REVIEW_BYTES: usize = 32 * MIB;
/// Largest review that is answered among the ordinary ones. A review of a real node has some tens of kilobytes.
pub(super) const ORDINARY: usize = MIB / 4;

/// Bounds of the webhook.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Reviews that are read and not answered yet; more are answered 503, without Retry-After (with that header the API
    /// server sleeps inside its own time limit).
    pub reviews: usize,
    /// Largest review in bytes; larger ones are answered 413.
    pub review_bytes: usize,
    /// Largest ordinary review in bytes. A larger one waits for one of the places of large reviews.
    pub ordinary: usize,
    /// Bytes that ordinary reviews hold together, counted as they arrive. When they are used up, the unfinished body that
    /// has been coming in for longest is cut.
    pub ordinary_bytes: usize,
    /// Large reviews at the same time, from their first byte to their answer.
    pub large: usize,
    /// Reviews that evaluate CEL at the same time, each on a thread of its own and for some milliseconds at most; others
    /// wait for their turn.
    pub expressions: usize,
    /// Reviews at the same time whose CEL takes longer than that. They leave processors to the others.
    pub costly: usize,
    /// Reviews that wait for their turn among the costly ones; more are answered 503.
    pub costly_waiting: usize,
    /// Time for an answer when the caller names none; the API server's default.
    pub deadline: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            reviews: 512,
            review_bytes: REVIEW_BYTES,
            ordinary: ORDINARY,
            ordinary_bytes: 16 * MIB,
            large: 2,
            expressions: 16,
            costly: (processors / 2).max(1),
            costly_waiting: 64,
            deadline: Duration::from_secs(10),
        }
    }
}

/// Answers a review from its body, if the budget is enough.
type Respond = fn(&[u8], &Context, &Budget) -> Result<Option<Answer>, Rejection>;

struct Shared {
    context: Arc<Context>,
    bounds: Bounds,
    intake: Intake,
    reviews: Semaphore,
    expressions: Arc<Semaphore>,
    costly: Arc<Semaphore>,
    costly_waiting: Semaphore,
}

/// The router of the webhook.
pub fn router(context: Arc<Context>, bounds: Bounds) -> Router {
    let shared = Arc::new(Shared {
        context,
        bounds,
        intake: Intake::new(bounds),
        reviews: Semaphore::new(bounds.reviews),
        expressions: Arc::new(Semaphore::new(bounds.expressions)),
        costly: Arc::new(Semaphore::new(bounds.costly)),
        costly_waiting: Semaphore::new(bounds.costly_waiting),
    });
    Router::new()
        .route("/mutate", post(|shared, request| answer(shared, request, Endpoint::Mutate, mutate_within)))
        .route("/validate", post(|shared, request| answer(shared, request, Endpoint::Validate, validate_within)))
        .with_state(shared)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request, endpoint: Endpoint, respond: Respond) -> Response {
    let start = Instant::now();
    let (outcome, response) = shared.answer(request, start, respond).await;
    shared.context.metrics.answered(endpoint, outcome, start.elapsed().as_secs_f64());
    response
}

fn plain(code: StatusCode, message: impl Into<String>) -> Response {
    (code, format!("{}\n", message.into())).into_response()
}

impl Shared {
    async fn answer(&self, request: Request, start: Instant, respond: Respond) -> (Outcome, Response) {
        if !self.context.synced.load(Ordering::Relaxed) {
            let message = "policies and saved state have not been read yet";
            return (Outcome::Shed, plain(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        if let Err(message) = check_content_type(request.headers()) {
            return (Outcome::Invalid, plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let deadline = match deadline(request.uri(), self.bounds.deadline) {
            Ok(length) => tokio::time::Instant::from_std(start + length),
            Err(message) => return (Outcome::Invalid, plain(StatusCode::BAD_REQUEST, message)),
        };
        match timeout_at(deadline, self.review(request, respond)).await {
            Ok(answered) => answered,
            Err(_) => {
                tracing::warn!("a review took longer than its caller waits");
                (Outcome::Timeout, plain(StatusCode::INTERNAL_SERVER_ERROR, "no answer within the caller's time"))
            }
        }
    }

    async fn review(&self, request: Request, respond: Respond) -> (Outcome, Response) {
        // The listener says who sends; reviews in tests come from nowhere.
        let peer = request.extensions().get::<SocketAddr>().map(SocketAddr::ip);
        let received = match self.intake.receive(request.into_body(), peer).await {
            Ok(received) => received,
            Err(refused) => return self.unread(&refused),
        };
        // Only whole reviews take a slot: unfinished ones must not keep others out.
        let Ok(_slot) = self.reviews.try_acquire() else {
            return (Outcome::Shed, plain(StatusCode::SERVICE_UNAVAILABLE, "too many reviews in flight"));
        };
        let answered = self.answered(received, respond).await;
        match answered {
            Ok(Some(Answer { body, outcome })) => {
                (outcome, ([(header::CONTENT_TYPE, "application/json")], body).into_response())
            }
            Ok(None) => {
                let message = "too many reviews with costly expressions are waiting";
                (Outcome::Shed, plain(StatusCode::SERVICE_UNAVAILABLE, message))
            }
            Err(Rejection { code, message }) => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let outcome = if code.is_client_error() { Outcome::Invalid } else { Outcome::Error };
                (outcome, plain(code, message))
            }
        }
    }

    /// Answers a review that is here; `None` when there is no place for what it costs.
    async fn answered(&self, received: Received, respond: Respond) -> Result<Option<Answer>, Rejection> {
        let received = Arc::new(received);
        if let Room::Large { .. } = received.room {
            self.context.metrics.bodies.large.inc();
            // Its place is its own for as long as it takes.
            return whole(self.evaluate(None, received, respond, Budget::default).await);
        }
        let answered = if self.context.policies.load().has_expressions() {
            self.evaluate(Some(&self.expressions), received.clone(), respond, Budget::brief).await
        } else {
            // Nothing here takes steps; whoever wants more than a brief look gets a thread.
            guarded(respond, &received.bytes, &self.context, &Budget::brief())
        };
        if !matches!(answered, Ok(None)) {
            return answered;
        }
        // What takes long must not be in the way of what does not.
        let Ok(_waiting) = self.costly_waiting.try_acquire() else { return Ok(None) };
        whole(self.evaluate(Some(&self.costly), received, respond, Budget::default).await)
    }

    /// Answers on a thread of its own, when it is its turn.
    async fn evaluate(
        &self,
        places: Option<&Arc<Semaphore>>,
        received: Arc<Received>,
        respond: Respond,
        budget: fn() -> Budget,
    ) -> Result<Option<Answer>, Rejection> {
        let place = match places {
            Some(places) => {
                let place = places.clone().acquire_owned().await;
                Some(place.map_err(|error| Rejection::internal(error.to_string()))?)
            }
            None => None,
        };
        let context = self.context.clone();
        // The place and the body's room are held until the evaluation ends, also when the caller has stopped waiting.
        let work = tokio::task::spawn_blocking(move || {
            let answered = guarded(respond, &received.bytes, &context, &budget());
            drop((place, received));
            answered
        });
        work.await.unwrap_or_else(|error| Err(Rejection::internal(error.to_string())))
    }

    /// The answer to a review that was not read to its end. The connection ends: what is left of the body is not wanted.
    fn unread(&self, refused: &Refused) -> (Outcome, Response) {
        self.context.metrics.bodies.refused(refused.as_str());
        let (outcome, code) = match refused {
            Refused::TooLarge(_) => (Outcome::Invalid, StatusCode::PAYLOAD_TOO_LARGE),
            Refused::Unreadable(_) => (Outcome::Invalid, StatusCode::BAD_REQUEST),
            Refused::Stalled | Refused::Slow => (Outcome::Timeout, StatusCode::REQUEST_TIMEOUT),
            Refused::Reclaimed => (Outcome::Shed, StatusCode::SERVICE_UNAVAILABLE),
        };
        let mut response = plain(code, refused.to_string());
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        (outcome, response)
    }
}

/// The answer of a try that was not brief.
fn whole(answered: Result<Option<Answer>, Rejection>) -> Result<Option<Answer>, Rejection> {
    answered?.map_or_else(|| Err(Rejection::internal("internal error: no answer")), |answer| Ok(Some(answer)))
}

/// A panic costs one request.
fn guarded(respond: Respond, body: &[u8], context: &Context, budget: &Budget) -> Result<Option<Answer>, Rejection> {
    catch_unwind(AssertUnwindSafe(|| respond(body, context, budget))).unwrap_or_else(|_| {
        tracing::error!("a review panicked; this is a fault of nodegate");
        Err(Rejection::internal("internal error: the review panicked"))
    })
}

fn check_content_type(headers: &HeaderMap) -> Result<(), String> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(format!("expected Content-Type application/json, got {kind:?}"))
}

/// The caller's `?timeout=` (a Go duration such as `2s`), less a tenth for the way back.
fn deadline(uri: &Uri, default: Duration) -> Result<Duration, String> {
    let asked = uri.query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let Some(asked) = asked else { return Ok(default) };
    let fault = || format!("timeout={asked} is not a duration; write one such as 2s or 500ms");
    let length: jiff::SignedDuration = asked.parse().map_err(|_| fault())?;
    let length = Duration::try_from(length).map_err(|_| fault())?;
    Ok(length.min(Duration::from_secs(60)) * 9 / 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_costs_one_request() {
        let context = Context {
            policies: Arc::default(),
            saved: Arc::default(),
            pending_taint: None,
            synced: Arc::new(true.into()),
            stamps: false,
            exemptions: Arc::default(),
            metrics: crate::metrics::Metrics::new(),
        };
        let panics: Respond = |_, _, _| panic!("on purpose");
        let budget = Budget::default();
        let rejection = guarded(panics, b"", &context, &budget).unwrap_err();
        assert_eq!(rejection.code, 500);
        assert_eq!(guarded(mutate_within, b"{}", &context, &budget).unwrap_err().code, 400, "the next one is answered");
    }

    #[test]
    fn the_callers_timeout_is_a_go_duration() {
        let default = Duration::from_secs(10);
        let of = |uri: &str| deadline(&uri.parse().unwrap(), default);
        assert_eq!(of("/mutate?timeout=2s"), Ok(Duration::from_millis(1800)));
        assert_eq!(of("/mutate?a=b&timeout=1m0s"), Ok(Duration::from_secs(54)));
        assert_eq!(of("/mutate?timeout=500ms"), Ok(Duration::from_millis(450)));
        assert_eq!(of("/mutate"), Ok(default));
        assert!(of("/mutate?timeout=soon").is_err() && of("/mutate?timeout=-1s").is_err());
    }
}
