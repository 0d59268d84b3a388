//! The bytes are the body of `POST /mutate` and `POST /validate`.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use nodegate_base::metrics::Metrics;
use nodegate_policy::{
    ADMISSION, AdmissionMark, Exemptions, Identities, LAST_CHANGE, Origin, PendingTaints, PolicyDocument, PolicySet,
    read_compact,
};
use nodegate_stores::state::SavedStates;
use nodegate_webhook::admission::{Answer, Context, PendingTaint, Rejection, mutate, validate};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::node::{Writer, patched};

const SELF: &str = "system:serviceaccount:nodegate:nodegate";

/// With everything on, and with everything off that can be.
static CONTEXTS: LazyLock<[Context; 2]> = LazyLock::new(|| [true, false].map(context));

fn context(everything: bool) -> Context {
    let mut errors = Vec::new();
    let origin = Origin::File("review.yaml".into());
    let documents = PolicyDocument::parse_all(&origin, include_str!("review.yaml"), &mut errors);
    let policies = PolicySet::compile(&documents).unwrap_or_else(|errors| panic!("{errors:#?}"));
    assert_eq!(errors, []);
    let saved = SavedStates::default();
    let states = [
        json!({"nodeName": "n1", "nodeUID": "8e74187d-35e9-4f37-b4dd-207cc88b8d59", "publishers": ["nvidia.com"],
               "labels": {"persist.demo/type": "expensive", "team": "a", "node-role.kubernetes.io/kept": ""},
               "taints": [{"key": "kept", "effect": "NoExecute"}],
               "owned": {"labels": {"pooled": "true", "team": "a"}, "taints": [{"key": "plane", "effect": "NoExecute"}]}}),
        json!({"nodeName": "gpu-7", "labels": {"persist.demo/bad": "not a value", "persist.demo/type": "b"}}),
    ];
    saved.replace(
        states.into_iter().filter(|_| everything).map(|state| Arc::new(serde_json::from_value(state).unwrap())),
    );
    Context {
        witnesses: Arc::default(),
        inventory: Arc::default(),
        policies: Arc::new(ArcSwap::from_pointee(policies)),
        saved: Arc::new(saved),
        pending_taint: if everything {
            PendingTaint::new(PendingTaints::default(), || true)
        } else {
            PendingTaint::default()
        },
        synced: Arc::new(true.into()),
        records_last_change: everything,
        traces: Default::default(),
        annotation_calls: Default::default(),
        callers: Default::default(),
        denials: Default::default(),
        exemptions: Arc::new(ArcSwap::from_pointee(Exemptions {
            self_user: Some(SELF.to_owned()),
            break_glass_groups: Identities::parse(["everything:break-glass"]).unwrap(),
        })),
        metrics: Metrics::new(),
    }
}

pub(super) fn check(body: &[u8]) {
    if let Ok(text) = std::str::from_utf8(body) {
        read_alike(text);
    }
    for context in &*CONTEXTS {
        let (mutated, validated) = (answered(mutate(body, context), body), answered(validate(body, context), body));
        let (Some(mutated), Some(validated)) = (&mutated, &validated) else {
            assert_eq!(mutated, validated, "what is no review is none at either path");
            continue;
        };
        // A number or a nesting that serde_json has no value for, in a field that is not read.
        let Ok(mut review) = serde_json::from_slice::<Value>(body) else { continue };
        assert_eq!(mutated["allowed"], true, "mutating denies nothing");
        assert!(validated.get("patch").is_none(), "validating changes nothing");
        let Some(patch) = patch_of(mutated) else { continue };
        let (writer, node) = (writer(&review), &review["request"]["object"]);
        assert_eq!(review["request"].get("subResource").and_then(Value::as_str).unwrap_or_default(), "");
        assert_ne!(review["request"]["userInfo"]["username"], SELF, "nodegate's own writes are not added to");
        let patched = patched(node, &review["request"]["oldObject"], &patch, writer);
        if writer == Writer::Joining {
            nothing_is_gained(&patched, &review);
        }
        review["request"]["object"] = patched;
        let body = review.to_string().into_bytes();
        let again = answered(mutate(&body, context), &body).unwrap();
        assert!(
            patch_of(&again).is_none(),
            "asking again gives a patch: {}\nfirst {}\nof {review}",
            json!(patch_of(&again)),
            json!(patch)
        );
        let after = answered(validate(&body, context), &body).unwrap();
        assert!(
            validated["allowed"] == false || after["allowed"] == true,
            "nodegate's own patch is denied: {after}\n{review}"
        );
    }
    let kubelet_joins = |review: &Value| writer(review) == Writer::Joining;
    if let Ok(review) = serde_json::from_slice::<Value>(body)
        && let Some(validated) = answered(validate(body, &CONTEXTS[0]), body)
        && kubelet_joins(&review)
    {
        assert_eq!(validated["allowed"], true, "a kubelet's CREATE is never denied");
    }
}

