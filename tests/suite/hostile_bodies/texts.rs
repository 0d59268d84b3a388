//! One text that is as large as a body may be, wherever it stands.

use serde_json::{Value, json};

use super::shapes::{POLICY_REVIEW, reviews, walk};
use super::{POLICY, RISE_MAX, is_full_run, start};
use crate::admission::{CREATE, context, edited};
use crate::crowd::Caller;
use crate::shared::memory::{forget_peak, peak_memory};

/// Nearly as large as any body that is accepted.
const LARGE: usize = 23 << 20;
/// Nearly as large as any review of a `NodePolicy` that is accepted.
const LARGE_OF_POLICY: usize = 3 << 20;
/// The longest error, in bytes: as many as a few texts that are quoted have.
const ANSWER_MAX: usize = 4096;

/// A text whose characters become six times as long when they are escaped.
fn deletes(bytes: usize) -> String {
    "\u{7f}".repeat(bytes)
}

/// The review of this name.
fn review(name: &str) -> Value {
    reviews().into_iter().find_map(|(what, review)| (what == name).then_some(review)).unwrap()
}

/// Answers in this process: what the caller gets.
fn answered(path: &str, body: &str, context: &nodegate_webhook::admission::Context) -> String {
    let answer = match path {
        "/mutate" => nodegate_webhook::admission::mutate(body.as_bytes(), context),
        _ => nodegate_webhook::admission::validate(body.as_bytes(), context),
    };
    answer.map_or_else(|rejection| rejection.to_string(), |answer| String::from_utf8(answer.body).unwrap())
}

#[test]
fn no_answer_repeats_a_text_that_stands_for_something_else() {
    let context = context(POLICY);
    let text = deletes(64 * 1024);
    for (what, review) in reviews() {
        let mut places = Vec::new();
        walk(&review, "", &mut places);
        for place in places {
            let mut review = review.clone();
            *review.pointer_mut(&place).unwrap() = json!(text);
            for path in ["/validate", "/mutate"] {
                let answer = answered(path, &review.to_string(), &context);
                assert!(answer.len() < ANSWER_MAX, "{path} {what} {place}: {} bytes: {answer:.300}", answer.len());
            }
        }
    }
}

#[test]
fn no_answer_repeats_a_long_name_of_a_field() {
    let context = context(POLICY);
    let policy = review(POLICY_REVIEW);
    for place in ["", "/governance", "/rules/0", "/rules/0/labels", "/rules/0/match/capacity"] {
        let mut review = policy.clone();
        let fields = review.pointer_mut(&format!("/request/object/spec{place}")).unwrap();
        fields[deletes(1 << 20)] = json!("x");
        let answer = answered("/validate", &review.to_string(), &context);
        assert!(answer.contains("\"allowed\":false") && answer.len() < 2 * ANSWER_MAX, "{place}: {answer:.300}");
    }
}

/// The UPDATE by a kubelet that removes a label of nodegate with this value.
fn removed_label(value: &str) -> Value {
    let review = edited(CREATE, |review| {
        review["request"]["operation"] = json!("UPDATE");
        review["request"]["oldObject"] = review["request"]["object"].clone();
        review["request"]["oldObject"]["metadata"]["labels"]["nodegate.dev/x"] = json!(value);
    });
    serde_json::from_str(&review).unwrap()
}

/// The bodies that ended a replica, or nearly so.
fn bodies() -> Vec<(&'static str, &'static str, String)> {
    let (update, policy) = (review("UPDATE by somebody"), review(POLICY_REVIEW));
    let with = |review: &Value, place: &str, value: Value| {
        let mut review = review.clone();
        *review.pointer_mut(place).unwrap() = value;
        review.to_string()
    };
    let large = json!(deletes(LARGE));
    let mut bodies = vec![("/mutate", "only a request", json!({"request": large}).to_string())];
    for place in [
        "/kind",
        "/apiVersion",
        "/request/operation",
        "/request/resource",
        "/request/resource/group",
        "/request/userInfo/username",
        "/request/userInfo/groups",
        "/request/object",
        "/request/oldObject/metadata",
        "/request/object/metadata/labels",
        "/request/object/status/capacity",
    ] {
        // Each of the largest takes a second in a debug build.
        if !is_full_run() && place != "/request/object/metadata/labels" {
            continue;
        }
        bodies.push(("/validate", place, with(&update, place, large.clone())));
    }
    bodies.push(("/mutate", "a value that is put back", removed_label(&deletes(LARGE)).to_string()));
    bodies.push(("/mutate", "a shorter value that is put back", removed_label(&deletes(3 << 20)).to_string()));
    for bytes in [LARGE, 3 << 20] {
        let taints = json!([{"key": format!("reserved.example/{}", deletes(bytes)), "effect": "NoSchedule"}]);
        let mut review = update.clone();
        review["request"]["object"]["spec"]["taints"] = taints;
        bodies.push(("/validate", "the key of a taint", review.to_string()));
    }
    let long = deletes(LARGE_OF_POLICY - 8 * 1024);
    let mut unknown = policy.clone();
    unknown["request"]["object"]["spec"][&long] = json!(1);
    bodies.push(("/validate", "an unknown field of a policy", unknown.to_string()));
    for place in ["", "/rules", "/rules/0/match", "/rules/0/taints/0/effect", "/rules/0/labels/a"] {
        let at = format!("/request/object/spec{place}");
        bodies.push(("/validate", "a text in a policy", with(&policy, &at, json!(long))));
    }
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_text_as_large_as_a_body_takes_bounded_memory_and_is_not_repeated() {
    let serve = start();
    let hostile = Caller::new(&serve, [127, 0, 1, 1]);
    assert!(hostile.review().await.starts_with("HTTP/1.1 200"));
    let idle = peak_memory(serve.process());
    let mut rises = Vec::new();
    for (path, what, body) in bodies() {
        forget_peak(serve.process());
        let answer = hostile.whole(path, &body).await;
        rises.push((peak_memory(serve.process()).saturating_sub(idle) >> 20, what));
        assert!(answer.starts_with("HTTP/1.1 ") && answer.len() < 2 * ANSWER_MAX, "{what}: {answer:.300}");
    }
    rises.sort_unstable();
    println!("MiB above {}: {rises:?}", idle >> 20);
    assert!(rises.iter().all(|(rise, _)| rise << 20 <= RISE_MAX), "{rises:?}");
}
