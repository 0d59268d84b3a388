//! What admission did to the CREATE of a node, left on the node for the controller, because the webhook has no side effects:
//! the saved state that it restored, and the rejected claims of the kubelet. Only the webhook may write it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::names::{KEY_MAX, TaintId};
use crate::decide::decision::Note;
use crate::decide::forbidden::ForbiddenKeys;
use crate::decide::marks::last_change::LAST_CHANGE;
use crate::decide::{DecisionBuilder, PatchScope};
use crate::facts::NodeFacts;
use crate::facts::proof::evidence::AUTHENTICATED_AS;
use crate::facts::request::{DecideContext, Operation, Write};
use crate::keys::Field;
use crate::set::rule::RuleId;

/// The annotation with an [`AdmissionMark`], as JSON.
pub const ADMISSION: &str = "nodegate.dev/admission";

/// Maximum number of labels and taints in an [`AdmissionMark`]; a kubelet decides how many there are.
pub(crate) const REJECTED_MAX: usize = 16;
/// Maximum length of a value in characters; a longer one is cut.
const VALUE_MAX: usize = 63;

/// What admission did to the CREATE of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmissionMark {
    /// [`restore_token`](crate::api::state::SavedState::restore_token) of the saved state whose keys were restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<String>,
    /// Labels that the kubelet may not set or that rules set, with the values that it claimed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, String>,
    /// Taints that rules set, as `key:Effect`, with the other values that the kubelet asserted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected_taints: BTreeMap<String, String>,
    /// How many more labels and taints there were.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
    /// How many of nodegate's own annotations were removed, and of its labels, if the guard removed them.
    #[serde(skip_serializing_if = "is_zero")]
    pub own: usize,
    /// Whether the kubelet named owners of its node.
    #[serde(skip_serializing_if = "is_false")]
    pub owners: bool,
    /// Whether the guard left this, which has removed from the object what it names. nodegate's webhook then tells it, and leaves
    /// its own mark.
    #[serde(skip_serializing_if = "is_false")]
    guard: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(is: &bool) -> bool {
    !is
}

/// The labels or the taints of a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claimed {
    Label,
    Taint,
}

impl AdmissionMark {
    /// The mark of a node, as its annotation says; `None` without the annotation.
    ///
    /// A kubelet can forge it in a CREATE that no webhook sees. Then it tells what the kubelet chose to tell of itself, and one
    /// that cannot be read is a rejected claim, too; the token of [`Self::restored`] it cannot know. Claims prove nothing here,
    /// because they can be forged in any CREATE.
    pub(crate) fn read(node: &NodeFacts<'_>) -> Option<Self> {
        let text = node.annotation(ADMISSION)?;
        let read: Self = serde_json::from_str(text).unwrap_or_else(|_| Self { own: 1, ..Self::default() });
        let Self { restored, rejected, rejected_taints, more, own, owners, guard } = read;
        let mut mark = Self { restored, more, own, owners, guard, ..Self::default() };
        rejected.iter().for_each(|(key, value)| mark.reject(Claimed::Label, key, value));
        rejected_taints.iter().for_each(|(id, value)| mark.reject(Claimed::Taint, id, value));
        Some(mark)
    }

