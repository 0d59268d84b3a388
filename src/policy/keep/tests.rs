#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value as Json, json};

use super::*;
use crate::policy::{Origin, PolicyDocument, patch};

const BEFORE: &str = "uid-1";

fn set(spec: Json) -> PolicySet {
    let spec = serde_json::from_value(spec).unwrap();
    PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, spec)]).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// A node with these labels; those of `claimed` are claimed by a field manager.
struct Scene {
    node: Json,
    claims: Claims,
    saved: SavedState,
    registered: bool,
    identified: bool,
    adopt: bool,
    patched: &'static [&'static str],
}

impl Scene {
    fn new(labels: Json) -> Self {
        let node = json!({"metadata": {"name": "n1", "uid": BEFORE, "labels": labels}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let claims = Claims::default();
        Self {
            node,
            claims,
            saved: SavedState::default(),
            registered: true,
            identified: true,
            adopt: false,
            patched: &[],
        }
    }

    fn claimed(mut self, keys: &[&str]) -> Self {
        let fields: serde_json::Map<String, Json> = keys.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
        let managed_fields = json!([{"manager": "m", "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": fields}}}]);
        self.claims = Claims::parse(&managed_fields.to_string());
        self
    }

    fn tainted(mut self, taints: Json) -> Self {
        self.node["spec"]["taints"] = taints;
        self
    }

    /// What is recorded of this very node object.
    fn owning(mut self, owned: Json) -> Self {
        self.saved.node_uid = Some(BEFORE.to_owned());
        self.saved.owned = Some(serde_json::from_value(owned).unwrap());
        self
    }

    /// What is saved of a node object of this name before.
    fn saved(mut self, labels: Json) -> Self {
        self.saved.labels = serde_json::from_value(labels).unwrap();
        self.saved.node_uid = Some("uid-0".to_owned());
        self
    }

    fn keep<T>(&self, set: &PolicySet, look: impl FnOnce(Keep) -> T) -> T {
        let text = self.node.to_string();
        let facts = NodeFacts::parse(&text).unwrap();
        let pending = [TaintId {
            key: "nodegate.dev/pending".parse().unwrap(),
            effect: crate::api::names::TaintEffect::NoSchedule,
        }];
        let living = Living {
            node: &facts,
            claims: &self.claims,
            saved: &self.saved,
            registered: self.registered,
            identified: self.identified,
            pending: &pending,
            adopt: self.adopt,
            patched_taints: &self.patched.iter().map(|id| (*id).to_owned()).collect(),
        };
        look(keep(set, &living))
    }

    /// Makes the change (removing everything that is due), records it, and looks again: nothing is left to do.
    fn settle(mut self, set: &PolicySet) -> Self {
        let (change, record) = self.keep(set, |keep| {
            let change = keep.change(|_| true, |_, _| false);
            let record = keep.record(change.as_ref());
            (change, record)
        });
        if let Some(change) = &change {
            let text = self.node.to_string();
            let operations = patch(&NodeFacts::parse(&text).unwrap(), change);
            json_patch::patch(&mut self.node, &operations).unwrap();
        }
        self.saved = record;
        self.keep(set, |keep| {
            assert_eq!(keep.change(|_| true, |_, _| false), None, "a second look changes nothing");
            assert_eq!(keep.record(None), self.saved, "and records nothing else");
        });
        self
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.node["metadata"]["labels"][key].as_str()
    }
}

fn tier() -> PolicySet {
    set(
        json!({"rules": [{"name": "r", "match": {"selector": {"matchLabels": {"team": "ml"}}}, "labels": {"tier": "gold"}}]}),
    )
}

fn owned_labels(scene: &Scene) -> Vec<&str> {
    scene.saved.owned.iter().flat_map(|owned| owned.labels.keys()).map(String::as_str).collect()
}

#[test]
fn what_is_written_or_claimed_by_nobody_is_owned_and_the_rest_is_foreign() {
    let written = Scene::new(json!({"team": "ml"})).claimed(&["team"]).settle(&tier());
    assert_eq!((written.label("tier"), owned_labels(&written)), (Some("gold"), vec!["tier"]));
    let patched = Scene::new(json!({"team": "ml", "tier": "gold"})).claimed(&["team"]).settle(&tier());
    assert_eq!(owned_labels(&patched), ["tier"]);
    let foreign = Scene::new(json!({"team": "ml", "tier": "gold"})).claimed(&["team", "tier"]).settle(&tier());
    assert!(owned_labels(&foreign).is_empty());
    let adopted = Scene { adopt: true, ..Scene::new(json!({"team": "ml", "tier": "gold"})).claimed(&["team", "tier"]) };
    assert_eq!(owned_labels(&adopted.settle(&tier())), ["tier"]);
}

