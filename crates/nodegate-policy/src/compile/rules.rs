//! Compiles everything that assigns values to [`Rule`]s: rules, derived labels, inventories and persist sections.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::conditions::matcher;
use super::texts::{duration, node_expression};
use super::{Draft, Faults, inventory};
use crate::api::names::{LabelKey, LabelValue, Taint, TaintId, check_label_key, cut_name};
use crate::api::policy::{
    DerivedSpec, LabelMapSpec, Operator, PersistScope, PersistSpec, RuleMode, RuleSpec, TaintSpec,
};
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::cel::{Expression, Yields};
use crate::keys::annotations::{ANNOTATIONS_MAX, READ_BY_THE_API_SERVER};
use crate::keys::pattern::KeySet;
use crate::keys::restriction::{is_own, is_reconciled_by_kubelet, writable_label};
use crate::keys::{Field, programs};
use crate::set::index::NameIndexBuilder;
use crate::set::matcher::{Condition, Conditions, Matcher, Requirement};
use crate::set::rule::{Assignments, REMOVE_AFTER, Rule, Saved};
use crate::set::rule::{RuleId, Strength};

/// Taints that the node lifecycle controller and the cloud controllers add and remove.
const CONTROLLERS_OWN: [&str; 9] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/unschedulable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cloudprovider.kubernetes.io/shutdown",
];
/// Compiles everything in the document that assigns values.
pub(super) fn compile(document: usize, names: &mut NameIndexBuilder, drafts: &mut Vec<Draft>, faults: &mut Faults<'_>) {
    let owner = faults.document;
    let spec = FieldPath::root().key("spec");
    let policy: Arc<str> = owner.name.as_str().into();
    let (all, mut seen) = (spec.key("rules"), HashMap::new());
    for (index, rule) in owner.spec.rules.iter().enumerate() {
        let path = all.index(index);
        faults.item_name(("rule", "write a name that describes the rule"), &rule.name, (&all, index), &mut seen);
        let id = RuleId { policy: policy.clone(), rule: cut_name(&rule.name).into() };
        drafts.push(Draft { rule: compile_rule(rule, id, names, &path, faults), document, path });
    }
    for (index, derived) in owner.spec.derived.iter().enumerate() {
        let path = spec.key("derived").index(index);
        let id = RuleId { policy: policy.clone(), rule: format!("derived:{}", cut_name(&derived.label)).into() };
        if let Some(rule) = compile_derived(derived, id, &path, faults) {
            drafts.push(Draft { rule, document, path });
        }
    }
    inventory::compile(document, drafts, faults);
    if let Some(persist) = &owner.spec.persist {
        let path = spec.key("persist");
        let id = RuleId { policy, rule: "persist".into() };
        drafts.push(Draft { rule: compile_persist(persist, id, names, &path, faults), document, path });
    }
}

