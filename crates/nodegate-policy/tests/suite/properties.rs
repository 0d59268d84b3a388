//! Properties that hold for every policy, node and requester.

use std::collections::BTreeMap;

use json_patch::patch as apply;
use nodegate_policy::api::policy::{ConditionsSpec, NodePolicySpec};
use nodegate_policy::api::schema::schema_of;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{
    DecideContext, Decision, Desired, Exemptions, NodeFacts, Operation, Origin, PolicyDocument, PolicySet, Requester,
    Text, Write, decide, judge, patch,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use crate::model::{DesiredState, Keys, Question};

const KEYS: [&str; 11] = [
    "a",
    "b",
    "c",
    "pool",
    "hardware.tier",
    "nvidia.com/gpu.present",
    "node-role.kubernetes.io/worker",
    "node-restriction.kubernetes.io/team",
    "slash~tilde/x",
    "feature.node.kubernetes.io/pci-10de.present",
    "nodegate.dev/own",
];
const VALUES: [&str; 4] = ["", "1", "true", "gold"];
const OS_IMAGE_PATTERNS: [&str; 3] = ["Ubuntu*", "Ubuntu >=24.04", "*"];
const OS_IMAGES: [&str; 3] = ["", "Ubuntu 22.04.4 LTS", "Talos (v1.7.0)"];
const KERNEL_PATTERNS: [&str; 3] = [">=5.15 <6.2", "*-aws", "==6"];
const KERNELS: [&str; 3] = ["5.15.0-1050-aws", "6.6.8-talos", "unnumbered"];
/// Expressions that are true, false or fail, depending on the node.
const EXPRESSIONS: [&str; 6] = [
    r#"node.metadata.labels["a"] == "1""#,
    r#""pool" in node.metadata.labels"#,
    r#"node.metadata.labels.exists(key, key.startsWith("node-r"))"#,
    "has(node.spec.taints)",
    "gpu.count > 0",
    r#"node.status.nodeInfo.kernelVersion.startsWith("6")"#,
];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const NAMES: [&str; 3] = ["n1", "gpu-7", "yeezyai"];

fn key() -> impl Strategy<Value = String> {
    // "slash~tilde/x" is not a valid key: it represents foreign labels that must be kept, not assigned ones.
    select(
        KEYS.iter()
            .filter(|key| !key.contains('~') && !key.starts_with("nodegate.dev/"))
            .map(|key| (*key).to_owned())
            .collect::<Vec<_>>(),
    )
}

fn value() -> impl Strategy<Value = String> {
    select(VALUES.map(str::to_owned).to_vec())
}

fn texts(keys: impl Strategy<Value = String>, most: usize) -> impl Strategy<Value = Value> {
    prop::collection::btree_map(keys, value(), 0..=most).prop_map(|map| json!(map))
}

fn taint() -> impl Strategy<Value = Value> {
    (key(), value(), select(EFFECTS.to_vec()))
        .prop_map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
}

fn taints(most: usize) -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(taint(), 0..=most).prop_map(|mut taints| {
        taints.sort_by_key(|taint| (taint["key"].to_string(), taint["effect"].to_string()));
        taints.dedup_by_key(|taint| (taint["key"].clone(), taint["effect"].clone()));
        taints
    })
}

fn requirement() -> impl Strategy<Value = Value> {
    (key(), 0..4_usize, value()).prop_map(|(key, operator, value)| match operator {
        0 => json!({"key": key, "operator": "Exists"}),
        1 => json!({"key": key, "operator": "DoesNotExist"}),
        2 => json!({"key": key, "operator": "In", "values": [value]}),
        _ => json!({"key": key, "operator": "NotIn", "values": [value]}),
    })
}

