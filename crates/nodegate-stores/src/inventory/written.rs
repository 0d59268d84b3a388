//! What an inventory wrote about one node, with its bounds.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Maximum number of labels of one node in an answer, used or not.
pub(super) const WRITTEN_MAX: usize = 1024;
/// Maximum number of nodes in one answer.
pub(super) const NODES_MAX: usize = 100_000;
/// Maximum length of a key, a value or a name of a node that is kept, in bytes. What is longer is not valid, cut or not.
pub(super) const KEPT_MAX: usize = 512;

/// The labels of one node as the inventory wrote them.
pub(super) type Written = BTreeMap<String, String>;

/// The text, as long as it is kept.
pub(super) fn kept(text: &str) -> String {
    text[..text.floor_char_boundary(KEPT_MAX)].to_owned()
}

/// Adds a label.
///
/// # Errors
/// Returns a sentence if there are too many.
pub(super) fn add(labels: &mut Written, (key, value): (&str, &str)) -> Result<(), Cow<'static, str>> {
    labels.insert(kept(key), kept(value));
    if labels.len() > WRITTEN_MAX { Err(too_many_labels()) } else { Ok(()) }
}

/// The sentence about [`WRITTEN_MAX`].
pub(super) fn too_many_labels() -> Cow<'static, str> {
    format!("it has more than {WRITTEN_MAX} labels for one node").into()
}

/// The sentence about [`NODES_MAX`].
pub(super) fn too_many_nodes() -> Cow<'static, str> {
    format!("it is about more than {NODES_MAX} nodes").into()
}
