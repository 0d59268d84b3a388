//! The node on one side of a write.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::changes::Place;
use crate::api::names::TaintEffect;
use crate::policy::cel::Budget;
use crate::policy::decision::Field;
use crate::policy::facts::NodeFacts;
use crate::policy::matcher::{Matcher, TaintPattern};
use crate::policy::set::PolicySet;
use crate::policy::tri::Tri;
use crate::policy::view::View;

/// A key that counts as if it had another value, or were absent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instead<'a> {
    pub(super) place: Place<'a>,
    pub(super) value: Option<&'a str>,
}

/// The node as it is stored, as it would be stored, or as it would be without (or with) some of the changes.
pub(super) struct Side<'a> {
    facts: &'a NodeFacts<'a>,
    set: &'a PolicySet,
    budget: Option<&'a Budget>,
    /// Sorted by place.
    instead: Vec<Instead<'a>>,
    view: OnceCell<View<'a>>,
    object: OnceCell<Result<Json, String>>,
}

impl<'a> Side<'a> {
    /// The node as it is.
    pub(super) fn new(set: &'a PolicySet, facts: &'a NodeFacts<'a>, budget: Option<&'a Budget>) -> Self {
        Self { facts, set, budget, instead: Vec::new(), view: OnceCell::new(), object: OnceCell::new() }
    }

    /// The same node, on which some keys (sorted by place) have other values.
    pub(super) fn with(self, instead: Vec<Instead<'a>>) -> Self {
        Self { instead, ..self }
    }

    /// What expressions may take.
    pub(super) fn budget(&self) -> Option<&'a Budget> {
        self.budget
    }

    fn instead(&self, place: Place<'_>) -> Option<&Instead<'a>> {
        let at = self.instead.binary_search_by(|instead| instead.place.cmp(&place)).ok()?;
        Some(&self.instead[at])
    }

    /// The value of a label or an annotation.
    pub(super) fn value(&self, field: Field, key: &str) -> Option<&'a str> {
        if let Some(instead) = self.instead(Place { field, key, effect: None }) {
            return instead.value;
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
        if self.instead.is_empty() {
            return there;
        }
        let others = self.instead.iter().filter(|instead| instead.place.field == field);
        let others = others.filter_map(|instead| instead.value.map(|value| (instead.place, value)));
        there.into_iter().filter(|(place, _)| self.instead(*place).is_none()).chain(others).collect()
    }

    /// Whether a taint that is meant is there.
    pub(super) fn has_taint(&self, pattern: &TaintPattern) -> bool {
        self.entries(Field::Taint).into_iter().any(|(place, value)| {
            pattern.is_met_by(place.key, value, place.effect.map(TaintEffect::as_str).unwrap_or_default())
        })
    }

    /// Whether the node is one that an entry is about. What is unknown is not. What it was before has no say: a family of
    /// labels that has gone is gone, or its last label would be a way out.
    pub(super) fn matches(&self, matcher: &Matcher) -> bool {
        matcher.is_every_node() || matcher.evaluate(self.view()) == Tri::True
    }

    fn view(&self) -> &View<'a> {
        self.view.get_or_init(|| {
            let mut view = View::new(self.facts, None, self.set.name_groups(&self.facts.name)).within(self.budget);
            for Instead { place, value } in &self.instead {
                match (place.field, place.effect) {
                    (Field::Label, _) => view.set_label_aside(place.key, *value),
                    (Field::Taint, Some(effect)) => view.set_taint_aside(place.key, effect.as_str()),
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
                self.facts.object.to_json().map_err(|error| format!("the object cannot be read: {error}"))?;
            self.instead.iter().for_each(|instead| put(&mut object, instead));
            Ok(object)
        };
        self.object.get_or_init(read).as_ref().map_err(String::as_str)
    }
}

/// Gives one key of an object another value; all else stays as it is written.
fn put(object: &mut Json, Instead { place, value }: &Instead<'_>) {
    let (holder, name) = match place.field {
        Field::Label => ("metadata", "labels"),
        Field::Annotation => ("metadata", "annotations"),
        Field::Taint => ("spec", "taints"),
    };
    let is_absent = object[holder].get(name).is_none_or(Json::is_null);
    match (place.effect, value) {
        (_, None) if is_absent => {}
        (None, None) => {
            object[holder][name].as_object_mut().map(|entries| entries.remove(place.key));
        }
        (None, Some(value)) => object[holder][name][place.key] = Json::from(*value),
        (Some(effect), value) => {
            let is_meant =
                |taint: &Json| taint["key"] == place.key && taint["effect"].as_str() == Some(effect.as_str());
            let taints = &mut object[holder][name];
            if !taints.is_array() {
                *taints = Json::Array(Vec::new());
            }
            let Some(taints) = taints.as_array_mut() else { return };
            match (taints.iter_mut().find(|taint| is_meant(taint)), value) {
                (Some(there), Some(value)) => there["value"] = Json::from(*value),
                (None, Some(value)) => {
                    taints.push(serde_json::json!({"key": place.key, "value": value, "effect": effect.as_str()}));
                }
                (_, None) => taints.retain(|taint| !is_meant(taint)),
            }
        }
    }
}

/// The keys that are there on either side, each once.
pub(super) fn keys_of<'a>(sides: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeSet<&'a str> {
    sides.map(|(key, _)| key).collect()
}
