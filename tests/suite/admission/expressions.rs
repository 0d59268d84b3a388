//! Reviews whose policies have CEL expressions.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodegate_base::metrics::Format;
use nodegate_policy::PendingTaints;
use nodegate_webhook::admission::{Bounds, Context, PendingTaint, router};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{CREATE, LABEL, POLICY, context, edited, post, send, send_to};

/// A policy whose reviews evaluate an expression.
pub(super) fn expressive() -> Context {
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
    context.pending_taint = PendingTaint::new(PendingTaints::default(), move || {
        if std::thread::current().id() == reactor {
            return true; // The first attempt, which is too short.
        }
        let _ = begun.send(());
        waits.lock().unwrap().recv_timeout(Duration::from_secs(10)).is_ok()
    });
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
