//! What Kyverno's patches set, if they only set.

use jsonptr::Pointer;

use crate::api::policy::TaintSpec;
use crate::api::source::{Field, Node, Tree, parse_documents};
use crate::translate::read::{Reasons, fields, given, items};
use crate::translate::rule::Sets;

/// What `mutate` sets.
pub(super) fn sets(mutate: &Field, reasons: &mut Reasons) -> Sets {
    reasons.of_unknown(&mutate.tree, &["patchStrategicMerge", "patchesJson6902"], "`mutate`");
    let part = |key| given(&mutate.tree, key);
    let mut sets = Sets::default();
    match (part("patchStrategicMerge"), part("patchesJson6902")) {
        (Some(merge), None) => of_merge(&merge.tree, &mut sets, reasons),
        (None, Some(operations)) => of_operations(operations, &mut sets, reasons),
        _ => reasons.add(
            mutate.place.line,
            "`mutate` does not have exactly one of `patchStrategicMerge` and `patchesJson6902`",
        ),
    }
    if sets == Sets::default() && reasons.is_empty() {
        reasons.add(mutate.place.line, "the patch sets nothing");
    }
    sets
}

/// Adds a reason for every field of a patch that is not one of these, also for those without a value: null removes.
fn only(tree: &Tree, known: &[&str], whose: &str, reasons: &mut Reasons) {
    if !matches!(tree.value, Node::Mapping(_)) {
        reasons.add(tree.place.line, format!("{whose} is not a mapping; null removes what nodes have"));
    }
    for field in fields(tree).iter().filter(|field| !known.contains(&field.key.as_str())) {
        reasons.add(
            field.place.line,
            format!("`{}` in {whose} is neither labels, annotations nor taints to set", field.key),
        );
    }
}

fn of_merge(patch: &Tree, sets: &mut Sets, reasons: &mut Reasons) {
    only(patch, &["metadata", "spec"], "the patch", reasons);
    let mut anchored = Vec::new();
    if let Some(metadata) = patch.field("metadata") {
        only(&metadata.tree, &["labels", "annotations"], "`metadata`", reasons);
        for (key, values) in [("labels", &mut sets.labels), ("annotations", &mut sets.annotations)] {
            let Some(map) = metadata.tree.field(key) else { continue };
            only_texts(map, reasons);
            for field in fields(&map.tree) {
                let bare = field.key.strip_prefix("+(").and_then(|key| key.strip_suffix(')'));
                anchored.push(bare.is_some());
                let key = bare.unwrap_or(&field.key);
                if key.contains(['(', ')']) {
                    reasons.add(field.place.line, format!("the anchor {} has no exact translation", field.key));
                }
                if values.insert(key.to_owned(), field.tree.as_text().unwrap_or_default().to_owned()).is_some() {
                    reasons.add(field.place.line, format!("{key} is set twice"));
                }
            }
        }
    }
    if let Some(spec) = patch.field("spec") {
        only(&spec.tree, &["taints"], "`spec`", reasons);
        if let Some(taints) = spec.tree.field("taints") {
            sets.taints = of_taints(taints, reasons);
            anchored.extend(sets.taints.iter().map(|_| false));
        }
    }
    sets.only_absent = anchored.contains(&true);
    if sets.only_absent && anchored.contains(&false) {
        reasons
            .add(patch.place.line, "keys with and without the anchor +() need two rules: write two in Kyverno first");
    }
}

fn only_texts(map: &Field, reasons: &mut Reasons) {
    if !matches!(map.tree.value, Node::Mapping(_)) {
        reasons.add(map.place.line, format!("`{}` is not a mapping; null removes what nodes have", map.key));
    }
    for field in fields(&map.tree).iter().filter(|field| field.tree.as_text().is_none()) {
        let text = match field.tree.is_null() {
            true => format!("the patch removes {}, and nodegate removes only what it has set", field.key),
            false => format!("the value of {} is not a text: quote it", field.key),
        };
        reasons.add(field.place.line, text);
    }
}

