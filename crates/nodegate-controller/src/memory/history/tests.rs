use serde_json::{Value as Json, json};

use super::*;

fn note(history: &mut History, before: &NodeObject, after: &NodeObject, sight: Sight) {
    let (before, after) = (before.text(), after.text());
    let (before, after) = (Version::of(&before).unwrap(), Version::of(&after).unwrap());
    history.note(&before, &after, Timestamp::UNIX_EPOCH, sight);
}

fn node(tier: &str, stamp: &str, claimed: Json) -> NodeObject {
    let claims = json!([{"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": claimed}}]);
    let node = json!({"metadata": {"name": "n1", "uid": "u", "labels": {"tier": tier}, "annotations": {LAST_CHANGE: stamp},
        "managedFields": claims}});
    NodeObject::read(&node.to_string()).unwrap()
}

#[test]
fn a_key_without_a_claim_is_admissions_only_where_fields_are_tracked() {
    let how = |before: NodeObject, after: NodeObject| {
        let mut history = History::new(false);
        note(&mut history, &before, &after, Sight::Next);
        history.pending.take().unwrap().changes.pop().unwrap().how
    };
    let other = json!({"f:labels": {"f:other": {}}});
    assert_eq!(how(node("a", "", other.clone()), node("b", "", other)), "admission");
    let untracked = |tier: &str| {
        let text = json!({"metadata": {"name": "n1", "uid": "u", "labels": {"tier": tier}}});
        NodeObject::read(&text.to_string()).unwrap()
    };
    assert_eq!(how(untracked("a"), untracked("b")), "user");
}

/// The recorded author of the change of the label `tier`.
fn writer(records_last_change: bool, claimed: Json) -> String {
    let mut history = History::new(records_last_change);
    note(&mut history, &node("a", "bob", claimed.clone()), &node("b", "alice", claimed), Sight::Next);
    history.pending.take().unwrap().changes.pop().unwrap().by
}

#[test]
fn a_stamp_is_trusted_only_if_the_webhook_maintains_it_and_no_manager_claims_it() {
    let label = json!({"f:labels": {"f:tier": {}}});
    let both = json!({"f:labels": {"f:tier": {}}, "f:annotations": {(format!("f:{LAST_CHANGE}")): {}}});
    assert_eq!(writer(true, label.clone()), "alice");
    assert_eq!(writer(false, label), "kubectl");
    assert_eq!(writer(true, both), "kubectl");
}

/// A node whose managers have written at these seconds, with its labels.
fn written(labels: &Json, managers: &[(&str, u32)]) -> NodeObject {
    let claim = |(manager, second): &(&str, u32)| json!({"manager": manager, "time": format!("2026-01-01T00:00:0{second}Z"), "fieldsV1": {"f:metadata": {}}});
    let claims: Vec<Json> = managers.iter().map(claim).collect();
    let node = json!({"metadata": {"name": "n1", "uid": "u", "labels": labels, "managedFields": claims}});
    NodeObject::read(&node.to_string()).unwrap()
}

/// How the history tells the removal of a label.
fn removal(after: &[(&str, u32)], sight: Sight) -> (String, String) {
    let mut history = History::new(false);
    let before = written(&json!({"tier": "a"}), &[("kubelet", 1), ("kubectl-label", 0)]);
    note(&mut history, &before, &written(&json!({}), after), sight);
    let change = history.pending.take().unwrap().changes.pop().unwrap();
    (change.how, change.by)
}

#[test]
fn a_removal_is_nobodys_unless_exactly_one_manager_has_written_with_it() {
    let told = |how: &str, by: &str| (how.to_owned(), by.to_owned());
    assert_eq!(removal(&[("kubelet", 1)], Sight::Next), told("unknown", ""), "a user's removal after a heartbeat");
    assert_eq!(removal(&[("kubelet", 1), ("edit", 2)], Sight::Next), told("user", "edit"));
    assert_eq!(removal(&[("kubelet", 2)], Sight::Next), told("kubelet", "kubelet"));
    assert_eq!(removal(&[("kubelet", 2), ("edit", 2)], Sight::Next), told("unknown", ""));
    let listed = removal(&[("kubelet", 2)], Sight::Listed);
    assert_eq!(listed, told("unknown", ""), "the heartbeat may have come after the removal");
}

#[test]
fn a_value_that_changes_in_somebody_elses_write_is_not_the_claimants() {
    let node = |tier: &str, owner: u32, other: u32| {
        let claim = |manager: &str, second: u32, key: &str| {
            json!({"manager": manager, "time": format!("2026-01-01T00:00:0{second}Z"),
                   "fieldsV1": {"f:metadata": {"f:labels": {(key): {}}}}})
        };
        let claims = json!([claim("kubectl-label", owner, "f:tier"), claim("autoscaler", other, "f:other")]);
        let node = json!({"metadata": {"name": "n1", "uid": "u", "labels": {"tier": tier}, "managedFields": claims}});
        NodeObject::read(&node.to_string()).unwrap()
    };
    let told = |after: NodeObject, sight| {
        let mut history = History::new(false);
        note(&mut history, &node("a", 1, 1), &after, sight);
        let change = history.pending.take().unwrap().changes.pop().unwrap();
        (change.how, change.by)
    };
    let by = |how: &str, by: &str| (how.to_owned(), by.to_owned());
    assert_eq!(told(node("b", 2, 1), Sight::Next), by("user", "kubectl-label"));
    assert_eq!(told(node("b", 1, 2), Sight::Next), by("admission", ""), "a rule changed it in the other's write");
    assert_eq!(told(node("b", 1, 1), Sight::Next), by("user", "kubectl-label"), "twice within a second");
    assert_eq!(told(node("b", 1, 2), Sight::Listed), by("user", "kubectl-label"), "others may have come later");
}

