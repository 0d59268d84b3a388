//! The keys that a kubelet may not change on its own node: keys that policies protect, keys that are restored when the node
//! is created again, and keys that are reserved for nodegate.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::decide::view::View;
use crate::facts::NodeFacts;
use crate::facts::json::borrow::{Entries, both};
use crate::facts::request::{DecideContext, Operation, Write};
use crate::keys::restriction::{is_own, is_reconciled_by_kubelet};
use crate::keys::{Field, programs};
use crate::set::PolicySet;
use crate::set::kleene::Kleene;
use crate::set::rule::{RuleId, Saved};

/// Maximum number of keys that admission resets in one write of a kubelet: the answer names each of them, and a kubelet decides how
/// many there are.
pub const CORRECTIONS_MAX: usize = 1000;

/// How many labels and annotations the write changes although its sender, a kubelet, may not change them, if these are more
/// than [`CORRECTIONS_MAX`]. Such a write is to be refused instead of decided.
pub fn excess(set: &PolicySet, write: &Write<'_>, context: &DecideContext<'_>) -> Option<usize> {
    let forbidden = ForbiddenKeys::of(set, write, context)?;
    let sides = [Some(&write.node), write.old.as_ref()].into_iter().flatten();
    // Nearly every node has far fewer keys than that.
    if sides.map(|side| side.labels().count() + side.annotations().count()).sum::<usize>() <= CORRECTIONS_MAX {
        return None;
    }
    let count = forbidden.asserted_labels().count() + forbidden.own_annotations().count();
    (count > CORRECTIONS_MAX).then_some(count)
}

/// The denial of a write of a kubelet that would need so many corrections.
pub fn corrections_exceeded(count: usize) -> String {
    format!(
        "the kubelet changes {count} labels and annotations that it may not change, and only writes with at most {CORRECTIONS_MAX} are corrected; check the kubelet's --node-labels"
    )
}

/// Why a kubelet may not change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForbiddenReason {
    /// It is reserved for nodegate.
    Own,
    /// It is saved for the existing node, or would be.
    Persisted,
    /// A policy protects it.
    Protected,
}

impl ForbiddenReason {
    /// What keeps the label from the kubelet: the `protect` section, or what nodegate does by itself.
    pub(crate) fn rule(self, set: &PolicySet, key: &str) -> Option<RuleId> {
        match self {
            Self::Persisted => Some(RuleId::own("persisted")),
            Self::Own | Self::Protected => forbidding(set, key),
        }
    }
}

/// What keeps a label from the kubelet of every node; `None` if nothing does.
pub(crate) fn forbidding(set: &PolicySet, key: &str) -> Option<RuleId> {
    if is_own(key) {
        return Some(RuleId::own("own-keys"));
    }
    Some(set.governance().protecting(key)?.protect_id.clone())
}

/// The keys that the kubelet that sends a write may not change.
pub(crate) struct ForbiddenKeys<'a> {
    set: &'a PolicySet,
    write: &'a Write<'a>,
    context: DecideContext<'a>,
    persisting: OnceCell<Vec<&'a Saved>>,
}

impl<'a> ForbiddenKeys<'a> {
    /// The keys that the requester of `write` may not change; `None` if that is not a kubelet.
    pub(crate) fn of(set: &'a PolicySet, write: &'a Write<'a>, context: &DecideContext<'a>) -> Option<Self> {
        let (context, persisting) = (*context, OnceCell::new());
        write.requester.is_kubelet().then_some(Self { set, write, context, persisting })
    }

    fn is_living(&self) -> bool {
        self.write.operation == Operation::Update
    }

    /// Why the kubelet may not change this label; `None` if it may. Reconciled labels are never forbidden.
    pub(crate) fn label(&self, key: &str) -> Option<ForbiddenReason> {
        if is_own(key) {
            Some(ForbiddenReason::Own)
        } else if is_reconciled_by_kubelet(key) {
            None
        } else if self.is_persisted(key) {
            Some(ForbiddenReason::Persisted)
        } else {
            self.set.is_protected(key).then_some(ForbiddenReason::Protected)
        }
    }

