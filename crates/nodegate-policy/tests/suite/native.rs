//! What native policies evaluate to, by the engine of this workspace, without an API server.
//! `tests/cluster/native` compares them with `decide` and `judge` on a real one.

use std::collections::{BTreeMap, BTreeSet};

use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::native::{NativeOptions, export};
use nodegate_policy::simulate::{Scene, Simulated, compile_inline, node_of, scene, simulate};
use nodegate_policy::{ADMISSION, Desired, Exemptions, Identities, Violation};
use serde_json::{Value as Json, json};

use crate::cases::tests;
use crate::evaluation::{Evaluation, Policy};
use crate::random::generator::{self, Random};

const SELF_USER: &str = "system:serviceaccount:nodegate:nodegate";
const BREAK_GLASS: &str = "nodegate:break-glass";

/// The documents of a review of `node`.
pub(crate) fn review(node: &Json, scene: &Scene) -> Evaluation {
    let operation = if scene.old.is_some() { "UPDATE" } else { "CREATE" };
    let request = json!({
        "operation": operation,
        "name": node["metadata"]["name"],
        "subResource": if scene.status { "status" } else { "" },
        "dryRun": false,
        "userInfo": {"username": scene.username, "groups": scene.groups},
    });
    let old = scene.old.clone().unwrap_or(Json::Null);
    Evaluation::of(&[("object", node), ("oldObject", &old), ("request", &request)])
}

/// What the mutating policies give a write: labels, annotations, and taints as `key:Effect`.
pub(crate) fn desired(policies: &[Policy], scene: &Scene) -> [BTreeMap<String, String>; 3] {
    let mut found = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
    let mutating = policies.iter().filter(|policy| policy.object["kind"] == "MutatingAdmissionPolicy");
    for policy in mutating {
        let Some(evaluation) = policy.evaluated(review(&scene.node, scene)) else { continue };
        for (map, name) in found.iter_mut().zip(["desiredLabels", "desiredAnnotations", "desiredTaints"]) {
            if !evaluation.has(name) {
                continue;
            }
            let source = match name {
                "desiredTaints" => {
                    r#"variables.desiredTaints.transformMapEntry(i, t, {t.key + ":" + t.effect: t.value})"#.to_owned()
                }
                _ => format!("variables.{name}"),
            };
            map.extend(evaluation.texts(&source));
        }
    }
    found
}

/// The node after the patches of the mutating policies.
fn patched(policies: &[Policy], scene: &Scene) -> Json {
    let mut node = scene.node.clone();
    // In the API server an object always has a spec.
    node.as_object_mut().unwrap().entry("spec").or_insert(json!({}));
    for policy in policies.iter().filter(|policy| policy.object["kind"] == "MutatingAdmissionPolicy") {
        let Some(evaluation) = policy.evaluated(review(&node, scene)) else { continue };
        node = policy.patched(&evaluation, &node);
    }
    node
}

/// All labels, annotations and taints of a node, by key, without what admission leaves for the controller: exported policies
/// leave nothing.
fn keys_of(node: &Json) -> BTreeMap<String, String> {
    let maps = ["labels", "annotations"].into_iter().flat_map(|field| {
        let entries = node["metadata"][field].as_object().into_iter().flatten();
        let entries = entries.filter(|(key, _)| *key != ADMISSION);
        entries.map(move |(key, value)| (format!("{field} {key}"), value.as_str().unwrap().to_owned()))
    });
    let taints = node["spec"]["taints"].as_array().into_iter().flatten().map(|taint| {
        let id = format!("taints {}:{}", taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap());
        (id, taint["value"].as_str().unwrap_or_default().to_owned())
    });
    maps.chain(taints).collect()
}

/// The messages of the validations with this action that refuse the node as it would be stored.
fn refusals(policies: &[Policy], action: &str, node: &Json, scene: &Scene) -> Vec<String> {
    let mut messages = Vec::new();
    for policy in policies.iter().filter(|policy| policy.action.as_deref() == Some(action)) {
        let Some(evaluation) = policy.evaluated(review(node, scene)) else { continue };
        let validations = policy.texts("validations", "expression").zip(policy.texts("validations", "message"));
        let failed = validations.filter(|(expression, _)| evaluation.holds(expression) == Some(false));
        messages.extend(failed.map(|(_, message)| message.to_owned()));
    }
    messages
}

