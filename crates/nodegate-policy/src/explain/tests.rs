#![allow(clippy::unwrap_used, clippy::panic)]

mod missing;
mod pools;

use serde_json::{Value as Json, json};

use super::*;
use crate::facts::managed_fields::Claims;
use crate::reconcile::tests::scene::{Scene, set};
use crate::{PendingTaints, PolicySet};

const CREATED: &str = "2026-11-20T10:00:00Z";

fn subject<'a>(stored: &StoredNode<'a>) -> Subject<'a> {
    Subject { stored: *stored, own_manager: "nodegate", created: Some(CREATED), left_alone: &[], braked: false }
}

fn explained(scene: &Scene, set: &PolicySet, key: Option<&str>) -> Explanation {
    scene.with_stored(|stored| explain(set, &subject(stored), key))
}

/// The entry of a key as JSON.
fn entry(scene: &Scene, set: &PolicySet, key: &str) -> Json {
    let explanation = explained(scene, set, None);
    let found = explanation.entries.iter().find(|entry| entry.key == key);
    serde_json::to_value(found.unwrap_or_else(|| panic!("{explanation:?}"))).unwrap()
}

/// What is missing, as `key why detail`.
fn missing(scene: &Scene, set: &PolicySet, key: Option<&str>) -> Vec<String> {
    let line = |missing: &Missing| {
        let why = serde_json::to_value(missing.why).unwrap();
        format!("{} {} {}", missing.key, why.as_str().unwrap(), missing.detail)
    };
    explained(scene, set, key).missing.iter().map(line).collect()
}

/// Two rules and a default for one key, on a node that nodegate has processed before.
fn tiers() -> PolicySet {
    set(json!({"rules": [
        {"name": "gold", "priority": 10, "labels": {"tier": "gold"}, "removeAfter": "5m"},
        {"name": "tin", "labels": {"tier": "tin"}},
        {"name": "lead", "labels": {"tier": "lead"}},
        {"name": "any", "mode": "default", "labels": {"tier": "any"}},
    ]}))
}

fn living(labels: Json) -> Scene {
    Scene::new(labels).owning(json!({}))
}

