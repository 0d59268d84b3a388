//! The webhook's router, in process: what it answers to reviews and to everything else.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodegate::admission::{Bounds, Context, PendingTaint, REVIEW_BYTES, router};
use nodegate::metrics::{Format, Metrics};
use nodegate::state::SavedStates;
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub(crate) const CREATE: &str = include_str!("../data/admission-reviews/kubelet-create.json");
const RESTART: &str = include_str!("../data/admission-reviews/kubelet-restart-create.json");
const HEARTBEAT: &str = include_str!("../data/admission-reviews/kubelet-status-update.json");
const RECONCILE: &str = include_str!("../data/admission-reviews/kubelet-status-update-reconciles-zone.json");
const LABEL: &str = include_str!("../data/admission-reviews/admin-label-update.json");

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  presets: [baseline]
  protect: {keys: [hardware.tier]}
  rules:
    - name: tier
      match: {names: [n1]}
      labels: {hardware.tier: standard, node-role.kubernetes.io/worker: ""}
      taints: [{key: dedicated, value: ml, effect: NoSchedule}]
"#;

pub(crate) fn context(policy: &str) -> Context {
    let mut errors = Vec::new();
    let documents = PolicyDocument::parse_all(&Origin::File("p.yaml".into()), policy, &mut errors);
    assert!(errors.is_empty(), "{errors:?}");
    Context {
        policies: Arc::new(ArcSwap::from_pointee(PolicySet::compile(&documents).unwrap())),
        saved: Arc::new(SavedStates::default()),
        inventory: Arc::default(),
        pending_taint: None,
        synced: Arc::new(true.into()),
        records_last_change: false,
        exemptions: Arc::default(),
        traces: Default::default(),
        denials: Default::default(),
        metrics: Metrics::new(),
    }
}

pub(crate) async fn send_to(context: &Arc<Context>, bounds: Bounds, request: Request<Body>) -> (StatusCode, String) {
    let response = router(context.clone(), bounds).oneshot(request).await.unwrap();
    assert!(!response.headers().contains_key("retry-after"), "the API server would sleep on it");
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

pub(crate) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(body.into()).unwrap()
}

async fn send(path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    send_to(&Arc::new(context(POLICY)), Bounds::default(), post(path, body)).await
}

async fn reply(path: &str, body: &str) -> Value {
    let (status, text) = send(path, body.to_owned()).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let reply: Value = serde_json::from_str(&text).unwrap();
    let review: Value = serde_json::from_str(body).unwrap();
    assert_eq!(reply["response"]["uid"], review["request"]["uid"]);
    assert_eq!((&reply["apiVersion"], &reply["kind"]), (&json!("admission.k8s.io/v1"), &json!("AdmissionReview")));
    assert_eq!(reply["response"].get("patch").is_some(), reply["response"].get("patchType").is_some());
    reply["response"].clone()
}

pub(crate) fn edited(review: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut review: Value = serde_json::from_str(review).unwrap();
    edit(&mut review);
    review.to_string()
}

#[tokio::test]
async fn a_recorded_kubelet_create_gets_what_it_may_carry() {
    let reply = reply("/mutate", CREATE).await;
    let patch: Value = serde_json::from_slice(&STANDARD.decode(reply["patch"].as_str().unwrap()).unwrap()).unwrap();
    assert_eq!(
        patch,
        json!([
            {"op": "add", "path": "/metadata/labels/hardware.tier", "value": "standard"},
            {"op": "add", "path": "/spec/taints/-", "value": {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}},
        ])
    );
    assert_eq!(reply["patchType"], "JSONPatch");
    assert_eq!(reply["auditAnnotations"], json!({"rules": "p/tier", "deferred": "node-role.kubernetes.io/worker"}));
    let warning = reply["warnings"][0].as_str().unwrap();
    assert!(warning.contains("node-role.kubernetes.io/worker") && warning.chars().count() <= 120, "{warning}");
}