#[test]
fn owned_keys_go_when_their_rule_is_false_and_only_with_the_value_they_were_given() {
    let gone = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}})).settle(&tier());
    assert_eq!((gone.label("tier"), owned_labels(&gone).len()), (None, 0));
    let changed = Scene::new(json!({"tier": "silver"})).owning(json!({"labels": {"tier": "gold"}})).settle(&tier());
    assert_eq!((changed.label("tier"), owned_labels(&changed).len()), (Some("silver"), 0));
    let foreign = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).settle(&tier());
    assert_eq!(foreign.label("tier"), Some("gold"));
}

#[test]
fn the_grace_is_recorded_and_outlives_the_rule() {
    let policy = set(json!({"rules": [{"name": "r", "labels": {"tier": "gold"}, "removeAfter": "5m"}]}));
    let scene = Scene::new(json!({})).settle(&policy);
    assert_eq!(scene.saved.owned.as_ref().unwrap().remove_after["tier"], 300);
    scene.keep(&set(json!({})), |keep| {
        assert_eq!(keep.removals.iter().map(|removal| removal.after.as_secs()).collect::<Vec<_>>(), [300]);
        assert_eq!(keep.change(|_| false, |_, _| false), None, "not before its grace has passed");
    });
}

#[test]
fn a_publisher_that_restarts_removes_nothing_and_a_label_that_goes_alone_does() {
    let policy = set(json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions":
        [{"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "Exists"}]}}, "labels": {"gpu": "yes"}}]}));
    let labels = json!({"feature.node.kubernetes.io/pci-10de.present": "true", "feature.node.kubernetes.io/cpu": "x"});
    let mut scene = Scene::new(labels).claimed(&["feature.node.kubernetes.io/cpu"]).settle(&policy);
    assert_eq!(scene.saved.publishers, ["feature.node.kubernetes.io"]);
    scene.node["metadata"]["labels"] = json!({"gpu": "yes"});
    scene.keep(&policy, |keep| assert!(keep.removals.is_empty(), "NFD restarted: {:?}", keep.removals));
    scene.node["metadata"]["labels"] = json!({"gpu": "yes", "feature.node.kubernetes.io/cpu": "x"});
    scene.keep(&policy, |keep| assert_eq!(keep.removals.len(), 1, "the device is gone"));
}

#[test]
fn an_expression_that_fails_removes_nothing() {
    let policy = set(
        json!({"rules": [{"name": "r", "match": {"expression": "node.metadata.labels['pool'] == 'a'"}, "labels": {"tier": "gold"}}]}),
    );
    let scene = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}}));
    scene.keep(&policy, |keep| assert!(keep.removals.is_empty()));
    let other = Scene::new(json!({"tier": "gold", "pool": "b"})).owning(json!({"labels": {"tier": "gold"}}));
    other.keep(&policy, |keep| assert_eq!(keep.removals.len(), 1));
}

#[test]
fn flat_label_files_take_absence_for_false() {
    let spec = json!({"derived": [{"label": "acc/gpu", "anyOf": ["nvidia.com/gpu.present"]}]});
    let document = PolicyDocument::new("labels-dir", Origin::Object, serde_json::from_value(spec).unwrap());
    let flat = PolicySet::compile(&[document.with_flat_grace(Duration::ZERO)]).unwrap();
    let mut scene = Scene::new(json!({"nvidia.com/gpu.present": "true"})).settle(&flat);
    assert_eq!(scene.label("acc/gpu"), Some("true"));
    scene.node["metadata"]["labels"] = json!({"acc/gpu": "true"});
    scene.keep(&flat, |keep| assert_eq!(keep.removals[0].after, Duration::ZERO));
}

