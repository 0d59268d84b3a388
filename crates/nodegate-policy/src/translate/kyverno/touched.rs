//! Which keys of nodes a rule of Kyverno reads and sets, also one that is not translated.

use super::{has_wildcard, patch};
use crate::api::source::{Node, Tree};
use crate::keys::Field;
use crate::translate::read::{Keys, each_text, fields, given, items, list};

/// The keys on which it depends what a rule does.
pub(super) fn reads(rule: &Tree) -> Keys {
    let mut keys = Keys::default();
    each_text(rule, &mut |_, text| {
        // Variables, and anchors of a patch that are conditions.
        let is_condition = ["(", "^(", "<(", "X("].iter().any(|anchor| text.starts_with(anchor));
        keys.unknown |= text.contains("{{") || text.contains("$(") || is_condition;
    });
    let unknown = ["preconditions", "context", "celPreconditions"];
    keys.unknown |= unknown.iter().any(|key| given(rule, key).is_some());
    for part in ["match", "exclude"].iter().filter_map(|key| given(rule, key)) {
        of_selectors(&part.tree, &mut keys);
    }
    for operation in operations(rule).unwrap_or_default() {
        keys.unknown |= !matches!(operation.text("op"), Some("add" | "remove" | "replace"));
    }
    keys
}

fn of_selectors(tree: &Tree, keys: &mut Keys) {
    for field in fields(tree) {
        match field.key.as_str() {
            "matchLabels" => fields(&field.tree).iter().for_each(|label| add(keys, Field::Label, &label.key)),
            "annotations" => fields(&field.tree).iter().for_each(|one| add(keys, Field::Annotation, &one.key)),
            "matchExpressions" => {
                items(&field.tree).for_each(|item| add(keys, Field::Label, item.text("key").unwrap_or("*")));
            }
            _ => of_selectors(&field.tree, keys),
        }
    }
    items(tree).for_each(|item| of_selectors(item, keys));
}

fn add(keys: &mut Keys, field: Field, key: &str) {
    keys.unknown |= has_wildcard(key) || key.contains("{{");
    keys.add(field, key);
}

/// The operations of the rule's JSON patch; none if it has no such patch or it cannot be read.
fn operations(rule: &Tree) -> Option<Vec<Tree>> {
    patch::operations(given(&given(rule, "mutate")?.tree, "patchesJson6902")?)
}

/// The keys that a rule sets or removes.
pub(super) fn writes(rule: &Tree) -> Keys {
    let mut keys = Keys::default();
    let Some(mutate) = given(rule, "mutate") else { return keys };
    let known = ["patchStrategicMerge", "patchesJson6902"];
    keys.unknown |= fields(&mutate.tree).iter().any(|field| !known.contains(&field.key.as_str()));
    if let Some(merge) = given(&mutate.tree, "patchStrategicMerge") {
        of_merge(&merge.tree, &[], &mut keys);
    }
    if given(&mutate.tree, "patchesJson6902").is_some() {
        let operations = operations(rule);
        keys.unknown |= operations.is_none();
        operations.unwrap_or_default().iter().for_each(|operation| of_path(operation.text("path"), &mut keys));
    }
    keys.unknown |= list(&mutate.tree, "targets").next().is_some();
    keys
}

/// The keys below `path` of a strategic merge patch.
fn of_merge(tree: &Tree, path: &[&str], keys: &mut Keys) {
    let field = match path {
        ["metadata", "labels"] => Some(Field::Label),
        ["metadata", "annotations"] => Some(Field::Annotation),
        ["spec", "taints"] => return keys.add(Field::Taint, ""),
        [] | ["metadata"] | ["spec"] => None,
        _ => return,
    };
    // Null removes whatever is there.
    keys.unknown |= !matches!(tree.value, Node::Mapping(_));
    for entry in fields(tree) {
        let bare = entry.key.split_once('(').map_or(entry.key.as_str(), |(_, key)| key.trim_end_matches(')'));
        // `$patch` may replace or remove all that is beside it.
        keys.unknown |= bare.starts_with('$') || bare.contains("{{");
        match field {
            Some(field) => add(keys, field, bare),
            None => of_merge(&entry.tree, &[path, &[bare]].concat(), keys),
        }
    }
}

fn of_path(path: Option<&str>, keys: &mut Keys) {
    let path = path.unwrap_or_default();
    // What is no pointer makes the whole patch fail.
    let Some(names) = patch::names_in(path) else {
        keys.unknown |= path.contains("{{");
        return;
    };
    let part = |at: usize| names.get(at).map(String::as_str);
    match [part(0), part(1), part(2)] {
        [Some("metadata"), Some("labels"), Some(key)] => add(keys, Field::Label, key),
        [Some("metadata"), Some("annotations"), Some(key)] => add(keys, Field::Annotation, key),
        [Some("spec"), Some("taints"), _] => keys.add(Field::Taint, ""),
        [Some("metadata"), Some("labels" | "annotations") | None, None] | [None | Some("spec"), None, _] => {
            keys.unknown = true;
        }
        _ => keys.unknown |= path.contains("{{"),
    }
}