#[test]
fn a_value_comes_from_the_rule_that_wins_and_the_others_lost_for_a_reason() {
    let entry = entry(&living(json!({"tier": "gold"})), &tiers(), "tier");
    assert_eq!(
        entry["source"],
        json!({"kind": "rule", "policy": "p", "rule": "gold", "priority": 10, "mode": "enforced"})
    );
    assert_eq!(
        (&entry["owned"], &entry["removedWhen"]),
        (&json!(true), &json!({"when": "ruleStopsMatching", "afterSeconds": 300}))
    );
    let lost: Vec<String> = entry["lost"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lost| format!("{} {} {}", lost["rule"], lost["value"], lost["why"]))
        .collect();
    assert_eq!(lost, [r#""lead" "lead" "priority""#, r#""tin" "tin" "priority""#, r#""any" "any" "default""#]);
    let equal = set(json!({"rules": [{"name": "a", "labels": {"tier": "x"}}, {"name": "b", "labels": {"tier": "y"}}]}));
    assert_eq!(self::entry(&living(json!({"tier": "x"})), &equal, "tier")["lost"][0]["why"], "name");
}

#[test]
fn a_label_of_an_inventory_names_it_and_a_missing_one_says_what_it_answered() {
    let policy = set(json!({
        "inventory": [{"name": "cmdb", "url": "https://x.example/{node}", "allow": ["rack/*", "tier"]}],
        "rules": [{"name": "gold", "labels": {"tier": "gold"}}],
    }));
    let scene = living(json!({"rack/row": "7", "tier": "gold"})).answered(json!({"rack/row": "7", "tier": "tin"}));
    let row = entry(&scene, &policy, "rack/row");
    assert_eq!(
        row["source"],
        json!({"kind": "inventory", "policy": "p", "rule": "inventory:cmdb", "priority": 0, "mode": "inventory"})
    );
    assert_eq!(row["owned"], true);
    let tier = entry(&scene, &policy, "tier");
    assert_eq!((&tier["source"]["rule"], &tier["lost"][0]["why"]), (&json!("gold"), &json!("inventory")));
    let lacking = missing(&scene, &policy, Some("rack/unit"));
    assert_eq!(lacking, ["rack/* false inventory cmdb: its answer about this node does not contain rack/unit"]);
    let unanswered = missing(&living(json!({})), &policy, Some("rack/unit"));
    assert_eq!(unanswered, ["rack/* unknown inventory cmdb: the inventory has not answered for this node yet"]);
}

#[test]
fn a_rule_that_reads_a_label_of_an_inventory_names_the_one_that_has_not_answered() {
    let selector = json!({"matchExpressions": [{"key": "rack/row", "operator": "DoesNotExist"}]});
    let policy = set(json!({
        "inventory": [{"name": "cmdb", "url": "https://x.example/{node}", "allow": ["rack/*"]}],
        "rules": [
            {"name": "unracked", "match": {"selector": selector}, "taints": [{"key": "unracked", "effect": "NoSchedule"}]},
            {"name": "none", "match": {"expression": "!('rack/row' in node.metadata.labels)"}, "labels": {"none": "yes"}},
        ],
    }));
    let (there, absent) =
        ("label rack/row=7", "label rack/row is absent, and inventory p/cmdb has not answered for this node yet");
    let of = |scene: &Scene, key| {
        let why = scene.with_stored(|stored| why_not(&policy, &subject(stored), key));
        let condition = &why.rules[0].conditions[0];
        (serde_json::to_value(condition.result).unwrap(), condition.fact.clone())
    };
    assert_eq!(of(&living(json!({})), "unracked"), (json!("unknown"), absent.to_owned()));
    let (result, fact) = of(&living(json!({})), "none");
    assert_eq!((result, fact.ends_with(absent)), (json!("unknown"), true), "{fact}");
    let owning = Scene::new(json!({"rack/row": "7"})).owning(json!({"labels": {"rack/row": "7"}}));
    assert_eq!(of(&owning, "unracked"), (json!("false"), there.to_owned()));
    assert_eq!(of(&owning.answered(json!({})), "unracked").0, json!("true"));
}

#[test]
fn a_value_that_others_set_names_them_and_is_not_owned() {
    let claims = |manager: &str, subresource: &str| {
        let fields = json!([{"manager": manager, "subresource": subresource, "time": "2026-11-21T10:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:tier": {}}, "f:annotations": {"f:a": {}}}, "f:spec": {"f:taints": {}}}}]);
        Claims::parse(&fields.to_string())
    };
    let policy = set(json!({"rules": [{"name": "gold", "labels": {"tier": "gold"}}]}));
    for (manager, subresource, labels, kind, why) in [
        ("kubectl-label", "", json!({"tier": "gold"}), "user", "present"),
        ("kubectl-label", "", json!({"tier": "tin"}), "user", "notWritten"),
        ("kubelet", "", json!({"tier": "tin"}), "kubelet", "notWritten"),
        ("innocent", "status", json!({"tier": "tin"}), "kubelet", "notWritten"),
    ] {
        let scene = Scene { claims: claims(manager, subresource), ..living(labels) };
        let entry = entry(&scene, &policy, "tier");
        let source = json!({"kind": kind, "manager": manager, "lastWrite": "2026-11-21T10:00:00Z"});
        assert_eq!((&entry["source"], &entry["lost"][0]["why"]), (&source, &json!(why)), "{manager}");
        assert_eq!((&entry["owned"], &entry["removedWhen"]), (&json!(false), &Json::Null), "{manager}");
    }
    let tainted = Scene { claims: claims("kube-controller-manager", ""), ..living(json!({})) }
        .tainted(json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]));
    let taint = entry(&tainted, &policy, "node.kubernetes.io/not-ready");
    assert_eq!(
        (&taint["source"]["manager"], &taint["effect"]),
        (&json!("kube-controller-manager"), &json!("NoExecute"))
    );
    assert_eq!(entry(&living(json!({"x": "y"})), &policy, "x")["source"], json!({"kind": "unknown"}));
    let own = Scene { claims: claims("nodegate", ""), ..living(json!({"tier": "x"})) };
    assert_eq!(entry(&own, &set(json!({})), "tier")["source"]["kind"], "controller");
}