#[test]
fn saved_labels_come_back_once_and_then_the_node_is_authoritative() {
    let policy = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let mut scene =
        Scene::new(json!({})).saved(json!({"persist.demo/type": "expensive", "other": "x"})).settle(&policy);
    assert_eq!((scene.label("persist.demo/type"), scene.label("other")), (Some("expensive"), None));
    assert_eq!(scene.saved.node_uid.as_deref(), Some(BEFORE));
    scene.node["metadata"]["labels"] = json!({"persist.demo/type": "cheap"});
    scene = scene.settle(&policy);
    assert_eq!(scene.saved.labels["persist.demo/type"], "cheap");
    scene.node["metadata"]["labels"] = json!({});
    scene = scene.settle(&policy);
    assert!(scene.saved.labels.is_empty(), "its deletion is saved as well");
}

#[test]
fn while_something_is_restored_the_new_object_is_not_recorded_and_nothing_saved_is_lost() {
    let policy = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let scene = Scene::new(json!({})).saved(json!({"persist.demo/type": "expensive"}));
    scene.keep(&policy, |keep| {
        let change = keep.change(|_| true, |_, _| false);
        let before = keep.record_before(change.as_ref());
        assert_eq!((before.node_uid.as_deref(), before.labels.len()), (Some("uid-0"), 1));
        assert_eq!(keep.record(change.as_ref()).node_uid.as_deref(), Some(BEFORE));
    });
}

#[test]
fn a_machine_that_is_not_known_yet_gets_nothing_back() {
    let policy = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let scene = Scene { identified: false, ..Scene::new(json!({})).saved(json!({"persist.demo/type": "expensive"})) };
    scene.keep(&policy, |keep| {
        assert_eq!(keep.change(|_| true, |_, _| false), None);
        assert_eq!(keep.record(None).node_uid, None);
    });
}

#[test]
fn what_a_rule_enforces_and_what_a_machine_is_by_itself_is_not_saved() {
    let policy = set(json!({"rules": [{"name": "r", "labels": {"persist.demo/tier": "gold"}}],
        "persist": {"labels": ["persist.demo/*"], "taints": ["dedicated"]}}));
    let scene = Scene::new(json!({"persist.demo/own": "x", "kubernetes.io/hostname": "n1"}))
        .tainted(json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]))
        .settle(&policy);
    assert_eq!(scene.saved.labels.keys().collect::<Vec<_>>(), ["persist.demo/own"]);
    assert_eq!(scene.saved.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["dedicated"]);
}

#[test]
fn a_default_is_given_once_for_each_node_object() {
    let policy = set(json!({"rules": [{"name": "r", "mode": "default", "labels": {"tier": "standard"}}]}));
    let mut scene = Scene::new(json!({})).settle(&policy);
    assert_eq!((scene.label("tier"), owned_labels(&scene).len()), (Some("standard"), 0));
    scene.node["metadata"]["labels"] = json!({});
    assert_eq!(scene.settle(&policy).label("tier"), None, "somebody took it away, and may");
}

#[test]
fn protected_labels_of_a_node_that_came_unseen_go_and_those_that_admission_saw_stay() {
    let policy = set(
        json!({"protect": {"keys": ["hardware.tier"]}, "rules": [{"name": "r", "match": {"names": ["n1"]}, "labels": {"fleet": "x"}}]}),
    );
    let forged = Scene::new(json!({"hardware.tier": "gold"})).claimed(&["hardware.tier"]).settle(&policy);
    assert_eq!((forged.label("hardware.tier"), forged.label("fleet")), (None, Some("x")));
    // `fleet` is there and nobody claims it: admission was asked, so the tier is somebody's who may give it.
    let admitted =
        Scene::new(json!({"hardware.tier": "gold", "fleet": "x"})).claimed(&["hardware.tier"]).settle(&policy);
    assert_eq!(admitted.label("hardware.tier"), Some("gold"));
    let older = Scene { registered: false, ..Scene::new(json!({"hardware.tier": "gold"})).claimed(&["hardware.tier"]) };
    assert_eq!(older.settle(&policy).label("hardware.tier"), Some("gold"));
    let saved = Scene::new(json!({"hardware.tier": "gold"}))
        .claimed(&["hardware.tier"])
        .saved(json!({"hardware.tier": "gold"}));
    assert_eq!(saved.settle(&policy).label("hardware.tier"), Some("gold"));
}

