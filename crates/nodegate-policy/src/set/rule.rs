//! Compiled rules: their conditions, the values that they assign, and the keys that they read and write.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::names::{LabelKey, LabelValue, Taint, TaintEffect, TaintId};
use crate::api::policy::PersistScope;
use crate::cel::{Expression, Polarity};
use crate::keys::pattern::KeySet;
use crate::set::inventory::Inventory;
use crate::set::matcher::{Condition, Matcher, Source};
use crate::set::migration::Migration;

/// Identifies a rule by its policy and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// The policy.
    pub policy: Arc<str>,
    /// The rule in it.
    pub rule: Arc<str>,
}

impl RuleId {
    /// What nodegate does by itself, without a policy: `nodegate/RULE`.
    pub fn own(rule: &str) -> Self {
        Self { policy: "nodegate".into(), rule: rule.into() }
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.policy, self.rule)
    }
}

/// The strength of a desired value. Stronger values take precedence and are ordered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// Assigned by a rule that keeps its value.
    Enforced,
    /// Given by an inventory, and kept.
    Inventory,
    /// Restored from saved state.
    Saved,
    /// Assigned once, if absent.
    Default,
}

impl Strength {
    /// Whether the value is kept for as long as it is assigned, so that nodegate owns the key.
    pub fn is_kept(self) -> bool {
        match self {
            Self::Enforced | Self::Inventory => true,
            Self::Saved | Self::Default => false,
        }
    }
}

/// Anything that assigns values: a rule, a derived label, an inventory, or a persist section.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) id: RuleId,
    pub(crate) strength: Strength,
    pub(crate) priority: i32,
    /// Position among all rules by precedence; the smallest takes precedence.
    pub(crate) rank: u32,
    pub(crate) matcher: Matcher,
    pub(crate) assigns: Assignments,
    pub(crate) trust_kubelet: bool,
    pub(crate) evict: bool,
    /// Grace period from when it no longer matches until its keys are removed.
    pub(crate) remove_after: Duration,
}

/// The values that a rule assigns. There may be very many rules, and most only set labels and taints, so the rest is boxed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignments {
    pub(crate) labels: Vec<(LabelKey, LabelValue)>,
    pub(crate) label_expressions: Vec<(LabelKey, Arc<Expression>)>,
    pub(crate) label_map: Option<Box<(KeySet, Arc<Expression>)>>,
    pub(crate) annotations: Vec<(LabelKey, Box<str>)>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) saved: Option<Box<Saved>>,
    pub(crate) migration: Option<Migration>,
    pub(crate) inventory: Option<Arc<Inventory>>,
}

impl Assignments {
    /// The expressions that compute values.
    fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        let labels = self.label_expressions.iter().map(|(_, expression)| expression);
        labels.chain(self.label_map.as_deref().into_iter().map(|(_, expression)| expression))
    }
}

/// What a persist section restores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved {
    pub(crate) labels: KeySet,
    pub(crate) taints: KeySet,
    /// Which node gets it.
    pub(crate) scope: PersistScope,
    /// How long saved state is kept after the node is deleted; `None` is unlimited.
    pub(crate) retention: Option<Duration>,
}

/// Default grace period from when a rule no longer matches until its keys are removed.
pub(crate) const REMOVE_AFTER: Duration = Duration::from_secs(60);

/// Something that a rule reads and other rules may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// One label.
    Label(Box<str>, Polarity),
    /// Labels with computed keys.
    AnyLabel,
    /// One taint key.
    Taint(Box<str>, Polarity),
    /// Taints with computed keys.
    AnyTaint,
    /// The labels that GPU inference reads.
    Gpu,
}

impl Rule {
    /// Whether its own values are hidden while it is evaluated, because it depends on what is there without them.
    pub(crate) fn is_blind_to_itself(&self) -> bool {
        self.strength == Strength::Default || self.assigns.migration.is_some()
    }

