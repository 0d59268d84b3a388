//! The limits of the API server. A change that makes a node invalid fails the requester's write with a 422, whatever the
//! failure policy is, so keys that do not fit are omitted from the change.
//!
//! Sources: those of [`annotations`](crate::keys::annotations), and `ValidateLabels` and `validateNodeTaints` in the same files.
//! The size of the whole object is not checked, because only the API server knows the size of its encoding.

use crate::api::names::{check_label_key, check_label_value};
use crate::decide::decision::{ChangeBuilder, LeftOut, NodeChange};
use crate::facts::NodeFacts;
use crate::keys::Field;
use crate::keys::annotations::ANNOTATIONS_MAX;
use crate::keys::restriction::is_own;

/// The part of `change` that the API server accepts on this node, and the keys that are omitted.
///
/// # Guarantees
/// - Labels and taints are never omitted because of annotations.
/// - If the annotations are too large in total, those that increase the size are omitted, nodegate's own last. An
///   annotation that is not larger than the one that it replaces is always kept.
/// - A key that is omitted once is omitted again when the node has the rest.
pub fn fit(node: &NodeFacts<'_>, change: NodeChange) -> (Option<NodeChange>, Vec<LeftOut>) {
    let mut left_out = Vec::new();
    let ChangeBuilder { mut labels, mut annotations, mut taints } = change.into();
    let mut valid = |field, key: &str, name: &str, value: Option<&str>| {
        let checked = value.map_or(Ok(()), |value| check_label_key(key).and_then(|()| check_label_value(value)));
        let fault = checked.map_err(|error| LeftOut { field, key: name.to_owned(), reason: error.to_string() }).err();
        let fits = fault.is_none();
        left_out.extend(fault);
        fits
    };
    labels.retain(|key, value| valid(Field::Label, key, key, value.as_deref()));
    taints.retain(|id, value| valid(Field::Taint, id.key.as_str(), &id.to_string(), value.as_deref()));
    if annotations.values().any(Option::is_some) {
        let size = |key: &str, value: &str| key.len() + value.len();
        let there = |key: &str| node.annotation(key).map_or(0, |value| size(key, value));
        let mut total: usize = node.annotations().map(|(key, value)| size(key, value)).sum();
        let mut growing: Vec<(bool, String, usize)> = Vec::new();
        for (key, value) in &annotations {
            let (before, after) = (there(key), value.as_deref().map_or(0, |value| size(key, value)));
            match after.checked_sub(before) {
                Some(more) if more > 0 => growing.push((!is_own(key), key.clone(), more)),
                _ => total -= before - after,
            }
        }
        growing.sort_unstable();
        for (_, key, more) in growing {
            if total + more <= ANNOTATIONS_MAX {
                total += more;
                continue;
            }
            annotations.remove(&key);
            let reason = format!(
                "the annotations would have {} bytes in total, but the limit is {ANNOTATIONS_MAX}",
                total + more
            );
            left_out.push(LeftOut { field: Field::Annotation, key, reason });
        }
    }
    (ChangeBuilder { labels, annotations, taints }.build(), left_out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::names::{TaintEffect, TaintId};

    fn change(annotations: &[(&str, Option<&str>)]) -> NodeChange {
        let id = TaintId { key: "t".parse().unwrap(), effect: TaintEffect::NoSchedule };
        let entry = |(key, value): &(&str, Option<&str>)| ((*key).to_owned(), value.map(str::to_owned));
        ChangeBuilder {
            labels: [("l".to_owned(), Some("x".to_owned()))].into(),
            annotations: annotations.iter().map(entry).collect(),
            taints: [(id, Some(String::new()))].into(),
        }
        .build()
        .unwrap()
    }

    fn node(annotations: &Value) -> String {
        json!({"metadata": {"name": "n", "annotations": annotations}}).to_string()
    }

    /// The annotations that stay in the change, and those that are omitted.
    fn fitted(annotations: &Value, wanted: &[(&str, Option<&str>)]) -> (Vec<String>, Vec<String>) {
        let text = node(annotations);
        let (change, left_out) = fit(&NodeFacts::parse(&text).unwrap(), change(wanted));
        let change = change.unwrap();
        assert_eq!(
            (change.labels().len(), change.taints().len()),
            (1, 1),
            "labels and taints are never omitted with an annotation"
        );
        assert!(left_out.iter().all(|one| one.field == Field::Annotation), "{left_out:?}");
        (change.annotations().keys().cloned().collect(), left_out.into_iter().map(|one| one.key).collect())
    }

    #[test]
    fn an_annotation_fits_up_to_the_last_byte_and_no_further() {
        let filled = |bytes: usize| json!({"k": "v".repeat(bytes - 1)});
        let room = "free".len() + "12".len();
        let wanted = [("free", Some("12"))];
        assert_eq!(fitted(&filled(ANNOTATIONS_MAX - room), &wanted).0, ["free"]);
        assert_eq!(fitted(&filled(ANNOTATIONS_MAX - room + 1), &wanted).1, ["free"]);
        assert_eq!(fitted(&filled(ANNOTATIONS_MAX), &wanted).1, ["free"]);
        // The limit is in bytes, not characters.
        assert_eq!(fitted(&filled(ANNOTATIONS_MAX - room), &[("free", Some("\u{e9}"))]).0, ["free"]);
        assert_eq!(fitted(&filled(ANNOTATIONS_MAX - room), &[("free", Some("\u{e9}1"))]).1, ["free"]);
    }

    #[test]
    fn an_annotation_that_does_not_grow_is_kept_and_one_that_shrinks_frees_space() {
        let full = json!({"a": "12345", "b": "x".repeat(ANNOTATIONS_MAX - 7)});
        assert_eq!(fitted(&full, &[("a", Some("54321"))]).0, ["a"]);
        assert_eq!(fitted(&full, &[("a", Some("1")), ("c", Some("123"))]).0, ["a", "c"]);
        assert_eq!(fitted(&full, &[("a", None), ("c", Some("12345"))]).0, ["a", "c"]);
        assert_eq!(fitted(&full, &[("a", None), ("c", Some("123456"))]), (vec!["a".to_owned()], vec!["c".to_owned()]));
    }

    #[test]
    fn small_annotations_and_those_of_nodegate_are_kept_and_large_ones_omitted() {
        let nearly = json!({"k": "v".repeat(ANNOTATIONS_MAX - 101)});
        let large = "x".repeat(90);
        let (kept, left) =
            fitted(&nearly, &[("a", Some(&large)), ("b", Some("1")), ("nodegate.dev/last-change", Some("alice"))]);
        assert_eq!(kept, ["b", "nodegate.dev/last-change"]);
        assert_eq!(left, ["a"]);
    }

    #[test]
    fn labels_and_taints_that_the_api_server_refuses_are_omitted_individually() {
        let id = |key: &str| TaintId { key: key.parse().unwrap(), effect: TaintEffect::NoSchedule };
        let value = |text: &str| Some(text.to_owned());
        let labels = [("good", "x"), ("not a key", "x"), ("long", &*"v".repeat(64))];
        let change = ChangeBuilder {
            labels: labels.iter().map(|(key, with)| ((*key).to_owned(), value(with))).collect(),
            taints: [(id("good"), value("x")), (id("bad"), value("-"))].into(),
            ..ChangeBuilder::default()
        };
        let text = node(&json!({}));
        let (change, left_out) = fit(&NodeFacts::parse(&text).unwrap(), change.build().unwrap());
        let keys: Vec<&str> = left_out.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["long", "not a key", "bad:NoSchedule"]);
        let change = change.unwrap();
        assert!(change.labels().contains_key("good") && change.taints().contains_key(&id("good")));
        assert_eq!((change.labels().len(), change.taints().len()), (1, 1));
    }
}
