//! Properties of decisions while an inventory has not answered.

use nodegate_policy::api::policy::NodePolicySpec;
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::json;

use super::decide_on;
use super::strategies::{scene, written_policies};

/// Policies with an inventory that may give some keys of their rules.
fn policies() -> impl Strategy<Value = PolicySet> {
    let allow = subsequence(vec!["a", "b", "pool", "hardware.tier", "example.com/*"], 1..=3);
    (written_policies(), allow).prop_map(|((mut spec, _), allow)| {
        spec["inventory"] = json!([{"name": "cmdb", "url": "https://x.example/{node}", "allow": allow}]);
        let spec: NodePolicySpec = serde_json::from_value(spec).unwrap();
        PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, spec)]).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_global_rejects: 200_000, ..ProptestConfig::default() })]

    #[test]
    fn after_a_patch_there_is_no_other((set, scene) in (policies(), scene())) {
        let (decision, patched) = decide_on(&set, &scene, &scene.node);
        let (again, _) = decide_on(&set, &scene, &patched);
        prop_assert_eq!(&again.change, &None, "first {:?}, patched {}", decision, patched);
        prop_assert_eq!(&again.deferred, &decision.deferred);
    }
}
