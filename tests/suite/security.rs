//! The threat model (`docs/security.md`) names tests that are there, and what of it needs no cluster to be shown.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use nodegate_policy::api::state::SavedState;
use nodegate_stores::state::{Identity, Machine, SavedStates};
use nodegate_webhook::admission::{Bounds, Context};
use serde_json::{Value, json};

use crate::admission::{CREATE, context, edited, post, send_to};
use crate::authority;
use crate::serve::Serve;

const MODEL: &str = include_str!("../../docs/security.md");
/// The heading between the threats and the tests.
const APPENDIX: &str = "\n## Appendix: the tests that show it\n";
/// Fewer than so many tests named means that the document, or how it is read, has lost most of them.
const NAMED_AT_LEAST: usize = 50;
/// Fewer rows than so many, likewise.
const THREATS_AT_LEAST: usize = 25;

/// Every test that the text names in backticks: `file.rs::test` or `file.yaml: "case"`.
fn named(text: &str) -> Vec<(&str, &str)> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans
        .filter_map(|span| {
            let case = || span.split_once(": \"").and_then(|(file, case)| Some((file, case.strip_suffix('"')?)));
            span.split_once(".rs::").map(|(file, test)| (&span[..file.len() + 3], test)).or_else(case)
        })
        .collect()
}

/// What is wrong with a named test, if anything is.
pub(crate) fn fault(file: &str, test: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let Ok(text) = std::fs::read_to_string(path) else { return Some(format!("there is no file {file}")) };
    let there = if file.ends_with(".rs") {
        let mut before = "";
        text.lines().any(|line| {
            let opens = line.trim_start().trim_start_matches("async ").starts_with(&format!("fn {test}("));
            let is_test =
                before.starts_with("#[test]") || before.starts_with("#[tokio::test") || before.starts_with("#[ignore");
            before = line.trim_start();
            opens && is_test
        })
    } else {
        [format!("name: {test}\n"), format!("name: {test},"), format!("name: \"{test}\"")]
            .iter()
            .any(|written| text.contains(written))
    };
    (!there).then(|| format!("{file} has no test {test:?}"))
}

/// The attacks with what prevents them, and the appendix with the tests that show it.
fn parts() -> (&'static str, &'static str) {
    MODEL.split_once(APPENDIX).unwrap()
}

/// The name in bold with which a row begins, and the row's cells.
fn row(line: &str) -> (&str, Vec<&str>) {
    let name = line.split("**").nth(1).unwrap();
    (name, line.trim_matches('|').split(" | ").map(str::trim).collect())
}

/// Every row that begins with a name in bold.
fn rows(part: &str) -> Vec<(&str, Vec<&str>)> {
    part.lines().filter(|line| line.starts_with("| **")).map(row).collect()
}

/// The names of all rows of a part.
fn names(part: &str) -> Vec<&str> {
    rows(part).into_iter().map(|(name, _)| name).collect()
}

/// Whether a name is there exactly once.
fn is_once(names: &[&str], name: &str) -> bool {
    names.iter().filter(|other| **other == name).count() == 1
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let named = named(MODEL);
    assert!(named.len() >= NAMED_AT_LEAST, "only {} tests are named", named.len());
    let faults: Vec<String> = named.iter().filter_map(|(file, test)| fault(file, test)).collect();
    assert!(faults.is_empty(), "docs/security.md: {faults:#?}");
}

#[test]
fn every_threat_says_what_prevents_it_and_what_remains() {
    let threats = rows(parts().0);
    assert!(threats.len() >= THREATS_AT_LEAST, "only {} threats", threats.len());
    for (name, cells) in threats {
        assert_eq!(cells.len(), 3, "attack, prevented by, remains: {name}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{name}");
    }
}

#[test]
fn the_appendix_has_every_threat_once_with_the_tests_that_show_it() {
    let (threats, appendix) = parts();
    for (name, cells) in rows(appendix) {
        assert_eq!(cells.len(), 2, "attack, tests: {name}");
        assert!(!named(cells[1]).is_empty(), "no test shows it: {name}");
    }
    let (threats, shown) = (names(threats), names(appendix));
    let is_fault = |name: &&str| !is_once(&threats, name) || !is_once(&shown, name);
    let faults: Vec<&str> = threats.iter().chain(&shown).copied().filter(is_fault).collect();
    assert!(faults.is_empty(), "not once among the threats and once in the appendix: {faults:?}");
}

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  protect: {keys: [hardware.tier]}
  rules: [{name: tier, match: {names: ["n*"]}, labels: {hardware.tier: standard}}]
  persist: {labels: ["persist.demo/*"]}
