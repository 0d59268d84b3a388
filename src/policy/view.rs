//! The node as rules see it: the object under review, minus what does not count, plus what other
//! rules give it.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::cel::{Budget, EvaluationError, Excerpt, Expression, GpuVariables, Paths, Variables};
use super::decision::Strength;
use super::facts::{NodeFacts, Readiness, TaintFact};
use super::gpu::{self, GpuFacts, GpuSource};
use super::index::RuleIndex;
use super::matcher::{NameGroup, TaintPattern};
use super::restriction::is_own;
use super::rule::Rule;
use super::set::PolicySet;
use super::tri::Tri;
use crate::api::names::{Taint, TaintEffect, TaintId, prefix_of};

/// One value that a rule gives to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given<'a> {
    pub(crate) strength: Strength,
    pub(crate) rank: u32,
    pub(crate) rule: RuleIndex,
    pub(crate) value: Cow<'a, str>,
}

/// All values that rules give to one key, the winner first.
pub(crate) type Givers<'a> = Vec<Given<'a>>;

/// The taint a cell is about.
pub(crate) type TaintKey<'a> = (Cow<'a, str>, TaintEffect);

/// The node as rules see it.
pub(crate) struct View<'a> {
    facts: &'a NodeFacts<'a>,
    old: Option<&'a NodeFacts<'a>>,
    name_groups: Vec<NameGroup>,
    /// Labels whose value in the object does not count, and the value that counts instead.
    set_aside: BTreeMap<&'a str, Option<&'a str>>,
    /// Taints of the object that do not count.
    taints_aside: Vec<(&'a str, &'a str)>,
    /// A rule whose own gifts do not count now: a default is about what is there without it. What the
    /// object has with the very value the rule gives counts as its gift, so that asking again about an
    /// object that was patched gives the same answer.
    without: Option<(RuleIndex, &'a Rule)>,
    /// Publishers of label families that this node had labels of before.
    publishers: &'a [String],
    pub(crate) labels: BTreeMap<Cow<'a, str>, Givers<'a>>,
    pub(crate) taints: BTreeMap<TaintKey<'a>, Givers<'a>>,
    pub(crate) annotations: BTreeMap<Cow<'a, str>, Givers<'a>>,
    gpu: OnceCell<Option<GpuFacts>>,
    set: &'a PolicySet,
    /// What expressions read of the object together, read when the first of them is reached.
    object: OnceCell<Result<Excerpt<'a>, String>>,
    /// What is left to expressions.
    own_budget: Budget,
    budget: Option<&'a Budget>,
    failures: std::cell::RefCell<Vec<String>>,
}

/// Publishers of label families: daemons that write all their labels and, when they restart, may
/// for a moment have written none.
const PUBLISHERS: [&str; 7] = [
    "feature.node.kubernetes.io",
    "nvidia.com",
    "amd.com",
    "beta.amd.com",
    "gpu.intel.com",
    "intel.feature.node.kubernetes.io",
    "network.nvidia.com",
];

/// The publishers that the node has labels of now, sorted.
pub(crate) fn publishers(facts: &NodeFacts<'_>) -> Vec<String> {
    let has = |prefix: &str| facts.labels().any(|(key, _)| prefix_of(key) == Some(prefix));
    let mut found: Vec<String> =
        PUBLISHERS.iter().filter(|prefix| has(prefix)).map(|prefix| (*prefix).to_owned()).collect();
    found.sort_unstable();
    found
}

/// Whether a label is one of a family whose publisher may restart.
pub(crate) fn is_of_publisher(key: &str) -> bool {
    prefix_of(key).is_some_and(|prefix| PUBLISHERS.contains(&prefix))
}

impl<'a> View<'a> {
    /// A view of the object as it is, for the rules of `set`.
    pub(crate) fn new(set: &'a PolicySet, facts: &'a NodeFacts<'a>, old: Option<&'a NodeFacts<'a>>) -> Self {
        Self {
            facts,
            old,
            name_groups: set.name_groups(&facts.name),
            set_aside: BTreeMap::new(),
            taints_aside: Vec::new(),
            without: None,
            publishers: &[],
            labels: BTreeMap::new(),
            taints: BTreeMap::new(),
            annotations: BTreeMap::new(),
            gpu: OnceCell::new(),
            set,
            object: OnceCell::new(),
            own_budget: Budget::default(),
            budget: None,
            failures: std::cell::RefCell::default(),
        }
    }

    /// Makes a label of the object count as if it had `instead`.
    pub(crate) fn set_label_aside(&mut self, key: &'a str, instead: Option<&'a str>) {
        self.set_aside.insert(key, instead);
    }

    /// Makes a taint of the object not count.
    pub(crate) fn set_taint_aside(&mut self, key: &'a str, effect: &'a str) {
        self.taints_aside.push((key, effect));
    }