#[tokio::test]
async fn every_recorded_review_is_answered() {
    for (review, validated) in [(RESTART, true), (HEARTBEAT, true), (RECONCILE, true), (LABEL, true)] {
        assert_eq!(reply("/mutate", review).await["allowed"], true);
        assert_eq!(reply("/validate", review).await["allowed"], validated);
    }
    assert!(reply("/mutate", HEARTBEAT).await.get("patch").is_none(), "nodes/status is never patched");
}

#[tokio::test]
async fn a_denial_is_a_403_that_names_who_may_write_and_how_to_override() {
    let reserved = edited(LABEL, |review| {
        review["request"]["object"]["metadata"]["labels"]["node.kubernetes.io/kind"] = json!("x");
    });
    let reply = reply("/validate", &reserved).await;
    assert_eq!((&reply["allowed"], &reply["status"]["code"]), (&json!(false), &json!(403)));
    let message = reply["status"]["message"].as_str().unwrap();
    for part in
        ["node.kubernetes.io/kind", "preset:baseline", "node-properties", "kube-system:*", "--break-glass-group"]
    {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(reply.get("patch").is_none());
}

/// `kubectl` shows a refusal as it is, and the API server drops a warning with a control character in it.
#[tokio::test]
async fn text_of_a_node_in_messages_is_escaped_in_denials_and_warnings() {
    let said = "{name: said, expression: \"!has(object.metadata.annotations.said)\", messageExpression: object.metadata.annotations.said";
    for (mode, of) in [("enforce", "/status/message"), ("warn", "/warnings/0")] {
        let policy = format!(
            "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: p}}\nspec: {{governance: {{expressions: [{said}, mode: {mode}}}]}}}}\n"
        );
        let review = edited(LABEL, |review| {
            review["request"]["object"]["metadata"]["annotations"]["said"] = json!("evil\u{1b}[2J\u{202e}end");
        });
        let (_, text) = send_to(&Arc::new(context(&policy)), Bounds::default(), post("/validate", review)).await;
        let reply: Value = serde_json::from_str(&text).unwrap();
        let shown = reply["response"].pointer(of).unwrap_or_else(|| panic!("{text}")).as_str().unwrap();
        assert!(shown.contains("evil\\u001b[2J\\u202eend"), "{shown:?}");
    }
}

#[tokio::test]
async fn bodies_that_are_not_reviews_of_nodes_are_refused_with_the_reason() {
    let cases = [
        ("{", "not an AdmissionReview"),
        ("[]", "not an AdmissionReview"),
        ("{}", "expected kind AdmissionReview"),
        (r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#, "has no request"),
        (
            &edited(CREATE, |review| review["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            "admissionReviewVersions: [v1]",
        ),
        (&edited(CREATE, |review| review["request"]["uid"] = json!("")), "no uid"),
        (&edited(CREATE, |review| review["request"]["resource"]["resource"] = json!("pods")), "expected core/v1 nodes"),
        (&edited(CREATE, |review| review["request"]["subResource"] = json!("proxy")), "nodes/proxy"),
        (&edited(CREATE, |review| review["request"]["operation"] = json!("PATCH")), "PATCH"),
        (&edited(CREATE, |review| review["request"]["object"] = Value::Null), "no object"),
        (&edited(LABEL, |review| review["request"]["oldObject"] = Value::Null), "no oldObject"),
        (
            &edited(CREATE, |review| review["request"]["object"]["metadata"]["labels"] = json!([1])),
            "not an AdmissionReview of a Node",
        ),
        (&CREATE[..CREATE.len() / 2], "not an AdmissionReview"),
    ];
    for (body, sentence) in cases {
        for path in ["/mutate", "/validate"] {
            let (status, text) = send(path, body.to_owned()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
            assert!(text.contains(sentence) && text.lines().count() == 1, "{sentence:?} in {text:?}");
        }
    }
}

#[tokio::test]
async fn other_methods_paths_and_content_types_are_refused() {
    let context = Arc::new(context(POLICY));
    let get = Request::get("/mutate").body(Body::empty()).unwrap();
    assert_eq!(send_to(&context, Bounds::default(), get).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(send_to(&context, Bounds::default(), post("/other", CREATE)).await.0, StatusCode::NOT_FOUND);
    let yaml = Request::post("/mutate").header("content-type", "application/yaml").body(Body::from(CREATE)).unwrap();
    let (status, text) = send_to(&context, Bounds::default(), yaml).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(text.contains("application/json"), "{text}");
    let late = post("/mutate?timeout=soon", CREATE);
    assert_eq!(send_to(&context, Bounds::default(), late).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn delete_and_connect_are_allowed_whatever_comes_with_them() {
    for (operation, subresource) in [("DELETE", ""), ("CONNECT", "proxy")] {
        let object_and_old = [(Value::Null, json!({"metadata": {"name": "n1"}})), (json!({"path": "/"}), Value::Null)];
        for (object, old) in object_and_old {
            let review = edited(LABEL, |review| {
                let request = &mut review["request"];
                (request["operation"], request["subResource"]) = (json!(operation), json!(subresource));
                (request["object"], request["oldObject"]) = (object, old);
            });
            for path in ["/mutate", "/validate"] {
                let reply = reply(path, &review).await;
                assert_eq!(reply["allowed"], true, "{operation} {path}: {reply}");
                assert!(reply.get("patch").is_none() && reply.get("warnings").is_none(), "{reply}");
            }
        }
    }
}

/// An UPDATE review whose two objects are as large as etcd takes them, in the characters that become largest as JSON: the
/// text of a condition, which the API server writes as `\u003c`.
pub(crate) fn large_update(review: &str, characters: usize, edit: impl FnOnce(&mut Value)) -> String {
    const PLACE: &str = "this is where the text goes";
    let review = edited(review, |review| {
        edit(review);
        for object in ["object", "oldObject"] {
            let condition = json!({"type": "Large", "status": "True", "message": PLACE});
            review["request"][object]["status"]["conditions"].as_array_mut().unwrap().push(condition);
        }
    });
    review.replace(PLACE, &"\\u003c".repeat(characters))
}

#[tokio::test]
async fn a_review_of_two_objects_as_large_as_etcd_takes_them_is_judged() {
    let large = large_update(LABEL, 1_500_000, |review| {
        review["request"]["object"]["metadata"]["labels"]["node.kubernetes.io/kind"] = json!("x");
    });
    assert!(large.len() > 18_000_000);
    let (context, bounds) = (Arc::new(context(POLICY)), Bounds::default());
    let (status, text) = send_to(&context, bounds, post("/validate?timeout=60s", large.clone())).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reply["response"]["allowed"], false, "a reserved label: {text}");
    let (status, text) = send_to(&context, bounds, post("/mutate?timeout=60s", large)).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(context.metrics.render(Format::Text).contains("nodegate_large_reviews_total 2"));
}

/// `cargo bench --bench handler` measures how the time grows with the size.
#[test]
fn the_answer_to_a_review_does_not_depend_on_its_size() {
    let context = context(POLICY);
    let answer = |characters: usize| {
        let review = large_update(LABEL, characters, |review| {
            review["request"]["object"]["metadata"]["labels"]["node.kubernetes.io/kind"] = json!("x");
        });
        String::from_utf8(nodegate::admission::validate(review.as_bytes(), &context).unwrap().body).unwrap()
    };
    let small = answer(0);
    assert!(small.contains("\"allowed\":false"), "a reserved label: {small}");
    for characters in [100_000, 375_000, 750_000, 1_500_000] {
        assert_eq!(answer(characters), small, "{characters} characters");
    }
}

#[tokio::test]
async fn a_review_above_the_maximum_size_gets_413_and_the_name_of_the_flag() {
    let (status, text) = send("/mutate", vec![b' '; REVIEW_BYTES + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    assert!(text.contains("--max-review-bytes") && text.contains("33554432"), "{text}");
    // Where the length is not announced as well.
    let pieces = (0..40).map(|_| Ok::<_, std::io::Error>(axum::body::Bytes::from(vec![b' '; 1024 * 1024])));
    let (status, text) = send("/mutate", Body::from_stream(Pieces(pieces.collect()))).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
}

/// A body that comes in pieces.
struct Pieces(std::collections::VecDeque<Result<axum::body::Bytes, std::io::Error>>);

impl futures_core::Stream for Pieces {
    type Item = Result<axum::body::Bytes, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

#[tokio::test]
async fn a_review_in_chunks_gets_the_same_answer() {
    for (review, size) in [(LABEL.to_owned(), 1000), (large_update(LABEL, 200_000, |_| {}), 100_000)] {
        let pieces = review.as_bytes().chunks(size).map(|piece| Ok(axum::body::Bytes::copy_from_slice(piece)));
        let whole = send("/validate?timeout=60s", review.clone()).await;
        assert_eq!(whole.0, StatusCode::OK, "{}", whole.1);
        let in_pieces = send("/validate?timeout=60s", Body::from_stream(Pieces(pieces.collect()))).await;
        assert_eq!(in_pieces, whole);
    }
}

#[tokio::test]
async fn large_reviews_wait_for_their_own_slots_and_do_not_delay_ordinary_ones() {
    let bounds = Bounds { large: 1, ..Bounds::default() };
    let router = router(Arc::new(context(POLICY)), bounds);
    let ask = |path: &str, body: Body| router.clone().oneshot(post(path, body));
    // One that announces nothing and does not end holds the only place.
    let first = axum::body::Bytes::from(vec![b' '; 1024 * 1024]);
    let stuck = tokio::spawn(ask("/mutate?timeout=60s", Body::from_stream(Begun(Some(first)))));
    tokio::task::yield_now().await;
    let large = large_update(LABEL, 200_000, |_| {});
    assert!(!stuck.is_finished());
    let late = ask("/mutate?timeout=200ms", large.clone().into()).await.unwrap().status();
    assert_eq!(late, StatusCode::INTERNAL_SERVER_ERROR, "it waits for as long as its caller does");
    assert_eq!(ask("/mutate", CREATE.into()).await.unwrap().status(), StatusCode::OK, "an ordinary one");
    // What does not go on is cut, and its place is free.
    assert_eq!(ask("/mutate?timeout=60s", large.into()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(stuck.await.unwrap().unwrap().status(), StatusCode::REQUEST_TIMEOUT);
}

/// A body that begins and never goes on.
struct Begun(Option<axum::body::Bytes>);

impl futures_core::Stream for Begun {
    type Item = Result<axum::body::Bytes, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.take().map_or(std::task::Poll::Pending, |first| std::task::Poll::Ready(Some(Ok(first))))
    }
}

#[tokio::test]
async fn unfinished_bodies_stay_within_their_limit_and_the_oldest_is_aborted() {
    let bounds = Bounds { ordinary_bytes: 1024 * 1024, ..Bounds::default() };
    let context = Arc::new(context(POLICY));
    let router = router(context.clone(), bounds);
    let ask = |path: &str, body: Body| router.clone().oneshot(post(path, body));
    let mut unfinished = Vec::new();
    for _ in 0..5 {
        let first = axum::body::Bytes::from(vec![b' '; 256 * 1024]);
        unfinished.push(tokio::spawn(ask("/mutate?timeout=60s", Body::from_stream(Begun(Some(first))))));
        tokio::task::yield_now().await;
    }
    // The first one made room for the fifth, and an ordinary review has the second one cut.
    assert_eq!(ask("/mutate", CREATE.into()).await.unwrap().status(), StatusCode::OK);
    for (at, request) in unfinished.into_iter().enumerate() {
        let status = request.await.unwrap().unwrap().status();
        let expected = if at < 2 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::REQUEST_TIMEOUT };
        assert_eq!(status, expected, "{at}");
    }
    let metrics = context.metrics.render(Format::Text);
    for line in ["{reason=\"reclaimed\"} 2", "{reason=\"stalled\"} 3"] {
        assert!(metrics.contains(&format!("nodegate_bodies_refused_total{line}")), "{metrics}");
    }
}

#[tokio::test]
async fn deeply_nested_json_does_not_overflow_the_stack() {
    for nested in ["[".repeat(1_000_000), "{\"a\":".repeat(1_000_000)] {
        let body = format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1","object":{nested}"#
        );
        assert_eq!(send("/mutate", body).await.0, StatusCode::BAD_REQUEST);
    }
    // Below a field nobody reads, nesting is skipped without recursion.
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = edited(CREATE, |_| {}).replace("\"spec\":{", &format!("\"unknown\":{deep},\"spec\":{{"));
    assert_eq!(send("/mutate", body).await.0, StatusCode::OK);
}

#[tokio::test]
async fn too_many_reviews_at_once_are_shed() {
    let context = Arc::new(context(POLICY));
    let (status, _) = send_to(&context, Bounds { reviews: 0, ..Bounds::default() }, post("/mutate", CREATE)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        context
            .metrics
            .render(Format::Text)
            .contains(r#"nodegate_admission_requests_total{endpoint="mutate",outcome="shed"} 1"#)
    );
}

/// A policy whose reviews evaluate an expression.
fn expressive() -> Context {
    let rule = "    - name: cel\n      match: {expression: 'node.status.nodeInfo.architecture == \"amd64\"'}\n      labels: {arch.example.com/known: \"true\"}\n";
    context(&format!("{POLICY}{rule}"))
}

#[tokio::test]
async fn expressions_are_evaluated() {
    let (status, text) = send_to(&Arc::new(expressive()), Bounds::default(), post("/mutate", CREATE)).await;
    assert_eq!(status, StatusCode::OK);
    let reply: Value = serde_json::from_str(&text).unwrap();
    let patch = STANDARD.decode(reply["response"]["patch"].as_str().unwrap()).unwrap();
    assert!(String::from_utf8(patch).unwrap().contains("arch.example.com~1known"));
}

/// A policy with an expression that needs more than the first attempt has, but no place for costly ones.
fn lengthy() -> Context {
    let rule = "    - name: cel\n      match: {expression: 'lists.range(1200).all(x, x < 1200)'}\n      labels: {arch.example.com/known: \"true\"}\n";
    context(&format!("{POLICY}{rule}"))
}

#[tokio::test]
async fn only_expressions_that_are_not_short_need_a_place_on_another_thread() {
    let none = Bounds { expressions: 0, costly: 0, ..Bounds::default() };
    let path = "/mutate?timeout=100ms";
    assert_eq!(send_to(&Arc::new(expressive()), none, post(path, CREATE)).await.0, StatusCode::OK);
    let waits = send_to(&Arc::new(lengthy()), none, post(path, CREATE)).await.0;
    assert_eq!(waits, StatusCode::INTERNAL_SERVER_ERROR);
    let one = Bounds { expressions: 1, costly: 0, ..Bounds::default() };
    assert_eq!(send_to(&Arc::new(lengthy()), one, post("/mutate", CREATE)).await.0, StatusCode::OK);
}

/// A policy with expressions that are costly on the node `n1` only.
fn costly() -> Context {
    let costly = "lists.range(10000).all(x, lists.range(10000).all(y, x != y + 10000))";
    let rule =
        format!("    - name: costly\n      match: {{names: [n1], expression: '{costly}'}}\n      labels: {{a: b}}\n");
    context(&format!("{POLICY}{rule}"))
}

#[tokio::test]
async fn reviews_with_costly_expressions_have_their_own_slots() {
    let context = Arc::new(costly());
    let other = edited(CREATE, |review| review["request"]["object"]["metadata"]["name"] = json!("n2"));
    let none = Bounds { costly_waiting: 0, ..Bounds::default() };
    assert_eq!(send_to(&context, none, post("/mutate", CREATE)).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send_to(&context, none, post("/mutate", other.clone())).await.0, StatusCode::OK, "others need none");
    let full = Bounds { costly: 0, ..Bounds::default() };
    let late = send_to(&context, full, post("/mutate?timeout=100ms", CREATE)).await.0;
    assert_eq!(late, StatusCode::INTERNAL_SERVER_ERROR, "it waits for its turn, as long as its caller does");
    assert_eq!(send_to(&context, full, post("/mutate", other)).await.0, StatusCode::OK);
    let (status, text) = send_to(&context, Bounds::default(), post("/mutate", CREATE)).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let notes: Vec<String> = context
        .metrics
        .render(Format::Text)
        .lines()
        .filter(|line| line.contains("costly"))
        .map(str::to_owned)
        .collect();
    assert_eq!(
        notes,
        [r#"nodegate_decision_notes_total{note="unknown",policy="p",rule="costly"} 1"#],
        "tries do not count"
    );
}

/// Whoever makes a node so large that a demand cannot be judged does not get past it.
#[tokio::test]
async fn a_governance_expression_that_exceeds_its_steps_gets_500_instead_of_a_verdict() {
    let demand = "object.metadata.labels.all(a, object.metadata.labels.all(b, a == b || size(a) + size(b) > 0))";
    let context = Arc::new(context(&format!(
        "{POLICY}  governance:\n    expressions: [{{name: pairs, expression: '{demand}'}}]\n"
    )));
    let (status, _) = send_to(&context, Bounds::default(), post("/validate", LABEL)).await;
    assert_eq!(status, StatusCode::OK);
    let large = edited(LABEL, |review| {
        for at in 0..2000 {
            review["request"]["object"]["metadata"]["labels"][format!("large-{at}")] = json!("x");
        }
    });
    let (status, text) = send_to(&context, Bounds::default(), post("/validate", large)).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
    assert!(text.contains("p/pairs could not be evaluated") && text.contains("500000 steps"), "{text}");
}

/// The test's reactor has one thread: an evaluation on it would stop everything below.
#[tokio::test]
async fn an_evaluation_that_does_not_end_blocks_no_other_review_and_its_caller_gets_500() {
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (let_go, waits) = std::sync::mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let reactor = std::thread::current().id();
    let mut context = lengthy();
    context.pending_taint = Some(PendingTaint::new("nodegate.dev/pending".parse().unwrap(), move || {
        if std::thread::current().id() == reactor {
            return true; // The first attempt, which is too short.
        }
        let _ = begun.send(());
        waits.lock().unwrap().recv_timeout(Duration::from_secs(10)).is_ok()
    }));
    let router = router(Arc::new(context), Bounds { expressions: 1, ..Bounds::default() });
    let ask = |path: &str| router.clone().oneshot(post(path, CREATE));
    let stuck = tokio::spawn(ask("/mutate?timeout=200ms"));
    begins.recv().await.unwrap();

    assert_eq!(send("/mutate", CREATE).await.0, StatusCode::OK, "others are answered");
    let stuck = stuck.await.unwrap().unwrap().status();
    assert_eq!(stuck, StatusCode::INTERNAL_SERVER_ERROR, "its caller is answered in time");
    let next = ask("/mutate?timeout=200ms").await.unwrap().status();
    assert_eq!(next, StatusCode::INTERNAL_SERVER_ERROR, "the evaluation goes on, so its place is taken");
    drop(let_go);
    let free = async { while ask("/mutate").await.unwrap().status() != StatusCode::OK {} };
    tokio::time::timeout(Duration::from_secs(60), free).await.expect("the place is free again when it has ended");
}

#[tokio::test]
async fn a_caller_that_stops_sending_gets_500_after_its_timeout() {
    let stuck = Body::from_stream(never());
    let (status, text) =
        send_to(&Arc::new(context(POLICY)), Bounds::default(), post("/mutate?timeout=50ms", stuck)).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text.contains("time"), "{text}");
}

/// A body that never comes.
fn never() -> impl futures_core::Stream<Item = Result<axum::body::Bytes, std::io::Error>> {
    struct Never;
    impl futures_core::Stream for Never {
        type Item = Result<axum::body::Bytes, std::io::Error>;

        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Pending
        }
    }
    Never
}

#[tokio::test]
async fn answers_are_counted_by_endpoint_and_outcome() {
    let context = Arc::new(context(POLICY));
    send_to(&context, Bounds::default(), post("/mutate", CREATE)).await;
    send_to(&context, Bounds::default(), post("/validate", LABEL)).await;
    send_to(&context, Bounds::default(), post("/validate", "{")).await;
    let text = context.metrics.render(Format::Text);
    for line in [
        r#"nodegate_admission_requests_total{endpoint="mutate",outcome="patched"} 1"#,
        r#"nodegate_admission_requests_total{endpoint="validate",outcome="allowed"} 1"#,
        r#"nodegate_admission_requests_total{endpoint="validate",outcome="invalid"} 1"#,
        r#"nodegate_admission_duration_seconds_count{endpoint="validate"} 2"#,
        r#"nodegate_decision_notes_total{note="deferred_unmarked",policy="",rule=""} 1"#,
    ] {
        assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
    }
}

/// A review of a NodePolicy, as the API server sends it.
fn policy_review(operation: &str, object: &Value, old: &Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": {"group": "nodegate.dev", "version": "v1alpha1", "kind": "NodePolicy"},
            "resource": {"group": "nodegate.dev", "version": "v1alpha1", "resource": "nodepolicies"},
            "name": "fleet", "operation": operation, "userInfo": {"username": "alice"}, "object": object, "oldObject": old,
        },
    })
    .to_string()
}

fn policy_object(spec: &Value) -> Value {
    json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "fleet"}, "spec": spec})
}

#[tokio::test]
async fn an_invalid_policy_is_refused_with_a_cause_for_each_error_whatever_is_in_force() {
    let faulty = json!({"rules": [
        {"name": "a", "match": {"expression": "1 +"}, "labels": {"a": "b"}},
        {"name": "b", "match": {"capacity": {"cpu": "many"}}, "labels": {"bad key": "b"}},
    ]});
    let review = policy_review("CREATE", &policy_object(&faulty), &Value::Null);
    for context in [context(POLICY), expressive()] {
        let (status, text) = send_to(&Arc::new(context), Bounds::default(), post("/validate", review.clone())).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let response = serde_json::from_str::<Value>(&text).unwrap()["response"].clone();
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(false)));
        assert_eq!((&response["status"]["code"], &response["status"]["reason"]), (&json!(422), &json!("Invalid")));
        let causes = response["status"]["details"]["causes"].as_array().unwrap();
        let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
        for field in ["spec.rules[0].match.expression", "spec.rules[1].match.capacity", "spec.rules[1].labels"] {
            assert!(fields.iter().any(|found| found.starts_with(field)), "{field}: {fields:?}");
            assert!(response["status"]["message"].as_str().unwrap().contains(field), "{field}");
        }
    }
}

#[tokio::test]
async fn only_what_changes_a_policy_is_judged() {
    let (faulty, fine) = (json!({"rules": [{"name": "a"}]}), json!({"rules": [{"name": "a", "labels": {"a": "b"}}]}));
    let (faulty, fine) = (policy_object(&faulty), policy_object(&fine));
    let leaving =
        json!({"metadata": {"name": "fleet", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": faulty["spec"]});
    let cases = [
        ("CREATE", &faulty, &Value::Null, false),
        ("CREATE", &fine, &Value::Null, true),
        ("UPDATE", &faulty, &fine, false),
        ("UPDATE", &faulty, &faulty, true),
        ("UPDATE", &leaving, &fine, true),
        ("DELETE", &Value::Null, &faulty, true),
    ];
    for (operation, object, old, allowed) in cases {
        let reply = reply("/validate", &policy_review(operation, object, old)).await;
        assert_eq!(reply["allowed"], allowed, "{operation} {object} over {old}");
    }
    let status =
        edited(&policy_review("UPDATE", &faulty, &fine), |review| review["request"]["subResource"] = json!("status"));
    assert_eq!(reply("/validate", &status).await["allowed"], true, "a status is not judged");
    let warned = reply("/validate", &policy_review("UPDATE", &faulty, &faulty)).await;
    assert!(warned["warnings"][0].as_str().unwrap().contains("spec.rules[0]"), "{warned}");
    assert_eq!(send("/mutate", policy_review("CREATE", &fine, &Value::Null)).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_conflict_with_a_policy_in_force_is_a_warning() {
    let rule = json!({"rules": [{"name": "mine", "labels": {"hardware.tier": "gold"}}]});
    let reply = reply("/validate", &policy_review("CREATE", &policy_object(&rule), &Value::Null)).await;
    assert_eq!(reply["allowed"], true, "{reply}");
    let expected = "nodegate: label hardware.tier: rule fleet/mine takes precedence over rule p/tier where both match";
    assert_eq!(reply["warnings"], json!([expected]));
}
