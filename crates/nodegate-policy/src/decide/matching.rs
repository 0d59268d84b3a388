//! Conditions evaluated on a [`View`].

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use crate::decide::view::View;
use crate::facts::Readiness;
use crate::facts::gpu::{GpuFacts, Gpus};
use crate::facts::quantity::{Comparison, Quantity};
use crate::keys::pattern::TextSet;
use crate::set::kleene::Kleene;
use crate::set::matcher::{Condition, Conditions, GpuCondition, Matcher, Requirement};

impl Matcher {
    /// Whether the node matches.
    pub(crate) fn evaluate(&self, view: &View<'_>) -> Kleene {
        let all = self.all.evaluate(view);
        match (&self.any_of, all) {
            (_, Kleene::False) | (None, _) => all,
            (Some(alternatives), _) => all.and(any(alternatives.iter().map(|conditions| conditions.evaluate(view)))),
        }
    }

    /// What is not known of the node, if that is why it is unknown whether the node matches.
    pub(crate) fn awaited(&self, view: &View<'_>) -> Option<String> {
        let alternatives = self.any_of.iter().flatten();
        let mut conditions = self.all.iter().chain(alternatives.flat_map(Conditions::iter));
        let unknown = conditions.find(|condition| condition.evaluate(view) == Kleene::Unknown)?;
        unknown.awaited()
    }
}

fn any(outcomes: impl Iterator<Item = Kleene>) -> Kleene {
    let mut whole = Kleene::False;
    for outcome in outcomes {
        whole = whole.or(outcome);
        if whole == Kleene::True {
            break;
        }
    }
    whole
}

impl Conditions {
    fn evaluate(&self, view: &View<'_>) -> Kleene {
        let mut whole = Kleene::True;
        for condition in self.iter() {
            whole = whole.and(condition.evaluate(view));
            if whole == Kleene::False {
                break;
            }
        }
        whole
    }
}

impl Condition {
    /// Whether it holds.
    pub(crate) fn evaluate(&self, view: &View<'_>) -> Kleene {
        match self {
            Self::Names(group) => view.is_named(*group).into(),
            Self::Pools(wanted) => view.pools().any_of(wanted),
            Self::Label(requirement) => requirement.evaluate(view),
            Self::Taints(patterns) => patterns.iter().any(|pattern| view.has_taint(pattern)).into(),
            Self::Capacity(resource, comparison) => compare_capacity(view, resource, *comparison),
            Self::Gpu(gpu) => gpu.evaluate(view),
            Self::NodeInfo(info) => info.evaluate(view.facts()),
            Self::Expression(expression) => view.evaluate_bool(expression),
        }
    }

    /// What has not been reported when it is unknown; `None` if that depends on more than the condition.
    fn awaited(&self) -> Option<String> {
        match self {
            Self::Pools(wanted) => {
                let pools = wanted.written().collect::<Vec<_>>().join(", ");
                Some(format!(
                    "nothing is recorded that proves or excludes pools [{pools}]; for a node that is older than the policy, use `nodegate pools adopt`"
                ))
            }
            Self::Label(requirement) => Some(format!("the label {} has not been reported yet", requirement.key)),
            Self::Capacity(resource, _) => Some(format!("the capacity of {resource} has not been reported yet")),
            Self::Gpu(_) => Some("its GPUs have not been reported yet".to_owned()),
            Self::NodeInfo(info) => Some(format!("the {} has not been reported yet", info.field.describe())),
            Self::Names(_) | Self::Taints(_) | Self::Expression(_) => None,
        }
    }
}

impl Requirement {
    fn evaluate(&self, view: &View<'_>) -> Kleene {
        let value = view.label(&self.key);
        let is_told = value.is_some_and(|value| !self.is_withdrawn_by(value));
        let is_unknown = !is_told
            && (self.publisher.is_some_and(|publisher| view.is_away(publisher)) || view.awaited(&self.key).is_some());
        if is_unknown { Kleene::Unknown } else { self.is_met_by(value).into() }
    }
}

fn compare_capacity(view: &View<'_>, resource: &str, comparison: Comparison) -> Kleene {
    let written = view.facts().capacity.get(resource);
    let quantity = match written.map(str::parse::<Quantity>) {
        Some(Ok(quantity)) => quantity,
        Some(Err(_)) => return Kleene::Unknown,
        None => Quantity::ZERO,
    };
    let device = resource.contains('/');
    match written {
        // A device plugin registers after the kubelet does (and again after each restart).
        _ if device && quantity == Quantity::ZERO && view.facts().readiness == Readiness::Starting => Kleene::Unknown,
        Some(_) => comparison.holds(quantity).into(),
        // A device that is not registered counts as zero; a missing resource that every node has is unknown.
        None if device => comparison.holds(quantity).into(),
        None => Kleene::Unknown,
    }
}

impl GpuCondition {
    fn evaluate(&self, view: &View<'_>) -> Kleene {
        match view.gpu() {
            Gpus::Found(gpu) => self.holds(gpu),
            Gpus::Unknown(_) => Kleene::Unknown,
            // No source reports a GPU: false only if the node has been ready for a while.
            Gpus::None => match view.facts().readiness {
                Readiness::Starting => Kleene::Unknown,
                Readiness::Settled => self.holds_without_gpu(),
            },
        }
    }

    fn holds_without_gpu(&self) -> Kleene {
        let Self { vendor, model, count } = self;
        let no_text = vendor.is_none() && model.is_none();
        (no_text && count.is_none_or(|count| count.holds(Quantity::ZERO))).into()
    }

    fn holds(&self, gpu: &GpuFacts) -> Kleene {
        let Self { vendor, model, count } = self;
        let text = |wanted: &Option<TextSet>, found: Option<&str>| match (wanted, found) {
            (None, _) => Kleene::True,
            (Some(wanted), Some(found)) => wanted.contains(found).into(),
            (Some(_), None) => Kleene::Unknown,
        };
        let count = match (count, gpu.count) {
            (None, _) => Kleene::True,
            (Some(wanted), Some(found)) => wanted.holds(Quantity::whole(found.into())).into(),
            (Some(_), None) => Kleene::Unknown,
        };
        text(vendor, gpu.vendor.as_deref()).and(text(model, gpu.model.as_deref())).and(count)
    }
}