#[test]
fn a_saved_label_is_restored_also_where_the_kubelet_claimed_another_value() {
    use nodegate_policy::{Field, RuleId};
    let rejected = RejectedClaim {
        field: Some(Field::Label),
        key: "tier".to_owned(),
        asserted: "forged".to_owned(),
        by: RuleId::own("persisted"),
    };
    let desired = Desired {
        value: "gold".to_owned(),
        strength: Strength::Saved,
        by: RuleId::own("persisted"),
        remove_after: Duration::ZERO,
        ownership: Default::default(),
    };
    let decision = Decision { labels: [("tier".to_owned(), desired)].into(), ..Decision::default() };
    let node = node("gold", "", json!({"f:labels": {"f:tier": {}}}));
    let told = |rejected: Vec<RejectedClaim>| {
        let mut history = History::new(false);
        let arrival = Arrival { decision: &decision, returned: false, admitted: true };
        history.arrived(&node, &node.text().facts().unwrap(), &arrival, rejected);
        let changes = history.pending.take().map(|pending| pending.changes).unwrap_or_default();
        changes.into_iter().map(|change| (change.how, change.new.unwrap())).collect::<Vec<_>>()
    };
    let row = |how: &str, value: &str| (how.to_owned(), value.to_owned());
    assert_eq!(told(vec![rejected]), [row("rejected", "forged"), row("restored", "gold")]);
    assert_eq!(told(Vec::new()), [], "the kubelet itself gave it");
}

#[test]
fn rejected_claims_are_recorded_with_the_number_of_those_without_a_name() {
    use nodegate_policy::{Field, RuleId};
    let claim = |field, key: &str, asserted: &str, by| RejectedClaim {
        field,
        key: key.to_owned(),
        asserted: asserted.to_owned(),
        by: RuleId::own(by),
    };
    let rejected = [claim(Some(Field::Label), "tier", "", "rule"), claim(None, "17 more keys", "", "unnamed")];
    let (node, decision) = (written(&json!({}), &[]), Decision::default());
    let arrival = Arrival { decision: &decision, returned: false, admitted: true };
    let mut history = History::new(false);
    for _ in 0..2 {
        history.arrived(&node, &node.text().facts().unwrap(), &arrival, rejected.clone());
    }
    let rows = history.pending.take().unwrap().changes.into_iter();
    let rows: Vec<_> = rows.map(|row| (row.how, row.field, row.key, row.new, row.rule)).collect();
    let row = |field: &str, key: &str, new: Option<&str>, rule: &str| {
        ("rejected".to_owned(), field.to_owned(), key.to_owned(), new.map(str::to_owned), rule.to_owned())
    };
    let expected =
        [row("label", "tier", Some(""), "nodegate/rule"), row("node", "17 more keys", None, "nodegate/unnamed")];
    assert_eq!(rows, expected);
}

#[test]
fn a_change_of_the_controller_names_its_rule_unless_it_was_not_made() {
    use nodegate_policy::{PendingTaints, PolicyDocument, PolicySet, StoredNode, plan_reconcile};
    let spec = json!({"rules": [{"name": "tier", "labels": {"tier": "gold"}}]});
    let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
    let before = written(&json!({"old": "a"}), &[("kubelet", 1)]);
    let text = before.text();
    let facts = text.facts().unwrap();
    let saved = json!({"nodeName": "n1", "nodeUID": "u", "owned": {"labels": {"old": "a"}}});
    let stored = StoredNode {
        pools: None,
        node: &facts,
        version: None,
        claims: text.claims(),
        saved: &serde_json::from_value(saved).unwrap(),
        inventory: None,
        devices: None,
        registered: true,
        identified: true,
        pending: <&PendingTaints>::default(),
        adopt: false,
        patched_taints: &std::collections::BTreeSet::new(),
        elsewhere: Default::default(),
        evidence: None,
    };
    let plan = plan_reconcile(&set, &stored);
    let change = plan.change(|_| true, |_, _| false).unwrap();
    let told = |is_made: bool| {
        let mut history = History::new(false);
        history.makes(&plan.decision, &change);
        if !is_made {
            history.made_nothing();
        }
        let after = json!([{"manager": FIELD_MANAGER, "time": "2026-01-01T00:00:02Z",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:tier": {}}}}}]);
        let after = json!({"metadata": {"name": "n1", "uid": "u", "labels": {"tier": "gold"}, "managedFields": after}});
        note(&mut history, &before, &NodeObject::read(&after.to_string()).unwrap(), Sight::Next);
        let changes = history.pending.take().unwrap().changes;
        changes.into_iter().map(|change| (change.key, change.how, change.rule)).collect::<Vec<_>>()
    };
    let row = |key: &str, rule: &str| (key.to_owned(), "controller".to_owned(), rule.to_owned());
    assert_eq!(told(true), [row("old", ""), row("tier", "fleet/tier")]);
    assert_eq!(told(false), [row("old", ""), row("tier", "")]);
}
