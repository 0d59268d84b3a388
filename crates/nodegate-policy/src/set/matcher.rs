//! Compiled conditions.
//!
//! [`Condition`] lists all conditions. [`Condition::source`] returns the fact that a condition depends on, for the index, the
//! check of trust, the order of evaluation and native policies. Both enums are matched without `_`, so that the compiler
//! names every place that a new condition affects.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::fmt;
use std::sync::Arc;

use crate::api::names::TaintEffect;
use crate::api::policy::Operator;
use crate::api::problem::Problem;
use crate::cel::{Expression, Polarity};
use crate::facts::gpu;
use crate::facts::publishers::Publisher;
use crate::facts::quantity::Comparison;
use crate::keys::pattern::TextSet;
use crate::set::node_info::{NodeInfoCondition, NodeInfoField};

/// A group of names (exact and globs) in the name index of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NameGroup(pub(crate) u32);

/// Matches if all of `all` hold, and one of `any_of` if given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matcher {
    pub(crate) all: Conditions,
    pub(crate) any_of: Option<Vec<Conditions>>,
}

/// Conditions that must all hold, the cheapest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(Vec<Condition>);

/// One condition on a node.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The node's name is in the group.
    Names(NameGroup),
    /// The node is proven to belong to one of these pools.
    Pools(TextSet),
    /// A label satisfies a requirement.
    Label(Requirement),
    /// One of these taints is present.
    Taints(Vec<TaintPattern>),
    /// A quantity of `status.capacity` satisfies a comparison.
    Capacity(Box<str>, Comparison),
    /// The inferred GPUs match.
    Gpu(Box<GpuCondition>),
    /// A text of `status.nodeInfo` matches.
    NodeInfo(NodeInfoCondition),
    /// An expression is true.
    Expression(Arc<Expression>),
}

/// The fact that a condition depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// The node's name, which no write can change and no kubelet can choose.
    Name(NameGroup),
    /// The pools that the node is proven to belong to, which neither a write nor a kubelet can choose.
    Pools,
    /// A label.
    Label(&'a Requirement),
    /// Taints.
    Taints(&'a [TaintPattern]),
    /// What the kubelet reports of its machine, which no rule sets.
    Reported(ReportedFact<'a>),
    /// GPU inference.
    Gpu,
    /// Everything that an expression reads.
    Expression(&'a Arc<Expression>),
}

impl Source<'_> {
    /// Whether it may depend on this label.
    pub(crate) fn reads_label(&self, key: &str) -> bool {
        match self {
            Self::Label(requirement) => *requirement.key == *key,
            Self::Gpu => gpu::reads_label(key),
            Self::Expression(expression) => {
                let reads = expression.reads();
                reads.any_label
                    || (reads.gpu && gpu::reads_label(key))
                    || reads.labels.iter().any(|read| read.key == key)
            }
            Self::Name(_) | Self::Pools | Self::Taints(_) | Self::Reported(_) => false,
        }
    }

    /// Whether it names this label.
    pub(crate) fn names_label(&self, key: &str) -> bool {
        match self {
            Self::Label(requirement) => *requirement.key == *key,
            Self::Expression(expression) => expression.reads().labels.iter().any(|read| read.key == key),
            Self::Name(_) | Self::Pools | Self::Taints(_) | Self::Reported(_) | Self::Gpu => false,
        }
    }
}

/// What a kubelet reports of its machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReportedFact<'a> {
    /// A resource of `status.capacity`.
    Capacity(&'a str),
    /// A text of `status.nodeInfo`.
    NodeInfo(NodeInfoField),
}

impl fmt::Display for ReportedFact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(resource) => write!(f, "capacity {resource}"),
            Self::NodeInfo(field) => f.write_str(field.describe()),
        }
    }
}

/// One requirement of a label selector.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) key: Box<str>,
    pub(crate) operator: Operator,
    pub(crate) values: Vec<Box<str>>,
    /// The program that publishes the label, whose restart is told from its absence; `None` if absence is just absence.
    pub(crate) publisher: Option<Publisher>,
}

/// `key`, `key:Effect` or `key=value:Effect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaintPattern {
    pub(crate) key: Box<str>,
    pub(crate) value: Option<Box<str>>,
    pub(crate) effect: Option<TaintEffect>,
}

/// Conditions on the inferred GPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuCondition {
    pub(crate) vendor: Option<TextSet>,
    pub(crate) model: Option<TextSet>,
    pub(crate) count: Option<Comparison>,
}

impl Matcher {
    /// Whether it has no condition.
    pub(crate) fn is_every_node(&self) -> bool {
        self.any_of.is_none() && self.all.0.is_empty()
    }

