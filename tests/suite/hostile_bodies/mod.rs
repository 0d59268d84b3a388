//! Hostile bodies of every shape at the real `nodegate serve`: each list, object and text of both kinds of review, blown up.
//! Whatever is sent, memory stays bounded, and ordinary reviews are answered meanwhile.

mod texts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nodegate_policy::CORRECTIONS_MAX;
use serde_json::{Value, json};

use crate::admission::{CREATE, edited};
use crate::crowd::Caller;
use crate::eventually::{eventually, holds};
use crate::serve::Serve;
use crate::shared::memory::{forget_peak, peak_memory};

/// Everything that judges keys is in force, so that all of what is sent is looked at.
const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  presets: [baseline, gpu]
  protect: {keys: [hardware.tier, "protected.example/*"]}
  persist: {labels: ["persist.demo/*"], taints: [dedicated]}
  rules:
    - {name: many, match: {expression: "node.metadata.labels.size() > 3"}, labels: {many: "true"}}
  governance:
    reserved: [{namespaces: [reserved.example], of: [labels, annotations, taints], allow: {users: [nobody]}}]
    naming: [{keys: ["*"], pattern: kebab-case, of: key}]
    immutable: [{keys: ["once.example/*"]}]
"#;

/// A policy with something in every section.
const WRITTEN: &str = r#"{
  "presets": ["gpu"],
  "rules": [{"name": "r", "match": {"names": ["a-*-b"], "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
      "taints": ["t"], "capacity": {"cpu": ">=1"}, "osImage": ["U*x"], "expression": "node.metadata.name.matches('(a{1,50}){1,50}b')", "anyOf": [{"names": ["x?"]}]},
    "labels": {"a": "b"}, "labelExpressions": {"c": "node.metadata.name"}, "annotations": {"d": "e"}, "taints": [{"key": "k", "effect": "NoSchedule"}]}],
  "derived": [{"label": "l", "anyOf": ["m"]}],
  "persist": {"labels": ["p/*"], "taints": ["q"]},
  "protect": {"keys": ["z"]},
  "governance": {"reserved": [{"keys": ["k"], "allow": {"users": ["*x?"], "groups": ["g*?"], "serviceAccounts": ["n:*y?"]}, "except": {"users": ["u"]}}],
    "required": [{"keys": ["k"]}], "allowed": [{"key": "k", "values": ["v"]}, {"key": "l", "pattern": "[a-z0-9]{2,900}"}], "immutable": [{"keys": ["k"]}],
    "dependencies": [{"when": {"a": "b"}, "require": {"c": "d"}}], "naming": [{"keys": ["k"], "regex": "[a-z0-9]{2,1000}[a-z]{1,400}", "of": "value"}],
    "expressions": [{"expression": "object.metadata.name.matches('(a{1,50}){1,50}c')", "message": "m"}]}
}"#;

/// Of the texts, one in so many is blown up…
const TEXTS: usize = 6;
/// …and those that are compiled, compared or kept.
const OWN_TEXTS: [&str; 7] = ["username", "uid", "metadata/name", "regex", "pattern", "expression", "names/0"];
/// The number of bytes that a blown-up value has at least…
const BYTES: usize = 3 << 20;
/// …and each of two in one review, which is then nearly as large as any that is accepted.
const PAIR_BYTES: usize = 11 << 20;
/// So many callers do not read their answers.
const UNREAD: usize = 64;
/// How much the memory of a server may rise. Without bounds it rises by hundreds of megabytes for many of these bodies. In a debug
/// build, values take more.
const RISE_MAX: u64 = if cfg!(debug_assertions) { 96 << 20 } else { 64 << 20 };

/// How many of the highest peaks are shown.
const HIGHEST: usize = 12;

/// Of the bodies, one in so many is sent: all of them take minutes, so only the full run sends them (`NODEGATE_REQUIRE=full`).
fn one_in() -> usize {
    if std::env::var("NODEGATE_REQUIRE").is_ok_and(|run| run == "full") { 1 } else { 24 }
}

