//! Reviews that are large, deep or many, and bodies that arrive slowly.

use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use nodegate_base::metrics::Format;
use nodegate_policy::CORRECTIONS_MAX;
use nodegate_webhook::admission::{Bounds, REVIEW_BYTES, router};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{CREATE, LABEL, POLICY, context, edited, post, send, send_to};

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
        String::from_utf8(nodegate_webhook::admission::validate(review.as_bytes(), &context).unwrap().body).unwrap()
    };
    let small = answer(0);
    assert!(small.contains("\"allowed\":false"), "a reserved label: {small}");
    for characters in [100_000, 375_000, 750_000, 1_500_000] {
        assert_eq!(answer(characters), small, "{characters} characters");
    }
}

#[test]
fn a_kubelets_write_with_more_forged_keys_than_are_corrected_is_refused() {
    let context = context(POLICY);
    let answer = |user: &str, forged: usize| {
        let review = edited(CREATE, |review| {
            review["request"]["userInfo"]["username"] = json!(user);
            for at in 0..forged {
                review["request"]["object"]["metadata"]["labels"][format!("nodegate.dev/{at}")] = json!("x");
            }
        });
        let answer = nodegate_webhook::admission::mutate(review.as_bytes(), &context).unwrap().body;
        (answer.len(), serde_json::from_slice::<Value>(&answer).unwrap()["response"].take())
    };
    let kubelet: Value = serde_json::from_str(CREATE).unwrap();
    let kubelet = kubelet["request"]["userInfo"]["username"].as_str().unwrap();
    let (_, corrected) = answer(kubelet, CORRECTIONS_MAX);
    assert!(corrected["allowed"] == true && corrected["patch"].is_string(), "{corrected}");
    let (bytes, refused) = answer(kubelet, 100 * CORRECTIONS_MAX);
    assert!(refused["allowed"] == false && bytes < 1_000, "{refused}");
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(message.contains("the kubelet changes 100000 labels") && message.contains("--node-labels"), "{message}");
    let denials = context.metrics.render(Format::Text);
    let denials = denials.lines().find(|line| line.starts_with("nodegate_denials_total{"));
    assert!(
        denials.is_some_and(|line| line.contains("caller=\"unauthenticated\"") && line.ends_with(" 1")),
        "{denials:?}"
    );
    let (_, other) = answer("admin", 2 * CORRECTIONS_MAX);
    assert_eq!(other["allowed"], true, "what an administrator sets is for /validate to judge");
}

#[tokio::test]
async fn a_review_above_the_maximum_size_gets_413_and_the_name_of_the_flag() {
    let (status, text) = send("/mutate", vec![b' '; REVIEW_BYTES + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    assert!(text.contains("--max-review-bytes") && text.contains("25165824"), "{text}");
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