    /// Adds a label or a taint as far as there is room.
    fn reject(&mut self, claimed: Claimed, key: &str, value: &str) {
        let has_room = self.rejected.len() + self.rejected_taints.len() < REJECTED_MAX && key.len() <= KEY_MAX;
        let claims = if claimed == Claimed::Label { &mut self.rejected } else { &mut self.rejected_taints };
        if claims.contains_key(key) {
            return;
        }
        if has_room {
            claims.insert(key.to_owned(), value.chars().take(VALUE_MAX).collect());
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl DecisionBuilder<'_> {
    /// Sets the annotation in a CREATE. Call this when the labels that this request carries are known.
    pub(crate) fn leave_admission_mark(&mut self, context: &DecideContext<'_>) {
        if self.write.operation != Operation::Create {
            return;
        }
        let node = &self.write.node;
        // The guard may have left a mark before, and only on the node of a kubelet that joins. A kubelet that forges it tells on
        // itself; others have no say about what a kubelet asserted.
        let joins = self.scope == PatchScope::KubeletCreate;
        let mut mark = AdmissionMark::read(node).filter(|_| joins).unwrap_or_default();
        // What nothing rejects must not take the place of what is rejected.
        mark.rejected.retain(|key, _| self.is_enforced(key));
        mark.rejected_taints.retain(|id, _| self.enforced_taints().any(|ours| ours.to_string() == *id));
        let is_guards = std::mem::take(&mut mark.guard);
        if is_guards {
            self.note_guards_corrections(&mark);
        }
        mark.owners |= joins && node.has_owners;
        let saved = context.saved.filter(|saved| !saved.labels.is_empty() || !saved.taints.is_empty());
        mark.restored = saved.and_then(|saved| saved.restore_token.clone());
        if joins {
            self.rejected().for_each(|(key, value)| mark.reject(Claimed::Label, key, value));
            self.rejected_taints().for_each(|(id, value)| mark.reject(Claimed::Taint, &id, value));
            // The guard has counted what it removed itself, and a second review finds nothing anymore.
            mark.own = mark.own.max(self.own_annotations(context));
        }
        let wanted = if mark.is_empty() { None } else { serde_json::to_string(&mark).ok() };
        self.leave(ADMISSION, wanted, is_guards);
    }

    /// Notes what the guard has removed from the object of a joining kubelet, as if this request removed it.
    fn note_guards_corrections(&mut self, mark: &AdmissionMark) {
        let node = &self.write.node;
        for key in mark.rejected.keys().filter(|key| node.label(key).is_none()) {
            let (field, key) = (Field::Label, key.clone());
            let by_rule = self.decision.labels.get(&key).filter(|desired| desired.strength.is_kept());
            let note = match by_rule {
                Some(desired) => Note::Reverted { field, key, value: desired.value.clone(), by: desired.by.clone() },
                None => {
                    let by = self
                        .forbidden
                        .as_ref()
                        .map_or_else(|| RuleId::own("own-keys"), |forbidden| forbidden.rule(&key));
                    Note::Stripped { field, key, by }
                }
            };
            self.decision.notes.push(note);
        }
        let count = mark.more.saturating_add(mark.own);
        self.decision.notes.extend((count > 0).then(|| Note::StrippedUnnamed { count, by: RuleId::own("unnamed") }));
    }

    /// The labels that a joining kubelet sends and that this request changes, except those that differ only from saved
    /// values and defaults.
    fn rejected(&self) -> impl Iterator<Item = (&str, &str)> {
        let differs = |key: &str, sent: &str| {
            self.change.labels.get(key).is_some_and(|value| value.as_deref() != Some(sent)) && self.is_enforced(key)
        };
        self.write.node.labels().filter(move |(key, value)| differs(key, value))
    }

    /// The taints that a joining kubelet sends with other values than those of rules.
    fn rejected_taints(&self) -> impl Iterator<Item = (String, &str)> {
        let changed = self.enforced_taints().filter(|id| self.change.taints.contains_key(*id));
        changed.filter_map(|id| Some((id.to_string(), self.write.node.taint(id.key.as_str(), id.effect)?)))
    }

    /// The number of nodegate's own annotations that a joining kubelet sends, without those that an earlier review has set.
    fn own_annotations(&self, context: &DecideContext<'_>) -> usize {
        let Write { node, requester, .. } = self.write;
        let stamp = Some(&*requester.username).filter(|_| context.records_last_change);
        let is_ours = |key: &str| match key {
            ADMISSION => true,
            LAST_CHANGE => node.annotation(key) == stamp,
            AUTHENTICATED_AS => self.is_sent_evidence_true(),
            _ => false,
        };
        let asserted = self.forbidden.as_ref().map(ForbiddenKeys::asserted_annotations).unwrap_or_default();
        asserted.keys().filter(|key| !is_ours(key)).count()
    }

    /// The taints that rules set, whatever others set.
    fn enforced_taints(&self) -> impl Iterator<Item = &TaintId> {
        self.decision.taints.iter().filter(|(_, desired)| desired.strength.is_kept()).map(|(id, _)| id)
    }

    /// Whether a rule sets this label, or the kubelet may not.
    fn is_enforced(&self, key: &str) -> bool {
        let by_rule = || self.decision.labels.get(key).is_some_and(|desired| desired.strength.is_kept());
        by_rule() || self.forbidden.as_ref().is_some_and(|forbidden| forbidden.label(key).is_some())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::state::SavedState;
    use crate::{PolicyDocument, PolicySet, Requester, Text, decide};

    /// The annotation after the CREATE of a node with these labels and this annotation, and after nodegate reviewed its
    /// own result.
    fn marked(user: &str, labels: &Value, annotation: Option<&str>, saved: &SavedState) -> [Option<Value>; 2] {
        let mut object = json!({"metadata": {"name": "n1", "labels": labels, "annotations": {}}});
        if let Some(annotation) = annotation {
            object["metadata"]["annotations"][ADMISSION] = annotation.into();
        }
        marked_object(user, object, saved)
    }

    fn marked_object(user: &str, object: Value, saved: &SavedState) -> [Option<Value>; 2] {
        reviewed(user, object, saved).map(|(mark, _)| mark)
    }

    /// The annotation and the notes of both reviews.
    fn reviewed(user: &str, mut object: Value, saved: &SavedState) -> [(Option<Value>, Vec<String>); 2] {
        let spec = json!({
            "rules": [{"name": "tier", "labels": {"hardware.tier": "gold", "zone": "a"},
                       "taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}],
            "protect": {"keys": ["hardware.tier", "hardware.example.com/*"]}, "persist": {"labels": ["persist.demo/*"]},
        });
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        let context = DecideContext { saved: Some(saved), records_last_change: true, ..DecideContext::default() };
        let requester = || Requester {
            username: Text(user.into()),
            groups: vec![Text("system:nodes".into())],
            ..Requester::default()
        };
        let mut review = || {
            let text = object.to_string();
            let node = NodeFacts::parse(&text).unwrap();
            let write = Write {
                operation: Operation::Create,
                status: false,
                dry_run: false,
                evidence: None,
                requester: requester(),
                node,
                old: None,
            };
            let decision = decide(&set, &write, &context);
            let notes = decision.notes.iter().map(ToString::to_string).collect();
            if let Some(patch) = crate::patch_of_write(&write, decision.change.as_ref()).unwrap() {
                json_patch::patch(&mut object, &patch.parse().unwrap()).unwrap();
            }
            let mark = object["metadata"]["annotations"][ADMISSION].as_str();
            (mark.map(|mark| serde_json::from_str(mark).unwrap()), notes)
        };
        [review(), review()]
    }

    const KUBELET: &str = "system:node:n1";

    #[test]
    fn what_a_joining_kubelet_asserts_in_vain_stays_on_the_node() {
        let labels = json!({"hardware.tier": "dual-gpu", "hardware.example.com/other": "x", "zone": "b", "persist.demo/a": "1", "own": "y"});
        let expected =
            json!({"rejected": {"hardware.tier": "dual-gpu", "hardware.example.com/other": "x", "zone": "b"}});
        assert_eq!(marked(KUBELET, &labels, None, &SavedState::default()), [Some(expected.clone()), Some(expected)]);
        let right = json!({"hardware.tier": "gold", "zone": "a"});
        assert_eq!(marked(KUBELET, &right, None, &SavedState::default()), [None, None]);
        assert_eq!(
            marked("admin", &labels, None, &SavedState::default()),
            [None, None],
            "an administrator asserts nothing"
        );
    }

    #[test]
    fn the_mark_names_the_saved_state_that_was_restored_and_cannot_be_chosen() {
        let saved: SavedState =
            serde_json::from_value(json!({"nodeName": "n1", "labels": {"persist.demo/a": "1"}, "restoreToken": "t1"}))
                .unwrap();
        let expected = || Some(json!({"restored": "t1"}));
        assert_eq!(marked(KUBELET, &json!({}), None, &saved), [expected(), expected()]);
        assert_eq!(marked("admin", &json!({}), None, &saved), [expected(), expected()]);
        assert_eq!(marked(KUBELET, &json!({}), Some(r#"{"restored":"t2"}"#), &saved), [expected(), expected()]);
        let nothing = SavedState::default();
        assert_eq!(marked(KUBELET, &json!({}), Some(r#"{"restored":"t1"}"#), &nothing), [None, None]);
        for unreadable in ["{", "", r#"{"more":-1}"#] {
            let claim = || Some(json!({"own": 1}));
            assert_eq!(marked(KUBELET, &json!({}), Some(unreadable), &nothing), [claim(), claim()], "{unreadable}");
            assert_eq!(marked("admin", &json!({}), Some(unreadable), &nothing), [None, None], "{unreadable}");
        }
    }

    #[test]
    fn nobody_hides_a_claim_behind_a_mark_and_nobody_but_a_kubelet_asserts() {
        let full: serde_json::Map<String, Value> = (0..REJECTED_MAX).map(|at| (format!("a{at}"), "x".into())).collect();
        let forged = json!({"rejected": full}).to_string();
        let labels = json!({"hardware.tier": "dual-gpu"});
        let [mark, _] = marked(KUBELET, &labels, Some(&forged), &SavedState::default());
        assert_eq!(mark, Some(json!({"rejected": {"hardware.tier": "dual-gpu"}})));
        // As the guard leaves it, which has taken the label off the node.
        let by_guard = json!({"rejected": {"hardware.tier": "dual-gpu"}, "guard": true}).to_string();
        let [mark, _] = marked(KUBELET, &json!({}), Some(&by_guard), &SavedState::default());
        assert_eq!(mark, Some(json!({"rejected": {"hardware.tier": "dual-gpu"}})));
        assert_eq!(marked("admin", &json!({}), Some(&by_guard), &SavedState::default()), [None, None]);
        let [mark, _] = marked(KUBELET, &json!({}), Some(r#"{"more":17,"guard":true}"#), &SavedState::default());
        assert_eq!(mark, Some(json!({"more": 17})), "the guard names none of too many");
    }

    #[test]
    fn what_the_guard_has_removed_is_told_once_and_only_what_the_kubelet_sent() {
        let joining = |mark: &str| json!({"metadata": {"name": "n1", "annotations": {ADMISSION: mark}}});
        let notes = |mark: &str| reviewed(KUBELET, joining(mark), &SavedState::default()).map(|(_, notes)| notes);
        let removed = |what: &str| format!("{what} may not be asserted by a kubelet and was removed");
        let by_guard = r#"{"owners":true,"own":1,"rejected":{"hardware.tier":"dual-gpu","hardware.example.com/other":"x","unknown":"x"},"guard":true}"#;
        let told = vec![
            removed("label hardware.example.com/other"),
            r#"label hardware.tier is kept at "gold" by rule fleet/tier"#.to_owned(),
            removed("1 label or annotation"),
        ];
        assert_eq!(notes(by_guard), [told, vec![]]);
        assert_eq!(
            notes(r#"{"more":17,"guard":true}"#)[0],
            ["17 labels and annotations may not be asserted by a kubelet and were removed"]
        );
        // Without the guard, the mark is what the kubelet sent.
        assert_eq!(notes(r#"{"restored":"t1"}"#), [vec![removed("annotation nodegate.dev/admission")], vec![]]);
        assert!(notes(r#"{"more":17}"#).concat().is_empty(), "a review of nodegate's own result");
    }

    #[test]
    fn other_taints_than_those_of_rules_and_owners_are_claims_as_well() {
        let taint = |value: &str| json!({"key": "dedicated", "value": value, "effect": "NoSchedule"});
        let joining = |value: &str, owners: Value| {
            json!({"metadata": {"name": "n1", "ownerReferences": owners},
                   "spec": {"taints": [taint(value), {"key": "own", "effect": "NoSchedule"}]}})
        };
        let owners = || json!([{"kind": "CSINode", "name": "n1", "uid": "u"}]);
        let nothing = SavedState::default();
        let expected = || Some(json!({"rejectedTaints": {"dedicated:NoSchedule": "web"}, "owners": true}));
        assert_eq!(marked_object(KUBELET, joining("web", owners()), &nothing), [expected(), expected()]);
        assert_eq!(marked_object(KUBELET, joining("ml", Value::Null), &nothing), [None, None]);
        let saved: SavedState = serde_json::from_value(json!({"nodeName": "n1", "restoreToken": "t1",
            "taints": [{"key": "own", "value": "x", "effect": "NoSchedule"}]}))
        .unwrap();
        let restored = || Some(json!({"restored": "t1"}));
        let marks = marked_object(KUBELET, joining("ml", Value::Null), &saved);
        assert_eq!(marks, [restored(), restored()], "what differs from what is saved only is no claim");
        assert_eq!(marked_object("admin", joining("web", owners()), &nothing), [None, None]);
    }

    #[test]
    fn nodegates_own_annotations_are_counted_also_without_the_guard() {
        let joining = |mark: &str| {
            json!({"metadata": {"name": "n1", "annotations": {"nodegate.dev/owned": "all", LAST_CHANGE: "admin", "other": "x",
                ADMISSION: mark}}})
        };
        let counted = |own: usize| [Some(json!({"own": own})), Some(json!({"own": own}))];
        let nothing = SavedState::default();
        assert_eq!(marked_object(KUBELET, joining("{}"), &nothing), counted(2));
        assert_eq!(marked_object(KUBELET, joining(r#"{"own":3}"#), &nothing), counted(3), "the guard has removed some");
        assert_eq!(marked_object("admin", joining("{}"), &nothing), [None, None]);
    }

    #[test]
    fn a_mark_is_bounded_whatever_a_kubelet_sends() {
        let labels: serde_json::Map<String, Value> =
            (0..500).map(|at| (format!("hardware.example.com/{at}"), "x".repeat(300).into())).collect();
        let [mark, again] = marked(KUBELET, &labels.into(), None, &SavedState::default());
        let mark = mark.unwrap();
        assert_eq!(
            (mark["rejected"].as_object().unwrap().len(), &mark["more"]),
            (REJECTED_MAX, &json!(500 - REJECTED_MAX))
        );
        assert!(mark.to_string().len() < 2000 && again == Some(mark));
    }
}