/// How the native answers to one case differ from nodegate's.
fn differences(policies: &[Policy], scene: &Scene, simulated: &Simulated) -> Vec<String> {
    let mut found = Vec::new();
    let decision = &simulated.decision;
    if !scene.status {
        let native = desired(policies, scene);
        let value = |(key, desired): (String, &Desired)| (key, desired.value.clone());
        let decided = [
            decision.labels.iter().map(|(key, desired)| value((key.clone(), desired))).collect::<BTreeMap<_, _>>(),
            decision
                .annotations
                .iter()
                .filter(|(key, _)| *key != ADMISSION)
                .map(|(key, desired)| value((key.clone(), desired)))
                .collect(),
            decision.taints.iter().map(|(id, desired)| value((id.to_string(), desired))).collect(),
        ];
        // nodegate's own writes pass as they are.
        let ours = if scene.username == SELF_USER { Default::default() } else { decided };
        if native != ours {
            found.push(format!("native policies give {native:?}, decide {ours:?}"));
        }
        let native = keys_of(&patched(policies, scene));
        let ours = keys_of(if scene.username == SELF_USER { &scene.node } else { &simulated.node });
        if native != ours {
            found.push(format!("after the native patches {native:?}, after nodegate's {ours:?}"));
        }
    }
    // What would be refused is only warned about if it is overridden.
    let mode = |one: &Violation| match one.mode {
        EntryMode::Enforce if one.overridden_by.is_some() => EntryMode::Warn,
        mode => mode,
    };
    let violated = |wanted: EntryMode| simulated.verdict.violations.iter().any(|one| mode(one) == wanted);
    for (action, mode) in [("Deny", EntryMode::Enforce), ("Warn", EntryMode::Warn), ("Audit", EntryMode::Audit)] {
        let (native, ours) = (!refusals(policies, action, &simulated.node, scene).is_empty(), violated(mode));
        if native != ours {
            found.push(format!("{action}: native policies {native}, judge {ours}: {:?}", simulated.verdict.violations));
        }
    }
    found
}

#[test]
fn native_policies_answer_every_table_case_as_nodegate_does() {
    let (mut found, mut compared, mut files) = (Vec::new(), 0, BTreeSet::new());
    for (file, test) in tests() {
        if !test.expect_errors.is_empty() {
            continue;
        }
        let set = compile_inline(test.policy.as_ref().unwrap()).unwrap();
        let native = export(&set, &NativeOptions::default());
        // Of what is left out the answers differ.
        if !native.left_out.is_empty() {
            continue;
        }
        let policies = Policy::all(&native.objects);
        for case in test.cases.iter().filter(|case| case.saved.is_none() && case.controller != Some(true)) {
            let scene = scene(&set, case, node_of(case).unwrap().unwrap()).unwrap();
            let simulated = simulate(&set, &scene, &Exemptions::default()).unwrap();
            let lines = differences(&policies, &scene, &simulated);
            found.extend(lines.into_iter().map(|line| format!("{file}: {}: {line}", case.name)));
            compared += 1;
        }
        files.insert(file);
    }
    assert!(files.contains("created.yaml"), "what those who create nodes may give them is compared: {files:?}");
    assert!(found.is_empty(), "{} of {compared}:\n{}", found.len(), found.join("\n"));
    assert!(compared > 100, "only {compared} cases were compared");
}

fn left_out(policy: &Json) -> Vec<String> {
    let native = export(&compile_inline(policy).unwrap(), &NativeOptions::default());
    native.left_out.into_iter().map(|left_out| left_out.reason).collect()
}

#[test]
fn rules_on_the_absence_of_a_published_label_are_left_out() {
    let rule = |key: &str, operator: &str, values: Json| {
        let requirement = json!({"key": key, "operator": operator, "values": values});
        json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions": [requirement]}}, "labels": {"out": "1"}}]})
    };
    let published = "feature.node.kubernetes.io/avx";
    for (operator, values) in [("DoesNotExist", json!([])), ("NotIn", json!(["1"]))] {
        let found = left_out(&rule(published, operator, values.clone()));
        assert!(matches!(found.as_slice(), [reason] if reason.contains(published)), "{operator}: {found:?}");
        assert_eq!(
            left_out(&rule("team.example/a", operator, values)),
            Vec::<String>::new(),
            "nobody publishes a family"
        );
    }
    for (operator, values) in [("Exists", json!([])), ("In", json!(["1"]))] {
        assert_eq!(left_out(&rule(published, operator, values)), Vec::<String>::new(), "{operator}");
    }
}

