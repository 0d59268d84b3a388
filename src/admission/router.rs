//! The HTTP side: bounds on body, time and number of reviews; faults stay with their request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::Context;
use super::respond::{Answer, Rejection, mutate_within, validate_within};
use crate::metrics::{Endpoint, Outcome};
use crate::policy::cel::Budget;

/// Largest body: two objects of 3 MiB (etcd's limit with room to spare) and the envelope.
pub const BODY_MAX: usize = 7 * 1024 * 1024;

/// Bounds of the webhook.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Reviews in flight; more are answered 503, without Retry-After (with that header the API server
    /// sleeps inside its own time limit).
    pub reviews: usize,
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
        let Ok(_slot) = self.reviews.try_acquire() else {
            return (Outcome::Shed, plain(StatusCode::SERVICE_UNAVAILABLE, "too many reviews in flight"));
        };
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
        match timeout_at(deadline, self.review(request.into_body(), respond)).await {
            Ok(answered) => answered,
            Err(_) => {
                tracing::warn!("a review took longer than its caller waits");
                (Outcome::Timeout, plain(StatusCode::INTERNAL_SERVER_ERROR, "no answer within the caller's time"))
            }
        }
    }

    async fn review(&self, body: Body, respond: Respond) -> (Outcome, Response) {
        let body = match to_bytes(body, BODY_MAX).await {
            Ok(body) => body,
            Err(error) => return unreadable(&error),
        };
        let mut answered = if self.context.policies.load().has_expressions() {
            self.evaluate(&self.expressions, body.clone(), respond, Budget::brief).await
        } else {
            // Nothing here takes steps; whoever wants more than a brief look gets a thread.
            guarded(respond, &body, &self.context, &Budget::brief())
        };
        if let Ok(None) = answered {
            // What takes long must not be in the way of what does not.
            let Ok(_waiting) = self.costly_waiting.try_acquire() else {
                let message = "too many reviews with costly expressions are waiting";
                return (Outcome::Shed, plain(StatusCode::SERVICE_UNAVAILABLE, message));
            };
            answered = self.evaluate(&self.costly, body, respond, Budget::default).await;
        }
        match answered {
            Ok(Some(Answer { body, outcome })) => {
                (outcome, ([(header::CONTENT_TYPE, "application/json")], body).into_response())
            }
            Ok(None) => (Outcome::Error, plain(StatusCode::INTERNAL_SERVER_ERROR, "internal error: no answer")),
            Err(Rejection { code, message }) => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let outcome = if code.is_client_error() { Outcome::Invalid } else { Outcome::Error };
                (outcome, plain(code, message))
            }
        }
    }
}

impl Shared {
    /// Answers on a thread of its own, when it is its turn.
    async fn evaluate(
        &self,
        places: &Arc<Semaphore>,
        body: Bytes,
        respond: Respond,
        budget: fn() -> Budget,
    ) -> Result<Option<Answer>, Rejection> {
        let place = places.clone().acquire_owned().await.map_err(|error| Rejection::internal(error.to_string()))?;
        let context = self.context.clone();
        // The place is held until the evaluation ends, also when the caller has stopped waiting.
        let work = tokio::task::spawn_blocking(move || {
            let answered = guarded(respond, &body, &context, &budget());
            drop(place);
            answered
        });
        work.await.unwrap_or_else(|error| Err(Rejection::internal(error.to_string())))
    }
}

/// A panic costs one request.
fn guarded(respond: Respond, body: &[u8], context: &Context, budget: &Budget) -> Result<Option<Answer>, Rejection> {
    catch_unwind(AssertUnwindSafe(|| respond(body, context, budget))).unwrap_or_else(|_| {
        tracing::error!("a review panicked; this is a fault of nodegate");
        Err(Rejection::internal("internal error: the review panicked"))
    })
}

fn unreadable(error: &axum::Error) -> (Outcome, Response) {
    let too_large =
        std::error::Error::source(error).is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
    if too_large {
        return (
            Outcome::Invalid,
            plain(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_MAX} bytes")),
        );
    }
    (Outcome::Invalid, plain(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")))
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
            exemptions: crate::policy::Exemptions::default(),
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
