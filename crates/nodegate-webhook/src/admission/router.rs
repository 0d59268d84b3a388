//! The HTTP router: limits on bytes, time and number of reviews. An error affects only its own request.

use std::net::{IpAddr, SocketAddr};
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
use super::answer::{Answer, Asked, Attempt, Rejection, Span};
use super::bounds::Bounds;
use super::intake::{Intake, Received, Refused, Room};
use super::respond::{mutate_within, validate_within, whole};
use super::{policy_reviews, texts};
use nodegate_base::metrics::{Endpoint, Held, Outcome};
use nodegate_base::traces::Reviewed;
use nodegate_policy::Quoted;
use nodegate_policy::cel::Budget;

/// Maximum size of a review that is answered on the thread that received it, in bytes. There are as many of these threads
/// as processors, and a review takes many times its bytes when it is parsed.
const INLINE: usize = 64 * 1024;
/// A review of more bytes than this takes several of the slots for reviews on separate threads.
const SHARE: usize = 16 * 1024;

/// Answers a review from its body, if the budget suffices.
type Respond = fn(&[u8], &Context, &Budget, Asked) -> Result<Attempt, Rejection>;

/// How a review is answered.
#[derive(Clone, Copy)]
struct Work {
    respond: Respond,
    asked: Asked,
}

/// What became of a review, and what its span says of it.
type Answered = (Outcome, Response, Option<Box<Reviewed>>);

/// A body that is counted as long as it is held.
struct Counted {
    received: Received,
    /// Only held, never read.
    #[expect(dead_code)]
    held: Held,
}

impl Counted {
    fn bytes(&self) -> &[u8] {
        &self.received.bytes
    }
}

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
    let shared = Arc::new(Shared::new(context, bounds));
    Router::new()
        .route("/mutate", post(|shared, request| answer(shared, request, Endpoint::Mutate, mutate_within)))
        .route("/validate", post(|shared, request| answer(shared, request, Endpoint::Validate, validate_within)))
        .with_state(shared)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request, endpoint: Endpoint, respond: Respond) -> Response {
    let start = Instant::now();
    let _in_flight = shared.context.metrics.admission.begun(endpoint);
    // The listener sets the peer; reviews in tests have none.
    let peer = request.extensions().get::<SocketAddr>().map(SocketAddr::ip);
    let span = shared.context.traces.review(endpoint, request.headers(), peer);
    let asked = Asked { span: if span.is_some() { Span::Present } else { Span::Absent }, peer };
    let (outcome, response, reviewed) = shared.answer(request, start, Work { respond, asked }).await;
    if let Some(span) = span {
        span.end(outcome, response.status().as_u16(), reviewed.map(|reviewed| *reviewed));
    }
    shared.context.metrics.admission.answered(endpoint, outcome, start.elapsed().as_secs_f64());
    response
}

fn plain(code: StatusCode, message: impl Into<String>) -> Response {
    (code, format!("{}\n", message.into())).into_response()
}

/// An outcome without a review.
fn unanswered(outcome: Outcome, code: StatusCode, message: impl Into<String>) -> Answered {
    (outcome, plain(code, message), None)
}

impl Shared {
    fn new(context: Arc<Context>, bounds: Bounds) -> Self {
        Self {
            context,
            bounds,
            intake: Intake::new(bounds),
            reviews: Semaphore::new(bounds.reviews),
            expressions: Arc::new(Semaphore::new(bounds.expressions)),
            costly: Arc::new(Semaphore::new(bounds.costly)),
            costly_waiting: Semaphore::new(bounds.costly_waiting),
        }
    }