#[test]
fn what_admission_cannot_have_seen_is_said() {
    let rules = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"tier": "gold", "fleet": "x"}}]);
    let policy = set(json!({"protect": {"keys": ["tier", "rack"]}, "persist": {"labels": ["rack"]}, "rules": rules}));
    let unseen = |scene: &Scene| scene.keep(&policy, |keep| keep.unseen);
    let lacking = vec!["fleet".to_owned(), "tier".to_owned()];
    assert_eq!(unseen(&Scene::new(json!({}))), Some(Unseen::Joined { lacking }));
    assert_eq!(unseen(&Scene { registered: false, ..Scene::new(json!({})) }), None, "it is older than the webhook");
    assert_eq!(unseen(&Scene::new(json!({"tier": "gold"}))), None, "nobody claims this: admission gave it");
    let mut living = Scene::new(json!({"tier": "forged", "rack": "r2", "fleet": "y"}))
        .owning(json!({"labels": {"tier": "gold", "fleet": "x"}}));
    living.saved.labels = serde_json::from_value(json!({"rack": "r1"})).unwrap();
    assert_eq!(unseen(&living), Some(Unseen::Changed { keys: vec!["tier".to_owned(), "rack".to_owned()] }));
    let same = Scene::new(json!({"tier": "gold", "fleet": "x"})).owning(json!({"labels": {"tier": "gold"}}));
    assert_eq!(unseen(&same), None);
}

#[test]
fn a_taint_that_was_there_is_ours_only_where_admission_could_have_given_it() {
    let policy = set(json!({"rules": [{"name": "r", "taints": [{"key": "fleet", "effect": "NoSchedule"}]}]}));
    let there = json!([{"key": "fleet", "effect": "NoSchedule"}]);
    let ours = Scene::new(json!({})).tainted(there.clone()).settle(&policy);
    assert_eq!(ours.saved.owned.as_ref().unwrap().taints.len(), 1);
    let foreign = Scene { registered: false, ..Scene::new(json!({})).tainted(there) }.settle(&policy);
    assert_eq!(foreign.saved.owned, None);
    let mut ours = ours;
    ours.node["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}, {"key": "fleet", "effect": "NoSchedule"}, {"key": "z", "effect": "NoSchedule"}]);
    let left = ours.settle(&set(json!({})));
    assert_eq!(
        left.node["spec"]["taints"],
        json!([{"key": "a", "effect": "NoSchedule"}, {"key": "z", "effect": "NoSchedule"}])
    );
}

#[test]
fn a_taint_that_came_by_a_patch_on_a_living_node_is_ours_and_one_that_was_set_by_hand_is_not() {
    let matching = json!({"selector": {"matchLabels": {"team": "ml"}}});
    let policy =
        set(json!({"rules": [{"name": "r", "match": matching, "taints": [{"key": "ml", "effect": "NoSchedule"}]}]}));
    let living = |patched| Scene {
        patched,
        ..Scene::new(json!({"team": "ml"})).tainted(json!([{"key": "ml", "effect": "NoSchedule"}])).owning(json!({}))
    };
    let admitted = living(&["ml:NoSchedule"]).settle(&policy);
    assert_eq!(admitted.saved.owned.as_ref().unwrap().taints.len(), 1);
    assert_eq!(Scene { patched: &[], ..admitted }.settle(&set(json!({}))).node["spec"]["taints"], json!([]));
    let by_hand = living(&[]).settle(&policy);
    assert_eq!(by_hand.saved.owned, None, "although the node is younger than the webhook");
}

#[test]
fn pods_are_evicted_only_where_a_rule_says_so_and_the_pending_taint_is_lifted() {
    let no_execute = |evict: bool| {
        set(json!({"rules": [{"name": "r", "evict": evict, "taints": [{"key": "out", "effect": "NoExecute"}]}]}))
    };
    let pending = || Scene::new(json!({})).tainted(json!([{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]));
    let kept = pending().settle(&no_execute(false));
    assert_eq!(kept.node["spec"]["taints"], json!([]));
    let evicted = pending().settle(&no_execute(true));
    assert_eq!(evicted.node["spec"]["taints"], json!([{"key": "out", "effect": "NoExecute"}]));
}

#[test]
fn what_nodegate_owns_is_not_matched_on() {
    // The rule that gave `tier` is gone; another one matches on it.
    let policy = set(
        json!({"rules": [{"name": "r", "match": {"selector": {"matchLabels": {"tier": "gold"}}}, "labels": {"fast": "yes"}}]}),
    );
    let scene = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}})).settle(&policy);
    assert_eq!((scene.label("tier"), scene.label("fast")), (None, None));
}