    /// Whether it does not see what a rule of this strength and rank assigns to its own keys: a default rule is about absence, its own
    /// values take precedence over those of weaker rules, and these may be there because of it.
    pub(crate) fn overlooks(&self, strength: Strength, rank: u32) -> bool {
        self.strength == Strength::Default && (strength, rank) > (self.strength, self.rank)
    }

    /// Whether it sets this taint.
    pub(crate) fn writes_taint(&self, key: &str, effect: TaintEffect) -> bool {
        self.assigns.taints.iter().any(|own| own.id.key.as_str() == key && own.id.effect == effect)
    }

    /// Every expression of the rule.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        self.matcher.expressions().chain(self.assigns.expressions())
    }

    /// Everything that it reads, for conditions and for computed values.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.matcher.conditions().map(Condition::source).chain(self.assigns.expressions().map(Source::Expression))
    }

    /// Everything that it reads and other rules may write.
    pub(crate) fn reads(&self) -> Vec<Read> {
        let mut reads: Vec<Read> = Vec::new();
        for source in self.sources() {
            match source {
                Source::Label(requirement) => {
                    reads.push(Read::Label(requirement.key.clone(), requirement.polarity()));
                }
                Source::Taints(patterns) => {
                    reads.extend(patterns.iter().map(|pattern| Read::Taint(pattern.key.clone(), pattern.polarity())));
                }
                Source::Gpu => reads.push(Read::Gpu),
                Source::Expression(expression) => {
                    let found = expression.reads();
                    reads.extend(found.labels.iter().map(|read| Read::Label(read.key.as_str().into(), read.polarity)));
                    reads.extend(found.any_label.then_some(Read::AnyLabel));
                    reads.extend(found.taints.then_some(Read::AnyTaint));
                    reads.extend(found.gpu.then_some(Read::Gpu));
                }
                Source::Name(_) | Source::Pools | Source::Reported(_) => {}
            }
        }
        reads
    }

    /// Whether a change of this label may change its result.
    pub(crate) fn reads_label(&self, key: &str) -> bool {
        self.sources().any(|source| source.reads_label(key))
    }

    /// Whether a change of taints with this key may change its result.
    pub(crate) fn reads_taint(&self, key: &str) -> bool {
        self.sources().any(|source| match source {
            Source::Taints(patterns) => patterns.iter().any(|pattern| *pattern.key == *key),
            Source::Expression(expression) => expression.reads().taints,
            Source::Name(_) | Source::Pools | Source::Label(_) | Source::Reported(_) | Source::Gpu => false,
        })
    }

    /// The label keys that it sets and that are known when it is loaded.
    pub(crate) fn written_labels(&self) -> impl Iterator<Item = &LabelKey> {
        let fixed = self.assigns.labels.iter().map(|(key, _)| key);
        let migrated = self.assigns.migration.iter().flat_map(Migration::written);
        fixed.chain(self.assigns.label_expressions.iter().map(|(key, _)| key)).chain(migrated)
    }

    /// Whether it sets this label by name.
    pub(crate) fn writes_label(&self, key: &str) -> bool {
        self.written_labels().any(|written| written.as_str() == key)
    }

    /// Whether it may set this label.
    pub(crate) fn may_write_label(&self, key: &str) -> bool {
        self.writes_label(key) || self.written_label_sets().any(|keys| keys.contains(key))
    }

    /// Whether it may set this annotation.
    pub(crate) fn may_write_annotation(&self, key: &str) -> bool {
        self.assigns.annotations.iter().any(|(given, _)| given.as_str() == key)
    }

    /// Whether it may set this taint.
    pub(crate) fn may_write_taint(&self, id: &TaintId) -> bool {
        self.assigns.taints.iter().any(|given| given.id == *id)
    }

    /// Sets that contain the computed label keys that it may set.
    pub(crate) fn written_label_sets(&self) -> impl Iterator<Item = &KeySet> {
        let map = self.assigns.label_map.as_deref().into_iter().map(|(keys, _)| keys);
        let inventory = self.assigns.inventory.iter().map(|inventory| &inventory.allow);
        map.chain(self.assigns.saved.iter().map(|saved| &saved.labels)).chain(inventory)
    }
}
