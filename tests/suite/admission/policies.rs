//! Reviews of NodePolicy objects.

use std::sync::Arc;

use axum::http::StatusCode;
use nodegate_webhook::admission::{AnnotationCalls, Bounds, Context};
use serde_json::{Value, json};

use super::expressions::expressive;
use super::{POLICY, context, edited, post, reply, send, send_to};

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
    let warnings: Vec<&str> = reply["warnings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(warnings.iter().all(|line| line.starts_with("nodegate: ") && line.chars().count() <= 120), "{warnings:#?}");
    let whole = warnings.iter().map(|line| line.trim_start_matches("nodegate: ")).collect::<Vec<_>>().join(" ");
    let who = "spec.rules[0].labels[\"hardware.tier\"]: rule fleet/mine takes precedence over rule p/tier";
    assert!(whole.starts_with(who) && whole.ends_with("such as \"priority: 10\""), "{whole}");
}

#[tokio::test]
async fn a_reserved_entry_that_covers_what_the_control_plane_writes_is_a_warning() {
    let warnings = async |keys: &str| {
        let entry = json!({"name": "r", "namespaces": [keys], "allow": {"groups": ["platform-team"]}});
        let policy = policy_object(&json!({"governance": {"reserved": [entry]}}));
        let reply = reply("/validate", &policy_review("CREATE", &policy, &Value::Null)).await;
        assert_eq!(reply["allowed"], true, "{reply}");
        let lines = reply["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.map(|line| line.trim_start_matches("nodegate: ")).collect::<Vec<_>>().join(" ")
    };
    let told = warnings("node.kubernetes.io").await;
    for part in ["spec.governance.reserved[0]", "the control plane writes \"node.kubernetes.io/", "add allow:"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(warnings("example.com").await, "");
}

#[tokio::test]
async fn a_policy_on_annotations_is_accepted_with_a_warning_if_the_registration_leaves_them_out() {
    let immutable = |of: &str| json!({"immutable": [{"name": "note", "keys": ["corp.example/note"], "of": [of]}]});
    let reserved = |of: &str| {
        let allow = json!({"groups": ["platform-team"]});
        json!({"reserved": [{"name": "note", "keys": ["corp.example/note"], "of": [of], "allow": allow}]})
    };
    let warnings = async |governance: Value, left_out: bool| {
        let annotation_calls = AnnotationCalls::new(tokio::sync::watch::channel(left_out).1);
        let context = Arc::new(Context { annotation_calls, ..context(POLICY) });
        let review = policy_review("CREATE", &policy_object(&json!({"governance": governance})), &Value::Null);
        let (status, text) = send_to(&context, Bounds::default(), post("/validate", review)).await;
        let reply: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &reply["response"]["allowed"]), (StatusCode::OK, &json!(true)), "{text}");
        reply["response"]["warnings"].clone()
    };
    for entry in [&immutable as &dyn Fn(&str) -> Value, &reserved] {
        let told = warnings(entry("annotations"), true).await;
        for part in ["fleet/note", "governAnnotations", "--govern-annotations"] {
            assert!(told[0].as_str().unwrap().contains(part), "{part}: {told}");
        }
        assert_eq!(warnings(entry("annotations"), false).await, Value::Null);
        assert_eq!(warnings(entry("labels"), true).await, Value::Null);
    }
}