/// Whatever is read from compact JSON is what serde_json reads.
fn read_alike(text: &str) {
    if let Some(value) = read_compact::<Value>(text) {
        assert_eq!(serde_json::from_str::<Value>(text).ok(), Some(value));
    }
    let is_json = || serde_json::from_str::<IgnoredAny>(text).is_ok();
    assert!(read_compact::<IgnoredAny>(text).is_none() || is_json(), "only one of them passes it");
    // Behind a space, only serde_json reads it.
    let spaced = format!(" {text}");
    let [compact, other] = [text, &spaced].map(|text| mutate(text.as_bytes(), &CONTEXTS[0]).map(|answer| answer.body));
    assert_eq!(compact.ok(), other.ok(), "the answers differ: {text}");
}

/// The response, once all is seen to hold that must hold of any answer; `None` for a refusal to answer.
fn answered(answer: Result<Answer, Rejection>, body: &[u8]) -> Option<Value> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(Rejection { code, message }) => {
            assert_eq!(code, 400, "{message}");
            assert!(
                message.lines().count() == 1 && message.is_ascii() | !message.contains(char::is_control),
                "{message:?}"
            );
            return None;
        }
    };
    let mut reply: Value = serde_json::from_slice(&answer.body).unwrap();
    let response = reply["response"].take();
    if let Ok(review) = serde_json::from_slice::<Value>(body) {
        assert_eq!(response["uid"], review["request"]["uid"]);
    }
    assert_eq!(response.get("patch").is_some(), response.get("patchType").is_some());
    assert_eq!(response["allowed"] == false, response.get("status").is_some());
    assert!(response["allowed"] == true || response["status"]["code"] == 403, "{response}");
    let warnings = response.get("warnings").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    assert!(warnings.len() <= 16 && warnings.iter().all(|text| text.as_str().unwrap().chars().count() <= 120));
    let annotations = response.get("auditAnnotations").and_then(Value::as_object);
    assert!(annotations.into_iter().flatten().all(|(_, text)| text.as_str().unwrap().len() <= 1024));
    Some(response)
}

fn patch_of(response: &Value) -> Option<Patch> {
    let patch = STANDARD.decode(response.get("patch")?.as_str().unwrap()).unwrap();
    Some(serde_json::from_slice(&patch).unwrap())
}

fn writer(review: &Value) -> Writer {
    let user = &review["request"]["userInfo"];
    let named = user["username"].as_str().is_some_and(|name| name.starts_with("system:node:"));
    let in_group = user["groups"].as_array().is_some_and(|groups| groups.contains(&json!("system:nodes")));
    match (named && in_group, review["request"]["operation"].as_str()) {
        (true, Some("CREATE")) => Writer::Joining,
        (true, _) => Writer::Living,
        (false, _) => Writer::Other,
    }
}

/// What a kubelet says of itself gives it no protected label and no word of nodegate's.
fn nothing_is_gained(node: &Value, review: &Value) {
    let name = node["metadata"].get("name").and_then(Value::as_str).unwrap_or_default();
    let tier = match name {
        "n1" => Some("standard"),
        _ => name.starts_with("gpu-").then_some("gold"),
    };
    let texts =
        |field: &str| serde_json::from_value::<BTreeMap<String, Option<String>>>(node["metadata"][field].clone());
    let (labels, annotations) = (texts("labels").unwrap_or_default(), texts("annotations").unwrap_or_default());
    assert_eq!(labels.get("hardware.tier").cloned().flatten().as_deref(), tier, "{node}");
    assert!(
        labels.keys().all(|key| !key.starts_with("guarded.example.com/") && !key.starts_with("nodegate.dev/")),
        "{node}"
    );
    let stamp = review["request"]["userInfo"]["username"].as_str();
    let own = annotations.iter().filter(|(key, _)| key.starts_with("nodegate.dev/"));
    own.filter(|(key, _)| *key != ADMISSION)
        .for_each(|(key, value)| assert!(key == LAST_CHANGE && value.as_deref() == stamp, "{key}={value:?}"));
    // There is no saved state, so no kubelet can have the node say that some was restored.
    if let Some(Some(mark)) = annotations.get(ADMISSION) {
        let mark: AdmissionMark = serde_json::from_str(mark).unwrap();
        assert!(mark.restored.is_none() && mark.rejected.len() <= 16, "{mark:?}");
    }
}
