//! The bytes are a file of `NodePolicy` documents.

use std::sync::LazyLock;

use nodegate_policy::api::state::SavedState;
use nodegate_policy::{
    DecideContext, Decision, Exemptions, NodeFacts, Operation, Origin, PolicyDocument, PolicyError, PolicySet, decide,
    judge, patch,
};
use nodegate_webhook::admission::{Review, Subject};
use serde_json::{Value, json};

use super::node::{Writer, patched};

const FILE: &str = "policy.yaml";

/// A write, and what is saved of its node.
struct Scene {
    review: Value,
    saved: Option<SavedState>,
    writer: Writer,
}

static SCENES: LazyLock<Vec<Scene>> = LazyLock::new(scenes);

fn scenes() -> Vec<Scene> {
    let create: Value =
        serde_json::from_str(include_str!("../../tests/data/admission-reviews/kubelet-create.json")).unwrap();
    let update: Value =
        serde_json::from_str(include_str!("../../tests/data/admission-reviews/admin-label-update.json")).unwrap();
    let saved = json!({
        "nodeName": "n1", "labels": {"a": "1", "persist.demo/x": "1", "node-role.kubernetes.io/kept": ""},
        "taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}],
        "owned": {"labels": {"a": "1"}},
    });
    let mut gpu = create.clone();
    gpu["request"]["object"]["metadata"]["name"] = json!("gpu-7");
    gpu["request"]["object"]["metadata"]["labels"]["nvidia.com/gpu.product"] = json!("NVIDIA-RTX-3050");
    gpu["request"]["object"]["status"]["capacity"]["nvidia.com/gpu"] = json!("2");
    gpu["request"]["userInfo"]["username"] = json!("admin");
    let mut living = update.clone();
    living["request"]["userInfo"] = create["request"]["userInfo"].clone();
    vec![
        Scene { review: create, saved: serde_json::from_value(saved).unwrap(), writer: Writer::Joining },
        Scene { review: gpu, saved: None, writer: Writer::Other },
        Scene { review: update, saved: None, writer: Writer::Other },
        Scene { review: living, saved: None, writer: Writer::Living },
    ]
}

pub(super) fn check(bytes: &[u8]) {
    // What is not UTF-8 is refused when the file is read.
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (first, second) = match (load(text), load(text)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(errors), Err(same)) => {
            assert_eq!(errors, same, "the same text has the same faults");
            errors.iter().for_each(|error| names_its_place(error, text));
            return;
        }
        (first, second) => panic!("loaded once of two times: {:?} {:?}", first.err(), second.err()),
    };
    for scene in &*SCENES {
        let decision = decided(&first, scene, &scene.review);
        assert_eq!(decision, decided(&second, scene, &scene.review), "the same policy decides the same");
        let Some(node) = decision.1 else { continue };
        let mut review = scene.review.clone();
        review["request"]["object"] = node;
        let again = decided(&first, scene, &review).0;
        assert_eq!(again.change, None, "asking again changes more\nfirst {:?}\nthen {again:?}", decision.0);
    }
}

fn load(text: &str) -> Result<PolicySet, Vec<PolicyError>> {
    let mut errors = Vec::new();
    let documents = PolicyDocument::parse_all(&Origin::File(FILE.to_owned()), text, &mut errors);
    let compiled = PolicySet::compile(&documents);
    errors.extend(compiled.as_ref().err().cloned().unwrap_or_default());
    if errors.is_empty() { compiled } else { Err(errors) }
}

/// Every fault says file, line and column, and they are in the text.
fn names_its_place(error: &PolicyError, text: &str) {
    let said = error.to_string();
    let place = error.place.unwrap_or_else(|| panic!("no place: {said}"));
    assert!(said.starts_with(&format!("{FILE}:{}:{}: ", place.line, place.column)), "{said}");
    let lines = text.split(['\n', '\r']).count();
    assert!(place.line >= 1 && place.column >= 1 && place.line as usize <= lines + 1, "{said} in {lines} lines");
    assert!(!error.problem.what.is_empty(), "{said}");
}

/// What is decided, and the node with the patch, if there is one.
fn decided(set: &PolicySet, scene: &Scene, review: &Value) -> (Decision, Option<Value>) {
    let body = review.to_string();
    let review_read = Review::parse(body.as_bytes()).unwrap();
    let Subject::Node(write) = &review_read.subject else { panic!("a write of a node: {body}") };
    let context = DecideContext { saved: scene.saved.as_ref(), sets_pending: true, ..DecideContext::default() };
    let decision = decide(set, write, &context);
    let verdict = judge(set, write, &context, &Exemptions::default());
    assert!(scene.writer != Writer::Joining || verdict.denial().is_none(), "a kubelet's CREATE is never denied");
    assert_eq!(write.operation == Operation::Create, write.old.is_none());
    let (node, old) = (&review["request"]["object"], &review["request"]["oldObject"]);
    let operations = |change| patch(&write.node, change).and_then(|patch| patch.parse()).expect("a patch");
    let after = decision.change.as_ref().map(|change| patched(node, old, &operations(change), scene.writer));
    if let Some(after) = &after {
        // What the patch makes of the node is a node.
        assert!(NodeFacts::parse(&after.to_string()).is_ok(), "{after}");
    }
    (decision, after)
}