#[test]
fn a_protected_label_that_was_restored_is_not_its_kubelets_although_that_claims_the_key() {
    let spec = |keys: Json| set(json!({"protect": {"keys": keys}, "persist": {"labels": ["owner"]}}));
    let mut scene = living(json!({"owner": "carol"})).claimed_by("kubelet", &["owner"]);
    scene.saved.labels.insert("owner", "carol");
    let of = |policy: &PolicySet| {
        let entry = entry(&scene, policy, "owner");
        (entry["source"]["kind"].clone(), entry["source"]["rule"].clone(), entry["lost"].clone())
    };
    assert_eq!(of(&spec(json!(["owner"]))), (json!("saved"), json!("persist"), json!([])));
    let (kind, rule, _) = of(&spec(json!(["another"])));
    assert_eq!((kind, rule), (json!("kubelet"), Json::Null), "it may have set the same value");
}

#[test]
fn values_that_are_assigned_once_keep_their_source() {
    let policy = set(
        json!({"rules": [{"name": "any", "mode": "default", "labels": {"tier": "any"}}], "persist": {"labels": ["team"]}}),
    );
    let mut scene = living(json!({"tier": "any", "team": "ml"}));
    scene.saved.labels.insert("team", "ml");
    let source = |key: &str| entry(&scene, &policy, key)["source"].clone();
    assert_eq!(source("tier"), json!({"kind": "rule", "policy": "p", "rule": "any", "priority": 0, "mode": "default"}));
    assert_eq!((&source("team")["kind"], &source("team")["mode"]), (&json!("saved"), &json!("saved")));
    let claimed = Scene { claims: scene.claimed(&["tier"]).claims, ..living(json!({"tier": "any"})) };
    assert_eq!(entry(&claimed, &policy, "tier")["source"]["kind"], "user");
}

#[test]
fn the_time_is_that_of_the_recorded_change_or_of_the_creation() {
    let change = |id: u64, time: &str, new: &str| json!({"id": id, "time": time, "how": "update", "field": "label", "key": "tier", "new": new});
    let since = |value: &str, history: Json| {
        let mut scene = living(json!({"tier": value}));
        scene.saved.history = serde_json::from_value(history).unwrap();
        entry(&scene, &set(json!({})), "tier")["since"].clone()
    };
    assert_eq!(since("gold", json!([])), CREATED, "nothing suggests another time");
    assert_eq!(since("gold", json!([change(1, "2026-11-21T09:00:00.5Z", "gold")])), "2026-11-21T09:00:00.5Z");
    assert_eq!(
        since("gold", json!([change(1, "2026-11-21T09:00:00Z", "tin")])),
        Json::Null,
        "the record contradicts the node"
    );
    assert_eq!(
        since("gold", json!([change(1, "2026-11-01T09:00:00Z", "gold")])),
        CREATED,
        "an earlier node of this name"
    );
    let of_another_key =
        json!([{"id": 9, "time": "2026-11-21T09:00:00Z", "how": "update", "field": "label", "key": "other"}]);
    assert_eq!(since("gold", of_another_key), Json::Null, "older changes are not recorded anymore");
    let claimed = living(json!({"tier": "gold"})).claimed(&["tier"]);
    assert_eq!(
        entry(&claimed, &set(json!({})), "tier")["since"],
        Json::Null,
        "its manager may have set it at any time"
    );
}

