//! Compiled conditions and their evaluation on a [`View`].
//!
//! [`Condition`] is the one list of all conditions. Whoever has to know what a condition rests on (the index, the check of
//! what a kubelet may choose, the order of evaluation, native policies) asks [`Condition::source`]. Both enums are matched
//! without `_`, so that the compiler names every place that a new condition touches.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition has to be thought of here")]

use std::fmt;
use std::sync::Arc;

use super::cel::{Expression, Polarity};
use super::facts::Readiness;
use super::gpu::GpuFacts;
use super::node_info::{NodeInfoCondition, NodeInfoField};
use super::pattern::TextSet;
use super::quantity::{Comparison, Quantity};
use super::tri::Tri;
use super::view::View;
use crate::api::names::TaintEffect;
use crate::api::policy::Operator;

/// A group of names (exact and globs) in the one name index of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NameGroup(pub(crate) u32);

/// All of `all`, and one of `any_of` if given.
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
    /// A label meets a requirement.
    Label(Requirement),
    /// One of these taints is there.
    Taints(Vec<TaintPattern>),
    /// A quantity of `status.capacity` compares so.
    Capacity(Box<str>, Comparison),
    /// The inferred GPUs are such.
    Gpu(GpuCondition),
    /// A text of `status.nodeInfo` matches.
    NodeInfo(NodeInfoCondition),
    /// An expression is true.
    Expression(Arc<Expression>),
}

/// What a condition rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// The node's name, which no write changes and no kubelet chooses.
    Name(NameGroup),
    /// A label.
    Label(&'a Requirement),
    /// Taints.
    Taints(&'a [TaintPattern]),
    /// Something in the node's status: the kubelet's own word, which no rule writes.
    Status(StatusFact<'a>),
    /// GPU inference.
    Gpu,
    /// Whatever an expression reads.
    Expression(&'a Arc<Expression>),
}

/// Something that a kubelet reports in its node's status.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StatusFact<'a> {
    /// A resource of `status.capacity`.
    Capacity(&'a str),
    /// A text of `status.nodeInfo`.
    NodeInfo(NodeInfoField),
}

impl fmt::Display for StatusFact<'_> {
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
    /// Absence is plainly false, also when the publisher of the key has restarted.
    pub(crate) plain: bool,
}

/// `key`, `key:Effect` or `key=value:Effect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaintPattern {
    pub(crate) key: Box<str>,
    pub(crate) value: Option<Box<str>>,
    pub(crate) effect: Option<TaintEffect>,
}

/// Conditions on the inferred GPU facts.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuCondition {
    pub(crate) vendor: Option<TextSet>,
    pub(crate) model: Option<TextSet>,
    pub(crate) count: Option<Comparison>,
}

impl Matcher {
    /// Whether the node matches.
    pub(crate) fn evaluate(&self, view: &View<'_>) -> Tri {
        let all = self.all.evaluate(view);
        match (&self.any_of, all) {
            (_, Tri::False) | (None, _) => all,
            (Some(alternatives), _) => all.and(any(alternatives.iter().map(|conditions| conditions.evaluate(view)))),
        }
    }

    /// Whether it has no condition.
    pub(crate) fn is_every_node(&self) -> bool {
        self.any_of.is_none() && self.all.0.is_empty()
    }

    /// Every condition, those of alternatives included.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        std::iter::once(&self.all).chain(self.any_of.iter().flatten()).flat_map(Conditions::iter)
    }

    /// Every expression.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Arc<Expression>> {
        self.conditions().filter_map(Condition::expression)
    }
}

fn any(outcomes: impl Iterator<Item = Tri>) -> Tri {
    let mut whole = Tri::False;
    for outcome in outcomes {
        whole = whole.or(outcome);
        if whole == Tri::True {
            break;
        }
    }
    whole
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

    fn evaluate(&self, view: &View<'_>) -> Tri {
        let mut whole = Tri::True;
        for condition in &self.0 {
            whole = whole.and(condition.evaluate(view));
            if whole == Tri::False {
                break;
            }
        }
        whole
    }
}

impl Condition {
    /// Its place among the conditions that are evaluated together.
    fn cost(&self) -> u8 {
        match self {
            Self::Names(_) => 0,
            Self::Label(_) => 1,
            Self::Taints(_) => 2,
            Self::Capacity(..) => 3,
            Self::NodeInfo(_) => 4,
            Self::Gpu(_) => 5,
            Self::Expression(_) => 6,
        }
    }

    fn evaluate(&self, view: &View<'_>) -> Tri {
        match self {
            Self::Names(group) => view.is_named(*group).into(),
            Self::Label(requirement) => requirement.evaluate(view),
            Self::Taints(patterns) => patterns.iter().any(|pattern| view.has_taint(pattern)).into(),
            Self::Capacity(resource, comparison) => compare_capacity(view, resource, *comparison),
            Self::Gpu(gpu) => gpu.evaluate(view),
            Self::NodeInfo(info) => info.evaluate(view.facts()),
            Self::Expression(expression) => view.evaluate_bool(expression),
        }
    }

