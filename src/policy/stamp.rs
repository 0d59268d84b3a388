//! Who changed a node last, where that matters: an annotation that the webhook keeps and nobody else may write.

use super::decide::Split;
use super::decision::{Desired, Field, RuleId, Strength};
use super::request::{Circumstances, Write};
use super::rule::REMOVE_AFTER;
use super::set::PolicySet;

/// The annotation.
pub const LAST_CHANGE: &str = "nodegate.dev/last-change";

/// What the annotation should say after a write: the requester when he changes something that matters, or else what
/// it says already.
fn wanted<'a>(set: &PolicySet, write: &'a Write<'_>, circumstances: &Circumstances<'_>) -> Option<&'a str> {
    if matters(set, write, circumstances) {
        return Some(&write.requester.username);
    }
    write.old.as_ref().and_then(|old| old.annotation(LAST_CHANGE))
}

/// Whether a governed, protected, owned or persisted label or taint changes.
fn matters(set: &PolicySet, write: &Write<'_>, circumstances: &Circumstances<'_>) -> bool {
    let old = write.old.as_ref();
    let owned = circumstances.saved.and_then(|saved| saved.owned.as_ref());
    let persisted = || set.persisting_rules().filter_map(|rule| rule.gives.saved.as_ref());
    let governed = |field, key: &str| !set.governance().reserved(field, key, |_| true).is_empty();
    let label_matters = |key: &str| {
        set.is_protected(key)
            || governed(Field::Label, key)
            || owned.is_some_and(|owned| owned.labels.contains_key(key))
            || persisted().any(|kept| kept.labels.contains(key))
    };
    let added = write.node.labels().filter(|(key, value)| old.and_then(|old| old.label(key)) != Some(value));
    let gone = old.into_iter().flat_map(|old| old.labels()).filter(|(key, _)| write.node.label(key).is_none());
    if added.chain(gone).any(|(key, _)| label_matters(key)) {
        return true;
    }
    let taint_matters = |key: &str| {
        let lasting = !key.starts_with("node.kubernetes.io/");
        let owns = owned.is_some_and(|owned| owned.taints.iter().any(|taint| taint.key == key));
        lasting && (owns || governed(Field::Taint, key) || persisted().any(|kept| kept.taints.contains(key)))
    };
    let (was, is) = (old.map(|old| old.taints()).unwrap_or_default(), write.node.taints());
    let differ = is.iter().filter(|taint| !was.contains(taint)).chain(was.iter().filter(|taint| !is.contains(taint)));
    differ.into_iter().any(|taint| taint_matters(&taint.key))
}

impl Split<'_> {
    /// Puts the annotation right.
    pub(super) fn stamp(&mut self, set: &PolicySet, write: &Write<'_>, circumstances: &Circumstances<'_>) {
        let wanted = wanted(set, write, circumstances);
        if write.node.annotation(LAST_CHANGE) != wanted {
            self.change.annotations.insert(LAST_CHANGE.to_owned(), wanted.map(str::to_owned));
        }
        if let Some(wanted) = wanted {
            let by = RuleId { policy: "nodegate".into(), rule: "stamp-changes".into() };
            let (value, strength) = (wanted.to_owned(), Strength::Enforced);
            let desired = Desired { value, strength, by, remove_after: REMOVE_AFTER };
            self.decision.annotations.insert(LAST_CHANGE.to_owned(), desired);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::{Exemptions, NodeFacts, Operation, Origin, PolicyDocument, Requester, Text, decide, judge};

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
}