#[test]
fn what_removes_a_key_depends_on_why_it_is_there() {
    let owning = |policy: &PolicySet| {
        entry(&Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}})), policy, "tier")
    };
    let gone = owning(&set(json!({})));
    assert_eq!(
        (&gone["source"], &gone["removedWhen"]),
        (&json!({"kind": "rule"}), &json!({"when": "gracePeriodEnds", "afterSeconds": 60}))
    );
    let beside = json!({"labels": {"tier": "gold", "team": "ml"}, "annotations": {"tier": "x"}});
    let beside = Scene::new(json!({"tier": "gold", "team": "ml"})).owning(beside);
    let kept = entry(&beside, &set(json!({"rules": [{"name": "r", "labels": {"tier": "gold"}}]})), "tier");
    assert_eq!(kept["removedWhen"]["when"], "ruleStopsMatching", "other keys are removed");
    let unknown = owning(&set(
        json!({"rules": [{"name": "r", "match": {"expression": "node.metadata.labels['x'] == 'y'"}, "labels": {"tier": "gold"}}]}),
    ));
    assert_eq!(unknown["removedWhen"], json!({"when": "resultIsKnown"}));
    let braked = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}}));
    let braked =
        braked.with_stored(|stored| explain(&set(json!({})), &Subject { braked: true, ..subject(stored) }, None));
    assert_eq!(braked.entries[0].removed_when.as_ref().unwrap().when, RemovalCause::Confirmed);
    for id in PendingTaints::default().all() {
        let pending = living(json!({})).tainted(json!([{"key": id.key.as_str(), "effect": "NoSchedule"}]));
        let pending = entry(&pending, &set(json!({})), id.key.as_str());
        assert_eq!(
            (&pending["source"]["kind"], &pending["removedWhen"]),
            (&json!("controller"), &json!({"when": "nothingIsDeferred"}))
        );
    }
    let protecting =
        set(json!({"protect": {"keys": ["secret"]}, "rules": [{"name": "r", "labels": {"tier": "gold"}}]}));
    let forged =
        entry(&Scene::new(json!({"secret": "x", "other": "y"})).claimed(&["secret", "other"]), &protecting, "secret");
    assert_eq!(forged["removedWhen"], json!({"when": "stripped"}));
}

/// The conditions of the rule that assigns `x`, as `result condition: fact`.
fn walked(scene: &Scene, of_match: Json) -> Vec<String> {
    let policy = set(
        json!({"rules": [{"name": "r", "trustKubelet": true, "match": of_match, "labels": {"x": "y"}}, {"name": "other", "labels": {"given": "yes"}}]}),
    );
    let answer = scene.with_stored(|stored| why_not(&policy, &subject(stored), "x"));
    assert_eq!(answer.rules.len(), 1);
    let line = |found: &ConditionResult| {
        let at = found.any_of.map(|at| format!("{at} ")).unwrap_or_default();
        format!("{} {at}{}: {}", found.result.as_str(), found.condition, found.fact)
    };
    answer.rules[0].conditions.iter().map(line).collect()
}

