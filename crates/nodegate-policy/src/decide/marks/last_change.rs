//! The last-change annotation: who made the last significant change of a node. Only the webhook may write it.

use crate::decide::DecisionBuilder;
use crate::decide::decision::{Desired, Note};
use crate::facts::request::DecideContext;
use crate::facts::{NodeFacts, TaintFact};
use crate::keys::Field;
use crate::keys::restriction::is_own;
use crate::set::migration::Ownership;
use crate::set::rule::REMOVE_AFTER;
use crate::set::rule::{RuleId, Strength};

/// The annotation with the name of the last requester.
pub const LAST_CHANGE: &str = "nodegate.dev/last-change";

impl DecisionBuilder<'_> {
    /// Updates the annotation. Call this when everything else that this request carries is known.
    pub(crate) fn record_last_change(&mut self, context: &DecideContext<'_>) {
        let write = self.write;
        let wanted = match self.is_significant(context) {
            true => Some(&*write.requester.username),
            false => write.old.as_ref().and_then(|old| old.annotation(LAST_CHANGE)),
        };
        if write.node.annotation(LAST_CHANGE) != wanted {
            self.change.annotations.insert(LAST_CHANGE.to_owned(), wanted.map(str::to_owned));
        } else {
            // The value is nodegate's own: the reviewed object was patched before.
            self.change.annotations.remove(LAST_CHANGE);
            self.decision.notes.retain(|note| !matches!(note, Note::Stripped { key, .. } if key == LAST_CHANGE));
        }
        if let Some(wanted) = wanted {
            let by = RuleId::own("stamp-changes");
            let (value, strength) = (wanted.to_owned(), Strength::Enforced);
            let desired = Desired { value, strength, by, remove_after: REMOVE_AFTER, ownership: Ownership::Usual };
            self.decision.annotations.insert(LAST_CHANGE.to_owned(), desired);
        }
    }

    /// Whether the requester changes a governed, protected, owned or persisted label or taint. What nodegate itself adds
    /// or reverts in this write does not count, even if the object already contains it.
    fn is_significant(&self, context: &DecideContext<'_>) -> bool {
        let (set, old) = (self.set, self.write.old.as_ref());
        let owned = context.saved.and_then(|saved| saved.owned.as_ref());
        let persisted = || set.persisting_rules().filter_map(|rule| rule.assigns.saved.as_ref());
        let governed = |field, key: &str| !set.governance().reserved(field, key, |_| true).is_empty();
        let label_matters = |key: &str| {
            set.is_protected(key)
                || governed(Field::Label, key)
                || owned.is_some_and(|owned| owned.labels.contains_key(key))
                || persisted().any(|kept| kept.labels.contains(key))
        };
        let taint_matters = |key: &str| {
            let pending = is_own(key) || context.pending_taints.has_key(key);
            let lasting = !pending && !key.starts_with("node.kubernetes.io/");
            let owns = owned.is_some_and(|owned| owned.taints.iter().any(|taint| *taint.key == *key));
            lasting && (owns || governed(Field::Taint, key) || persisted().any(|kept| kept.taints.contains(key)))
        };
        let nodes = || [Some(&self.write.node), old].into_iter().flatten();
        nodes().flat_map(|node| node.labels()).any(|(key, _)| self.changes_label(key) && label_matters(key))
            || nodes()
                .flat_map(|node| node.taints())
                .any(|taint| self.changes_taint(taint) && taint_matters(&taint.key))
    }

    fn changes_label(&self, key: &str) -> bool {
        let stored = self.write.old.as_ref().and_then(|old| old.label(key));
        let after = self.change.labels.get(key).map_or(self.write.node.label(key), Option::as_deref);
        after != stored && (after.is_none() || after != self.decision.label(key))
    }

    fn changes_taint(&self, taint: &TaintFact<'_>) -> bool {
        let value = |node: &NodeFacts<'_>| {
            let same = node.taints().iter().find(|other| other.key == taint.key && other.effect == taint.effect);
            same.map(|taint| taint.value().to_owned())
        };
        let stored = self.write.old.as_ref().and_then(value);
        let ours = self.change.taints.iter().find(|(id, _)| taint.is(id.key.as_str(), id.effect));
        let after = ours.map_or_else(|| value(&self.write.node), |(_, value)| value.clone());
        let desired = taint.effect().and_then(|effect| self.decision.taint(&taint.key, effect));
        after != stored && (after.is_none() || after.as_deref() != desired)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        Exemptions, NodeFacts, Operation, Origin, PolicyDocument, PolicySet, Requester, Text, Write, decide, judge,
    };

    /// A set that saves these taints.
    fn set(saved_taint: &str) -> PolicySet {
        let spec = json!({"protect": {"keys": ["hardware.tier"]}, "persist": {"labels": ["persist.demo/*"], "taints": [saved_taint]}});
        PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap())]).unwrap()
    }

    /// The patch of the annotation, and whether the write is denied.
    fn last_change_of(user: &str, old: &serde_json::Value, new: &serde_json::Value) -> (Option<Option<String>>, bool) {
        last_change_in(&set("dedicated"), user, old, new)
    }

    fn last_change_in(
        set: &PolicySet,
        user: &str,
        old: &serde_json::Value,
        new: &serde_json::Value,
    ) -> (Option<Option<String>>, bool) {
        let (old, new) = (old.to_string(), new.to_string());
        let write = Write {
            operation: Operation::Update,
            status: false,
            dry_run: false,
            evidence: None,
            requester: Requester { username: Text(user.into()), groups: Vec::new(), ..Requester::default() },
            node: NodeFacts::parse(&new).unwrap(),
            old: Some(NodeFacts::parse(&old).unwrap()),
        };
        let context = DecideContext { records_last_change: true, ..DecideContext::default() };
        let decision = decide(set, &write, &context);
        let verdict = judge(set, &write, &context, &Exemptions::default());
        let change = decision.change.as_ref().and_then(|change| change.annotations().get(LAST_CHANGE).cloned());
        (change, verdict.denial().is_some())
    }

    fn node(labels: serde_json::Value, last: Option<&str>) -> serde_json::Value {
        let annotations = last.map_or_else(|| json!({}), |last| json!({LAST_CHANGE: last}));
        json!({"metadata": {"name": "n1", "uid": "u", "labels": labels, "annotations": annotations}})
    }

    #[test]
    fn only_significant_changes_are_recorded_and_nobody_writes_the_record_by_hand() {
        let before = node(json!({"hardware.tier": "gold"}), Some("alice"));
        let changed = node(json!({"hardware.tier": "silver"}), Some("alice"));
        assert_eq!(last_change_of("bob", &before, &changed).0, Some(Some("bob".to_owned())));
        let other = node(json!({"hardware.tier": "gold", "color": "red"}), Some("alice"));
        assert_eq!(last_change_of("bob", &before, &other), (None, false));
        let forged = node(json!({"hardware.tier": "gold"}), Some("carol"));
        assert_eq!(last_change_of("bob", &before, &forged), (Some(Some("alice".to_owned())), true));
        let saved = node(json!({"hardware.tier": "gold", "persist.demo/a": "b"}), Some("alice"));
        assert_eq!(last_change_of("bob", &before, &saved).0, Some(Some("bob".to_owned())));
        let already = node(json!({"hardware.tier": "silver"}), Some("bob"));
        assert_eq!(last_change_of("bob", &before, &already), (None, false), "the object already contains the patch");
    }

    #[test]
    fn a_change_of_a_taint_is_recorded_if_the_taint_is_saved_and_lasting() {
        let tainted = |taints: &[&str]| {
            let mut node = node(json!({}), Some("alice"));
            let taints = taints.iter().map(|text| crate::simulate::taint(text).unwrap());
            node["spec"] = json!({"taints": taints.collect::<Vec<_>>()});
            node
        };
        for (saved, before, after, recorded) in [
            ("dedicated", &[][..], &["dedicated=ml:NoSchedule"][..], true),
            ("dedicated", &["dedicated=ml:NoSchedule"], &["dedicated=web:NoSchedule"], true),
            ("dedicated", &["dedicated=ml:NoSchedule"], &["dedicated=ml:NoExecute"], true),
            ("dedicated", &["dedicated=ml:NoSchedule"], &[], true),
            ("dedicated", &["dedicated=ml:NoSchedule"], &["dedicated=ml:NoSchedule"], false),
            ("dedicated", &["dedicated=ml:NoSchedule"], &["dedicated=ml:NoSchedule", "other:NoSchedule"], false),
            ("*", &["dedicated=ml:NoSchedule"], &["dedicated=ml:NoSchedule", "other:NoSchedule"], true),
            ("*", &[], &["node.kubernetes.io/unreachable:NoExecute"], false),
            ("*", &["nodegate.dev/pending:NoSchedule"], &[], false),
        ] {
            let found = last_change_in(&set(saved), "bob", &tainted(before), &tainted(after)).0;
            let expected = recorded.then(|| Some("bob".to_owned()));
            assert_eq!(found, expected, "{saved} is saved; from {before:?} to {after:?}");
        }
    }

    #[test]
    fn deciding_again_about_a_recorded_change_changes_nothing() {
        let kubelet = "system:node:n1";
        let forged = node(json!({"hardware.tier": "gold"}), None);
        let saved = node(json!({"persist.demo/a": "b"}), None);
        let joins = |object: &serde_json::Value| joined(kubelet, object);
        assert_eq!(joins(&forged), None, "a removed label is not a change");
        assert_eq!(joins(&saved), Some(Some(kubelet.to_owned())));
        assert_eq!(joins(&node(json!({"persist.demo/a": "b"}), Some(kubelet))), None);
        assert_eq!(joins(&node(json!({}), Some(kubelet))), Some(None), "a value from the kubelet is removed");
    }

    /// The patch of the annotation at a kubelet's CREATE.
    fn joined(user: &str, object: &serde_json::Value) -> Option<Option<String>> {
        let object = object.to_string();
        let write = Write {
            operation: Operation::Create,
            status: false,
            dry_run: false,
            evidence: None,
            requester: Requester {
                username: Text(user.into()),
                groups: vec![Text("system:nodes".into())],
                ..Requester::default()
            },
            node: NodeFacts::parse(&object).unwrap(),
            old: None,
        };
        let (set, context) =
            (set("dedicated"), DecideContext { records_last_change: true, ..DecideContext::default() });
        let decision = decide(&set, &write, &context);
        decision.change.as_ref().and_then(|change| change.annotations().get(LAST_CHANGE).cloned())
    }
}
