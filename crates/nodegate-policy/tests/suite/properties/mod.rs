//! Properties that hold for every policy, node and requester.

mod inventories;
mod migrations;
mod strategies;

use std::collections::BTreeMap;
use std::sync::Arc;

use json_patch::patch as apply;
use nodegate_policy::api::policy::ConditionsSpec;
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::schema::schema_of;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{
    ADMISSION, AUTHENTICATED_AS, Assertions, Bootstrapper, DecideContext, Decision, Desired, Exemptions,
    MachinesOfNode, NodeFacts, Operation, PolicySet, Requester, Text, Witness, Write, decide, judge, patch,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::model::{DesiredState, Keys, Question};
use strategies::{KEYS, Scene, conditions, node, policies, scene, written_policies};

/// A witness that knows of no certificate and no machine.
struct NothingElse;

impl Witness for NothingElse {
    fn bootstrapper(&self, _certificate: &str, _saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>> {
        None
    }

    fn machines(&self, _kinds: &[MachineKind], _node: &str, _instances: Option<&[&str]>) -> MachinesOfNode {
        MachinesOfNode::default()
    }

    fn assertions(&self, _node: &str, _provider_id: Option<&str>, _saved: Option<&SavedState>) -> Assertions {
        Assertions::default()
    }
}

fn write<'a>(set: &PolicySet, scene: &Scene, object: &'a str, old: Option<&'a str>) -> Write<'a> {
    let groups = if scene.kubelet { vec!["system:nodes", "pool:gpu"] } else { vec!["system:masters"] };
    let mut write = Write {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        status: false,
        dry_run: false,
        evidence: None,
        requester: Requester {
            username: Text(if scene.kubelet { "system:node:n1" } else { "admin" }.into()),
            groups: groups.into_iter().map(|group| Text(group.into())).collect(),
            ..Requester::default()
        },
        node: NodeFacts::parse(object).unwrap(),
        old: old.map(|old| NodeFacts::parse(old).unwrap()),
    };
    write.prove(set, scene.saved().as_ref(), &NothingElse);
    write
}

fn decide_on(set: &PolicySet, scene: &Scene, node: &Value) -> (Decision, Value) {
    let (object, old) = (node.to_string(), scene.old.as_ref().map(Value::to_string));
    let write = write(set, scene, &object, old.as_deref());
    let saved = scene.saved();
    let context = DecideContext { saved: saved.as_ref(), sets_pending: true, ..DecideContext::default() };
    let decision = decide(set, &write, &context);
    let mut patched = node.clone();
    if let Some(change) = &decision.change {
        apply(&mut patched, &patch(&write.node, change).unwrap().parse().unwrap()).expect("the patch applies");
    }
    (decision, patched)
}

/// The node without the fields that nodegate may change.
fn foreign(node: &Value) -> Value {
    let mut node = node.clone();
    for (parent, field) in [("metadata", "labels"), ("metadata", "annotations"), ("spec", "taints")] {
        if let Some(parent) = node.get_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(field);
        }
    }
    if node.get("spec") == Some(&json!({})) {
        node.as_object_mut().unwrap().remove("spec");
    }
    node
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_global_rejects: 200_000, ..ProptestConfig::default() })]

    #[test]
    fn applying_a_patch_reaches_the_decision_and_asking_again_gives_none((set, scene) in (policies(), scene())) {
        let (decision, patched) = decide_on(&set, &scene, &scene.node);
        for (key, desired) in &decision.labels {
            let deferred = decision.deferred.as_ref().is_some_and(|deferred| deferred.labels().contains_key(key));
            let reached = patched["metadata"]["labels"].get(key) == Some(&json!(desired.value));
            prop_assert!(reached != deferred, "label {key} of {decision:?} in {patched}");
        }
        for (id, desired) in &decision.taints {
            let deferred = decision.deferred.as_ref().is_some_and(|deferred| deferred.taints().contains_key(id));
            let taints = patched["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let there = taints.iter().filter(|taint| taint["key"] == id.key.as_str() && taint["effect"] == id.effect.as_str()).collect::<Vec<_>>();
            prop_assert!(there.len() <= 1, "{id} twice in {patched}");
            let reached = there.first().is_some_and(|taint| taint.get("value").and_then(Value::as_str).unwrap_or("") == desired.value);
            prop_assert!(reached != deferred, "taint {id} of {decision:?} in {patched}");
        }
        let (again, _) = decide_on(&set, &scene, &patched);
        prop_assert_eq!(&again.change, &None, "first {:?}, patched {}", decision, patched);
        prop_assert_eq!(&again.deferred, &decision.deferred);
    }

    #[test]
    fn a_decision_equals_that_of_the_simple_model((written, scene) in (written_policies(), scene())) {
        let (spec, set) = written;
        let (old, saved) = (scene.old.as_ref(), scene.saved.as_ref());
        let question = Question { spec: &spec, node: &scene.node, old, kubelet: scene.kubelet, saved };
        let Some(wanted) = question.answer() else { return Err(TestCaseError::reject("the rules do not settle")) };
        let (decision, _) = decide_on(&set, &scene, &scene.node);
        let keys = |desired: &BTreeMap<String, Desired>| -> Keys {
            desired.iter().map(|(key, desired)| (key.clone(), desired.value.clone())).collect()
        };
        let taints = decision.taints.iter().map(|(id, desired)| (id.to_string(), desired.value.clone())).collect();
        let mut annotations = keys(&decision.annotations);
        // What admission leaves for the controller is not the policies' wish.
        annotations.retain(|key, _| ![ADMISSION, AUTHENTICATED_AS].contains(&&**key));
        let decided = DesiredState { labels: keys(&decision.labels), annotations, taints };
        prop_assert_eq!(decided, wanted, "{}", spec);
    }

    #[test]
    fn labels_annotations_and_taints_of_others_are_unchanged((set, scene) in (policies(), scene())) {
        let (decision, patched) = decide_on(&set, &scene, &scene.node);
        prop_assert_eq!(foreign(&patched), foreign(&scene.node));
        let touched = |key: &str| decision.change.as_ref().is_some_and(|change| change.labels().contains_key(key));
        for (key, value) in scene.node["metadata"]["labels"].as_object().into_iter().flatten() {
            prop_assert!(touched(key) || patched["metadata"]["labels"].get(key) == Some(value), "{key} in {patched}");
        }
        for taint in scene.node["spec"]["taints"].as_array().into_iter().flatten() {
            let kept = patched["spec"]["taints"].as_array().unwrap().iter().any(|one| one["key"] == taint["key"] && one["effect"] == taint["effect"]);
            prop_assert!(kept, "{taint} in {patched}");
        }
    }

    #[test]
    fn a_kubelets_patch_never_carries_what_noderestriction_refuses((set, scene) in (policies(), scene())) {
        prop_assume!(scene.kubelet);
        let (decision, _) = decide_on(&set, &scene, &scene.node);
        if let Some(change) = &decision.change {
            // Stored values may be restored.
            let is_stored = |key: &str, value: &str| {
                scene.old.as_ref().is_some_and(|old| old["metadata"]["labels"].get(key) == Some(&json!(value)))
            };
            let mut set_labels = change.labels().iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
            let may = |(key, value): (&String, &str)| {
                !nodegate_policy::restriction::is_restricted(key) || is_stored(key, value)
            };
            prop_assert!(set_labels.all(may), "{change:?}");
            prop_assert!(scene.old.is_none() || change.taints().is_empty(), "{change:?}");
        }
    }

    #[test]
    fn a_kubelets_update_does_not_change_stored_keys_that_it_may_not_change((set, mut scene, old) in (policies(), scene(), node())) {
        scene.kubelet = true;
        let mut old = scene.old.take().unwrap_or(old);
        old["metadata"]["name"] = scene.node["metadata"]["name"].clone();
        scene.old = Some(old.clone());
        let (decision, patched) = decide_on(&set, &scene, &scene.node);
        for key in KEYS.iter().filter(|key| set.is_protected(key) || key.starts_with("nodegate.dev/")) {
            for field in ["labels", "annotations"].into_iter().filter(|field| *field == "labels" || key.contains("nodegate.dev")) {
                let (stored, after) = (old["metadata"][field].get(key), patched["metadata"][field].get(key));
                prop_assert_eq!(stored, after, "{} of {:?}", key, decision);
            }
        }
        // Persisted keys among them: nothing is left to deny.
        let (object, old) = (patched.to_string(), old.to_string());
        let write = write(&set, &scene, &object, Some(&old));
        let saved = scene.saved();
        let context = DecideContext { saved: saved.as_ref(), ..DecideContext::default() };
        let violations = judge(&set, &write, &context, &Exemptions::default()).violations;
        prop_assert!(violations.is_empty(), "{violations:?}");
    }

    #[test]
    fn the_same_input_gives_the_same_decision((set, scene) in (policies(), scene())) {
        let first = decide_on(&set, &scene, &scene.node);
        let second = decide_on(&set, &scene, &scene.node);
        prop_assert_eq!(first, second);
    }
}

#[test]
fn the_properties_generate_every_condition() {
    use proptest::strategy::ValueTree as _;

    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let drawn: Vec<Value> = (0..500).map(|_| conditions().new_tree(&mut runner).unwrap().current()).collect();
    assert_eq!(not_drawn(&drawn), [""; 0], "the strategy does not draw them");
}

/// The fields of `match` that are in none of these.
pub(crate) fn not_drawn(conditions: &[Value]) -> Vec<String> {
    let schema = schema_of::<ConditionsSpec>();
    let fields = schema["properties"].as_object().unwrap().keys();
    fields.filter(|field| !conditions.iter().any(|conditions| conditions.get(field).is_some())).cloned().collect()
}