#[test]
fn each_condition_is_shown_with_its_result_and_the_fact_behind_it() {
    let mut scene = Scene::new(
        json!({"zone": "a", "none": "", "mine": "z", "node.kubernetes.io/instance-type": "p4d.24xlarge"}),
    )
    .owning(json!({"labels": {"mine": "z"}, "taints": [{"key": "own", "effect": "NoSchedule"}]}))
    .tainted(
        json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, {"key": "own", "effect": "NoSchedule"}]),
    );
    scene.node["status"] = json!({"capacity": {"cpu": "8", "memory": "lots"}, "nodeInfo": {"osImage": "Ubuntu 22.04"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    scene.saved.publishers = vec!["nvidia.com".into()];
    let requirement = |key: &str, operator: &str, values: Json| json!({"selector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}});
    for (of_match, expected) in [
        (json!({"names": ["n1", "gpu-*"]}), "true names [n1, gpu-*]: the node is named n1"),
        (requirement("zone", "In", json!(["b", "c"])), "false label zone In [b, c]: label zone=a"),
        (requirement("zone", "NotIn", json!(["b"])), "true label zone NotIn [b]: label zone=a"),
        (requirement("none", "Exists", json!([])), r#"true label none Exists: label none="""#),
        (requirement("gone", "Exists", json!([])), "false label gone Exists: label gone is absent"),
        (
            requirement("given", "Exists", json!([])),
            "true label given Exists: label given=yes, assigned by rule p/other",
        ),
        (
            requirement("mine", "DoesNotExist", json!([])),
            "true label mine DoesNotExist: label mine=z is not read: nodegate set it, and rules do not read what nodegate sets",
        ),
        (
            requirement("nvidia.com/gpu.product", "Exists", json!([])),
            "unknown label nvidia.com/gpu.product Exists: label nvidia.com/gpu.product is absent; the labels of NVIDIA GPU Feature Discovery are gone, which may have restarted",
        ),
        (
            json!({"taints": ["dedicated=x:NoSchedule"]}),
            "false taints [dedicated=x:NoSchedule]: taint dedicated=ml:NoSchedule",
        ),
        (json!({"taints": ["none"]}), "false taints [none]: the node has no such taint"),
        (
            json!({"taints": ["own"]}),
            "false taints [own]: taint own:NoSchedule is not read: nodegate set it, and rules do not read what nodegate sets",
        ),
        (json!({"capacity": {"cpu": ">=16"}}), "false capacity cpu >=16: capacity cpu is 8"),
        (
            json!({"capacity": {"memory": ">1Gi"}}),
            r#"unknown capacity memory >1Gi: capacity memory is "lots", which is not a quantity"#,
        ),
        (json!({"capacity": {"pods": "<5"}}), "unknown capacity pods <5: capacity pods is absent"),
        (
            json!({"capacity": {"amd.com/gpu": "==0"}}),
            "true capacity amd.com/gpu ==0: capacity amd.com/gpu is absent, which counts as 0",
        ),
        (
            json!({"gpu": {"vendor": "amd", "count": ">=1"}}),
            "false gpu vendor [amd], count >=1: GPU: vendor nvidia, model unknown, count unknown, source instance-type; the labels of NVIDIA GPU Feature Discovery are gone, which may have restarted",
        ),
        (json!({"osImage": ["Ubuntu >=24.04"]}), r#"false osImage [Ubuntu >=24.04]: OS image is "Ubuntu 22.04""#),
        (json!({"kernel": [">=5.15 <6"]}), "unknown kernel [>=5.15 <6]: kernel version: not reported yet"),
        (
            json!({"expression": "node.metadata.labels['zone'] == 'b'"}),
            "false expression node.metadata.labels['zone'] == 'b': label zone=a",
        ),
        (
            json!({"expression": "node.metadata.labels['no'] == 'b'"}),
            r#"unknown expression node.metadata.labels['no'] == 'b': node.metadata.labels has no "no"; label no is absent"#,
        ),
        (json!({"anyOf": [{"names": ["x"]}]}), "false 0 names [x]: the node is named n1"),
    ] {
        assert_eq!(walked(&scene, of_match.clone()), [expected], "{of_match}");
    }
    scene.node["status"]["conditions"] = json!([]);
    scene.node["metadata"]["labels"] = json!({});
    let gpu = |scene: &Scene| walked(scene, json!({"gpu": {"vendor": "*"}}));
    assert_eq!(
        gpu(&scene),
        [
            "unknown gpu vendor [*]: GPU: unknown; the labels of NVIDIA GPU Feature Discovery are gone, which may have restarted"
        ]
    );
    scene.saved.publishers.clear();
    assert_eq!(
        gpu(&scene),
        ["unknown gpu vendor [*]: no GPU is reported yet; the node is starting, so devices may still appear"]
    );
}

#[test]
fn the_source_of_a_copied_label_is_the_migration_and_an_old_key_is_removed_at_once() {
    let policy = |phase: &str| set(json!({"migrations": [{"from": "old", "to": "new", "phase": phase}]}));
    let copied = Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&policy("dualWrite"));
    let found = entry(&copied, &policy("dualWrite"), "new");
    let source = json!({"kind": "migration", "policy": "p", "rule": "migration:old:new", "mode": "enforced"});
    assert_eq!((&found["source"], &found["owned"]), (&source, &json!(true)));
    assert_eq!(entry(&copied, &policy("dualWrite"), "old")["source"]["kind"], "user");
    let both = Scene::new(json!({"old": "a", "new": "a"})).claimed(&["old", "new"]);
    let removed = &entry(&both, &policy("done"), "old")["removedWhen"];
    assert_eq!(*removed, json!({"when": "gracePeriodEnds", "afterSeconds": 0}));
}
