//! Changes that were recorded, and of which it is not known whether they were made.

use super::*;

fn gives(value: &str) -> PolicySet {
    let taint = json!({"key": "dedicated", "value": value, "effect": "NoSchedule"});
    set(json!({"rules": [{"name": "r", "labels": {"tier": value}, "taints": [taint]}]}))
}

fn nothing() -> PolicySet {
    set(json!({"rules": [{"name": "other", "match": {"names": ["elsewhere"]}, "labels": {"other": "x"}}]}))
}

/// A node with this value in its label and its taint, whose record is the one before a change to `new`.
fn before_change(now: Option<&str>, owned: Json, new: &str) -> Scene {
    let scene = with(Scene::new(json!({})), now).owning(owned);
    let record = scene.keep(&gives(new), |plan| plan.record_before(plan.change(|_| true, |_, _| false).as_ref()));
    Scene { saved: record, ..scene }
}

/// The same with another value.
fn with(mut scene: Scene, value: Option<&str>) -> Scene {
    scene.node["metadata"]["labels"] = value.map_or(json!({}), |value| json!({"tier": value}));
    let taint = value.map(|value| json!({"key": "dedicated", "value": value, "effect": "NoSchedule"}));
    scene.node["spec"]["taints"] = json!(taint.into_iter().collect::<Vec<_>>());
    scene
}

fn owned() -> Json {
    json!({"labels": {"tier": "a"}, "taints": [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}]})
}

/// The keys that are removed if the rule is deleted now.
fn removals(scene: &Scene) -> Vec<String> {
    let mut keys: Vec<String> =
        scene.keep(&nothing(), |plan| plan.removals.iter().map(|removal| removal.key.clone()).collect());
    keys.sort_unstable();
    keys
}

const BOTH: [&str; 2] = ["dedicated:NoSchedule", "tier"];

#[test]
fn both_values_are_owned_until_the_node_shows_whether_a_change_was_made() {
    let recorded = before_change(Some("a"), owned(), "b");
    assert_eq!(removals(&recorded), BOTH, "the change may still arrive, and the node has the value before it");
    let refused = Scene { version: "2", ..before_change(Some("a"), owned(), "b") };
    assert_eq!(removals(&refused), BOTH, "the change was refused");
    let made = with(Scene { version: "2", ..before_change(Some("a"), owned(), "b") }, Some("b"))
        .claimed_by("nodegate", &["tier"]);
    assert_eq!(removals(&made), BOTH, "the change was made");
    let others = with(Scene { version: "2", ..before_change(Some("a"), owned(), "b") }, Some("c")).claimed(&["tier"]);
    assert_eq!(removals(&others), [] as [&str; 0], "others have set another value");
}

#[test]
fn what_others_set_while_a_change_was_under_way_is_theirs() {
    let recorded = before_change(None, json!({}), "a");
    let theirs = with(Scene { version: "2", ..recorded }, Some("a")).claimed(&["tier"]);
    assert_eq!(removals(&theirs), ["dedicated:NoSchedule"], "taints have no claims of their own");
    let kept = theirs.settle(&gives("a"));
    assert!(owned_labels(&kept).is_empty());
}

#[test]
fn claims_that_a_kubelet_could_forge_do_not_make_a_change_under_way_anothers() {
    let role = "node-role.kubernetes.io/worker";
    let rule = json!({"name": "r", "labels": {"class.example.com/tier": "a", role: "", "fleet": "a"}});
    let policy = set(json!({"protect": {"keys": ["class.example.com/*"]}, "rules": [rule]}));
    let scene = Scene::new(json!({})).owning(json!({}));
    let record = scene.keep(&policy, |plan| plan.record_before(plan.change(|_| true, |_, _| false).as_ref()));
    let made = Scene { saved: record, version: "2", ..scene };
    // nodegate's own claim is gone: a kubelet has replaced all of managedFields.
    let keys = ["class.example.com/tier", role, "fleet"];
    let mut forged = made.claimed_by("kubectl", &keys);
    forged.node["metadata"]["labels"] = json!({keys[0]: "a", role: "", "fleet": "a"});
    assert_eq!(owned_labels(&forged.settle(&policy)), [keys[0], role], "anybody may set the third");
}

#[test]
fn a_record_says_what_is_under_way_as_long_as_it_may_arrive() {
    let unsettled = |scene: &Scene| scene.saved.owned.as_ref().and_then(|owned| owned.unsettled.clone());
    let recorded = before_change(None, json!({}), "a");
    let sets = unsettled(&recorded).unwrap();
    assert_eq!((sets.resource_version.as_str(), sets.labels["tier"].len(), sets.taints.len()), ("1", 1, 1));
    // The rule is gone, but a change of this version could still set the label.
    let gone = before_change(None, json!({}), "a").written_once(&nothing());
    let kept = unsettled(&gone).unwrap();
    assert!(kept.labels["tier"].contains("a") && kept.taints.contains_key("dedicated:NoSchedule"), "{kept:?}");
    // Another change of the same version may arrive as well; one of the two does.
    let second = gone.keep(&gives("b"), |plan| plan.record_before(plan.change(|_| true, |_, _| false).as_ref()));
    let both = second.owned.unwrap().unsettled.unwrap();
    assert_eq!(both.labels["tier"].iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b"]);
    // No change applies to an older version.
    let later = Scene { version: "2", ..gone }.settle(&nothing());
    assert_eq!((unsettled(&later), removals(&later).len()), (None, 0));
    let done = before_change(None, json!({}), "a").settle(&gives("a"));
    assert_eq!((unsettled(&done), done.label("tier")), (None, Some("a")));
}

#[test]
fn what_was_under_way_on_an_earlier_node_of_this_name_does_not_count() {
    let recorded = before_change(Some("a"), owned(), "b");
    let mut anew = with(Scene { version: "9", ..recorded }, Some("a")).claimed(&["tier"]);
    anew.node["metadata"]["uid"] = json!("uid-2");
    anew.node["spec"]["taints"] = json!([]);
    assert_eq!(removals(&anew), [] as [&str; 0]);
    let again = anew.keep(&gives("b"), |plan| plan.record_before(plan.change(|_| true, |_, _| false).as_ref()));
    let unsettled = again.owned.unwrap().unsettled.unwrap();
    assert!(unsettled.replaced_labels.is_empty() && unsettled.replaced_taints.is_empty(), "{unsettled:?}");
}
