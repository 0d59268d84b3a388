//! Compiled conditions and their evaluation on a [`View`].

use std::sync::Arc;

use super::cel::Expression;
use super::facts::Readiness;
use super::gpu::GpuFacts;
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

/// Conditions that must all hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) names: Option<NameGroup>,
    pub(crate) labels: Vec<Requirement>,
    pub(crate) taints: Option<Vec<TaintPattern>>,
    pub(crate) capacity: Vec<(Box<str>, Comparison)>,
    pub(crate) gpu: Option<GpuCondition>,
    pub(crate) expression: Option<Arc<Expression>>,
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
    /// Whether the node matches, with the fields evaluated from cheap to dear.
    pub(crate) fn evaluate(&self, view: &View<'_>) -> Tri {
        let all = self.all.evaluate(view);
        match (&self.any_of, all) {
            (_, Tri::False) | (None, _) => all,
            (Some(alternatives), _) => all.and(any(alternatives.iter().map(|conditions| conditions.evaluate(view)))),
        }
    }

    /// Whether nothing is asked for.
    pub(crate) fn is_every_node(&self) -> bool {
        self.any_of.is_none() && self.all.is_empty()
    }

    /// Every group of conditions.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Conditions> {
        std::iter::once(&self.all).chain(self.any_of.iter().flatten())
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

impl Conditions {
    fn is_empty(&self) -> bool {
        self.names.is_none()
            && self.labels.is_empty()
            && self.taints.is_none()
            && self.capacity.is_empty()
            && self.gpu.is_none()
            && self.expression.is_none()
    }

    fn evaluate(&self, view: &View<'_>) -> Tri {
        if self.names.is_some_and(|group| !view.is_named(group)) {
            return Tri::False;
        }
        let mut whole = Tri::True;
        for requirement in &self.labels {
            whole = whole.and(requirement.evaluate(view));
            if whole == Tri::False {
                return whole;
            }
        }
        if let Some(patterns) = &self.taints {
            whole = whole.and(patterns.iter().any(|pattern| view.has_taint(pattern)).into());
        }
        for (resource, comparison) in &self.capacity {
            if whole == Tri::False {
                return whole;
            }
            whole = whole.and(compare_capacity(view, resource, *comparison));
        }
        if let (Some(gpu), false) = (&self.gpu, whole == Tri::False) {
            whole = whole.and(gpu.evaluate(view));
        }
        if let (Some(expression), false) = (&self.expression, whole == Tri::False) {
            whole = whole.and(view.evaluate_bool(expression));
        }
        whole
    }
}

impl Requirement {
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
        let no_text = self.vendor.is_none() && self.model.is_none();
        (no_text && self.count.is_none_or(|count| count.holds(Quantity::ZERO))).into()
    }

    fn holds(&self, gpu: &GpuFacts) -> Tri {
        let text = |wanted: &Option<TextSet>, found: Option<&str>| match (wanted, found) {
            (None, _) => Tri::True,
            (Some(wanted), Some(found)) => wanted.contains(found).into(),
            (Some(_), None) => Tri::Unknown,
        };
        let count = match (self.count, gpu.count) {
            (None, _) => Tri::True,
            (Some(wanted), Some(found)) => wanted.holds(Quantity::whole(found.into())).into(),
            (Some(_), None) => Tri::Unknown,
        };
        text(&self.vendor, gpu.vendor.as_deref()).and(text(&self.model, gpu.model.as_deref())).and(count)
    }
}

impl TaintPattern {
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