    /// Has expressions take their steps out of `budget`.
    pub(crate) fn within(self, budget: Option<&'a Budget>) -> Self {
        Self { budget, ..self }
    }

    /// Makes pending taints not count: they are nodegate's own, and come and go without anybody's doing.
    pub(crate) fn set_pending_aside(&mut self, pending: impl IntoIterator<Item = &'a TaintId>) {
        let own = self.facts.taints().iter().filter(|taint| is_own(&taint.key));
        self.taints_aside.extend(own.map(|taint| (&*taint.key, &*taint.effect)));
        self.taints_aside.extend(pending.into_iter().map(|id| (id.key.as_str(), id.effect.as_str())));
    }

    /// What `look` sees when the gifts of `rule` do not count.
    pub(crate) fn without<T>(&mut self, index: RuleIndex, rule: &'a Rule, look: impl FnOnce(&Self) -> T) -> T {
        self.without = Some((index, rule));
        self.gpu.take();
        let seen = look(self);
        self.without = None;
        self.gpu.take();
        seen
    }

    /// The strongest of the values that count.
    fn counting<'g>(&self, givers: &'g Givers<'a>) -> Option<&'g Given<'a>> {
        givers.iter().find(|given| self.without.is_none_or(|(index, _)| index != given.rule))
    }

    /// Whether a label of the object may be a gift of the rule that does not count now.
    fn is_gift(&self, key: &str, value: &str) -> bool {
        self.without.is_some_and(|(_, rule)| {
            rule.gives.labels.iter().any(|(given, with)| given.as_str() == key && with.as_str() == value)
        })
    }

    /// Whether a taint of the object may be a gift of the rule that does not count now.
    fn is_given_taint(&self, taint: &TaintFact<'_>) -> bool {
        self.without.is_some_and(|(_, rule)| {
            let gives = |given: &Taint| {
                taint.is(given.id.key.as_str(), given.id.effect) && given.value.as_str() == taint.value()
            };
            rule.gives.taints.iter().any(gives)
        })
    }

    /// The object under review.
    pub(crate) fn facts(&self) -> &'a NodeFacts<'a> {
        self.facts
    }

    /// Whether the node's name is in the group.
    pub(crate) fn is_named(&self, group: NameGroup) -> bool {
        self.name_groups.binary_search(&group).is_ok()
    }

    /// The groups the node's name is in.
    pub(crate) fn name_groups(&self) -> &[NameGroup] {
        &self.name_groups
    }

    /// The value of a label that the object (or what counts in its place) has by itself.
    pub(crate) fn base_label(&self, key: &str) -> Option<&'a str> {
        let value = match self.set_aside.get(key) {
            Some(instead) => *instead,
            None => self.facts.labels.as_ref()?.get(key),
        };
        value.filter(|value| !self.is_gift(key, value))
    }

    /// The value of a label as rules see it.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        match self.labels.get(key).and_then(|givers| self.counting(givers)) {
            Some(given) if given.strength == Strength::Default => Some(self.base_label(key).unwrap_or(&given.value)),
            Some(given) => Some(&given.value),
            None => self.base_label(key),
        }
    }

    /// All labels as rules see them.
    pub(crate) fn all_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let base =
            self.facts.labels().filter(|(key, _)| !self.labels.contains_key(*key) && !self.set_aside.contains_key(key));
        let aside = self.set_aside.iter().filter(|(key, _)| !self.labels.contains_key(**key));
        let aside = aside.filter_map(|(key, instead)| instead.map(|value| (*key, value)));
        let given = self.labels.keys().filter_map(|key| self.label(key).map(|value| (&**key, value)));
        base.chain(aside).filter(|(key, value)| !self.is_gift(key, value)).chain(given)
    }

    fn taint_counts(&self, key: &str, effect: &str) -> bool {
        !self.taints_aside.iter().any(|(aside_key, aside_effect)| *aside_key == key && *aside_effect == effect)
    }

    /// All taints as rules see them: key, value, effect.
    pub(crate) fn all_taints(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let base = self.facts.taints().iter().filter(|taint| {
            let given = taint.effect().and_then(|effect| self.taints.get(&(Cow::Borrowed(&*taint.key), effect)));
            given.is_none_or(|givers| self.counting(givers).is_none())
                && !self.is_given_taint(taint)
                && self.taint_counts(&taint.key, &taint.effect)
        });
        let given = self
            .taints
            .iter()
            .filter_map(|((key, effect), givers)| Some((&**key, &*self.counting(givers)?.value, effect.as_str())));
        base.map(|taint| (&*taint.key, taint.value(), &*taint.effect)).chain(given)
    }

    /// Whether a taint that is meant is there.
    pub(crate) fn has_taint(&self, pattern: &TaintPattern) -> bool {
        self.all_taints().any(|(key, value, effect)| pattern.is_met_by(key, value, effect))
    }

    /// Remembers which publishers the node had labels of.
    pub(crate) fn remember_publishers(&mut self, publishers: &'a [String]) {
        self.publishers = publishers;
    }

    /// Whether the labels of this key's publisher have all gone: in this write, or since they were remembered.
    pub(crate) fn publisher_is_gone(&self, key: &str) -> bool {
        let Some(prefix) = prefix_of(key).filter(|prefix| PUBLISHERS.contains(prefix)) else { return false };
        let of_family = |key: &str| prefix_of(key) == Some(prefix);
        let was_there = self.publishers.iter().any(|publisher| publisher == prefix)
            || self.old.is_some_and(|old| old.labels().any(|(key, _)| of_family(key)));
        was_there && !self.facts.labels().any(|(key, _)| of_family(key))
    }

    /// What is inferred of the node's GPUs.
    pub(crate) fn gpu(&self) -> Option<&GpuFacts> {
        self.gpu.get_or_init(|| gpu::infer(self.all_labels(), &self.facts.capacity)).as_ref()
    }

    /// Must be called when a label's effective value changed.
    pub(crate) fn label_changed(&mut self, key: &str) {
        if gpu::reads_label(key) {
            self.gpu.take();
        }
    }

    /// Evaluates a condition; a failure is unknown and kept for [`Self::take_failures`].
    pub(crate) fn evaluate_bool(&self, expression: &Expression) -> Tri {
        self.with_variables(expression, |variables| expression.evaluate_bool(variables)).map_or(Tri::Unknown, Tri::from)
    }

    /// Evaluates with what `expression` reads of this view; a failure is kept for [`Self::take_failures`].
    pub(crate) fn with_variables<T>(
        &self,
        expression: &Expression,
        evaluate: impl FnOnce(&Variables<'_>) -> Result<T, EvaluationError>,
    ) -> Option<T> {
        let evaluated = |object: &Result<Excerpt<'a>, String>| {
            let object = object.as_ref().map_err(String::clone)?;
            self.evaluate(object, expression, evaluate).map_err(|error| error.to_string())
        };
        let (paths, shared) = (&expression.paths().node, self.set.node_paths());
        let outcome = if shared.hold(paths) {
            evaluated(self.object.get_or_init(|| self.read(shared.together())))
        } else {
            let lent = self.budget().lend(self.facts.object.len(), || self.read(paths), |object| evaluated(&object));
            lent.unwrap_or_else(|error| Err(error.to_string()))
        };
        outcome.map_err(|error| self.failures.borrow_mut().push(error)).ok()
    }

    fn budget(&self) -> &Budget {
        self.budget.unwrap_or(&self.own_budget)
    }

    fn read(&self, paths: &Paths) -> Result<Excerpt<'a>, String> {
        let read = self.facts.object.read(paths, self.budget());
        read.map_err(|error| format!("the object cannot be read: {error}"))
    }

    fn evaluate<T>(
        &self,
        object: &Excerpt<'a>,
        expression: &Expression,
        evaluate: impl FnOnce(&Variables<'_>) -> Result<T, EvaluationError>,
    ) -> Result<T, EvaluationError> {
        let (reads, budget) = (expression.reads(), self.budget());
        let mut node = Variables::node(object);
        if reads.gpu {
            node = node.with_gpu(&self.gpu_variables());
        }
        // Whoever reads all labels or taints is given them anew, and a kubelet may send very many.
        let count = |read: bool, count: usize| if read { count } else { 0 };
        let items = count(reads.any_label, self.facts.labels().count() + self.labels.len())
            + count(reads.taints, self.facts.taints().len() + self.taints.len());
        budget.take(u64::try_from(items).unwrap_or(u64::MAX))?;
        let taints = reads.taints.then(|| self.all_taints()).into_iter().flatten();
        let variables = if reads.any_label {
            node.with(self.all_labels(), taints)
        } else {
            let read = reads.labels.iter().map(|read| read.key.as_str());
            node.with(read.filter_map(|key| self.label(key).map(|value| (key, value))), taints)
        };
        evaluate(&variables.within(budget))
    }

    /// GPU facts for CEL. What is not known is left out; a settled node of whose GPUs nobody speaks has none.
    fn gpu_variables(&self) -> GpuVariables<'_> {
        match self.gpu() {
            Some(gpu) => GpuVariables {
                vendor: gpu.vendor.as_deref(),
                model: gpu.model.as_deref(),
                count: gpu.count.map(i64::from),
                source: gpu.source.map(GpuSource::as_str),
            },
            None if self.facts.readiness == Readiness::Settled => {
                GpuVariables { count: Some(0), ..GpuVariables::default() }
            }
            None => GpuVariables::default(),
        }
    }

    /// What failed since the last call.
    pub(crate) fn take_failures(&self) -> Vec<String> {
        self.failures.take()
    }
}