    /// All conditions, including those of alternatives.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        std::iter::once(&self.all).chain(self.any_of.iter().flatten()).flat_map(Conditions::iter)
    }

    /// All expressions.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        self.conditions().filter_map(Condition::expression)
    }
}

impl FromIterator<Condition> for Conditions {
    fn from_iter<I: IntoIterator<Item = Condition>>(conditions: I) -> Self {
        let mut conditions: Vec<Condition> = conditions.into_iter().collect();
        conditions.sort_by_key(Condition::cost);
        Self(conditions)
    }
}

impl Conditions {
    /// The conditions, the cheapest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter()
    }
}

impl Condition {
    /// Its position in the order of evaluation.
    fn cost(&self) -> u8 {
        match self {
            Self::Names(_) => 0,
            Self::Label(_) => 1,
            Self::Taints(_) => 2,
            Self::Capacity(..) => 3,
            Self::NodeInfo(_) => 4,
            Self::Pools(_) => 5,
            Self::Gpu(_) => 6,
            Self::Expression(_) => 7,
        }
    }

    /// The fact that it depends on.
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Self::Names(group) => Source::Name(*group),
            Self::Pools(_) => Source::Pools,
            Self::Label(requirement) => Source::Label(requirement),
            Self::Taints(patterns) => Source::Taints(patterns),
            Self::Capacity(resource, _) => Source::Reported(ReportedFact::Capacity(resource)),
            Self::Gpu(_) => Source::Gpu,
            Self::NodeInfo(info) => Source::Reported(ReportedFact::NodeInfo(info.field)),
            Self::Expression(expression) => Source::Expression(expression),
        }
    }

    /// The expression, if it is one.
    pub(crate) fn expression(&self) -> Option<&Arc<Expression>> {
        match self.source() {
            Source::Expression(expression) => Some(expression),
            Source::Name(_)
            | Source::Pools
            | Source::Label(_)
            | Source::Taints(_)
            | Source::Reported(_)
            | Source::Gpu => None,
        }
    }
}

impl Requirement {
    /// A requirement on a label, whose absence may be unknown.
    pub(crate) fn new(key: &str, operator: Operator, values: Vec<Box<str>>) -> Self {
        Self { key: key.into(), operator, values, publisher: Publisher::of(key) }
    }

    /// Whether a label that has this value, or is absent, fulfils it.
    pub(crate) fn is_met_by(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|wanted| **wanted == *value);
        match (self.operator, value) {
            (Operator::Exists, value) => value.is_some(),
            (Operator::DoesNotExist, value) => value.is_none(),
            (Operator::In, value) => value.is_some_and(listed),
            (Operator::NotIn, value) => !value.is_some_and(listed),
        }
    }

    /// Whether the label may have this value only because a publisher is away.
    pub(crate) fn is_withdrawn_by(&self, value: &str) -> bool {
        self.publisher.is_some_and(|publisher| publisher.withdraws(&self.key, value))
    }

    /// How its result depends on the label.
    pub(crate) fn polarity(&self) -> Polarity {
        match self.operator {
            Operator::Exists => Polarity::Presence,
            Operator::In | Operator::NotIn | Operator::DoesNotExist => Polarity::Value,
        }
    }
}

impl TaintPattern {
    /// How its result depends on taints with its key.
    pub(crate) fn polarity(&self) -> Polarity {
        if self.value.is_some() { Polarity::Value } else { Polarity::Presence }
    }

    /// Parses `key`, `key:Effect` or `key=value:Effect`.
    ///
    /// # Errors
    /// Returns a sentence that says what to write instead.
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let (left, effect) = match text.rsplit_once(':') {
            Some((left, effect)) => (left, Some(effect.parse::<TaintEffect>()?)),
            None => (text, None),
        };
        let (key, value) = match left.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (left, None),
        };
        if value.is_some() && effect.is_none() {
            return Err(Problem::new(format!("{text:?} has a value but no effect"), "write key=value:Effect"));
        }
        crate::api::names::check_label_key(key)?;
        if let Some(value) = value {
            crate::api::names::check_label_value(value)?;
        }
        Ok(Self { key: key.into(), value: value.map(Into::into), effect })
    }

    /// Whether a taint matches.
    pub(crate) fn is_met_by(&self, key: &str, value: &str, effect: &str) -> bool {
        *self.key == *key
            && self.effect.is_none_or(|wanted| wanted.as_str() == effect)
            && self.value.as_deref().is_none_or(|wanted| wanted == value)
    }
}