    /// What keeps this label from the kubelet, if [`Self::label`] or [`Self::keeps_as_stored`] says that something does.
    pub(crate) fn rule(&self, key: &str) -> RuleId {
        let reason = self.label(key).unwrap_or(ForbiddenReason::Persisted);
        reason.rule(self.set, key).unwrap_or_else(|| RuleId::own("own-keys"))
    }

    /// Labels that the kubelet changes although it may not, with their stored values.
    pub(crate) fn asserted(&self) -> BTreeMap<&'a str, Option<&'a str>> {
        self.asserted_labels().collect()
    }

    fn asserted_labels(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> + '_ {
        let (node, old) = (&self.write.node, self.write.old.as_ref());
        let changed = changed(old.and_then(|old| old.labels.as_ref()), node.labels.as_ref());
        changed.filter(|(key, _)| self.label(key).is_some())
    }

    /// Annotations that are reserved for nodegate and that the kubelet changes, with their stored values.
    pub(crate) fn asserted_annotations(&self) -> BTreeMap<&'a str, Option<&'a str>> {
        self.own_annotations().collect()
    }

    fn own_annotations(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> + '_ {
        let (node, old) = (&self.write.node, self.write.old.as_ref());
        let changed = changed(old.and_then(|old| old.annotations.as_ref()), node.annotations.as_ref());
        changed.filter(|(key, _)| is_own(key))
    }

    /// Whether a kubelet's UPDATE must keep the stored value of this label, whatever assigns another one: a native policy
    /// that protects the label sees the write including nodegate's patch and cannot distinguish them. This covers more than
    /// [`Self::label`], because such a policy does not know which nodes a `persist` section applies to.
    pub(crate) fn keeps_as_stored(&self, key: &str) -> bool {
        self.is_living()
            && !is_reconciled_by_kubelet(key)
            && (self.label(key).is_some() || self.set.names_persisted(key))
    }

    /// Whether this label is saved for the existing node, or a `persist` section that applies to the node names the key: a
    /// kubelet that changed it would change what is restored on another machine.
    fn is_persisted(&self, key: &str) -> bool {
        if !self.is_living() || programs::never_persisted(Field::Label, key, None).is_some() {
            return false;
        }
        let uid = self.write.old.as_ref().and_then(|old| old.uid.as_deref());
        let saved = self.context.saved.filter(|saved| saved.is_of_object(uid));
        saved.is_some_and(|saved| saved.labels.contains_key(key))
            || self.persisting().iter().any(|saved| saved.labels.contains(key))
    }

    /// The `persist` sections that apply to this node, as it is stored or as it would be stored, so that a write cannot
    /// avoid this by changing labels. A section whose match is unknown counts.
    fn persisting(&self) -> &[&'a Saved] {
        self.persisting.get_or_init(|| {
            let view = |facts: &'a NodeFacts<'a>| {
                View::new(self.set, facts, None, self.write.evidence.as_ref())
                    .within(self.context.budget)
                    .told(self.context.inventory)
            };
            let sides: Vec<View<'a>> =
                [Some(&self.write.node), self.write.old.as_ref()].into_iter().flatten().map(view).collect();
            let is_about =
                |view: &View<'a>, rule: &'a crate::set::rule::Rule| rule.matcher.evaluate(view) != Kleene::False;
            let about = self.set.persisting_rules().filter(|rule| sides.iter().any(|side| is_about(side, rule)));
            about.filter_map(|rule| rule.assigns.saved.as_deref()).collect()
        })
    }
}

/// The keys that a write changes, each once, with their stored values.
fn changed<'a>(
    old: Option<&'a Entries<'a>>,
    new: Option<&'a Entries<'a>>,
) -> impl Iterator<Item = (&'a str, Option<&'a str>)> {
    both(old, new).filter(|(_, before, after)| before != after).map(|(key, before, _)| (key, before))
}
