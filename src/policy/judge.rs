//! `judge`: what governance says of a write.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use super::decide::decide;
use super::decision::{Decision, Field, RuleId};
use super::governance::Reserved;
use super::request::{Circumstances, Operation, Write};
use super::restriction::{is_own, is_reconciled_by_kubelet};
use super::set::PolicySet;
use super::stamp::LAST_CHANGE;
use super::tri::Tri;
use super::view::View;
use crate::api::names::TaintEffect;
use crate::api::policy::{ChangeOperation, EntryMode};

/// Who is not judged, besides what policies say.
#[derive(Clone, Debug, Default)]
pub struct Exemptions {
    /// nodegate's own user name in the cluster.
    pub self_user: Option<String>,
    /// Groups that may override every policy (`--break-glass-group`).
    pub break_glass_groups: Vec<String>,
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Policy and entry.
    pub by: RuleId,
    /// What the entry asks for.
    pub mode: EntryMode,
    /// Which part of the node.
    pub field: Field,
    /// The key.
    pub key: String,
    /// What was done to it.
    pub operation: ChangeOperation,
    /// The break-glass group or user that overrides it, if any.
    pub overridden_by: Option<String>,
    /// What happened, who may do it, and how to override.
    pub message: String,
}

/// What governance says of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Every violation, denials first.
    pub violations: Vec<Violation>,
}

impl Violation {
    /// Whether it denies the write.
    pub fn denies(&self) -> bool {
        self.mode == EntryMode::Enforce && self.overridden_by.is_none()
    }
}

impl Verdict {
    /// The denial's text, or `None` when the write is allowed.
    pub fn denial(&self) -> Option<String> {
        let denials: Vec<&str> = self
            .violations
            .iter()
            .filter(|violation| violation.denies())
            .map(|violation| violation.message.as_str())
            .collect();
        (!denials.is_empty()).then(|| denials.join("; "))
    }
}

/// One key that the write changes.
struct KeyChange {
    field: Field,
    /// The key, and for a taint its effect.
    key: String,
    effect: Option<TaintEffect>,
    operation: ChangeOperation,
    value: Option<String>,
}

impl KeyChange {
    fn name(&self) -> String {
        match self.effect {
            Some(effect) => format!("{}:{effect}", self.key),
            None => self.key.clone(),
        }
    }
}

/// Judges the difference that a write makes, as it would be stored (after mutation).
///
/// # Guarantees
/// - Pure, like [`decide`].
/// - A kubelet's CREATE is never denied; the keys it reconciles always pass.
/// - What has the value that [`decide`] gives is not held against the requester.
pub fn judge<'a>(
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: &Circumstances<'a>,
    exemptions: &Exemptions,
) -> Verdict {
    let kubelet = write.requester.is_kubelet();
    let own = exemptions.self_user.as_deref().is_some_and(|user| user == &*write.requester.username);
    if own || (kubelet && write.operation == Operation::Create) {
        return Verdict::default();
    }
    let judge =
        Judge { set, write, circumstances, exemptions, kubelet, desired: OnceCell::new(), view: OnceCell::new() };
    let mut violations: Vec<Violation> = changes(write).iter().filter_map(|change| judge.violation(change)).collect();
    violations.sort_by_key(|violation| (!violation.denies(), std::cmp::Reverse(violation.mode)));
    Verdict { violations }
}

/// Every label, annotation and taint that differs, sorted.
fn changes(write: &Write<'_>) -> Vec<KeyChange> {
    let mut found = Vec::new();
    let old = write.old.as_ref();
    let entry = |field, key: &str, effect, old: Option<&str>, new: Option<&str>| {
        let operation = match (old, new) {
            (None, Some(_)) => ChangeOperation::Add,
            (Some(_), None) => ChangeOperation::Remove,
            (Some(old), Some(new)) if old != new => ChangeOperation::Change,
            _ => return None,
        };
        Some(KeyChange { field, key: key.to_owned(), effect, operation, value: new.map(str::to_owned) })
    };
    let keys: BTreeSet<&str> =
        write.node.labels().chain(old.into_iter().flat_map(|old| old.labels())).map(|(key, _)| key).collect();
    found.extend(
        keys.into_iter().filter_map(|key| {
            entry(Field::Label, key, None, old.and_then(|old| old.label(key)), write.node.label(key))
        }),
    );
    let keys: BTreeSet<&str> =
        write.node.annotations().chain(old.into_iter().flat_map(|old| old.annotations())).map(|(key, _)| key).collect();
    found.extend(keys.into_iter().filter_map(|key| {
        entry(Field::Annotation, key, None, old.and_then(|old| old.annotation(key)), write.node.annotation(key))
    }));
    let taints = write.node.taints().iter().chain(old.into_iter().flat_map(|old| old.taints()));
    let keys: BTreeSet<(&str, TaintEffect)> = taints.filter_map(|taint| Some((&*taint.key, taint.effect()?))).collect();
    found.extend(keys.into_iter().filter_map(|(key, effect)| {
        entry(
            Field::Taint,
            key,
            Some(effect),
            old.and_then(|old| old.taint(key, effect)),
            write.node.taint(key, effect),
        )
    }));
    found
}

struct Judge<'a, 'e> {
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: &'e Circumstances<'a>,
    exemptions: &'e Exemptions,
    kubelet: bool,
    desired: OnceCell<Decision>,
    view: OnceCell<View<'a>>,
}

impl Judge<'_, '_> {
    fn violation(&self, change: &KeyChange) -> Option<Violation> {
        if self.kubelet && change.field == Field::Label && is_reconciled_by_kubelet(&change.key) {
            return None;
        }
        let violation = self.assertion(change).or_else(|| self.reserved(change))?;
        (!self.is_desired(change)).then_some(violation)
    }

