//! The pools of a node, and what proves them.

use serde_json::json;

use super::{explained, living, subject};
use crate::explain::{ConditionResult, why_not};
use crate::facts::proof::evidence::Evidence;
use crate::reconcile::tests::scene::{Scene, set};

#[test]
fn the_pools_of_a_node_come_with_what_proves_them() {
    let policy = set(json!({
        "pools": [
            {"name": "gpu", "requester": {"groups": ["pool:gpu"]}},
            {"name": "by-role", "requester": {"extra": {"arn": ["x"]}}},
            {"name": "named", "names": ["n1"]},
            {"name": "elsewhere", "names": ["x"]},
        ],
        "rules": [{"name": "r", "match": {"pools": ["gpu", "by-*"]}, "labels": {"x": "y"}}],
    }));
    let look = |evidence: Option<&'static str>| {
        let evidence = evidence.map(|text| Evidence::read(text, "n1").unwrap());
        let scene = Scene { evidence, ..living(json!({})) };
        let identity = serde_json::to_value(explained(&scene, &policy, None).identity).unwrap();
        let why = scene.with_stored(|stored| why_not(&policy, &subject(stored), "x"));
        let ConditionResult { condition, result, fact, .. } = &why.rules[0].conditions[0];
        (identity, format!("{} {condition}: {fact}", result.as_str()))
    };
    let by_name = json!({"source": "name", "evidence": {"name": ["n1"]}});
    let named = "pool named, proven by its name";
    let (identity, fact) = look(None);
    assert_eq!(
        identity,
        json!({"pools": ["named"], "unknown": ["by-role", "gpu"], "mayHaveOthers": false, "contradictions": [], "proof": by_name})
    );
    let nothing = "nothing is recorded about its kubelet that proves or excludes by-role, gpu";
    assert_eq!(fact, format!("unknown pools [gpu, by-*]: {named}; {nothing}"));
    let (identity, fact) = look(Some("extra.arn=y\ngroup=pool:gpu\ngroup=team\nuser=system:node:n1"));
    let evidence = json!({"groups": ["pool:gpu", "team"], "extra.arn": ["y"]});
    let proof = json!({"source": "requester", "evidence": evidence});
    assert_eq!(
        identity,
        json!({"pools": ["gpu", "named"], "unknown": [], "mayHaveOthers": false, "contradictions": [], "proof": proof})
    );
    let gpu = "pool gpu, proven by what the API server authenticated about its kubelet";
    assert_eq!(fact, format!("true pools [gpu, by-*]: {gpu}; {named}"));
    let (identity, fact) = look(Some("no-extra.arn\nuser=system:node:n1"));
    assert_eq!(
        identity,
        json!({"pools": ["named"], "unknown": [], "mayHaveOthers": false, "contradictions": [], "proof": by_name})
    );
    assert_eq!(fact, format!("false pools [gpu, by-*]: {named}"));
    let without = explained(&living(json!({})), &set(json!({"rules": []})), None);
    assert_eq!(without.identity, None, "no policy has pools");
}
