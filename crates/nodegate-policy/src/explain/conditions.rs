//! Conditions as policies write them, and the facts of a node that they depend on.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use serde::de::IgnoredAny;

use crate::api::names::or_quotes;
use crate::api::policy::Operator;
use crate::decide::view::View;
use crate::decide::view::told::DEVICES_UNKNOWN;
use crate::facts::Readiness;
use crate::facts::devices::NodeDevices;
use crate::facts::gpu::Gpus;
use crate::facts::proof::asserted::Contradiction;
use crate::keys::pattern::TextSet;
use crate::set::PolicySet;
use crate::set::matcher::{Condition, GpuCondition, Requirement, TaintPattern};
use crate::set::node_info::NodeInfoCondition;

use super::Subject;

/// A condition as a policy writes it, on one line.
pub(super) fn describe(set: &PolicySet, condition: &Condition) -> String {
    match condition {
        Condition::Names(group) => format!("names [{}]", joined(set.names_of(*group))),
        Condition::Pools(pools) => format!("pools [{}]", joined(pools.written())),
        Condition::Label(Requirement { key, operator, values, publisher: _ }) => match operator {
            Operator::In => format!("label {key} In [{}]", joined(values.iter().map(|value| &**value))),
            Operator::NotIn => format!("label {key} NotIn [{}]", joined(values.iter().map(|value| &**value))),
            Operator::Exists => format!("label {key} Exists"),
            Operator::DoesNotExist => format!("label {key} DoesNotExist"),
        },
        Condition::Taints(patterns) => {
            let patterns: Vec<String> = patterns.iter().map(pattern).collect();
            format!("taints [{}]", patterns.join(", "))
        }
        Condition::Capacity(resource, comparison) => {
            format!("capacity {resource} {comparison}")
        }
        Condition::Gpu(gpu) => {
            let GpuCondition { vendor, model, count } = &**gpu;
            let text = |name: &str, set: &Option<TextSet>| {
                set.as_ref().map(|set| format!("{name} [{}]", joined(set.written())))
            };
            let count = count.map(|count| format!("count {count}"));
            let all: Vec<String> =
                [text("vendor", vendor), text("model", model), count].into_iter().flatten().collect();
            format!("gpu {}", if all.is_empty() { "present".to_owned() } else { all.join(", ") })
        }
        Condition::NodeInfo(NodeInfoCondition { field, patterns: _, written }) => {
            format!("{} [{}]", field.in_policies(), joined(written.iter().map(|text| &**text)))
        }
        Condition::Expression(expression) => {
            format!("expression {}", expression.source().split_whitespace().collect::<Vec<_>>().join(" "))
        }
    }
}

fn joined<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

fn pattern(TaintPattern { key, value, effect }: &TaintPattern) -> String {
    let value = value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
    let effect = effect.map(|effect| format!(":{}", effect.as_str())).unwrap_or_default();
    format!("{key}{value}{effect}")
}

/// The fact of the node that the result of a condition depends on. `failures`: of the evaluation of its expression.
pub(super) fn fact(
    set: &PolicySet,
    subject: &Subject<'_>,
    view: &View<'_>,
    condition: &Condition,
    failures: Vec<String>,
) -> String {
    match condition {
        Condition::Names(_) => format!("the node is named {}", &*view.facts().name),
        Condition::Pools(_) => pools(view),
        Condition::Label(requirement) => label(set, subject, view, &requirement.key),
        Condition::Taints(patterns) => taints(subject, view, patterns),
        Condition::Capacity(resource, _) => capacity(view, resource),
        Condition::Gpu(_) => gpu(view),
        Condition::NodeInfo(NodeInfoCondition { field, patterns: _, written: _ }) => match field.of(view.facts()) {
            Some(text) => format!("{} is {text:?}", field.describe()),
            None => format!("{}: not reported yet", field.describe()),
        },
        Condition::Expression(expression) => {
            let reads = expression.reads();
            let labels = reads.labels.iter().map(|read| label(set, subject, view, &read.key));
            let gpu = reads.gpu.then(|| gpu(view));
            let pools = reads.pools.then(|| pools(view));
            let contradictions = reads.contradictions.then(|| contradictions(view));
            let instance = reads.instance.then(|| instance(view));
            let devices = reads.devices.then(|| devices(view));
            let identity = pools.into_iter().chain(contradictions).chain(instance);
            let known: Vec<String> =
                failures.into_iter().chain(labels).chain(gpu).chain(devices).chain(identity).collect();
            if known.is_empty() { "evaluated on the node as it is".to_owned() } else { known.join("; ") }
        }
    }
}

/// The number of devices.
fn devices(view: &View<'_>) -> String {
    let count =
        |devices: &NodeDevices| serde_json::from_str::<Vec<IgnoredAny>>(devices.text()).map_or(0, |all| all.len());
    view.devices().map_or_else(|| format!("devices: {DEVICES_UNKNOWN}"), |known| format!("devices: {}", count(known)))
}

