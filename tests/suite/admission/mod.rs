//! The webhook's router, in process: what it answers to reviews and to everything else.

mod bounds;
mod expressions;
mod policies;
mod sizes;

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodegate_base::metrics::{Format, Metrics};
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use nodegate_stores::state::SavedStates;
use nodegate_webhook::admission::{Bounds, Context, PendingTaint, router};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub(crate) const CREATE: &str = include_str!("../../data/admission-reviews/kubelet-create.json");
const RESTART: &str = include_str!("../../data/admission-reviews/kubelet-restart-create.json");
const HEARTBEAT: &str = include_str!("../../data/admission-reviews/kubelet-status-update.json");
const RECONCILE: &str = include_str!("../../data/admission-reviews/kubelet-status-update-reconciles-zone.json");
const LABEL: &str = include_str!("../../data/admission-reviews/admin-label-update.json");

pub(crate) use sizes::large_update;

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
        witnesses: Arc::default(),
        inventory: Arc::default(),
        pending_taint: PendingTaint::default(),
        synced: Arc::new(true.into()),
        records_last_change: false,
        exemptions: Arc::default(),
        traces: Default::default(),
        annotation_calls: Default::default(),
        callers: Default::default(),
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

/// The timeout of reviews whose test is not about time: a debug build on a busy machine is slow.
pub(crate) const PATIENT: &str = "?timeout=1m0s";

/// A request to `path`, with a long timeout if it has none.
pub(crate) fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    let path = if path.contains('?') { path.to_owned() } else { format!("{path}{PATIENT}") };
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

#[tokio::test]
async fn a_warning_about_broken_glass_says_who_and_fits_into_lines() {
    let policy = POLICY.replace("  protect:", "  governance: {breakGlass: {groups: [oncall]}}\n  protect:");
    let context = Arc::new(context(&policy));
    let reserved = edited(LABEL, |review| {
        review["request"]["object"]["metadata"]["labels"]["node.kubernetes.io/kind"] = json!("x");
        review["request"]["userInfo"]["groups"] = json!(["oncall", "system:authenticated"]);
    });
    let (_, text) = send_to(&context, Bounds::default(), post("/validate", reserved)).await;
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reply["response"]["allowed"], true, "{text}");
    let warnings: Vec<&str> =
        reply["response"]["warnings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(warnings.iter().all(|line| line.starts_with("nodegate: ") && line.chars().count() <= 120), "{warnings:?}");
    let whole: String = warnings.iter().map(|line| line.trim_start_matches("nodegate:")).collect();
    assert!(whole.contains("group oncall overrides") && whole.contains("node.kubernetes.io/kind"), "{whole}");
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