/// The body for each place of a review that can be blown up, with the pointer to the place.
fn bodies(review: &Value) -> Vec<(String, String)> {
    let mut places = Vec::new();
    walk(review, String::new(), &mut places);
    // Every list and object, and of the texts some, because most of them are alike.
    let mut texts = 0;
    places.retain(|place| {
        let is_text = review.pointer(place).is_some_and(Value::is_string);
        texts += usize::from(is_text);
        !is_text || texts % TEXTS == 0 || OWN_TEXTS.iter().any(|own| place.ends_with(own))
    });
    places
        .into_iter()
        .step_by(one_in())
        .map(|place| (blown(review, [&*place], BYTES), place))
        .map(|(body, place)| (place, body))
        .collect()
}

/// The body for each list and object that both versions of the node have, blown up in both.
fn pairs(update: &Value) -> Vec<(String, String)> {
    let mut places = Vec::new();
    walk(&update["request"]["object"], String::new(), &mut places);
    places.retain(|place| !update["request"]["object"].pointer(place).is_some_and(Value::is_string));
    let pair = |place: String| {
        let [new, old] = ["object", "oldObject"].map(|version| format!("/request/{version}{place}"));
        update.pointer(&old)?;
        Some((format!("{place} of both"), blown(update, [&*new, &*old], PAIR_BYTES)))
    };
    places.into_iter().step_by(one_in()).filter_map(pair).collect()
}

/// The review with these places blown up.
fn blown<'a>(review: &Value, places: impl IntoIterator<Item = &'a str>, bytes: usize) -> String {
    let mut review = review.clone();
    for place in places {
        let value = review.pointer_mut(place).unwrap();
        *value = blown_up(value, bytes);
    }
    review.to_string()
}

/// The CREATE by a kubelet that gets the largest answer: as many forged keys as are corrected, as long as keys can be.
fn most_corrections() -> String {
    edited(CREATE, |review| {
        for at in 0..CORRECTIONS_MAX {
            let key = format!("{}.nodegate.dev/{at:063}", "x".repeat(240));
            review["request"]["object"]["metadata"]["labels"][key] = json!("x");
        }
    })
}

fn walk(value: &Value, place: String, places: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().take(1).map(|item| ("0".to_owned(), item)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (key.replace('~', "~0").replace('/', "~1"), field)).collect()
        }
        Value::String(_) => Vec::new(),
        Value::Null | Value::Bool(_) | Value::Number(_) => return,
    };
    for (key, value) in below {
        walk(value, format!("{place}/{key}"), places);
    }
    // Without these it is no review.
    if !matches!(place.as_str(), "" | "/apiVersion" | "/kind" | "/request" | "/request/operation")
        && !place.starts_with("/request/resource")
    {
        places.push(place);
    }
}

/// A value of the same kind, with at least so many bytes.
fn blown_up(value: &Value, bytes: usize) -> Value {
    match value {
        Value::Array(items) => {
            let item = items.first().cloned().unwrap_or_else(|| json!({}));
            let count = bytes / (item.to_string().len() + 1);
            (0..count).map(|at| numbered(&item, at)).collect()
        }
        Value::Object(fields) => {
            let value = fields.values().next().cloned().unwrap_or_else(|| json!(""));
            let count = bytes / (value.to_string().len() + 12);
            let more = (0..count).map(|at| (format!("once.example/{at:x}_"), value.clone()));
            Value::Object(fields.clone().into_iter().chain(more).collect())
        }
        // One escape, so that the text cannot be borrowed.
        _ => format!("\n{}", "x".repeat(bytes)).into(),
    }
}

/// The same item with another name, where names must differ.
fn numbered(item: &Value, at: usize) -> Value {
    match item {
        Value::String(text) => format!("{text}{at:x}").into(),
        Value::Object(fields) => {
            let mut fields = fields.clone();
            for name in ["name", "key"] {
                if let Some(Value::String(text)) = fields.get_mut(name) {
                    text.push_str(&format!("{at:x}"));
                }
            }
            fields.into()
        }
        other => other.clone(),
    }
}