#[test]
fn no_execute_is_added_to_a_living_node_only_where_the_rule_evicts() {
    let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
    let policy = json!({"rules": [
        {"name": "drain", "taints": taint("drain", "NoExecute")},
        {"name": "evict", "taints": taint("evict", "NoExecute"), "evict": true},
        {"name": "keep-off", "taints": taint("keep-off", "NoSchedule")},
    ]});
    let policies = Policy::all(&export(&compile_inline(&policy).unwrap(), &NativeOptions::default()).objects);
    let node = |taints: &Json| json!({"metadata": {"name": "n", "labels": {"write": taints.to_string().len().to_string()}}, "spec": {"taints": taints}});
    let gives = |key: &str, old: Option<Json>, taints: Json| {
        let old = old.map(|old| node(&old));
        let (username, groups, saved, pending_taints) = ("admin".to_owned(), Vec::new(), None, None);
        let mut object = node(&taints);
        object["metadata"]["labels"]["new"] = json!("1");
        let scene = Scene { old, saved, pending_taints, ..Scene::of(object, username, groups) };
        let [.., taints] = desired(&policies, &scene);
        taints.keys().any(|id| id.starts_with(key))
    };
    for key in ["drain", "evict", "keep-off"] {
        assert!(gives(key, None, json!([])), "{key}: the node is created");
    }
    let none = || Some(json!([]));
    assert!(!gives("drain", none(), json!([])));
    assert!(gives("evict", none(), json!([])) && gives("keep-off", none(), json!([])));
    assert!(gives("drain", Some(taint("drain", "NoExecute")), json!([])), "it is there already");
    assert!(gives("drain", none(), taint("drain", "NoExecute")), "the requester adds it");
    assert!(!gives("drain", Some(taint("drain", "NoSchedule")), json!([])), "another effect evicts nobody");
}

#[test]
fn rules_and_entries_are_held_by_native_policies_if_nothing_of_them_is_left_out() {
    let set = compile_inline(&json!({
        "rules": [
            {"name": "a", "labels": {"x": "1"}},
            {"name": "ab", "match": {"gpu": {"count": ">=1"}}, "labels": {"y": "1"}},
        ],
        "governance": {"required": [{"name": "owner", "keys": ["owner"]}]},
    }));
    let native = export(&set.unwrap(), &NativeOptions::default());
    let held: Vec<String> = native.held.iter().map(ToString::to_string).collect();
    assert_eq!(held, ["test/a", "test/owner"]);
    assert!(matches!(native.left_out.as_slice(), [one] if one.what == "ab"), "{:?}", native.left_out);
}

/// A requester: a user and groups.
fn requester(random: &mut Random, node: &str) -> (String, Vec<String>) {
    let (user, group) = match random.below(10) {
        0..=4 => (format!("system:node:{node}"), "system:nodes"),
        5..=6 => ("admin".to_owned(), "system:masters"),
        7 => ("alice".to_owned(), "team-a"),
        8 => ("bob".to_owned(), BREAK_GLASS),
        _ => (SELF_USER.to_owned(), "system:serviceaccounts"),
    };
    (user, vec![group.to_owned()])
}

/// As the API server stores it: nothing is there that is empty.
fn as_stored(mut node: Json) -> Json {
    let is_empty = |value: &Json| *value == json!({}) || *value == json!([]);
    for path in ["/metadata/labels", "/metadata/annotations", "/spec/taints", "/spec"] {
        let (parent, field) = path.rsplit_once('/').unwrap();
        if node.pointer(path).is_some_and(is_empty) {
            node.pointer_mut(parent).and_then(Json::as_object_mut).unwrap().remove(field);
        }
    }
    node
}