#[test]
fn a_kubelet_that_claims_a_protected_label_does_not_keep_it_when_its_rule_goes() {
    let rules = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"tier": "gold"}}]);
    let policy = set(json!({"protect": {"keys": ["tier"]}, "rules": rules}));
    let withdrawn = set(json!({"protect": {"keys": ["tier"]}}));
    let claimed = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).settle(&policy);
    assert_eq!(owned_labels(&claimed), ["tier"]);
    assert_eq!(claimed.settle(&withdrawn).label("tier"), None);
    // Where it cannot have been its kubelet's doing, or where that changes nothing, claims count.
    let older = Scene { registered: false, ..Scene::new(json!({"tier": "gold"})).claimed(&["tier"]) }.settle(&policy);
    assert!(owned_labels(&older).is_empty());
    let free = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).settle(&set(json!({"rules": rules})));
    assert!(owned_labels(&free).is_empty());
}

#[test]
fn a_protected_label_that_came_unseen_is_not_excused_by_another_value_that_was_saved() {
    let rule = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"fleet": "x"}}]);
    // No `persist` gives the key any more, so what is saved of it says nothing.
    let policy = set(json!({"protect": {"keys": ["tier"]}, "rules": rule}));
    let forged = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).saved(json!({"tier": "standard"}));
    assert_eq!(forged.settle(&policy).label("tier"), None);
    let restored = set(json!({"protect": {"keys": ["tier"]}, "rules": rule, "persist": {"labels": ["tier"]}}));
    let forged = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).saved(json!({"tier": "standard"}));
    assert_eq!(forged.settle(&restored).label("tier"), Some("standard"));
}

#[test]
fn a_protected_label_that_somebody_gives_a_machine_that_is_not_known_yet_stays() {
    let rules = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"node-role.kubernetes.io/x": ""}}]);
    let policy = set(json!({"protect": {"keys": ["tier"]}, "rules": rules}));
    let mut scene = Scene { identified: false, ..Scene::new(json!({})) }.settle(&policy);
    scene.node["metadata"]["labels"]["tier"] = json!("gold");
    scene = scene.claimed(&["tier", "node-role.kubernetes.io/x"]).settle(&policy);
    assert_eq!(scene.label("tier"), Some("gold"));
}

#[test]
fn what_a_kubelet_gave_its_living_node_past_admission_is_not_saved() {
    let set = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let labels = json!({"persist.demo/planted": "x", "persist.demo/sly": "x", "persist.demo/type": "forged",
        "persist.demo/joined": "x", "persist.demo/by-hand": "x"});
    let mut scene = Scene::new(labels).saved(json!({"persist.demo/type": "a", "persist.demo/joined": "x"}));
    let claim = |manager: &str, subresource: &str, keys: &[&str]| {
        let fields: serde_json::Map<String, Json> =
            keys.iter().map(|key| (format!("f:persist.demo/{key}"), json!({}))).collect();
        json!({"manager": manager, "subresource": subresource, "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": fields}}})
    };
    let managed_fields = json!([
        claim("kubelet", "", &["planted", "type", "joined"]),
        claim("kubectl-label", "status", &["sly"]),
        claim("kubectl-label", "", &["by-hand"]),
    ]);
    scene.claims = Claims::parse(&managed_fields.to_string());
    let saved = |scene: &Scene| scene.keep(&set, |keep| json!(keep.record(None).labels));
    // What it brings when it joins is what it is configured with.
    let joined = json!({"persist.demo/planted": "x", "persist.demo/sly": "x", "persist.demo/type": "a",
        "persist.demo/joined": "x", "persist.demo/by-hand": "x"});
    assert_eq!(saved(&scene), joined);
    scene.saved.node_uid = Some(BEFORE.to_owned());
    let living = json!({"persist.demo/type": "a", "persist.demo/joined": "x", "persist.demo/by-hand": "x"});
    assert_eq!(saved(&scene), living);
}