    async fn answer(&self, request: Request, start: Instant, work: Work) -> Answered {
        if !self.context.synced.load(Ordering::Relaxed) {
            let message = "policies and saved state have not been loaded yet";
            return unanswered(Outcome::Shed, StatusCode::SERVICE_UNAVAILABLE, message);
        }
        if let Err(message) = check_content_type(request.headers()) {
            return unanswered(Outcome::Invalid, StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
        }
        let deadline = match deadline(request.uri(), self.bounds.deadline) {
            Ok(length) => tokio::time::Instant::from_std(start + length),
            Err(message) => return unanswered(Outcome::Invalid, StatusCode::BAD_REQUEST, message),
        };
        match timeout_at(deadline, self.review(request, work)).await {
            Ok(answered) => answered,
            Err(_) => {
                if let Some(left_out) = self.context.denials.remark(work.asked.peer, Instant::now()) {
                    let left_out = (left_out > 0).then_some(left_out);
                    tracing::warn!(left_out, "a review exceeded the timeout of its caller");
                }
                let message = "the review exceeded the caller's timeout";
                unanswered(Outcome::Timeout, StatusCode::INTERNAL_SERVER_ERROR, message)
            }
        }
    }

    async fn review(&self, request: Request, work: Work) -> Answered {
        let received = match self.intake.receive(request.into_body(), work.asked.peer).await {
            Ok(received) => Counted { held: self.context.metrics.admission.holds(received.bytes.len()), received },
            Err(refused) => return self.unread(&refused),
        };
        // Only complete reviews take a slot, so that unfinished ones do not block others.
        let Ok(_slot) = self.reviews.try_acquire() else {
            return unanswered(Outcome::Shed, StatusCode::SERVICE_UNAVAILABLE, "too many reviews in progress");
        };
        match self.answered(received, work).await {
            Ok(Some(Answer { body, outcome, reviewed })) => {
                (outcome, ([(header::CONTENT_TYPE, "application/json")], body).into_response(), reviewed)
            }
            Ok(None) => {
                let message = "too many reviews with costly expressions, or of policies, are waiting";
                unanswered(Outcome::Shed, StatusCode::SERVICE_UNAVAILABLE, message)
            }
            Err(Rejection { code, message }) => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                unanswered(if code.is_client_error() { Outcome::Invalid } else { Outcome::Error }, code, message)
            }
        }
    }

    /// Answers a review that was read completely; `None` if there is no slot for its cost.
    async fn answered(&self, received: Counted, work: Work) -> Result<Option<Answer>, Rejection> {
        let received = Arc::new(received);
        let mut attempt = if let Room::Large { .. } = received.received.room {
            self.context.metrics.admission.bodies.large.inc();
            // A large review holds its own slot, and does not go on when others have waited for it for too long.
            let held = received.clone();
            let until = move || Budget::until(move || held.received.room.is_overdue());
            self.evaluate(None, received.clone(), work, until).await?
        } else if received.bytes().len() > INLINE {
            self.evaluate(Some((&self.expressions, self.share(&received))), received.clone(), work, Budget::brief)
                .await?
        } else {
            // What is tried on this thread is limited to a short time, because other reviews wait for the thread. A change
            // of threads costs as much as some ten ordinary expressions.
            let has_expressions = self.context.policies.load().has_expressions();
            let first = if has_expressions { Budget::immediate() } else { Budget::brief() };
            let attempt =
                guarded(&self.context, |context| (work.respond)(received.bytes(), context, &first, work.asked))?;
            if has_expressions && matches!(attempt, Attempt::TooBrief) {
                self.evaluate(Some((&self.expressions, self.share(&received))), received.clone(), work, Budget::brief)
                    .await?
            } else {
                attempt
            }
        };
        if let Attempt::OfPolicy = attempt {
            return self.of_policy(received, work.asked.peer).await;
        }
        if let Attempt::TooBrief = attempt {
            // Costly reviews must not delay others.
            let Ok(_waiting) = self.costly_waiting.try_acquire() else { return Ok(None) };
            attempt = self.evaluate(Some((&self.costly, 1)), received, work, Budget::default).await?;
        }
        whole(attempt).map(Some)
    }

