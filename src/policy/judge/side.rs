//! The node on one side of a write.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::changes::{KeyChange, Place};
use crate::api::names::TaintEffect;
use crate::policy::decision::Field;
use crate::policy::facts::NodeFacts;
use crate::policy::matcher::{Matcher, TaintPattern};
use crate::policy::set::PolicySet;
use crate::policy::tri::Tri;
use crate::policy::view::View;

/// The node as it is stored, as it would be stored, or as the requester alone would have made it: then some changes of the
/// write are undone.
pub(super) struct Side<'a> {
    facts: &'a NodeFacts<'a>,
    before: Option<&'a NodeFacts<'a>>,
    set: &'a PolicySet,
    undone: Vec<KeyChange<'a>>,
    /// The object whose fields beside labels, annotations and taints count.
    around: &'a NodeFacts<'a>,
    view: OnceCell<View<'a>>,
    object: OnceCell<Result<Json, String>>,
}

impl<'a> Side<'a> {
    /// The node as it is, and as it was before.
    pub(super) fn new(set: &'a PolicySet, facts: &'a NodeFacts<'a>, before: Option<&'a NodeFacts<'a>>) -> Self {
        Self { facts, before, set, undone: Vec::new(), around: facts, view: OnceCell::new(), object: OnceCell::new() }
    }

    /// The node without some of the changes, and with all else as it is in `around`.
    pub(super) fn without(
        set: &'a PolicySet,
        facts: &'a NodeFacts<'a>,
        before: Option<&'a NodeFacts<'a>>,
        undone: Vec<KeyChange<'a>>,
        around: &'a NodeFacts<'a>,
    ) -> Self {
        Self { undone, around, ..Self::new(set, facts, before) }
    }

    fn undone(&self, field: Field, key: &str, effect: Option<TaintEffect>) -> Option<&KeyChange<'a>> {
        self.undone.iter().find(|change| change.place == Place { field, key, effect })
    }

    /// The value of a label or an annotation.
    pub(super) fn value(&self, field: Field, key: &str) -> Option<&'a str> {
        if let Some(change) = self.undone(field, key, None) {
            return change.old;
        }
        match field {
            Field::Annotation => self.facts.annotation(key),
            _ => self.facts.label(key),
        }
    }

    /// All keys of a field with their values.
    pub(super) fn entries(&self, field: Field) -> Vec<(Place<'a>, &'a str)> {
        let place = move |(key, value)| (Place { field, key, effect: None }, value);
        let there: Vec<(Place<'a>, &'a str)> = match field {
            Field::Label => self.facts.labels().map(place).collect(),
            Field::Annotation => self.facts.annotations().map(place).collect(),
            Field::Taint => {
                let taints = self.facts.taints().iter();
                taints.map(|taint| (Place { field, key: &taint.key, effect: taint.effect() }, taint.value())).collect()
            }
        };
        let is_undone = |place: &Place<'_>| self.undone(place.field, place.key, place.effect).is_some();
        let back = self.undone.iter().filter(|change| change.place.field == field);
        let back = back.filter_map(|change| change.old.map(|old| (change.place, old)));
        there.into_iter().filter(|(place, _)| !is_undone(place)).chain(back).collect()
    }

    /// Whether a taint that is meant is there.
    pub(super) fn has_taint(&self, pattern: &TaintPattern) -> bool {
        self.entries(Field::Taint).into_iter().any(|(place, value)| {
            pattern.is_met_by(place.key, value, place.effect.map(TaintEffect::as_str).unwrap_or_default())
        })
    }

    /// Whether the node is one that an entry is about. What is unknown is not.
    pub(super) fn matches(&self, matcher: &Matcher) -> bool {
        matcher.is_every_node() || matcher.evaluate(self.view()) == Tri::True
    }

    fn view(&self) -> &View<'a> {
        self.view.get_or_init(|| {
            let mut view = View::new(self.facts, self.before, self.set.name_groups(&self.facts.name));
            for change in &self.undone {
                match (change.place.field, change.place.effect) {
                    (Field::Label, _) => view.set_label_aside(change.place.key, change.old),
                    (Field::Taint, Some(effect)) => view.set_taint_aside(change.place.key, effect.as_str()),
                    _ => {}
                }
            }
            view
        })
    }

    /// The whole node as JSON.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn object(&self) -> Result<&Json, &str> {
        let read = || {
            let mut object =
                self.around.object.to_json().map_err(|error| format!("the object cannot be read: {error}"))?;
            if !self.undone.is_empty() || !std::ptr::eq(self.around, self.facts) {
                self.rewrite(&mut object);
            }
            Ok(object)
        };
        self.object.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// Puts this side's labels, annotations and taints into an object.
    fn rewrite(&self, object: &mut Json) {
        let texts = |field| -> Json {
            self.entries(field).into_iter().map(|(place, value)| (place.key.to_owned(), Json::from(value))).collect()
        };
        let taint = |(place, value): (Place<'_>, &str)| {
            let effect = place.effect.map(TaintEffect::as_str).unwrap_or_default();
            serde_json::json!({"key": place.key, "value": value, "effect": effect})
        };
        let Some(object) = object.as_object_mut() else { return };
        if let Some(metadata) =
            object.entry("metadata").or_insert_with(|| Json::Object(Default::default())).as_object_mut()
        {
            metadata.insert("labels".to_owned(), texts(Field::Label));
            metadata.insert("annotations".to_owned(), texts(Field::Annotation));
        }
        if let Some(spec) = object.entry("spec").or_insert_with(|| Json::Object(Default::default())).as_object_mut() {
            spec.insert("taints".to_owned(), self.entries(Field::Taint).into_iter().map(taint).collect());
        }
    }
}

/// The keys that are there on either side, each once.
pub(super) fn keys_of<'a>(sides: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeSet<&'a str> {
    sides.map(|(key, _)| key).collect()
}