"#;

/// What is saved of a living node, by its name and the machine's ID.
fn saved() -> SavedState {
    let saved = json!({"nodeName": "n1", "nodeUID": "u1", "identity": "name=n1,systemUUID=A",
                       "labels": {"persist.demo/type": "expensive"}});
    serde_json::from_value(saved).unwrap()
}

fn with_saved() -> Arc<Context> {
    let states = SavedStates::new(Identity::NameAndSystemUuid);
    states.replace([Arc::new(saved())]);
    Arc::new(Context { saved: Arc::new(states), ..context(POLICY) })
}

async fn ask(context: &Arc<Context>, request: Request<Body>) -> String {
    let (status, text) = send_to(context, Bounds::default(), request).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    text
}

/// The kubelet of `n1` makes its labels `labels` and says it runs on machine `uuid`.
fn kubelets_update(labels: &Value, uuid: &str, subresource: &str) -> String {
    let node = |labels: &Value, uuid: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u1", "labels": labels},
               "spec": {}, "status": {"nodeInfo": {"systemUUID": uuid}}})
    };
    let stored = json!({"hardware.tier": "standard", "persist.demo/type": "expensive"});
    let user = json!({"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]});
    let request = json!({"uid": "r1", "resource": {"group": "", "version": "v1", "resource": "nodes"}, "operation": "UPDATE",
        "subResource": subresource, "userInfo": user, "object": node(labels, uuid), "oldObject": node(&stored, "A")});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

#[tokio::test]
async fn a_kubelet_may_not_change_or_remove_what_is_saved_of_its_living_node() {
    let context = with_saved();
    let tier = |mut labels: Value| {
        labels["hardware.tier"] = json!("standard");
        labels
    };
    // Also when it says at the same time that it is another machine.
    for (labels, uuid, allowed) in [
        (tier(json!({"persist.demo/type": "cheap"})), "A", false),
        (tier(json!({"persist.demo/type": "cheap"})), "B", false),
        (tier(json!({})), "A", false),
        (tier(json!({})), "B", false),
        (tier(json!({"persist.demo/type": "expensive", "free": "x"})), "A", true),
    ] {
        for subresource in ["", "status"] {
            let answer = ask(&context, post("/validate", kubelets_update(&labels, uuid, subresource))).await;
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(answer["response"]["allowed"], allowed, "{labels} {uuid} {subresource:?}: {answer}");
        }
    }
}

#[test]
fn what_a_kubelet_writes_to_its_living_node_and_may_not_is_logged_and_counted_by_rule() {
    const POLICY: &str = "{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {name: fleet}, spec: {
        protect: {keys: [hardware.tier]}, persist: {labels: [persist.demo/*]}}}";
    let serve = Serve::start(&["--policy", "DIR/policy.yaml"], &[], |directory| {
        std::fs::write(directory.join("policy.yaml"), POLICY).unwrap();
    });
    let ca = std::fs::read(serve.path("certs/ca.crt")).unwrap();
    let labels = json!({"hardware.tier": "forged", "persist.demo/type": "cheap", "nodegate.dev/x": "y", "own": "z"});
    let review = kubelets_update(&labels, "A", "");
    for _ in 0..20 {
        let answer = authority::post_as(&serve.address, &ca, None, "/mutate", &review).unwrap();
        assert!(answer.contains("\"patch\""), "{answer}");
    }
    let lines = serve.lines();
    let corrected: Vec<&Value> = lines.iter().filter(|line| line["message"] == "corrected a kubelet's write").collect();
    assert_eq!(corrected.len(), 10, "{}", serve.log());
    let line = corrected[0];
    assert_eq!((&line["level"], &line["node"]), (&json!("INFO"), &json!("n1")), "{line}");
    assert_eq!(line["keys"], "hardware.tier,nodegate.dev/x,persist.demo/type", "{line}");
    assert_eq!(line["rules"], "fleet/protect,nodegate/own-keys,nodegate/persisted", "{line}");
    let metrics = serve.get("/metrics");
    for of in [
        "note=\"put_back\",policy=\"fleet\",rule=\"protect\"",
        "note=\"put_back\",policy=\"nodegate\",rule=\"persisted\"",
        "note=\"stripped\",policy=\"nodegate\",rule=\"own-keys\"",
    ] {
        assert!(metrics.contains(&format!("nodegate_decision_notes_total{{{of}}} 20\n")), "{of} in {metrics}");
    }
    assert!(!metrics.contains("note=\"stripped\",policy=\"\""), "no series without a rule: {metrics}");
}

#[test]
fn no_node_finds_the_record_of_another_name_by_an_id_that_it_claims() {
    let stolen = Machine { name: "thief", provider_id: Some("aws:///i-1"), system_uuid: Some("A") };
    let record = |identity: Option<&str>| SavedState { identity: identity.map(str::to_owned), ..saved() };
    for (identity, key) in [
        (Identity::Name, None),
        (Identity::NameAndSystemUuid, Some("name=n1,systemUUID=A")),
        (Identity::NameAndProviderId, Some("name=n1,providerID=aws:///i-1")),
    ] {
        let states = SavedStates::new(identity);
        states.replace([Arc::new(record(key))]);
        assert_eq!(states.get(stolen), None, "{identity}");
        assert!(states.get(Machine { name: "n1", ..stolen }).is_some(), "{identity}");
    }
    // An ID alone is the kubelet's word, which the documents say.
    let states = SavedStates::new(Identity::SystemUuid);
    states.replace([Arc::new(record(Some("systemUUID=A")))]);
    assert!(states.get(stolen).is_some());
}

#[tokio::test]
async fn a_repeated_review_gets_the_same_answer_and_changes_nothing() {
    let context = with_saved();
    let forged = json!({"hardware.tier": "gold", "persist.demo/type": "cheap"});
    let reviews = [
        ("/mutate", CREATE.to_owned()),
        ("/mutate", kubelets_update(&forged, "A", "")),
        ("/validate", kubelets_update(&forged, "A", "")),
    ];
    let mut first = Vec::new();
    for (path, review) in &reviews {
        first.push(ask(&context, post(path, review.clone())).await);
    }
    for (path, review) in &reviews {
        for _ in 0..3 {
            ask(&context, post(path, review.clone())).await;
        }
    }
    for ((path, review), first) in reviews.iter().zip(first) {
        assert_eq!(ask(&context, post(path, review.clone())).await, first);
    }
    assert_eq!(context.saved.all(), [Arc::new(saved())], "what is saved is read, never written");
}

#[tokio::test]
async fn the_requester_is_read_from_the_review_and_never_from_a_header() {
    let context = with_saved();
    let forged = kubelets_update(&json!({"hardware.tier": "gold"}), "A", "status");
    let plain = ask(&context, post("/validate", forged.clone())).await;
    assert!(plain.contains("may not be changed by a kubelet"), "{plain}");
    let mut request = post("/validate", forged);
    for (name, value) in [
        ("impersonate-user", "system:admin"),
        ("impersonate-group", "system:masters"),
        ("x-remote-user", "system:admin"),
        ("x-remote-group", "nodegate:break-glass"),
        ("authorization", "Bearer x"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(ask(&context, request).await, plain);
    let update = |user: &str| {
        edited(&kubelets_update(&json!({"hardware.tier": "gold"}), "A", "status"), |review| {
            review["request"]["userInfo"]["username"] = json!(user);
        })
    };
    // Whom the API server takes for somebody else is somebody else.
    let other = ask(&context, post("/validate", update("alice"))).await;
    assert!(!other.contains("by a kubelet"), "{other}");
}

/// Policies by which every label that a kubelet adds is looked at in every way.
const WIDE: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  protect: {keys: ["protected.example/*"]}
  governance:
    reserved: [{name: reserved, namespaces: [reserved.example], allow: {users: [alice]}}]
    naming: [{name: words, keys: ["*"], pattern: kebab-case, of: both}]
    immutable: [{name: once, keys: ["once.example/*"]}]
"#;

#[tokio::test]
async fn every_violation_of_a_write_with_twenty_thousand_labels_is_counted() {
    const LABELS: usize = 20_000;
    let labels = |value: &str| -> Value {
        let prefixes = ["protected.example", "reserved.example", "once.example", "free.example"];
        let keys = prefixes.iter().flat_map(|prefix| (0..LABELS / 4).map(move |n| format!("{prefix}/Bad_{n}")));
        keys.map(|key| (key, json!(value))).collect::<serde_json::Map<String, Value>>().into()
    };
    let review = edited(&kubelets_update(&labels("Bad_new"), "A", "status"), |review| {
        review["request"]["oldObject"]["metadata"]["labels"] = labels("Bad_old");
    });
    let answer = ask(&Arc::new(context(WIDE)), post("/validate", review)).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    // Each value is badly named now, as each was before; the changes themselves are what counts.
    assert_eq!(answer["response"]["allowed"], false, "{answer}");
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("nodegate: {} violations: ", LABELS / 4 * 7)), "{message}");
}
