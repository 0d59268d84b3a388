//! Compiles `answer` of an inventory.

use std::sync::Arc;

use jsonptr::Pointer;
use nodegate_cel::Paths;

use super::Faults;
use super::texts::expression;
use crate::api::answers::{AnswerFormat, AnswerSpec};
use crate::api::names::LabelKey;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::cel::{Expression, Scope, Yields};
use crate::keys::pattern::KeySet;
use crate::set::inventory::answer_form::AnswerForm;
use crate::set::inventory::givable_label;

/// The form of the answers of an inventory. `is_batch`: whether one answer is about all nodes; `allow`: the keys that it may give.
pub(super) fn compile(
    spec: &AnswerSpec,
    is_batch: bool,
    allow: &KeySet,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> AnswerForm {
    check(spec, is_batch, path, faults);
    let AnswerSpec { format, items, node, machine, labels, label_map, next } = spec;
    let mut computed: Vec<(LabelKey, Arc<Expression>)> = Vec::new();
    for (key, source) in labels {
        let path = path.key("labels").key(key);
        let label = faults.check_key(&path, givable_label(key));
        if label.is_some() && !allow.contains(key) {
            let what = format!("{key:?} is not in allow, so the inventory may not set it");
            faults.at_key(&path, Problem::new(what, "add it to allow"));
        }
        computed.extend(label.zip(of_item(source, &path, faults)));
    }
    let named = node.as_ref().map(|source| ("node", source)).or(machine.as_ref().map(|source| ("machine", source)));
    let names = named.and_then(|(field, source)| of_item(source, &path.key(field), faults));
    let label_map = label_map.as_ref().and_then(|source| of_item(source, &path.key("labelMap"), faults));
    let (mut paths, mut reads_keys) = (Paths::default(), false);
    for expression in computed.iter().map(|(_, expression)| expression).chain(&names).chain(&label_map) {
        paths.merge(&expression.paths().item);
        reads_keys |= expression.paths().key;
    }
    AnswerForm {
        format: format.unwrap_or_default(),
        items: items.as_ref().and_then(|text| keys(text, &path.key("items"), faults)).unwrap_or_default(),
        next: next.as_ref().and_then(|text| keys(text, &path.key("next"), faults)),
        names,
        by_machine: machine.is_some(),
        labels: computed.into(),
        label_map,
        paths,
        reads_keys,
    }
}

/// Reports what is missing, and what does not go together.
fn check(spec: &AnswerSpec, is_batch: bool, path: &FieldPath, faults: &mut Faults<'_>) {
    for (field, written) in [("items", &spec.items), ("next", &spec.next)] {
        if spec.format == Some(AnswerFormat::Csv) && written.is_some() {
            let what = "this is for JSON: lines of comma-separated values are the items, all on one page";
            faults.at(&path.key(field), Problem::new(what, "remove it"));
        }
    }
    if is_batch && spec.node.is_none() && spec.machine.is_none() {
        let what = "the answer is about all nodes, and nothing says which item is about which node";
        faults.at(path, Problem::new(what, "add node, such as `node: item.name`, or machine"));
    }
    if spec.machine.is_some() && spec.node.is_some() {
        let what = "an item is about the node of a name or about a machine, and both are given";
        faults.at(&path.key("machine"), Problem::new(what, "remove one of them"));
    } else if spec.machine.is_some() && !is_batch {
        let what = "the url names one node, so the answer cannot be about another machine";
        faults.at(&path.key("machine"), Problem::new(what, "remove it, or write a url without {node}"));
    }
    if !is_batch && spec.next.is_some() {
        let what = "the answer is about one node, so it has no further pages";
        faults.at(&path.key("next"), Problem::new(what, "remove it, or write a url without {node}"));
    }
    if spec.labels.is_empty() && spec.label_map.is_none() {
        let what = "nothing says which labels an item has";
        faults.at(path, Problem::new(what, "add labels, such as `labels: {rack: item.rack}`, or labelMap"));
    }
}

fn of_item(source: &str, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Arc<Expression>> {
    expression(source, Scope::Item, Yields::Any, path, faults).map(Arc::new)
}

/// The keys of a JSON pointer.
fn keys(text: &str, path: &FieldPath, faults: &mut Faults<'_>) -> Option<Box<[String]>> {
    let keys = |pointer: &Pointer| pointer.tokens().map(|token| token.decoded().into_owned()).collect();
    faults.check(path, Pointer::parse(text).map(keys).map_err(|_| not_a_pointer(text)))
}

fn not_a_pointer(text: &str) -> Problem {
    let help = match text.split_once('.') {
        _ if text.starts_with('/') => "in a JSON pointer, write ~0 for ~ and ~1 for / in a key".to_owned(),
        Some(_) => format!("write /{}", text.replace('.', "/")),
        None => format!("write /{text}"),
    };
    Problem::new(format!("{text:?} is not a JSON pointer (RFC 6901)"), help)
}
