//! A compiled rule: what it matches, what it gives, what it reads and writes.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition has to be thought of here")]

use std::sync::Arc;
use std::time::Duration;

use super::cel::{Expression, Polarity};
use super::decision::{RuleId, Strength};
use super::gpu;
use super::matcher::{Condition, Matcher, Source};
use super::pattern::KeySet;
use crate::api::names::{LabelKey, LabelValue, Taint, TaintId};

/// Anything that gives a node something: a rule, a derived label, or a persist section.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) id: RuleId,
    pub(crate) strength: Strength,
    pub(crate) priority: i32,
    /// Place among all rules by precedence: the smaller wins.
    pub(crate) rank: u32,
    pub(crate) matcher: Matcher,
    pub(crate) gives: Gives,
    pub(crate) trust_kubelet: bool,
    pub(crate) evict: bool,
    /// Grace between "no longer matches" and removal.
    pub(crate) remove_after: Duration,
}

/// What a rule gives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gives {
    pub(crate) labels: Vec<(LabelKey, LabelValue)>,
    pub(crate) label_expressions: Vec<(LabelKey, Arc<Expression>)>,
    pub(crate) label_map: Option<(KeySet, Arc<Expression>)>,
    pub(crate) annotations: Vec<(LabelKey, Box<str>)>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) saved: Option<Saved>,
}

impl Gives {
    /// What its values are computed from.
    fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        let labels = self.label_expressions.iter().map(|(_, expression)| expression);
        labels.chain(self.label_map.iter().map(|(_, expression)| expression))
    }
}

/// What a persist section restores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saved {
    pub(crate) labels: KeySet,
    pub(crate) taints: KeySet,
    /// How long saved state outlives its node; for ever when `None`.
    pub(crate) retention: Option<Duration>,
}

/// Grace between "no longer matches" and removal, where a rule says nothing else.
pub(crate) const REMOVE_AFTER: Duration = Duration::from_secs(60);

/// Something a rule reads, as far as rules can write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// One label.
    Label(Box<str>, Polarity),
    /// Labels that cannot be told at load.
    AnyLabel,
    /// One taint key.
    Taint(Box<str>, Polarity),
    /// Taints that cannot be told at load.
    AnyTaint,
    /// The labels GPU inference looks at.
    Gpu,
}

impl Rule {
    /// Every expression of the rule.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        self.matcher.expressions().chain(self.gives.expressions())
    }

    /// Everything it reads: what its conditions rest on, and what its values are computed from.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.matcher.conditions().map(Condition::source).chain(self.gives.expressions().map(Source::Expression))
    }

    /// What it reads that other rules may write.
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
                Source::Name(_) | Source::Status(_) => {}
            }
        }
        reads
    }

    /// Whether a change of this label may change the outcome.
    pub(crate) fn reads_label(&self, key: &str) -> bool {
        self.sources().any(|source| match source {
            Source::Label(requirement) => *requirement.key == *key,
            Source::Gpu => gpu::reads_label(key),
            Source::Expression(expression) => {
                let reads = expression.reads();
                reads.any_label
                    || (reads.gpu && gpu::reads_label(key))
                    || reads.labels.iter().any(|read| read.key == key)
            }
            Source::Name(_) | Source::Taints(_) | Source::Status(_) => false,
        })
    }

    /// Whether a change of taints with this key may change the outcome.
    pub(crate) fn reads_taint(&self, key: &str) -> bool {
        self.sources().any(|source| match source {
            Source::Taints(patterns) => patterns.iter().any(|pattern| *pattern.key == *key),
            Source::Expression(expression) => expression.reads().taints,
            Source::Name(_) | Source::Label(_) | Source::Status(_) | Source::Gpu => false,
        })
    }

    /// Label keys it writes that are known at load.
    pub(crate) fn written_labels(&self) -> impl Iterator<Item = &LabelKey> {
        let fixed = self.gives.labels.iter().map(|(key, _)| key);
        fixed.chain(self.gives.label_expressions.iter().map(|(key, _)| key))
    }

    /// Whether it may write this label.
    pub(crate) fn may_write_label(&self, key: &str) -> bool {
        self.written_labels().any(|written| written.as_str() == key)
            || self.written_label_sets().any(|keys| keys.contains(key))
    }

    /// Whether it may write this annotation.
    pub(crate) fn may_write_annotation(&self, key: &str) -> bool {
        self.gives.annotations.iter().any(|(given, _)| given.as_str() == key)
    }

    /// Whether it may write this taint.
    pub(crate) fn may_write_taint(&self, id: &TaintId) -> bool {
        self.gives.taints.iter().any(|given| given.id == *id)
    }

    /// Sets of label keys it may write that are known only when it is evaluated.
    pub(crate) fn written_label_sets(&self) -> impl Iterator<Item = &KeySet> {
        let map = self.gives.label_map.iter().map(|(keys, _)| keys);
        map.chain(self.gives.saved.iter().map(|saved| &saved.labels))
    }
}
