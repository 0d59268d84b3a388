//! The node on one side of a write.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use super::changes::Place;
use super::expressions::Unanswered;
use crate::api::names::TaintEffect;
use crate::policy::cel::{Budget, Edit, Excerpt, Paths};
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
    own_budget: Budget,
    /// Sorted by place.
    instead: Vec<Instead<'a>>,
    view: OnceCell<View<'a>>,
    object: OnceCell<Result<Excerpt<'a>, Unanswered>>,
}

impl<'a> Side<'a> {
    /// The node as it is.
    pub(super) fn new(set: &'a PolicySet, facts: &'a NodeFacts<'a>, budget: Option<&'a Budget>) -> Self {
        Self {
            facts,
            set,
            budget,
            own_budget: Budget::default(),
            instead: Vec::new(),
            view: OnceCell::new(),
            object: OnceCell::new(),
        }
    }

    /// The same node, on which some keys (sorted by place) have other values.
    pub(super) fn with(self, instead: Vec<Instead<'a>>) -> Self {
        Self { instead, ..self }
    }

    /// What expressions may take.
    pub(super) fn budget(&self) -> &Budget {
        self.budget.unwrap_or(&self.own_budget)
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
            Field::Label | Field::Taint => self.facts.label(key),
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
            let mut view = View::new(self.set, self.facts, None).within(self.budget);
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

    /// Has an expression over writes, which reads `paths` of a node, look at this one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn look<T>(
        &self,
        paths: &Paths,
        look: impl FnOnce(&Excerpt<'a>) -> Result<T, Unanswered>,
    ) -> Result<T, Unanswered> {
        let read = |paths| self.read(paths).map_err(Unanswered::Unknown);
        let shared = self.set.object_paths();
        if shared.hold(paths) {
            return look(self.object.get_or_init(|| read(shared.together())).as_ref().map_err(Unanswered::clone)?);
        }
        self.budget().lend(self.facts.object.len(), || read(paths), |object| look(&object?))?
    }

    fn read(&self, paths: &Paths) -> Result<Excerpt<'a>, String> {
        let object = self.facts.object.read(paths, self.budget());
        let object = object.map_err(|error| format!("the object cannot be read: {error}"))?.completed();
        let edits: Vec<Edit<'a>> = self.instead.iter().filter_map(edit).collect();
        Ok(if edits.is_empty() { object } else { object.edited(&edits, paths, self.budget()).completed() })
    }
}

/// What gives one key of an object another value.
fn edit<'a>(Instead { place, value }: &Instead<'a>) -> Option<Edit<'a>> {
    let (key, value) = (place.key, *value);
    Some(match (place.field, place.effect) {
        (Field::Label, _) => Edit::Entry { map: "labels", key, value },
        (Field::Annotation, _) => Edit::Entry { map: "annotations", key, value },
        (Field::Taint, effect) => Edit::Taint { key, effect: effect?.as_str(), value },
    })
}

/// The keys that are there on either side, each once.
pub(super) fn keys_of<'a>(sides: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeSet<&'a str> {
    sides.map(|(key, _)| key).collect()
}