/// The taints. Kyverno replaces the list of the node with them; nodegate adds them.
fn of_taints(field: &Field, reasons: &mut Reasons) -> Vec<TaintSpec> {
    let mut taints: Vec<TaintSpec> = Vec::new();
    for item in items(&field.tree) {
        only(item, &["key", "value", "effect"], "a taint", reasons);
        let text = |key| item.text(key).map(str::to_owned);
        let value = item.field("value").is_none_or(|value| value.tree.as_text().is_some());
        match (text("key"), text("effect"), value) {
            (Some(key), Some(effect), true) => {
                if taints.iter().any(|taint| (&taint.key, &taint.effect) == (&key, &effect)) {
                    reasons.add(item.place.line, format!("the taint {key}:{effect} is there twice"));
                }
                taints.push(TaintSpec { key, value: text("value").unwrap_or_default(), effect });
            }
            _ => {
                reasons
                    .add(item.place.line, "a taint needs the texts `key` and `effect`, and `value` has to be a text");
            }
        }
    }
    if taints.is_empty() {
        reasons.add(field.place.line, "the patch removes all taints, and nodegate removes only what it has set");
    }
    taints
}

/// The operations of a JSON patch in a text.
pub(super) fn operations(field: &Field) -> Option<Vec<Tree>> {
    let documents = parse_documents(field.tree.as_text()?).ok()?;
    match <[Tree; 1]>::try_from(documents).ok()? {
        [Tree { value: Node::List(operations), .. }] => Some(operations.into_iter().map(|(_, one)| one).collect()),
        _ => None,
    }
}

/// The names in a JSON pointer; `None` if it is none.
pub(super) fn names_in(path: &str) -> Option<Vec<String>> {
    let pointer = Pointer::parse(path).ok()?;
    Some(pointer.tokens().map(|token| token.decoded().into_owned()).collect())
}

/// The key in a JSON pointer to a label or an annotation, and whether it is a label's.
fn pointer(path: &str) -> Option<(bool, String)> {
    let [metadata, part, key] = <[String; 3]>::try_from(names_in(path)?).ok()?;
    let is_label = part == "labels";
    (metadata == "metadata" && (is_label || part == "annotations") && !key.is_empty()).then_some((is_label, key))
}

fn of_operations(field: &Field, sets: &mut Sets, reasons: &mut Reasons) {
    let line = field.place.line;
    let Some(operations) = operations(field).filter(|all| !all.is_empty()) else {
        return reasons.add(line, "`patchesJson6902` is not a text with a list of operations");
    };
    for operation in operations {
        // Its lines are those of the text.
        let mut faults = Reasons::default();
        only(&operation, &["op", "path", "value"], "an operation", &mut faults);
        faults.0.into_iter().for_each(|fault| reasons.add(line, fault.text));
        let (op, path) = (operation.text("op").unwrap_or_default(), operation.text("path").unwrap_or_default());
        if op != "add" {
            let why = match op {
                "replace" => ": where the key is absent it fails, and with it the whole patch",
                _ => "",
            };
            reasons.add(line, format!("the operation `{op}` is not an `add`{why}"));
            continue;
        }
        match (pointer(path), operation.text("value")) {
            (Some((is_label, key)), Some(value)) => {
                let values = if is_label { &mut sets.labels } else { &mut sets.annotations };
                if values.insert(key.clone(), value.to_owned()).is_some() {
                    reasons.add(line, format!("{key} is set twice"));
                }
            }
            (None, _) if path.starts_with("/spec/taints") => {
                reasons.add(line, format!("an `add` to {path} fails, or adds the taint again, with the next write: use `patchStrategicMerge`"));
            }
            (None, _) => reasons.add(line, format!("the path {path} is not that of one label or annotation")),
            (_, None) => reasons.add(line, format!("the value for {path} is not a text")),
        }
    }
}