fn conditions() -> impl Strategy<Value = Value> {
    let names = prop::option::weighted(0.3, subsequence(vec!["n1", "gpu-*", "yeezyai"], 1..=2));
    let requirements = prop::collection::vec(requirement(), 0..=2);
    let taints = prop::option::weighted(0.2, key());
    let gpu = prop::bool::weighted(0.15);
    let os_image = prop::option::weighted(0.15, select(OS_IMAGE_PATTERNS.to_vec()));
    let kernel = prop::option::weighted(0.15, select(KERNEL_PATTERNS.to_vec()));
    let capacity = prop::option::weighted(0.15, select(vec![">=4", "<4", "==0"]));
    let expression = prop::option::weighted(0.1, select(EXPRESSIONS.to_vec()));
    let others = (os_image, kernel, capacity, expression);
    (names, requirements, taints, gpu, others).prop_map(|(names, requirements, taint, gpu, others)| {
        let (os_image, kernel, capacity, expression) = others;
        let mut conditions = json!({"selector": {"matchExpressions": requirements}});
        if let Some(names) = names {
            conditions["names"] = json!(names);
        }
        if let Some(taint) = taint {
            conditions["taints"] = json!([taint]);
        }
        if gpu {
            conditions["gpu"] = json!({"vendor": "nvidia"});
        }
        if let Some(capacity) = capacity {
            conditions["capacity"] = json!({"cpu": capacity});
        }
        if let Some(expression) = expression {
            conditions["expression"] = json!(expression);
        }
        for (field, pattern) in [("osImage", os_image), ("kernel", kernel)] {
            if let Some(pattern) = pattern {
                conditions[field] = json!([pattern]);
            }
        }
        conditions
    })
}

fn rule() -> impl Strategy<Value = Value> {
    let any_of = prop::option::weighted(0.2, prop::collection::vec(conditions(), 1..=2));
    let given = (texts(key(), 2), texts(key(), 1), taints(2));
    (conditions(), any_of, given, any::<bool>(), -1..=1_i32, any::<bool>()).prop_map(
        |(mut conditions, any_of, (labels, annotations, taints), enforce, priority, evict)| {
            if let Some(any_of) = any_of {
                conditions["anyOf"] = json!(any_of);
            }
            json!({
                "name": "", "match": conditions, "labels": labels, "annotations": annotations, "taints": taints,
                "mode": if enforce { "enforce" } else { "default" }, "priority": priority, "evict": evict, "trustKubelet": true,
            })
        },
    )
}

/// Policies that load; those with cycles are refused and drawn again.
fn policies() -> impl Strategy<Value = PolicySet> {
    written_policies().prop_map(|(_, set)| set)
}

/// The same, as written and compiled.
fn written_policies() -> impl Strategy<Value = (Value, PolicySet)> {
    let rules = prop::collection::vec(rule(), 1..=6);
    let protect = subsequence(vec!["hardware.tier", "pool", "nvidia.com/*"], 0..=2);
    let persist = subsequence(vec!["a", "pool", "node-role.kubernetes.io/*"], 1..=2);
    (rules, protect, persist).prop_filter_map("cycles are refused", |(mut rules, protect, persist)| {
        for (at, rule) in rules.iter_mut().enumerate() {
            rule["name"] = json!(format!("rule-{at}"));
        }
        rules.retain(|rule| {
            ["labels", "annotations", "taints"]
                .iter()
                .any(|field| rule[*field] != json!({}) && rule[*field] != json!([]))
        });
        let spec =
            json!({"rules": rules, "protect": {"keys": protect}, "persist": {"labels": persist, "taints": ["a"]}});
        let typed: NodePolicySpec = serde_json::from_value(spec.clone()).unwrap();
        Some((spec, PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, typed)]).ok()?))
    })
}

#[derive(Clone, Debug)]
struct Scene {
    node: Value,
    old: Option<Value>,
    kubelet: bool,
    saved: Option<Value>,
}

impl Scene {
    fn saved(&self) -> Option<SavedState> {
        self.saved.clone().map(|saved| serde_json::from_value(saved).unwrap())
    }
}

fn node() -> impl Strategy<Value = Value> {
    let all_keys = select(KEYS.map(str::to_owned).to_vec());
    let shape = prop::collection::vec(any::<bool>(), 5);
    let info = (select(OS_IMAGES.to_vec()), select(KERNELS.to_vec()));
    (select(NAMES.to_vec()), texts(all_keys.clone(), 5), texts(all_keys, 2), taints(3), info, shape).prop_map(
        |(name, labels, annotations, taints, (os_image, kernel), shape)| {
            let mut node = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "futureField": {"x": [1, null]}},
                "status": {"capacity": {"cpu": "4"}, "unknown": true}, "futureTop": 1,
            });
            if shape[4] {
                node["status"]["nodeInfo"] = json!({"osImage": os_image, "kernelVersion": kernel, "futureField": 1});
            }
            if shape[0] {
                node["metadata"]["labels"] = labels;
            }
            if shape[1] {
                node["metadata"]["annotations"] = annotations;
            }
            if shape[2] {
                node["spec"] = json!({"podCIDR": "10.0.0.0/24"});
                if shape[3] {
                    node["spec"]["taints"] = json!(taints);
                }
            }
            node
        },
    )
}