#[test]
fn native_policies_answer_random_writes_as_nodegate_does() {
    let options = NativeOptions {
        name: "test".to_owned(),
        break_glass_groups: vec![BREAK_GLASS.to_owned()],
        self_user: Some(SELF_USER.to_owned()),
        ..NativeOptions::default()
    };
    let exemptions = Exemptions {
        self_user: Some(SELF_USER.to_owned()),
        break_glass_groups: Identities::parse([BREAK_GLASS]).unwrap(),
    };
    let mut random = Random::new(20_261_122);
    let (mut found, mut sets, mut compared, mut changed, mut violated) = (Vec::new(), 0, 0, 0, 0);
    while sets < 80 {
        let spec = generator::policy(&mut random, "");
        let Ok(set) = compile_inline(&spec) else { continue };
        let native = export(&set, &options);
        // Of what is left out the answers differ.
        if !native.left_out.is_empty() {
            continue;
        }
        let policies = Policy::all(&native.objects);
        if !policies.iter().all(Policy::fits) {
            continue;
        }
        sets += 1;
        for name in ["n1", "gpu-7", "yeezyai"] {
            let mut old: Option<Json> = None;
            for _ in 0..3 {
                let (username, groups) = requester(&mut random, name);
                let by_kubelet = groups == ["system:nodes"];
                let (status, node) = match &old {
                    None => (false, generator::node(&mut random, name)),
                    Some(old) => {
                        let (status, patch) = generator::patch(&mut random, old, by_kubelet);
                        let mut node = old.clone();
                        json_patch::merge(&mut node, &patch);
                        (status, as_stored(node))
                    }
                };
                // Native policies are not called for a write that changes nothing.
                if old.as_ref() == Some(&node) {
                    continue;
                }
                let scene = Scene { old: old.take(), status, ..Scene::of(node, username, groups) };
                let simulated = simulate(&set, &scene, &exemptions).unwrap();
                changed += usize::from(simulated.node != scene.node);
                violated += usize::from(!simulated.verdict.violations.is_empty());
                compared += 1;
                for line in differences(&policies, &scene, &simulated) {
                    let old = scene.old.clone().unwrap_or_default();
                    found.push(format!("{line}\n{} of {old}\nto {}\n{spec:#}", scene.username, scene.node));
                }
                old = Some(as_stored(simulated.node));
            }
        }
    }
    assert!(found.is_empty(), "{} of {compared}:\n{}", found.len(), found.first().unwrap());
    assert!(changed > 100 && violated > 100, "of {compared} writes {changed} were changed and {violated} refused");
}

#[test]
fn entries_of_several_modes_and_scopes_for_one_key_have_the_same_verdicts() {
    let spec = json!({"governance": {"reserved": [
        {"name": "strict", "keys": ["x.example.com/a"], "allow": {"users": ["both", "strict"]}},
        {"name": "second", "keys": ["x.example.com/a"], "allow": {"users": ["both"], "groups": ["seconds"]}},
        {"name": "soft", "keys": ["x.example.com/a", "b"], "mode": "warn", "allow": {"users": ["both", "soft"]}},
        {"name": "wide", "namespaces": ["x.example.com"], "allow": {"users": ["wide"]}, "mode": "warn"},
        {"name": "wider", "namespaces": ["*.example.com"], "allow": {"users": ["wider"]}, "mode": "audit"},
        {"name": "recorded", "keys": ["sub.denied.test/a"], "allow": {"users": ["strict"]}, "mode": "audit"},
        {"name": "denied", "namespaces": ["*.denied.test"], "allow": {"users": ["both"]}},
        {"name": "elsewhere", "match": {"gpu": {"vendor": "nvidia"}}, "keys": ["other.test/a"], "of": ["labels"]},
        {"name": "later", "match": {"gpu": {"vendor": "nvidia"}}, "keys": ["later.test/a"], "of": ["labels"], "mode": "audit"},
    ]}});
    let set = compile_inline(&spec).unwrap();
    let native = export(&set, &NativeOptions::default());
    // What does not overlap with it is not left out with it.
    let left_out: Vec<&str> = native.left_out.iter().map(|one| one.what.as_str()).collect();
    assert_eq!(left_out, ["elsewhere: labels", "later: labels"]);
    let policies = Policy::all(&native.objects);
    let node = |labels: &Json| json!({"metadata": {"name": "n", "labels": labels}});
    let mut violated = Vec::new();
    for username in ["both", "strict", "soft", "wide", "wider", "nobody"] {
        for key in ["x.example.com/a", "x.example.com/other", "y.example.com/a", "sub.denied.test/a", "b", "free"] {
            let scene = Scene {
                old: Some(node(&json!({}))),
                ..Scene::of(node(&json!({key: "1"})), username.to_owned(), Vec::new())
            };
            let simulated = simulate(&set, &scene, &Exemptions::default()).unwrap();
            assert_eq!(differences(&policies, &scene, &simulated), [""; 0], "{username} adds {key}");
            // Of several entries of one scope, both name the same.
            let denied = refusals(&policies, "Deny", &simulated.node, &scene);
            let named = simulated.verdict.violations.iter().filter(|one| one.mode == EntryMode::Enforce);
            for (message, violation) in denied.iter().zip(named) {
                assert!(message.contains(&format!("rule {}", violation.by.rule)), "{message}: {violation:?}");
            }
            violated.extend(simulated.verdict.violations.iter().map(|one| one.mode));
        }
    }
    for mode in [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit] {
        assert!(violated.contains(&mode), "{mode:?} is not tried");
    }
}