    /// Answers a review of a `NodePolicy`, in a slot for large reviews, because it takes as much memory; `None` if too many wait.
    async fn of_policy(&self, received: Arc<Counted>, peer: Option<IpAddr>) -> Result<Option<Answer>, Rejection> {
        policy_reviews::check_size(received.bytes())?;
        let received = match received.received.room {
            Room::Large { .. } => received,
            Room::Ordinary { .. } => {
                // The bytes of the pool are for reviews of nodes; the number of policies that wait is limited.
                let bytes = received.received.bytes.clone();
                let held = self.context.metrics.admission.holds(bytes.len());
                drop(received);
                let Some(place) = self.intake.policy_turn(peer).await else { return Ok(None) };
                Arc::new(Counted { received: Received { bytes, room: Room::Large { place } }, held })
            }
        };
        self.apart(None, received, policy_reviews::review).await.map(Some)
    }

    /// How many of the slots for expressions a review takes.
    fn share(&self, received: &Counted) -> usize {
        (1 + received.bytes().len() / SHARE).min(self.bounds.expressions.max(1))
    }

    /// Answers on a separate thread, when so many slots are free.
    async fn evaluate(
        &self,
        slots: Option<(&Arc<Semaphore>, usize)>,
        received: Arc<Counted>,
        work: Work,
        budget: impl FnOnce() -> Budget + Send + 'static,
    ) -> Result<Attempt, Rejection> {
        let text_bytes = self.bounds.text_bytes();
        let respond = move |body: &[u8], context: &Context| {
            texts::check(body, text_bytes)?;
            (work.respond)(body, context, &budget(), work.asked)
        };
        self.apart(slots, received, respond).await
    }

    /// Does something with a review on a separate thread, when so many slots are free.
    async fn apart<T: Send + 'static>(
        &self,
        slots: Option<(&Arc<Semaphore>, usize)>,
        received: Arc<Counted>,
        work: impl FnOnce(&[u8], &Context) -> Result<T, Rejection> + Send + 'static,
    ) -> Result<T, Rejection> {
        let place = match slots {
            Some((places, slots)) => {
                let place = places.clone().acquire_many_owned(u32::try_from(slots).unwrap_or(u32::MAX)).await;
                Some(place.map_err(|error| Rejection::internal(error.to_string()))?)
            }
            None => None,
        };
        let context = self.context.clone();
        // The slot and the memory of the body are held until the evaluation ends, even if the caller has stopped
        // waiting.
        let evaluated = tokio::task::spawn_blocking(move || {
            let answered = guarded(&context, |context| work(received.bytes(), context));
            drop((place, received));
            answered
        });
        evaluated.await.unwrap_or_else(|error| Err(Rejection::internal(error.to_string())))
    }

    /// The answer to a review that was not read completely. The connection is closed, because the rest of the body is
    /// not read.
    fn unread(&self, refused: &Refused) -> Answered {
        self.context.metrics.admission.bodies.refused(refused.as_str());
        let (outcome, code) = match refused {
            Refused::TooLarge(_) => (Outcome::Invalid, StatusCode::PAYLOAD_TOO_LARGE),
            Refused::Unreadable(_) => (Outcome::Invalid, StatusCode::BAD_REQUEST),
            Refused::Stalled | Refused::Slow => (Outcome::Timeout, StatusCode::REQUEST_TIMEOUT),
            Refused::Reclaimed => (Outcome::Shed, StatusCode::SERVICE_UNAVAILABLE),
        };
        let mut response = plain(code, refused.to_string());
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        (outcome, response, None)
    }
}

/// Limits the effect of a panic to one request.
fn guarded<T>(context: &Context, work: impl FnOnce(&Context) -> Result<T, Rejection>) -> Result<T, Rejection> {
    catch_unwind(AssertUnwindSafe(|| work(context))).unwrap_or_else(|_| {
        context.metrics.admission.panics.inc();
        tracing::error!("a review panicked; this is a bug in nodegate");
        Err(Rejection::internal("internal error: the review panicked"))
    })
}

