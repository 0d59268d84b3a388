//! One state of a node: before a write, after it, or a combination.

use std::cell::OnceCell;

use super::changes::NodeKey;
use super::parts::Part;
use super::unevaluated::Unevaluated;
use crate::api::names::TaintEffect;
use crate::cel::{Budget, Edit, Excerpt, Paths};
use crate::decide::view::View;
use crate::facts::NodeFacts;
use crate::facts::proof::evidence::Evidence;
use crate::keys::Field;
use crate::set::PolicySet;
use crate::set::kleene::Kleene;
use crate::set::matcher::{Matcher, TaintPattern};

/// A key that is treated as if it had another value, or were absent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Override<'a> {
    pub(super) place: NodeKey<'a>,
    pub(super) value: Option<&'a str>,
}

/// A node as it is stored, as it would be stored, or with only some of the changes.
pub(super) struct NodeSnapshot<'a> {
    facts: &'a NodeFacts<'a>,
    set: &'a PolicySet,
    evidence: Option<&'a Evidence<'a>>,
    budget: Option<&'a Budget>,
    own_budget: Budget,
    /// Sorted by place.
    instead: Vec<Override<'a>>,
    view: OnceCell<View<'a>>,
    object: OnceCell<Result<Excerpt<'a>, Unevaluated>>,
}

impl<'a> NodeSnapshot<'a> {
    /// The node without overrides.
    pub(super) fn new(
        set: &'a PolicySet,
        facts: &'a NodeFacts<'a>,
        evidence: Option<&'a Evidence<'a>>,
        budget: Option<&'a Budget>,
    ) -> Self {
        Self {
            facts,
            set,
            evidence,
            budget,
            own_budget: Budget::default(),
            instead: Vec::new(),
            view: OnceCell::new(),
            object: OnceCell::new(),
        }
    }

    /// The same node with other values for some keys (sorted by place).
    pub(super) fn with(self, instead: Vec<Override<'a>>) -> Self {
        Self { instead, ..self }
    }

    /// The budget of expressions.
    pub(super) fn budget(&self) -> &Budget {
        self.budget.unwrap_or(&self.own_budget)
    }

    fn instead(&self, place: NodeKey<'_>) -> Option<&Override<'a>> {
        let at = self.instead.binary_search_by(|instead| instead.place.cmp(&place)).ok()?;
        Some(&self.instead[at])
    }

    /// The value of a label or an annotation.
    pub(super) fn value(&self, field: Field, key: &str) -> Option<&'a str> {
        if let Some(instead) = self.instead(NodeKey { field, key, effect: None }) {
            return instead.value;
        }
        match field {
            Field::Annotation => self.facts.annotation(key),
            Field::Label | Field::Taint => self.facts.label(key),
        }
    }

    /// All keys of a field with their values.
    pub(super) fn entries(&self, field: Field) -> Vec<(NodeKey<'a>, &'a str)> {
        self.entries_in(field, Part::default())
    }

    /// The keys of a field in `part` with their values.
    pub(super) fn entries_in(&self, field: Field, part: Part<'_>) -> Vec<(NodeKey<'a>, &'a str)> {
        let place = move |(key, value)| (NodeKey { field, key, effect: None }, value);
        let there: Vec<(NodeKey<'a>, &'a str)> = match field {
            Field::Label => part.entries(self.facts.labels.as_ref()).map(place).collect(),
            Field::Annotation => part.entries(self.facts.annotations.as_ref()).map(place).collect(),
            Field::Taint => {
                let taints = self.facts.taints().iter();
                taints
                    .filter(|taint| part.has(&taint.key))
                    .map(|taint| (NodeKey { field, key: &taint.key, effect: taint.effect() }, taint.value()))
                    .collect()
            }
        };
        if self.instead.is_empty() {
            return there;
        }
        let is_here = |instead: &&Override<'a>| instead.place.field == field && part.has(instead.place.key);
        let others = self.instead.iter().filter(is_here);
        let others = others.filter_map(|instead| instead.value.map(|value| (instead.place, value)));
        there.into_iter().filter(|(place, _)| self.instead(*place).is_none()).chain(others).collect()
    }

    /// Whether a taint matches the pattern.
    pub(super) fn has_taint(&self, pattern: &TaintPattern) -> bool {
        self.entries(Field::Taint).into_iter().any(|(place, value)| {
            pattern.is_met_by(place.key, value, place.effect.map(TaintEffect::as_str).unwrap_or_default())
        })
    }

    /// Whether an entry with this matcher applies to the node; not if that is unknown. The node's previous labels are
    /// ignored: otherwise removing the last label of a family would make an entry inapplicable.
    pub(super) fn matches(&self, matcher: &Matcher) -> bool {
        matcher.is_every_node() || matcher.evaluate(self.view()) == Kleene::True
    }

    fn view(&self) -> &View<'a> {
        self.view.get_or_init(|| {
            let mut view = View::new(self.set, self.facts, None, self.evidence).within(self.budget);
            for Override { place, value } in &self.instead {
                match (place.field, place.effect) {
                    (Field::Label, _) => view.mask_label(place.key, *value),
                    (Field::Taint, Some(effect)) => view.mask_taint(place.key, effect.as_str()),
                    _ => {}
                }
            }
            view
        })
    }

    /// Calls `look` with the parts of the node that `paths` names.
    ///
    /// # Errors
    /// Returns an error if they cannot be parsed or are too large.
    pub(super) fn look<T>(
        &self,
        paths: &Paths,
        look: impl FnOnce(&Excerpt<'a>) -> Result<T, Unevaluated>,
    ) -> Result<T, Unevaluated> {
        let read = |paths| self.read(paths).map_err(Unevaluated::Unknown);
        let shared = self.set.object_paths();
        if shared.hold(paths) {
            return look(self.object.get_or_init(|| read(shared.together())).as_ref().map_err(Unevaluated::clone)?);
        }
        self.budget().lend(self.facts.object.len(), || read(paths), |object| look(&object?))?
    }

    fn read(&self, paths: &Paths) -> Result<Excerpt<'a>, String> {
        let object = self.facts.object.read(paths, self.budget());
        let object = object.map_err(|error| format!("the object could not be read: {error}"))?.completed();
        let edits: Vec<Edit<'a>> = self.instead.iter().filter_map(edit).collect();
        Ok(if edits.is_empty() { object } else { object.edited(&edits, paths, self.budget()).completed() })
    }
}

/// The edit of the object for an override.
fn edit<'a>(Override { place, value }: &Override<'a>) -> Option<Edit<'a>> {
    let (key, value) = (place.key, *value);
    Some(match (place.field, place.effect) {
        (Field::Label, _) => Edit::Entry { map: "labels", key, value },
        (Field::Annotation, _) => Edit::Entry { map: "annotations", key, value },
        (Field::Taint, effect) => Edit::Taint { key, effect: effect?.as_str(), value },
    })
}