fn compile_rule(
    spec: &RuleSpec,
    id: RuleId,
    names: &mut NameIndexBuilder,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Rule {
    let RuleSpec {
        name: _,
        match_,
        labels: fixed,
        label_expressions: computed,
        label_map: map,
        annotations: annotation_texts,
        taints: taint_specs,
        mode,
        priority,
        remove_after,
        trust_kubelet,
        evict,
    } = spec;
    let matcher = matcher(match_.as_ref(), names, &path.key("match"), faults);
    let gives = Assignments {
        labels: labels(fixed, &path.key("labels"), faults),
        label_expressions: label_expressions(computed, &path.key("labelExpressions"), faults),
        label_map: map.as_ref().and_then(|map| label_map(map, &path.key("labelMap"), faults)).map(Box::new),
        annotations: annotations(annotation_texts, &path.key("annotations"), faults),
        taints: taints(taint_specs, &path.key("taints"), faults),
        saved: None,
        inventory: None,
        migration: None,
    };
    for key in fixed.keys().filter(|key| computed.contains_key(*key)) {
        faults.at_key(
            &path.key("labelExpressions").key(key),
            Problem::new(format!("{key:?} is also in labels"), "remove it from one of the two"),
        );
    }
    let remove_after = remove_after.as_ref().and_then(|text| faults.check(&path.key("removeAfter"), duration(text)));
    let nothing = fixed.is_empty()
        && computed.is_empty()
        && map.is_none()
        && annotation_texts.is_empty()
        && taint_specs.is_empty();
    if nothing {
        faults.at(
            path,
            Problem::new("the rule sets nothing", "add labels, labelExpressions, labelMap, annotations or taints"),
        );
    }
    Rule {
        id,
        strength: match mode.unwrap_or_default() {
            RuleMode::Enforce => Strength::Enforced,
            RuleMode::Default => Strength::Default,
        },
        priority: priority.unwrap_or_default(),
        rank: 0,
        matcher,
        assigns: gives,
        trust_kubelet: trust_kubelet.unwrap_or_default(),
        evict: evict.unwrap_or_default(),
        remove_after: remove_after.unwrap_or(REMOVE_AFTER),
    }
}

fn compile_derived(spec: &DerivedSpec, id: RuleId, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Rule> {
    let DerivedSpec { label, value, any_of, trust_kubelet } = spec;
    let value = value.as_deref().unwrap_or("true");
    let key = faults.check(&path.key("label"), writable_label(label));
    let value = faults.check(&path.key("value"), value.parse::<LabelValue>());
    if any_of.is_empty() {
        faults.at(&path.key("anyOf"), Problem::new("the list is empty", "add at least one source label"));
    }
    for (index, source) in any_of.iter().enumerate() {
        faults.check(&path.key("anyOf").index(index), check_label_key(source));
    }
    // In flat label files absence is false, never unknown, and the grace period is configurable.
    let flat = faults.document.flat_grace;
    let source = |key: &String| -> Conditions {
        let mut requirement = Requirement::new(key, Operator::Exists, Vec::new());
        requirement.publisher = requirement.publisher.filter(|_| flat.is_none());
        [Condition::Label(requirement)].into_iter().collect()
    };
    Some(Rule {
        id,
        strength: Strength::Enforced,
        priority: 0,
        rank: 0,
        matcher: Matcher { all: Conditions::default(), any_of: Some(any_of.iter().map(source).collect()) },
        assigns: Assignments { labels: vec![(key?, value?)], ..Assignments::default() },
        trust_kubelet: trust_kubelet.unwrap_or_default(),
        evict: false,
        remove_after: flat.unwrap_or(REMOVE_AFTER),
    })
}

fn compile_persist(
    spec: &PersistSpec,
    id: RuleId,
    names: &mut NameIndexBuilder,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Rule {
    let PersistSpec { match_, labels, taints, scope, retention } = spec;
    let scope = scope.unwrap_or_default();
    if labels.is_empty() && taints.is_empty() {
        faults.at(path, Problem::new("nothing is persisted", "add labels or taints"));
    }
    if scope == PersistScope::Pool && !taints.is_empty() {
        let help = "move them to another policy, whose persist section has no scope";
        faults.at(&path.key("taints"), Problem::new("pools remember labels only, no taints", help));
    }
    let retention = retention.as_ref().and_then(|text| faults.check(&path.key("retention"), duration(text)));
    let mut set = |name: &str, field: Field, keys: &[String]| {
        let path = path.key(name);
        for (index, key) in keys.iter().enumerate() {
            // Of other programs' keys only a lint warns: their table grows, and a policy stays one that compiles.
            if !(is_own(key) || field == Field::Label && is_reconciled_by_kubelet(key)) {
                continue;
            }
            if let Some(never) = programs::never_persisted(field, key, None) {
                let what = format!("{key:?} is never persisted: {never}");
                faults.at(&path.index(index), Problem::new(what, "remove it"));
            }
        }
        KeySet::compile(keys.iter().map(String::as_str), |index, message| faults.at(&path.index(index), message))
    };
    let (labels, taints) = (set("labels", Field::Label, labels), set("taints", Field::Taint, taints));
    let saved = Saved { labels, taints, scope, retention };
    Rule {
        id,
        strength: Strength::Saved,
        priority: 0,
        rank: 0,
        matcher: matcher(match_.as_ref(), names, &path.key("match"), faults),
        assigns: Assignments { saved: Some(Box::new(saved)), ..Assignments::default() },
        trust_kubelet: true,
        evict: false,
        remove_after: REMOVE_AFTER,
    }
}

fn labels(spec: &BTreeMap<String, String>, path: &FieldPath, faults: &mut Faults<'_>) -> Vec<(LabelKey, LabelValue)> {
    let pairs = spec.iter().map(|(key, value)| {
        let path = path.key(key);
        (faults.check_key(&path, writable_label(key)), faults.check(&path, value.parse::<LabelValue>()))
    });
    pairs.collect::<Vec<_>>().into_iter().filter_map(|(key, value)| Some((key?, value?))).collect()
}

fn label_expressions(
    spec: &BTreeMap<String, String>,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Vec<(LabelKey, Arc<Expression>)> {
    let mut compiled = Vec::with_capacity(spec.len());
    for (key, source) in spec {
        let path = path.key(key);
        let label = faults.check_key(&path, writable_label(key));
        let expression = node_expression(source, Yields::Text, &path, faults);
        compiled.extend(label.zip(expression));
    }
    compiled
}

fn label_map(spec: &LabelMapSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<(KeySet, Arc<Expression>)> {
    if spec.keys.is_empty() {
        faults.at(
            &path.key("keys"),
            Problem::new("the list is empty", "add every key (or prefix/*) that the expression may yield"),
        );
    }
    let keys = KeySet::compile(spec.keys.iter().map(String::as_str), |index, message| {
        faults.at(&path.key("keys").index(index), message);
    });
    for (index, key) in spec.keys.iter().enumerate().filter(|(_, key)| !key.contains('*')) {
        faults.check(&path.key("keys").index(index), writable_label(key));
    }
    Some((keys, node_expression(&spec.expression, Yields::TextMap, &path.key("expression"), faults)?))
}

fn annotations(
    spec: &BTreeMap<String, String>,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Vec<(LabelKey, Box<str>)> {
    let mut compiled = Vec::with_capacity(spec.len());
    for (key, value) in spec {
        let path = path.key(key);
        if is_own(key) {
            faults.at_key(&path, Problem::new(format!("{key:?} is in nodegate's own namespace"), "use another prefix"));
        }
        if READ_BY_THE_API_SERVER.contains(&key.as_str()) {
            faults.at_key(
                &path,
                Problem::new(
                    format!("{key:?} is parsed by the API server, which refuses a node with an invalid value"),
                    "use taints instead",
                ),
            );
        }
        // Annotation keys are validated in lower case (validation.go, ValidateAnnotations).
        compiled.extend(faults.check_key(&path, key.parse::<LabelKey>()).map(|key| (key, value.as_str().into())));
    }
    if spec.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > ANNOTATIONS_MAX {
        faults.at(
            path,
            Problem::new(
                "the annotations are larger than 256 KiB, the limit of Kubernetes for an object",
                "make them smaller",
            ),
        );
    }
    compiled
}

fn taints(specs: &[TaintSpec], path: &FieldPath, faults: &mut Faults<'_>) -> Vec<Taint> {
    let mut compiled: Vec<(Taint, FieldPath)> = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let path = path.index(index);
        let key = faults.check(&path.key("key"), spec.key.parse::<LabelKey>());
        let value = faults.check(&path.key("value"), spec.value.parse::<LabelValue>());
        let effect = match spec.effect.as_str() {
            "" => Err(Problem::new("the taint has no effect", "add NoSchedule, PreferNoSchedule or NoExecute")),
            effect => effect.parse().map_err(Problem::from),
        };
        let effect = faults.check(&path.key("effect"), effect);
        if is_own(&spec.key) || CONTROLLERS_OWN.contains(&spec.key.as_str()) {
            faults.at(
                &path.key("key"),
                Problem::new(
                    format!("the taint {:?} is added and removed by a controller", spec.key),
                    "use another key",
                ),
            );
        }
        let (Some(key), Some(value), Some(effect)) = (key, value, effect) else { continue };
        let id = TaintId { key, effect };
        if let Some((_, first)) = compiled.iter().find(|(taint, _)| taint.id == id) {
            let what = format!("{id} is listed twice, but Kubernetes allows only one taint per key and effect");
            faults.again(&path, first, Problem::new(what, "remove one of the two"));
        }
        compiled.push((Taint { id, value }, path));
    }
    compiled.into_iter().map(|(taint, _)| taint).collect()
}