fn check_content_type(headers: &HeaderMap) -> Result<(), String> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(format!("expected Content-Type application/json, got {}", Quoted(kind)))
}

/// The caller's `?timeout=` (a Go duration such as `2s`), minus a tenth for the response.
fn deadline(uri: &Uri, default: Duration) -> Result<Duration, String> {
    let timeout = uri.query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let Some(timeout) = timeout else { return Ok(default) };
    let fault = || format!("the timeout {} is not a valid duration; use a value such as 2s or 500ms", Quoted(timeout));
    let length: jiff::SignedDuration = timeout.parse().map_err(|_| fault())?;
    let length = Duration::try_from(length).map_err(|_| fault())?;
    Ok(length.min(Duration::from_secs(60)) * 9 / 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nodegate_policy::{Origin, PolicyDocument, PolicySet};

    use super::*;

    fn context() -> Context {
        Context {
            policies: Arc::default(),
            saved: Arc::default(),
            witnesses: Arc::default(),
            inventory: Arc::default(),
            pending_taint: crate::admission::PendingTaint::default(),
            synced: Arc::new(true.into()),
            records_last_change: false,
            exemptions: Arc::default(),
            annotation_calls: Default::default(),
            callers: Default::default(),
            denials: Default::default(),
            metrics: nodegate_base::metrics::Metrics::new(),
            traces: Default::default(),
        }
    }

    #[test]
    fn a_panic_affects_only_one_request() {
        let context = context();
        let budget = Budget::default();
        let panicked: Result<(), _> = guarded(&context, |_| panic!("on purpose"));
        assert_eq!((panicked.unwrap_err().code, context.metrics.admission.panics.get()), (500, 1));
        let next = guarded(&context, |context| mutate_within(b"{}", context, &budget, Asked::default()));
        assert!(next.is_err_and(|rejection| rejection.code == 400), "the next one is answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_is_compiled_only_in_a_slot_for_large_reviews() {
        let shared = Shared::new(Arc::new(context()), Bounds::default());
        let review = r#"{"request": {"uid": "u", "operation": "CREATE", "resource": {"group": "nodegate.dev", "resource": "nodepolicies"}, "object": {"metadata": {"name": "p"}}}}"#;
        let send = || {
            let request = Request::post("/validate").header(header::CONTENT_TYPE, "application/json");
            let request = request.body(axum::body::Body::from(review)).unwrap();
            shared.answer(request, Instant::now(), Work { respond: validate_within, asked: Asked::default() })
        };
        let place = shared.intake.policy_turn(None).await.unwrap();
        // Tokio's clock moves on only if nothing else can happen.
        let waited = tokio::time::timeout(Duration::from_secs(1), send()).await;
        assert!(waited.is_err(), "while another review has the slot");
        drop(place);
        assert_eq!(send().await.0, Outcome::Allowed);
    }

    #[test]
    fn a_large_review_that_others_have_waited_for_is_not_answered_by_half() {
        let policy = r#"{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "p"}, "spec": {
            "rules": [{"name": "r", "match": {"expression": "node.metadata.name == 'n'"}, "labels": {"a": "b"}}],
            "governance": {"expressions": [{"expression": "object.metadata.name == 'n'"}]}}}"#;
        let documents = PolicyDocument::parse_all(&Origin::Object, policy, &mut Vec::new());
        let context = context();
        context.policies.store(Arc::new(PolicySet::compile(&documents).unwrap()));
        let review = br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "CREATE",
            "resource": {"group": "", "version": "v1", "resource": "nodes"}, "object": {"metadata": {"name": "n"}}}}"#;
        for respond in [mutate_within as Respond, validate_within] {
            let answered = |stops: bool| respond(review, &context, &Budget::until(move || stops), Asked::default());
            assert!(matches!(answered(false), Ok(Attempt::Answered(_))));
            assert!(answered(true).is_err_and(|rejection| rejection.code == 500));
        }
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
