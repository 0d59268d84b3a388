//! The parts of a node that expressions read, parsed from its text.
//!
//! No tree of the document is built ([`Value::read`]). A node always has labels, annotations and taints, and some of its keys may
//! be edited.

use std::collections::BTreeMap;

use nodegate_cel::{Budget, Paths, Value};

/// Parts of a document. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Excerpt<'a> {
    pub(super) value: Value<'a>,
}

/// Another value for a label, an annotation or a taint of the document.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    /// A key of a map in `metadata`; `None`: it is absent.
    Entry {
        /// `labels` or `annotations`.
        map: &'static str,
        /// The key.
        key: &'a str,
        /// Its value.
        value: Option<&'a str>,
    },
    /// A taint; `None`: it is absent.
    Taint {
        /// The key.
        key: &'a str,
        /// The effect.
        effect: &'a str,
        /// Its value.
        value: Option<&'a str>,
    },
}

impl<'a> Excerpt<'a> {
    /// Parses `paths` of the JSON at the start of `text`. The text after it is ignored.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON.
    pub fn read(text: &'a str, paths: &Paths, budget: &Budget) -> Result<Self, serde_json::Error> {
        Value::read(text, paths, budget).map(|value| Self { value })
    }

    /// The part at the path `keys`; null if it is absent.
    #[must_use]
    pub fn inside(&self, keys: &[&str]) -> Self {
        Self { value: self.value.inside(keys) }
    }

    /// The node with its own labels, annotations and taints, empty if absent.
    #[must_use]
    pub fn completed(&self) -> Self {
        let map = |value: Value<'a>| if value.is_map() || value.is_unread() { value } else { Value::map([]) };
        let metadata = self.value.inside(&["metadata"]);
        let (labels, annotations) = (map(metadata.inside(&["labels"])), map(metadata.inside(&["annotations"])));
        let taints = self.value.inside(&["spec", "taints"]);
        let taints = if taints.is_list() || taints.is_unread() { taints } else { Value::from(Vec::new()) };
        let value = self.value.clone().with_field("metadata", metadata.with_field("annotations", annotations));
        Self { value }.with(labels, taints)
    }

    /// The node with other labels and taints.
    pub(super) fn with(&self, labels: Value<'a>, taints: Value<'a>) -> Self {
        let part = |holder: &'static str, name, value| self.value.inside(&[holder]).with_field(name, value);
        let (metadata, spec) = (part("metadata", "labels", labels), part("spec", "taints", taints));
        Self { value: self.value.clone().with_field("metadata", metadata).with_field("spec", spec) }
    }

    /// The node with other values for some keys, as far as `paths` read them; everything else is unchanged.
    #[must_use]
    pub fn edited(&self, edits: &[Edit<'a>], paths: &Paths, budget: &Budget) -> Self {
        let mut value = self.value.clone();
        for name in ["labels", "annotations"] {
            let Some(paths) = paths.member("metadata").and_then(|metadata| metadata.member(name)) else { continue };
            let changed: Vec<(&'a str, Option<&'a str>)> = edits
                .iter()
                .filter_map(|edit| match edit {
                    Edit::Entry { map, key, value } if *map == name => Some((*key, *value)),
                    Edit::Entry { .. } | Edit::Taint { .. } => None,
                })
                .collect();
            let metadata = value.inside(&["metadata"]);
            if let Some(map) = edited_map(metadata.inside(&[name]), &changed, paths, budget) {
                value = value.with_field("metadata", metadata.with_field(name, map));
            }
        }
        if paths.member("spec").is_some_and(|spec| spec.member("taints").is_some()) {
            let spec = value.inside(&["spec"]);
            if let Some(taints) = edited_taints(&spec.inside(&["taints"]), edits, budget) {
                value = value.with_field("spec", spec.with_field("taints", taints));
            }
        }
        Self { value }
    }
}

/// A map with other values for some keys, as far as `paths` read them; `None` if nothing changes.
fn edited_map<'a>(
    map: Value<'a>,
    changed: &[(&'a str, Option<&'a str>)],
    paths: &Paths,
    budget: &Budget,
) -> Option<Value<'a>> {
    // A value that is not a map becomes one with the first key.
    if map.is_unread() || (!map.is_map() && changed.iter().all(|(_, value)| value.is_none())) {
        return None;
    }
    let read = changed.iter().filter(|(key, _)| paths.member(key).is_some());
    Some(map.with_fields(read.map(|(key, value)| (*key, value.map(Value::from)))).charged(budget))
}

/// The edited taints; `None` if no edit concerns them.
fn edited_taints<'a>(taints: &Value<'a>, edits: &[Edit<'a>], budget: &Budget) -> Option<Value<'a>> {
    let mut changed: BTreeMap<(String, String), Option<&'a str>> = BTreeMap::new();
    for edit in edits {
        if let Edit::Taint { key, effect, value } = edit {
            changed.insert(((*key).to_owned(), (*effect).to_owned()), *value);
        }
    }
    if changed.is_empty() || taints.is_unread() {
        return None;
    }
    let mut edited = Vec::new();
    for taint in taints.items().unwrap_or_default() {
        let text = |name| taint.inside(&[name]).as_str().unwrap_or_default().to_owned();
        match changed.remove(&(text("key"), text("effect"))) {
            None => edited.push(taint),
            Some(Some(value)) => edited.push(taint.with_field("value", Value::from(value))),
            Some(None) => {}
        }
    }
    // The remaining edits add taints.
    for edit in edits {
        if let Edit::Taint { key, effect, value: Some(value) } = edit
            && changed.remove(&((*key).to_owned(), (*effect).to_owned())).is_some()
        {
            edited.push(taint(key, value, effect));
        }
    }
    Some(Value::from(edited).charged(budget))
}

/// A taint in the form of a document.
pub(super) fn taint<'a>(key: &'a str, value: &'a str, effect: &'a str) -> Value<'a> {
    Value::map([("effect", effect.into()), ("key", key.into()), ("value", value.into())])
}
