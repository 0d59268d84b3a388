#![allow(clippy::unwrap_used)]

use crate::cli::leave::migrate::walk::*;
use nodegate_policy::api::document::PolicyDocument;

#[test]
fn the_policys_name_is_valid_and_tells_keys_apart() {
    let key = |text: &str| text.parse::<LabelKey>().unwrap();
    let long = format!("{}.example/{}", "a".repeat(60), "B_".repeat(30) + "c");
    let pairs =
        [("tier", "new"), ("Tier", "new"), ("ti.er", "new"), ("ti_er", "new"), ("tier", "newer"), (&*long, "x")];
    let names: Vec<String> = pairs.iter().map(|(old, new)| policy_name(&key(old), &key(new))).collect();
    for (at, name) in names.iter().enumerate() {
        let document = PolicyDocument::of_object(name, &json!({"migrations": []}));
        assert!(document.is_ok(), "{name}");
        assert!(
            name.len() <= 253 && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'),
            "{name}"
        );
        assert!(!names[..at].contains(name), "{name}");
    }
    assert!(names[0].starts_with("migrate-tier-"), "{}", names[0]);
}

#[test]
fn only_a_phase_that_was_set_by_hand_is_overwritten() {
    let spec = |to: &str, phase: &str| json!({"migrations": [{"from": "a", "to": to, "phase": phase}]});
    assert!(differs_in_phase_only(&spec("b", "cutover"), &spec("b", "done")));
    assert!(differs_in_phase_only(&spec("b", "done"), &spec("b", "done")));
    assert!(!differs_in_phase_only(&spec("c", "cutover"), &spec("b", "done")));
    let mut more = spec("b", "cutover");
    more["rules"] = json!([{"name": "r"}]);
    assert!(!differs_in_phase_only(&more, &spec("b", "done")));
    assert!(!differs_in_phase_only(&json!({}), &spec("b", "done")));
}

#[test]
fn phases_follow_each_other() {
    let all: Vec<Phase> = std::iter::successors(after(None), |phase| after(Some(*phase))).collect();
    assert_eq!(all, [Phase::DualWrite, Phase::Cutover, Phase::Done]);
}

#[test]
fn only_the_status_of_the_written_generation_is_a_refusal() {
    let status = |generation: i64, accepted: &str| {
        json!({"observedGeneration": generation,
            "conditions": [{"type": "Accepted", "status": accepted, "message": "because"}]})
    };
    assert_eq!(refusal(&status(2, "False"), Some(2)).as_deref(), Some("because"));
    assert_eq!(refusal(&status(1, "False"), Some(2)), None);
    assert_eq!(refusal(&status(2, "True"), Some(2)), None);
    assert_eq!(refusal(&json!(null), Some(2)), None);
}
