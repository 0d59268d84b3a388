//! Nodes of any size and nesting are judged, and cost little.

use std::sync::Arc;

use axum::http::StatusCode;
use nodegate_webhook::admission::{Bounds, Context};
use serde_json::{Value, json};

use crate::admission::{CREATE, context, edited, post, send_to};

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  protect: {keys: [hardware.tier]}
  rules:
    - {name: images, match: {expression: "node.status.images.size() >= 0"}, labels: {images.example.com/known: "true"}}
    - {name: arch, match: {expression: "node.status.nodeInfo.architecture == 'amd64'"}, labels: {arch.example.com/known: "true"}}
  governance:
    expressions:
      - {name: all, expression: "dyn(object.metadata).?newField.orValue('') == ''"}
      - {name: pool, expression: "object.metadata.?labels[?'pool'].orValue('a') != 'forbidden'", message: "no such pool"}
"#;

const OVER_IMAGES: &str =
    "      - {name: images, expression: 'object.status.images.size() < 1000000', message: 'too many images'}\n";

/// An UPDATE of `n1` that gives it `labels`, by a kubelet or an administrator; what the node has besides is text.
fn update(labels: &Value, others: &str, kubelet: bool) -> String {
    let (user, groups) = if kubelet { ("system:node:n1", "system:nodes") } else { ("admin", "system:masters") };
    let object = |labels: &Value| {
        format!(
            r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"n1","uid":"u1","labels":{labels}{others}}},"spec":{{}},"status":{{"nodeInfo":{{"architecture":"amd64"}}}}}}"#
        )
    };
    format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"r1","resource":{{"group":"","version":"v1","resource":"nodes"}},"operation":"UPDATE","name":"n1","userInfo":{{"username":"{user}","groups":["{groups}"]}},"object":{},"oldObject":{}}}}}"#,
        object(labels),
        object(&json!({}))
    )
}

async fn judged(context: &Arc<Context>, path: &str, body: String) -> (StatusCode, String) {
    send_to(context, Bounds::default(), post(path, body)).await
}

fn code(text: &str) -> Value {
    serde_json::from_str::<Value>(text).unwrap()["response"]["status"]["code"].clone()
}

#[tokio::test]
async fn nodes_of_any_nesting_that_the_api_server_stores_are_judged() {
    let context = Arc::new(context(POLICY));
    // Another expression reads all of metadata: nothing may be nested too deep for this one because of that.
    for levels in [0, 150, 10_000] {
        let deep = format!("{}{{}}{}", r#"{"f:x":"#.repeat(levels), "}".repeat(levels));
        let managed = format!(r#","managedFields":[{{"manager":"m","fieldsV1":{deep}}}],"unknown":{deep}"#);
        // By an expression, by a protected label, and what rules give by an expression.
        let (status, text) =
            judged(&context, "/validate", update(&json!({"pool": "forbidden"}), &managed, false)).await;
        assert!(status == StatusCode::OK && code(&text) == 403, "{levels}: {text:.300}");
        let (status, text) =
            judged(&context, "/validate", update(&json!({"hardware.tier": "x"}), &managed, true)).await;
        assert!(status == StatusCode::OK && code(&text) == 403, "{levels}: {text:.300}");
        let (_, text) = judged(&context, "/mutate", update(&json!({"pool": "fine"}), &managed, false)).await;
        assert!(text.contains("JSONPatch") && text.contains("p/arch"), "{levels}: {text:.300}");
    }
}

/// A review of a node with so many empty images.
fn with_images(review: &str, count: usize) -> String {
    let images: Value = vec![json!({}); count].into();
    edited(review, |review| {
        for object in ["object", "oldObject"] {
            if !review["request"][object].is_null() {
                review["request"][object]["status"]["images"] = images.clone();
            }
        }
    })
}

#[tokio::test]
async fn very_many_images_fail_only_expressions_that_read_them() {
    let both = Arc::new(context(&format!("{POLICY}{OVER_IMAGES}")));
    let change = update(&json!({"pool": "fine"}), "", false);
    let (status, text) = judged(&both, "/validate", with_images(&change, 1_000)).await;
    assert!(status == StatusCode::OK && code(&text).is_null(), "{text:.300}");
    let large = with_images(&change, 390_000);
    let (status, text) = judged(&both, "/validate", large.clone()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text:.300}");
    assert!(text.contains("p/images could not be evaluated") && text.contains("KiB of memory"), "{text:.300}");
    // Rules do without: the other one gives its label.
    let (status, text) = judged(&both, "/mutate", with_images(CREATE, 390_000)).await;
    assert!(status == StatusCode::OK && text.contains("p/arch") && !text.contains("p/images"), "{text:.300}");
    // What is denied is denied, and what reads no images is judged.
    let denied = with_images(&update(&json!({"pool": "forbidden"}), "", false), 390_000);
    let (status, text) = judged(&both, "/validate", denied).await;
    assert!(status == StatusCode::OK && code(&text) == 403, "{text:.300}");
    let others = Arc::new(context(POLICY));
    assert_eq!(judged(&others, "/validate", large).await.0, StatusCode::OK);
}
