//! Who changed a node last, where that matters: an annotation that the webhook keeps and nobody else may write.

use super::decide::Split;
use super::decision::{Desired, Field, Note, RuleId, Strength};
use super::facts::{NodeFacts, TaintFact};
use super::request::Circumstances;
use super::restriction::is_own;
use super::rule::REMOVE_AFTER;

/// The annotation.
pub const LAST_CHANGE: &str = "nodegate.dev/last-change";

impl Split<'_> {
    /// Puts the annotation right. To be called when everything else that this request carries is known.
    pub(super) fn stamp(&mut self, circumstances: &Circumstances<'_>) {
        let write = self.write;
        let wanted = match self.matters(circumstances) {
            true => Some(&*write.requester.username),
            false => write.old.as_ref().and_then(|old| old.annotation(LAST_CHANGE)),
        };
        if write.node.annotation(LAST_CHANGE) != wanted {
            self.change.annotations.insert(LAST_CHANGE.to_owned(), wanted.map(str::to_owned));
        } else {
            // It is our own word of before, not a kubelet's: the review is of an object that was patched already.
            self.change.annotations.remove(LAST_CHANGE);
            self.decision.notes.retain(|note| !matches!(note, Note::Stripped { key, .. } if key == LAST_CHANGE));
        }
        if let Some(wanted) = wanted {
            let by = RuleId { policy: "nodegate".into(), rule: "stamp-changes".into() };
            let (value, strength) = (wanted.to_owned(), Strength::Enforced);
            let desired = Desired { value, strength, by, remove_after: REMOVE_AFTER };
            self.decision.annotations.insert(LAST_CHANGE.to_owned(), desired);
        }
    }

    /// Whether a governed, protected, owned or persisted label or taint is changed by the requester: what nodegate
    /// itself adds or takes back in this write is not his doing, also where it is there already.
    fn matters(&self, circumstances: &Circumstances<'_>) -> bool {
        let (set, old) = (self.set, self.write.old.as_ref());
        let owned = circumstances.saved.and_then(|saved| saved.owned.as_ref());
        let persisted = || set.persisting_rules().filter_map(|rule| rule.gives.saved.as_ref());
        let governed = |field, key: &str| !set.governance().reserved(field, key, |_| true).is_empty();
        let label_matters = |key: &str| {
            set.is_protected(key)
                || governed(Field::Label, key)
                || owned.is_some_and(|owned| owned.labels.contains_key(key))
                || persisted().any(|kept| kept.labels.contains(key))
        };
        let taint_matters = |key: &str| {
            let pending = is_own(key) || circumstances.pending_taint.is_some_and(|pending| pending.key.as_str() == key);
            let lasting = !pending && !key.starts_with("node.kubernetes.io/");
            let owns = owned.is_some_and(|owned| owned.taints.iter().any(|taint| taint.key == key));
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
    use crate::policy::{
        Exemptions, NodeFacts, Operation, Origin, PolicyDocument, PolicySet, Requester, Text, Write, decide, judge,
    };

    fn set() -> PolicySet {
        let spec = json!({"protect": {"keys": ["hardware.tier"]}, "persist": {"labels": ["persist.demo/*"]}});
        PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap())]).unwrap()
    }

    /// What the write's patch does to the stamp, and whether the write is denied.
    fn stamped(user: &str, old: &serde_json::Value, new: &serde_json::Value) -> (Option<Option<String>>, bool) {
        let (old, new) = (old.to_string(), new.to_string());
        let write = Write {
            operation: Operation::Update,
            status: false,
            dry_run: false,
            requester: Requester { username: Text(user.into()), groups: Vec::new(), uid: None },
            node: NodeFacts::parse(&new).unwrap(),
            old: Some(NodeFacts::parse(&old).unwrap()),
        };
        let (set, circumstances) = (set(), Circumstances { stamps: true, ..Circumstances::default() });
        let decision = decide(&set, &write, &circumstances);
        let verdict = judge(&set, &write, &circumstances, &Exemptions::default());
        let change = decision.change.as_ref().and_then(|change| change.annotations().get(LAST_CHANGE).cloned());
        (change, verdict.denial().is_some())
    }

    fn node(labels: serde_json::Value, stamp: Option<&str>) -> serde_json::Value {
        let annotations = stamp.map_or_else(|| json!({}), |stamp| json!({LAST_CHANGE: stamp}));
        json!({"metadata": {"name": "n1", "uid": "u", "labels": labels, "annotations": annotations}})
    }

    #[test]
    fn only_what_matters_is_stamped_and_nobody_writes_the_stamp_himself() {
        let before = node(json!({"hardware.tier": "gold"}), Some("alice"));
        let changed = node(json!({"hardware.tier": "silver"}), Some("alice"));
        assert_eq!(stamped("bob", &before, &changed).0, Some(Some("bob".to_owned())));
        let other = node(json!({"hardware.tier": "gold", "color": "red"}), Some("alice"));
        assert_eq!(stamped("bob", &before, &other), (None, false));
        let forged = node(json!({"hardware.tier": "gold"}), Some("carol"));
        assert_eq!(stamped("bob", &before, &forged), (Some(Some("alice".to_owned())), true));
        let saved = node(json!({"hardware.tier": "gold", "persist.demo/a": "b"}), Some("alice"));
        assert_eq!(stamped("bob", &before, &saved).0, Some(Some("bob".to_owned())));
        let already = node(json!({"hardware.tier": "silver"}), Some("bob"));
        assert_eq!(stamped("bob", &before, &already), (None, false), "after our own patch");
    }

    #[test]
    fn asking_again_about_what_was_stamped_changes_nothing() {
        let kubelet = "system:node:n1";
        let forged = node(json!({"hardware.tier": "gold"}), None);
        let saved = node(json!({"persist.demo/a": "b"}), None);
        let joins = |object: &serde_json::Value| joined(kubelet, object);
        assert_eq!(joins(&forged), None, "what is stripped is not changed");
        assert_eq!(joins(&saved), Some(Some(kubelet.to_owned())));
        assert_eq!(joins(&node(json!({"persist.demo/a": "b"}), Some(kubelet))), None);
        assert_eq!(joins(&node(json!({}), Some(kubelet))), Some(None), "its own word is no stamp");
    }

    /// What a kubelet's CREATE does to the stamp.
    fn joined(user: &str, object: &serde_json::Value) -> Option<Option<String>> {
        let object = object.to_string();
        let write = Write {
            operation: Operation::Create,
            status: false,
            dry_run: false,
            requester: Requester { username: Text(user.into()), groups: vec![Text("system:nodes".into())], uid: None },
            node: NodeFacts::parse(&object).unwrap(),
            old: None,
        };
        let (set, circumstances) = (set(), Circumstances { stamps: true, ..Circumstances::default() });
        let decision = decide(&set, &write, &circumstances);
        decision.change.as_ref().and_then(|change| change.annotations().get(LAST_CHANGE).cloned())
    }
}