fn scene() -> impl Strategy<Value = Scene> {
    (node(), prop::option::of(node()), any::<bool>(), prop::option::of(saved())).prop_map(
        |(mut node, old, kubelet, saved)| {
            let old = old.map(|mut old| {
                old["metadata"]["name"] = node["metadata"]["name"].clone();
                // A node has its uid from the API server, once it is created.
                for node in [&mut old, &mut node] {
                    node["metadata"]["uid"] = json!("this");
                }
                old
            });
            let saved = saved.map(|saved| of_node(saved, old.as_ref().unwrap_or(&node)));
            Scene { node, old, kubelet, saved }
        },
    )
}

/// The same saved state, which owns what the node has of the owned keys, with the node's values but for the empty ones.
fn of_node(mut saved: Value, node: &Value) -> Value {
    for (key, value) in saved["owned"]["labels"].as_object_mut().into_iter().flatten() {
        if let Some(there) = node["metadata"]["labels"].get(key).filter(|there| **there != json!("")) {
            value.clone_from(there);
        }
    }
    // And every second of its taints.
    let there: Vec<Value> = node["spec"]["taints"].as_array().into_iter().flatten().step_by(2).cloned().collect();
    saved["owned"]["taints"].as_array_mut().unwrap().extend(there);
    saved
}

/// Saved state of this node object, of an earlier one of the same name, or of any (as the reference operator wrote it).
fn saved() -> impl Strategy<Value = Value> {
    let owned = (texts(key(), 5), taints(3));
    (texts(key(), 3), taints(2), owned, select(vec![json!("this"), json!("earlier"), Value::Null])).prop_map(
        |(labels, taints, owned, uid)| {
            let owned = json!({"labels": owned.0, "taints": owned.1});
            json!({"nodeName": "x", "labels": labels, "taints": taints, "nodeUID": uid, "owned": owned})
        },
    )
}

fn write<'a>(scene: &Scene, object: &'a str, old: Option<&'a str>) -> Write<'a> {
    let groups = if scene.kubelet { vec!["system:nodes"] } else { vec!["system:masters"] };
    Write {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        status: false,
        dry_run: false,
        requester: Requester {
            username: Text(if scene.kubelet { "system:node:n1" } else { "admin" }.into()),
            groups: groups.into_iter().map(|group| Text(group.into())).collect(),
            uid: None,
        },
        node: NodeFacts::parse(object).unwrap(),
        old: old.map(|old| NodeFacts::parse(old).unwrap()),
    }
}

fn decide_on(set: &PolicySet, scene: &Scene, node: &Value) -> (Decision, Value) {
    let (object, old) = (node.to_string(), scene.old.as_ref().map(Value::to_string));
    let write = write(scene, &object, old.as_deref());
    let saved = scene.saved();
    let context = DecideContext { saved: saved.as_ref(), pending_taint: None, ..DecideContext::default() };
    let decision = decide(set, &write, &context);
    let mut patched = node.clone();
    if let Some(change) = &decision.change {
        apply(&mut patched, &patch(&write.node, change)).expect("the patch applies");
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
        let decided = DesiredState { labels: keys(&decision.labels), annotations: keys(&decision.annotations), taints };
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
        let write = write(&scene, &object, Some(&old));
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
    let is_drawn = |field: &str| drawn.iter().any(|conditions| conditions.get(field).is_some());
    let schema = schema_of::<ConditionsSpec>();
    let fields = schema["properties"].as_object().unwrap();
    let missing: Vec<&String> = fields.keys().filter(|field| !is_drawn(field)).collect();
    assert!(missing.is_empty(), "the generator does not draw {missing:?}");
}
