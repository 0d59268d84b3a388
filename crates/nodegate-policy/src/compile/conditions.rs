//! Compiles a `match` to a [`Matcher`].

use std::collections::BTreeMap;

use super::Faults;
use super::texts::node_expression;
use crate::api::names::{check_label_key, check_label_value};
use crate::api::policy::{ConditionsSpec, GpuSpec, MatchSpec, Operator, RequirementSpec, SelectorSpec};
use crate::api::problem::Problem;
use crate::api::schema::nearest;
use crate::api::source::FieldPath;
use crate::cel::Yields;
use crate::facts::gpu::VENDORS;
use crate::keys::pattern::TextSet;
use crate::set::index::NameIndexBuilder;
use crate::set::matcher::{Condition, Conditions, GpuCondition, Matcher, Requirement, TaintPattern};
use crate::set::node_info::{InfoPattern, NodeInfoCondition, NodeInfoField};

/// Compiles a `match`.
pub(super) fn matcher(
    spec: Option<&MatchSpec>,
    names: &mut NameIndexBuilder,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Matcher {
    let Some(MatchSpec { conditions: all, any_of }) = spec else { return Matcher::default() };
    let any_of = any_of.as_ref().map(|alternatives| {
        if alternatives.is_empty() {
            faults.at(
                &path.key("anyOf"),
                Problem::new("the list is empty, so no node matches", "add an alternative or remove the field"),
            );
        }
        let compile =
            |(index, spec): (usize, &ConditionsSpec)| conditions(spec, names, &path.key("anyOf").index(index), faults);
        alternatives.iter().enumerate().map(compile).collect()
    });
    Matcher { all: conditions(all, names, path, faults), any_of }
}

/// What follows from an empty list.
const NO_NODE: &str = "no node matches";

/// The other name of `kernel`.
const KERNEL_VERSION: &str = "kernelVersion";

/// Compiles conditions. All fields of the spec are destructured, so that none is forgotten.
fn conditions(
    spec: &ConditionsSpec,
    names: &mut NameIndexBuilder,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Conditions {
    let ConditionsSpec {
        names: node_names,
        pools,
        selector,
        taints,
        capacity,
        gpu,
        os_image,
        kernel,
        kernel_version,
        expression,
    } = spec;
    let mut found = Vec::new();
    if let Some(list) = node_names {
        let path = path.key("names");
        faults.refuse_empty(list, &path, NO_NODE);
        found.push(Condition::Names(
            names.add(list, faults.budget, |index, message| faults.at(&path.index(index), message)),
        ));
    }
    if let Some(list) = pools {
        found.push(Condition::Pools(faults.texts(list, &path.key("pools"), NO_NODE)));
    }
    if let Some(spec) = selector {
        found.extend(requirements(spec, &path.key("selector"), faults).into_iter().map(Condition::Label));
    }
    if let Some(list) = taints {
        found.push(Condition::Taints(patterns(list, TaintPattern::parse, &path.key("taints"), faults)));
    }
    found.extend(quantities(capacity, &path.key("capacity"), faults));
    if let Some(spec) = gpu {
        found.push(Condition::Gpu(Box::new(gpu_condition(spec, &path.key("gpu"), faults))));
    }
    for (key, field, list) in [
        ("osImage", NodeInfoField::OsImage, os_image),
        ("kernel", NodeInfoField::Kernel, kernel),
        (KERNEL_VERSION, NodeInfoField::Kernel, kernel_version),
    ] {
        let Some(list) = list else { continue };
        if key == KERNEL_VERSION && kernel.is_some() {
            let problem = Problem::new("kernel and kernelVersion are two names of one condition", "write one of them");
            faults.at(&path.key(key), problem);
        }
        let budget = faults.budget;
        let patterns = patterns(list, |text| InfoPattern::parse(text, budget), &path.key(key), faults);
        let written = list.iter().map(|text| text.as_str().into()).collect();
        found.push(Condition::NodeInfo(NodeInfoCondition { field, patterns, written }));
    }
    if let Some(source) = expression {
        let compiled = node_expression(source, Yields::Bool, &path.key("expression"), faults);
        found.extend(compiled.map(Condition::Expression));
    }
    found.into_iter().collect()
}

/// Parses the elements of a list of alternatives.
fn patterns<P>(
    texts: &[String],
    parse: impl Fn(&str) -> Result<P, Problem>,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Vec<P> {
    faults.refuse_empty(texts, path, NO_NODE);
    let check = |(index, text): (usize, &String)| faults.check(&path.index(index), parse(text));
    texts.iter().enumerate().filter_map(check).collect()
}

fn quantities(spec: &BTreeMap<String, String>, path: &FieldPath, faults: &mut Faults<'_>) -> Vec<Condition> {
    let compile = |(resource, text): (&String, &String)| {
        let path = path.key(resource);
        faults.check_key(&path, check_label_key(resource));
        let comparison = faults.check(&path, text.parse())?;
        Some(Condition::Capacity(resource.as_str().into(), comparison))
    };
    spec.iter().filter_map(compile).collect()
}

fn requirements(spec: &SelectorSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Vec<Requirement> {
    let SelectorSpec { match_labels, match_expressions } = spec;
    let mut requirements = Vec::new();
    for (key, value) in match_labels {
        let path = path.key("matchLabels").key(key);
        faults.check_key(&path, check_label_key(key));
        faults.check(&path, check_label_value(value));
        requirements.push(Requirement::new(key, Operator::In, vec![value.as_str().into()]));
    }
    for (index, spec) in match_expressions.iter().enumerate() {
        let RequirementSpec { key, operator, values } = spec;
        let path = path.key("matchExpressions").index(index);
        faults.check(&path.key("key"), check_label_key(key));
        for (at, value) in values.iter().enumerate() {
            faults.check(&path.key("values").index(at), check_label_value(value));
        }
        let listing = match operator {
            Operator::In | Operator::NotIn => true,
            Operator::Exists | Operator::DoesNotExist => false,
        };
        if listing == values.is_empty() {
            let problem = if listing {
                Problem::new("the requirement has no values", "In and NotIn need at least one value")
            } else {
                Problem::new("the requirement has values", "remove them: Exists and DoesNotExist take none")
            };
            faults.at(&path.key("values"), problem);
        }
        let values = values.iter().map(|value| value.as_str().into()).collect();
        requirements.push(Requirement::new(key, *operator, values));
    }
    requirements
}

fn gpu_condition(spec: &GpuSpec, path: &FieldPath, faults: &mut Faults<'_>) -> GpuCondition {
    let GpuSpec { vendor: vendor_spec, model: model_spec, count: count_spec } = spec;
    let mut text = |field: &str, text: &Option<String>| {
        let text = text.as_ref()?.to_lowercase();
        let mut valid = true;
        let set = TextSet::compile([text.as_str()], faults.budget, |_, problem| {
            valid = false;
            faults.at(&path.key(field), problem);
        });
        Some((set, valid))
    };
    let (vendor, model) = (text("vendor", vendor_spec), text("model", model_spec));
    if let (Some((set, true)), Some(written)) = (&vendor, vendor_spec)
        && !VENDORS.iter().any(|vendor| set.contains(vendor))
    {
        let known = match nearest(written, &VENDORS) {
            Some(vendor) => format!("did you mean {vendor:?}?"),
            None => format!("the vendors are {}", VENDORS.join(", ")),
        };
        faults.at(&path.key("vendor"), Problem::new(format!("{written:?} is not a known GPU vendor"), known));
    }
    let count = count_spec.as_ref().and_then(|count| faults.check(&path.key("count"), count.parse()));
    GpuCondition { vendor: vendor.map(|(set, _)| set), model: model.map(|(set, _)| set), count }
}
