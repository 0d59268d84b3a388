//! Properties of migrations, for every phase, node and requester.

use nodegate_policy::api::policy::NodePolicySpec;
use nodegate_policy::{Exemptions, Origin, PolicyDocument, PolicySet, judge};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::strategies::{Scene, scene};
use super::{decide_on, write};

/// The phase, the old and the new key, and the compiled policy.
fn migration() -> impl Strategy<Value = (&'static str, [&'static str; 2], PolicySet)> {
    let keys = subsequence(vec!["a", "b", "hardware.tier", "node-role.kubernetes.io/worker"], 2).prop_shuffle();
    (select(vec!["dualWrite", "cutover", "done"]), keys).prop_map(|(phase, keys)| {
        let migration = json!({"from": keys[0], "to": keys[1], "phase": phase, "trustKubelet": true});
        let spec: NodePolicySpec = serde_json::from_value(json!({"migrations": [migration]})).unwrap();
        let set = PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, spec)]).unwrap();
        (phase, [keys[0], keys[1]], set)
    })
}

fn is_denied(set: &PolicySet, scene: &Scene, node: &Value) -> bool {
    let (object, old) = (node.to_string(), scene.old.as_ref().map(Value::to_string));
    let write = write(set, scene, &object, old.as_deref());
    let saved = scene.saved();
    let context = nodegate_policy::DecideContext { saved: saved.as_ref(), ..Default::default() };
    judge(set, &write, &context, &Exemptions::default()).denial().is_some()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn after_a_patch_there_is_no_other_and_both_keys_are_equal((phase, [old, new], set) in migration(), mut scene in scene()) {
        // What is owned is in the tests of `reconcile`.
        scene.saved = None;
        let (decision, patched) = decide_on(&set, &scene, &scene.node);
        let (again, _) = decide_on(&set, &scene, &patched);
        prop_assert_eq!(&again.change, &None, "first {:?}, patched {}", decision, patched);
        prop_assert_eq!(&again.deferred, &decision.deferred);
        let labels = &patched["metadata"]["labels"];
        if phase != "done" && decision.deferred.is_none() && !is_denied(&set, &scene, &patched) {
            prop_assert_eq!(labels.get(old), labels.get(new), "{} of {:?}", phase, decision);
        }
    }

    #[test]
    fn only_writes_that_set_the_old_key_after_cutover_are_denied((phase, [old, new], set) in migration(), mut scene in scene()) {
        // A kubelet may not change what is saved for its node, moved or not.
        scene.saved = None;
        let (_, patched) = decide_on(&set, &scene, &scene.node);
        let was = scene.old.as_ref().and_then(|old_node| old_node["metadata"]["labels"].get(old));
        let is = scene.node["metadata"]["labels"].get(old);
        let joins = scene.kubelet && scene.old.is_none();
        let sets = is.is_some() && is != was && is != scene.node["metadata"]["labels"].get(new);
        if phase == "dualWrite" || joins || is.is_none() || is == was {
            prop_assert!(!is_denied(&set, &scene, &patched), "{phase} {scene:?}");
        } else if sets && phase == "done" {
            prop_assert!(is_denied(&set, &scene, &patched), "{scene:?}");
        }
    }
}