/// The recorded CREATE, an UPDATE of the same node by somebody else, and the CREATE of a policy.
fn reviews() -> [(&'static str, Value); 3] {
    let create: Value = serde_json::from_str(CREATE).unwrap();
    let update = edited(CREATE, |review| {
        review["request"]["operation"] = json!("UPDATE");
        review["request"]["oldObject"] = review["request"]["object"].clone();
        review["request"]["userInfo"] = json!({"username": "someone", "groups": ["a"], "extra": {"b": ["c"]}});
        review["request"]["object"]["metadata"]["labels"]["reserved.example/a"] = json!("b");
    });
    let policy = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "userInfo": {"username": "someone", "groups": ["a"]},
        "resource": {"group": "nodegate.dev", "version": "v1alpha1", "resource": "nodepolicies"},
        "object": {"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "h"},
                   "spec": serde_json::from_str::<Value>(WRITTEN).unwrap()},
    }});
    [("/mutate", create), ("/validate", serde_json::from_str(&update).unwrap()), ("/validate", policy)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_sent_memory_is_bounded_and_ordinary_reviews_are_answered() {
    // As in the image.
    let environment = [("MIMALLOC_PURGE_DELAY", "0")];
    let serve = Serve::start(&["--policy", "DIR/p.yaml"], &environment, |directory| {
        std::fs::write(directory.join("p.yaml"), POLICY).unwrap();
    });
    let (ordinary, hostile) = (Caller::new(&serve, [127, 0, 0, 1]), Caller::new(&serve, [127, 0, 1, 1]));
    assert!(ordinary.review().await.starts_with("HTTP/1.1 200"));
    let idle = peak_memory(serve.process());
    let (ended, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let meanwhile = tokio::spawn({
        let (ended, answered) = (ended.clone(), answered.clone());
        async move {
            while !ended.load(Ordering::Relaxed) {
                let answer = ordinary.review().await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                answered.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let (mut tried, mut peaks) = (0, Vec::new());
    for (path, review) in reviews() {
        let is_update = review["request"]["operation"] == "UPDATE";
        let pairs = if is_update { pairs(&review) } else { Vec::new() };
        for (place, body) in bodies(&review).into_iter().chain(pairs) {
            forget_peak(serve.process());
            let (one, other) = tokio::join!(hostile.send(path, &body), hostile.send(path, &body));
            assert!(one.starts_with("HTTP/1.1 ") && other.starts_with("HTTP/1.1 "), "{place}: {one} {other}");
            tried += 2;
            peaks.push((peak_memory(serve.process()).saturating_sub(idle), format!("{path} {place}")));
        }
    }
    forget_peak(serve.process());
    let body = most_corrections();
    // How many reviews of others than the ordinary caller were answered, give or take its latest one.
    let of_others = || {
        let metrics = serve.get("/metrics");
        let begin = r#"nodegate_admission_requests_total{endpoint="mutate""#;
        let lines = metrics.lines().filter(|line| line.starts_with(begin));
        let all: usize = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum();
        all - answered.load(Ordering::Relaxed)
    };
    let before = of_others();
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        unread.push(hostile.ask("/mutate", &body).await);
    }
    eventually("their answers are there", async || holds(of_others() + 1 >= before + UNREAD, || serve.get("/metrics")))
        .await;
    tried += UNREAD;
    peaks.push((peak_memory(serve.process()).saturating_sub(idle), "answers that nobody reads".to_owned()));
    drop(unread);
    ended.store(true, Ordering::Relaxed);
    meanwhile.await.unwrap();
    let answered = answered.load(Ordering::Relaxed);
    peaks.sort_unstable_by(|one, other| other.cmp(one));
    let highest: Vec<String> =
        peaks.iter().take(HIGHEST).map(|(rise, place)| format!("{} MiB {place}", rise >> 20)).collect();
    let highest = highest.join("\n");
    println!(
        "{tried} hostile bodies above {} MiB; {answered} ordinary reviews answered meanwhile\n{highest}",
        idle >> 20
    );
    assert!(peaks[0].0 <= RISE_MAX, "{highest}");
    assert!(tried > 200 / one_in() && answered > 50 / one_in(), "{tried} {answered}");
}