    /// What it rests on.
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Self::Names(group) => Source::Name(*group),
            Self::Label(requirement) => Source::Label(requirement),
            Self::Taints(patterns) => Source::Taints(patterns),
            Self::Capacity(resource, _) => Source::Status(StatusFact::Capacity(resource)),
            Self::Gpu(_) => Source::Gpu,
            Self::NodeInfo(info) => Source::Status(StatusFact::NodeInfo(info.field)),
            Self::Expression(expression) => Source::Expression(expression),
        }
    }

    /// The expression, if it is one.
    pub(crate) fn expression(&self) -> Option<&Arc<Expression>> {
        match self.source() {
            Source::Expression(expression) => Some(expression),
            Source::Name(_) | Source::Label(_) | Source::Taints(_) | Source::Status(_) | Source::Gpu => None,
        }
    }
}

impl Requirement {
    /// How its answer depends on the label.
    pub(crate) fn polarity(&self) -> Polarity {
        match self.operator {
            Operator::Exists => Polarity::Presence,
            Operator::In | Operator::NotIn | Operator::DoesNotExist => Polarity::Value,
        }
    }

    fn evaluate(&self, view: &View<'_>) -> Tri {
        let listed = |value: &str| self.values.iter().any(|wanted| **wanted == *value);
        match (view.label(&self.key), self.operator) {
            (Some(_), Operator::Exists) => Tri::True,
            (Some(_), Operator::DoesNotExist) => Tri::False,
            (Some(value), Operator::In) => listed(value).into(),
            (Some(value), Operator::NotIn) => (!listed(value)).into(),
            (None, _) if !self.plain && view.publisher_is_gone(&self.key) => Tri::Unknown,
            (None, Operator::Exists | Operator::In) => Tri::False,
            (None, Operator::DoesNotExist | Operator::NotIn) => Tri::True,
        }
    }
}

fn compare_capacity(view: &View<'_>, resource: &str, comparison: Comparison) -> Tri {
    let written = view.facts().capacity.get(resource);
    let quantity = match written.map(str::parse::<Quantity>) {
        Some(Ok(quantity)) => quantity,
        Some(Err(_)) => return Tri::Unknown,
        None => Quantity::ZERO,
    };
    let device = resource.contains('/');
    match written {
        // A device plugin registers after the kubelet does (and again after each restart).
        _ if device && quantity == Quantity::ZERO && view.facts().readiness == Readiness::Starting => Tri::Unknown,
        Some(_) => comparison.holds(quantity).into(),
        // A device nobody registered counts as zero; a resource every node has and this one does not is unknown.
        None if device => comparison.holds(quantity).into(),
        None => Tri::Unknown,
    }
}

impl GpuCondition {
    fn evaluate(&self, view: &View<'_>) -> Tri {
        match view.gpu() {
            Some(gpu) => self.holds(gpu),
            // Nobody has spoken of a GPU: false only once the node has had time to.
            None => match view.facts().readiness {
                Readiness::Starting => Tri::Unknown,
                Readiness::Settled => self.holds_without_gpu(),
            },
        }
    }

    fn holds_without_gpu(&self) -> Tri {
        let Self { vendor, model, count } = self;
        let no_text = vendor.is_none() && model.is_none();
        (no_text && count.is_none_or(|count| count.holds(Quantity::ZERO))).into()
    }

    fn holds(&self, gpu: &GpuFacts) -> Tri {
        let Self { vendor, model, count } = self;
        let text = |wanted: &Option<TextSet>, found: Option<&str>| match (wanted, found) {
            (None, _) => Tri::True,
            (Some(wanted), Some(found)) => wanted.contains(found).into(),
            (Some(_), None) => Tri::Unknown,
        };
        let count = match (count, gpu.count) {
            (None, _) => Tri::True,
            (Some(wanted), Some(found)) => wanted.holds(Quantity::whole(found.into())).into(),
            (Some(_), None) => Tri::Unknown,
        };
        text(vendor, gpu.vendor.as_deref()).and(text(model, gpu.model.as_deref())).and(count)
    }
}

impl TaintPattern {
    /// How its answer depends on taints with its key.
    pub(crate) fn polarity(&self) -> Polarity {
        if self.value.is_some() { Polarity::Value } else { Polarity::Presence }
    }

    /// Parses `key`, `key:Effect` or `key=value:Effect`.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (left, effect) = match text.rsplit_once(':') {
            Some((left, effect)) => (left, Some(effect.parse::<TaintEffect>().map_err(|error| error.to_string())?)),
            None => (text, None),
        };
        let (key, value) = match left.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (left, None),
        };
        if value.is_some() && effect.is_none() {
            return Err(format!("{text:?} has a value but no effect; write key=value:Effect"));
        }
        crate::api::names::check_label_key(key).map_err(|error| error.to_string())?;
        if let Some(value) = value {
            crate::api::names::check_label_value(value).map_err(|error| error.to_string())?;
        }
        Ok(Self { key: key.into(), value: value.map(Into::into), effect })
    }

    /// Whether a taint is meant.
    pub(crate) fn is_met_by(&self, key: &str, value: &str, effect: &str) -> bool {
        *self.key == *key
            && self.effect.is_none_or(|wanted| wanted.as_str() == effect)
            && self.value.as_deref().is_none_or(|wanted| wanted == value)
    }
}
