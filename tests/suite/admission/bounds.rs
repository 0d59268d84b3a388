//! Names, groups and policies that are larger than any that an API server sends.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{CREATE, edited, send};

/// The answers to a CREATE with a text of this length, and of one more byte, at a place.
async fn answers(place: &str, longest: usize) -> [(StatusCode, String); 2] {
    let with = |bytes: usize| edited(CREATE, |review| *review.pointer_mut(place).unwrap() = json!("x".repeat(bytes)));
    [send("/mutate", with(longest)).await, send("/mutate", with(longest + 1)).await]
}

#[tokio::test]
async fn names_and_uids_have_at_most_one_kilobyte() {
    for (place, part) in [
        ("/request/uid", "a uid of more than 1 KiB"),
        ("/request/object/metadata/name", "the node has a name of more than 1 KiB"),
        ("/request/userInfo/username", "the requester has a name or a uid of more than 1 KiB"),
    ] {
        let [(fits, _), (longer, message)] = answers(place, 1024).await;
        assert_eq!((fits, longer), (StatusCode::OK, StatusCode::BAD_REQUEST), "{place}");
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn groups_are_bounded_in_number_and_in_all() {
    let with = |groups: Vec<Value>| edited(CREATE, |review| review["request"]["userInfo"]["groups"] = json!(groups));
    let (short, long) = (json!("g"), json!("g".repeat(1024)));
    for (groups, expected) in [
        (vec![short.clone(); 16_384], StatusCode::OK),
        (vec![short; 16_385], StatusCode::BAD_REQUEST),
        (vec![long.clone(); 1024], StatusCode::OK),
        (vec![long; 1025], StatusCode::BAD_REQUEST),
    ] {
        let (status, message) = send("/mutate", with(groups)).await;
        assert_eq!(status, expected, "{message}");
    }
}

#[tokio::test]
async fn a_policy_review_that_is_larger_than_two_objects_gets_413() {
    const MAX: usize = 3 * 1024 * 1024 + 128 * 1024;
    let review = json!({"request": {
        "uid": "u", "operation": "CREATE", "resource": {"group": "nodegate.dev", "resource": "nodepolicies"},
        "object": {"metadata": {"name": "p"}, "spec": {}},
    }})
    .to_string();
    let filled = |bytes: usize| review.clone() + &" ".repeat(bytes - review.len());
    assert_eq!(send("/validate", filled(MAX)).await.0, StatusCode::OK);
    let (status, message) = send("/validate", filled(MAX + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(message.contains("the review of a NodePolicy is larger than 3276800 bytes"), "{message}");
}