/// A label as rules see it.
fn label(set: &PolicySet, subject: &Subject<'_>, view: &View<'_>, key: &str) -> String {
    let there = view.facts().label(key);
    let given = view.labels.get(key).and_then(|values| values.first());
    match (view.label(key), there) {
        (Some(value), _) if given.is_some_and(|given| given.value == value && given.strength.is_kept()) => {
            let by = given.map(|given| set.rule(given.rule).id.to_string()).unwrap_or_default();
            format!("label {key}={}, assigned by rule {by}", or_quotes(value))
        }
        (Some(value), _) => format!("label {key}={}", or_quotes(value)),
        (None, Some(value)) => {
            let owned = subject.stored.saved.owned.as_ref().is_some_and(|owned| owned.labels.contains_key(key));
            let why = if owned {
                "nodegate set it, and rules do not read what nodegate sets"
            } else {
                "a kubelet may have set it"
            };
            format!("label {key}={} is not read: {why}", or_quotes(value))
        }
        (None, None) => match (view.away(key), view.awaited(key)) {
            (Some(publisher), _) => format!("label {key} is absent; {}", publisher.is_away_in_words()),
            (None, Some(inventory)) => {
                format!("label {key} is absent, and inventory {} has not answered for this node yet", inventory.id)
            }
            (None, None) => format!("label {key} is absent"),
        },
    }
}

/// The taints with the keys of the patterns.
fn taints(subject: &Subject<'_>, view: &View<'_>, patterns: &[TaintPattern]) -> String {
    let meant = |key: &str| patterns.iter().any(|pattern| *pattern.key == *key);
    let equals = |value: &str| if value.is_empty() { String::new() } else { format!("={value}") };
    let seen: Vec<String> = view
        .all_taints()
        .filter(|(key, _, _)| meant(key))
        .map(|(key, value, effect)| format!("taint {key}{}:{effect}", equals(value)))
        .collect();
    if !seen.is_empty() {
        return seen.join("; ");
    }
    match subject.stored.node.taints().iter().find(|taint| meant(&taint.key)) {
        Some(taint) => format!(
            "taint {}{}:{} is not read: nodegate set it, and rules do not read what nodegate sets",
            &*taint.key,
            equals(taint.value()),
            &*taint.effect
        ),
        None => "the node has no such taint".to_owned(),
    }
}

/// The pools that are proven, and those that are not known.
fn pools(view: &View<'_>) -> String {
    let pools = view.pools();
    let unknown = &pools.unknown;
    let proven = pools.proven.iter().map(|(name, proof)| format!("pool {name}, proven by {}", proof.in_words()));
    let unknown = (!unknown.is_empty()).then(|| {
        let names = joined(unknown.iter().copied());
        format!("nothing is recorded about its kubelet that proves or excludes {names}")
    });
    let others = pools.others().map(str::to_owned);
    let known: Vec<String> = proven.chain(unknown).chain(others).collect();
    if known.is_empty() { "the node belongs to no pool".to_owned() } else { known.join("; ") }
}

/// What contradicts the proof of the node's pools.
fn contradictions(view: &View<'_>) -> String {
    match view.contradictions() {
        [] => "nothing that is known contradicts what is proven of the node".to_owned(),
        found => found.iter().map(Contradiction::in_words).collect::<Vec<_>>().join("; "),
    }
}

fn instance(view: &View<'_>) -> String {
    match view.instance() {
        Some(instance) => format!("its kubelet was authenticated as instance {instance}"),
        None => "its kubelet is not known to have been authenticated as an instance".to_owned(),
    }
}

fn capacity(view: &View<'_>, resource: &str) -> String {
    let starting = view.facts().readiness == Readiness::Starting;
    let device = resource.contains('/');
    match view.facts().capacity.get(resource) {
        Some(quantity) if quantity.parse::<crate::facts::quantity::Quantity>().is_err() => {
            format!("capacity {resource} is {quantity:?}, which is not a quantity")
        }
        Some(quantity) if device && starting => {
            format!("capacity {resource} is {quantity}; the node is starting, so devices may still appear")
        }
        Some(quantity) => format!("capacity {resource} is {quantity}"),
        None if device && starting => {
            format!("capacity {resource} is absent; the node is starting, so devices may still appear")
        }
        None if device => format!("capacity {resource} is absent, which counts as 0"),
        None => format!("capacity {resource} is absent"),
    }
}

fn gpu(view: &View<'_>) -> String {
    match view.gpu() {
        Gpus::Found(gpu) => {
            let text = |name: &str, value: Option<String>| format!("{name} {}", value.as_deref().unwrap_or("unknown"));
            let facts = [
                text("vendor", gpu.vendor.clone()),
                text("model", gpu.model.clone()),
                text("count", gpu.count.map(|count| count.to_string())),
                text("source", gpu.source.map(|source| source.as_str().to_owned())),
            ];
            let untold = gpu.untold.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
            format!("GPU: {}{untold}", facts.join(", "))
        }
        Gpus::Unknown(why) => format!("GPU: unknown; {why}"),
        Gpus::None if view.facts().readiness == Readiness::Starting => {
            "no GPU is reported yet; the node is starting, so devices may still appear".to_owned()
        }
        Gpus::None => "no GPU is reported".to_owned(),
    }
}