    /// Whether the key now is what nodegate itself makes it. Asked only about violations: it decides anew.
    fn is_desired(&self, change: &KeyChange) -> bool {
        let Some(value) = change.value.as_deref() else { return false };
        let decision = self.desired.get_or_init(|| decide(self.set, self.write, self.circumstances));
        let desired = match (change.field, change.effect) {
            (Field::Taint, Some(effect)) => decision.taint(&change.key, effect),
            (Field::Annotation, _) => decision.annotations.get(&change.key).map(|desired| desired.value.as_str()),
            _ => decision.label(&change.key),
        };
        desired == Some(value)
    }

    /// A kubelet that asserts about itself what it may not.
    fn assertion(&self, change: &KeyChange) -> Option<Violation> {
        let stamp = self.circumstances.stamps && change.field == Field::Annotation && change.key == LAST_CHANGE;
        if (!self.kubelet && !stamp) || change.field == Field::Taint {
            return None;
        }
        let by = if is_own(&change.key) {
            RuleId { policy: "nodegate".into(), rule: "own-keys".into() }
        } else if self.is_persisted(change) {
            RuleId { policy: "nodegate".into(), rule: "persisted".into() }
        } else {
            let protecting = self.set.governance().protecting(&change.key).filter(|_| change.field == Field::Label)?;
            protecting.protect_id.clone()
        };
        if stamp {
            let message =
                format!("annotation {LAST_CHANGE:?} is nodegate's own word and may not be {}", past(change.operation));
            return Some(self.made(change, by, EntryMode::Enforce, None, message));
        }
        let message = format!(
            "{} {:?} may not be {} by a kubelet: policy {} protects it ({}); an administrator or a policy rule may set it",
            change.field,
            change.name(),
            past(change.operation),
            by.policy,
            by.rule
        );
        Some(self.made(change, by, EntryMode::Enforce, None, message))
    }

    /// Whether this label of a living node is saved: a kubelet that changed it would change what comes back.
    fn is_persisted(&self, change: &KeyChange) -> bool {
        let uid = self.write.old.as_ref().and_then(|old| old.uid.as_deref());
        let saved = self.circumstances.saved.filter(|saved| uid.is_some() && saved.node_uid.as_deref() == uid);
        change.field == Field::Label && saved.is_some_and(|saved| saved.labels.contains_key(&change.key))
    }

    fn reserved(&self, change: &KeyChange) -> Option<Violation> {
        let view = || {
            self.view.get_or_init(|| {
                View::new(&self.write.node, self.write.old.as_ref(), self.set.name_groups(&self.write.node.name))
                    .within(self.circumstances.budget)
            })
        };
        let entries = self.set.governance().reserved(change.field, &change.key, |entry| {
            entry.operations.as_ref().is_none_or(|operations| operations.contains(&change.operation))
                && (entry.matcher.is_every_node() || entry.matcher.evaluate(view()) == Tri::True)
        });
        let requester = &self.write.requester;
        if entries.is_empty()
            || entries.iter().any(|entry| entry.allow.contain(requester) || entry.except.contain(requester))
        {
            return None;
        }
        let strictest = entries.iter().max_by_key(|entry| entry.mode)?;
        let message = self.reserved_message(change, strictest, &entries);
        let overridden_by = self.break_glass(strictest);
        Some(self.made(change, strictest.id.clone(), strictest.mode, overridden_by, message))
    }

    fn made(
        &self,
        change: &KeyChange,
        by: RuleId,
        mode: EntryMode,
        overridden_by: Option<String>,
        message: String,
    ) -> Violation {
        Violation {
            by,
            mode,
            field: change.field,
            key: change.name(),
            operation: change.operation,
            overridden_by,
            message,
        }
    }

    /// Who of the requester's identities overrides this entry.
    fn break_glass(&self, entry: &Reserved) -> Option<String> {
        let requester = &self.write.requester;
        let by_flag = requester
            .groups
            .iter()
            .find(|group| self.exemptions.break_glass_groups.iter().any(|open| open == &***group));
        if let Some(group) = by_flag {
            return Some(group.to_string());
        }
        let document = self.set.governance().document(entry.document);
        document.break_glass.contain(requester).then(|| requester.username.to_string())
    }

    fn reserved_message(&self, change: &KeyChange, entry: &Reserved, entries: &[&Reserved]) -> String {
        let writers: Vec<String> = entries.iter().flat_map(|entry| entry.allow.describe()).collect();
        let writers = if writers.is_empty() { "nobody".to_owned() } else { writers.join("; ") };
        let document = self.set.governance().document(entry.document);
        let mut glass: Vec<&str> = document.break_glass.groups.written().collect();
        glass.extend(self.exemptions.break_glass_groups.iter().map(String::as_str));
        let way = if glass.is_empty() {
            "to override, name a break-glass group in the policy or start nodegate with --break-glass-group".to_owned()
        } else {
            format!("to override, act as a member of break-glass group {}", glass.join(" or "))
        };
        format!(
            "{} {:?} may not be {} by {:?}: reserved by policy {}, rule {}; writers: {writers}; {way}",
            change.field,
            change.name(),
            past(change.operation),
            &*self.write.requester.username,
            entry.id.policy,
            entry.id.rule,
        )
    }
}

fn past(operation: ChangeOperation) -> &'static str {
    match operation {
        ChangeOperation::Add => "added",
        ChangeOperation::Change => "changed",
        ChangeOperation::Remove => "removed",
    }
}
