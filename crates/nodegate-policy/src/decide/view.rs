//! The node as rules see it: the object under review, without masked keys, and with the values that other
//! rules assign.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::api::names::TaintEffect;
use crate::api::state::TextMap;
use crate::cel::{Budget, EvaluationError, Excerpt, Expression, GpuVariables, Paths, Variables};
use crate::decide::answers::Answers;
use crate::facts::devices::NodeDevices;
use crate::facts::gpu::{self, GpuSource, Gpus};
use crate::facts::inventory::InventoryAnswers;
use crate::facts::missing::{Memory, Missing};
use crate::facts::pending_taints::PendingTaints;
use crate::facts::proof::asserted::Contradiction;
use crate::facts::proof::evidence::Evidence;
use crate::facts::{NodeFacts, Readiness, TaintFact};
use crate::keys::restriction::is_own;
use crate::set::PolicySet;
use crate::set::index::RuleIndex;
use crate::set::kleene::Kleene;
use crate::set::matcher::{NameGroup, TaintPattern};
use crate::set::pools::PoolsOfNode;
use crate::set::rule::Rule;
use crate::set::rule::Strength;

/// One value that a rule assigns to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AssignedValue<'a> {
    pub(crate) strength: Strength,
    pub(crate) rank: u32,
    pub(crate) rule: RuleIndex,
    pub(crate) value: Cow<'a, str>,
}

/// All values that rules assign to one key, the one with the highest precedence first.
pub(crate) type AssignedValues<'a> = Vec<AssignedValue<'a>>;

/// The key and effect of a taint.
pub(crate) type TaintKey<'a> = (Cow<'a, str>, TaintEffect);

/// The node as rules see it.
pub(crate) struct View<'a> {
    facts: &'a NodeFacts<'a>,
    old: Option<&'a NodeFacts<'a>>,
    /// The evidence for the node's pools.
    evidence: Option<&'a Evidence<'a>>,
    name_groups: Vec<NameGroup>,
    /// Masked labels of the object, and the value to use instead.
    masked_labels: BTreeMap<&'a str, Option<&'a str>>,
    /// Masked taints of the object.
    masked_taints: Vec<(&'a str, &'a str)>,
    /// A rule whose own values are hidden while it is evaluated, because a default rule depends on what is
    /// present without it. So are the values that weaker rules assign to its keys: its own take precedence, and
    /// they may be there because of it. A key of the object with the value that the rule or a weaker one assigns is hidden as well,
    /// so that the result for an object that was already patched is the same.
    without: Option<(RuleIndex, &'a Rule)>,
    /// Labels that nodegate owns, with the values that it gave.
    owned: Option<&'a TextMap>,
    /// What is remembered of the programs that publish labels.
    memory: Memory<'a>,
    missing: OnceCell<Missing>,
    /// The answers of inventories about this node.
    pub(crate) answers: Answers<'a>,
    devices: Option<&'a NodeDevices>,
    pub(crate) labels: BTreeMap<Cow<'a, str>, AssignedValues<'a>>,
    pub(crate) taints: BTreeMap<TaintKey<'a>, AssignedValues<'a>>,
    pub(crate) annotations: BTreeMap<Cow<'a, str>, AssignedValues<'a>>,
    gpu: OnceCell<Gpus>,
    pools: OnceCell<PoolsOfNode<'a>>,
    contradictions: OnceCell<Vec<Contradiction>>,
    set: &'a PolicySet,
    /// The parts of the object that expressions share, parsed for the first expression that needs them.
    object: OnceCell<Result<Excerpt<'a>, String>>,
    /// The budget of expressions if none is shared.
    own_budget: Budget,
    budget: Option<&'a Budget>,
    failures: std::cell::RefCell<Vec<String>>,
}

impl<'a> View<'a> {
    /// A view of the object as it is, for the rules of `set`.
    pub(crate) fn new(
        set: &'a PolicySet,
        facts: &'a NodeFacts<'a>,
        old: Option<&'a NodeFacts<'a>>,
        evidence: Option<&'a Evidence<'a>>,
    ) -> Self {
        Self {
            facts,
            old,
            evidence,
            name_groups: set.name_groups(&facts.name),
            masked_labels: BTreeMap::new(),
            masked_taints: Vec::new(),
            without: None,
            owned: None,
            memory: Memory::default(),
            missing: OnceCell::new(),
            answers: Answers::ignored(set),
            devices: None,
            labels: BTreeMap::new(),
            taints: BTreeMap::new(),
            annotations: BTreeMap::new(),
            gpu: OnceCell::new(),
            pools: OnceCell::new(),
            contradictions: OnceCell::new(),
            set,
            object: OnceCell::new(),
            own_budget: Budget::default(),
            budget: None,
            failures: std::cell::RefCell::default(),
        }
    }

    /// Uses `instead` as the value of a label of the object.
    pub(crate) fn mask_label(&mut self, key: &'a str, instead: Option<&'a str>) {
        self.masked_labels.insert(key, instead);
    }

    /// Hides a taint of the object.
    pub(crate) fn mask_taint(&mut self, key: &'a str, effect: &'a str) {
        self.masked_taints.push((key, effect));
    }

    /// Charges the steps of expressions to `budget`.
    pub(crate) fn within(self, budget: Option<&'a Budget>) -> Self {
        Self { budget, ..self }
    }

    /// Reads these answers of inventories.
    pub(crate) fn told(self, inventory: Option<&'a InventoryAnswers>) -> Self {
        Self { answers: Answers::new(self.set, inventory), ..self }
    }

    /// Hides pending taints, because nodegate itself adds and removes them.
    pub(crate) fn mask_pending(&mut self, pending: &'a PendingTaints) {
        let own = self.facts.taints().iter().filter(|taint| is_own(&taint.key));
        self.masked_taints.extend(own.map(|taint| (&*taint.key, &*taint.effect)));
        self.masked_taints.extend(pending.all().iter().map(|id| (id.key.as_str(), id.effect.as_str())));
    }

    /// Calls `look` while the values of `rule` are hidden.
    pub(crate) fn without<T>(&mut self, index: RuleIndex, rule: &'a Rule, look: impl FnOnce(&Self) -> T) -> T {
        self.without = Some((index, rule));
        self.gpu.take();
        let seen = look(self);
        self.without = None;
        self.gpu.take();
        seen
    }

    /// The value with the highest precedence that is not hidden. `is_own`: whether the hidden rule assigns the key.
    fn counting<'g>(
        &self,
        values: &'g AssignedValues<'a>,
        is_own: impl Fn(&Rule) -> bool,
    ) -> Option<&'g AssignedValue<'a>> {
        let is_hidden = |given: &AssignedValue<'_>, index, rule: &Rule| {
            index == given.rule || (rule.overlooks(given.strength, given.rank) && is_own(rule))
        };
        values.iter().find(|given| !self.without.is_some_and(|(index, rule)| is_hidden(given, index, rule)))
    }

    /// The value that rules assign to a label.
    fn assigned_label(&self, key: &str) -> Option<&AssignedValue<'a>> {
        let values = self.labels.get(key)?;
        self.counting(values, |rule| rule.writes_label(key))
    }

    /// The value that rules assign to a taint.
    fn assigned_taint<'g>(&self, key: &TaintKey<'_>, values: &'g AssignedValues<'a>) -> Option<&'g AssignedValue<'a>> {
        self.counting(values, |rule| rule.writes_taint(&key.0, key.1))
    }

    /// Whether a label of the object has a value that the hidden rule, or a weaker default rule, may have assigned.
    fn is_assigned(&self, key: &str, value: &str) -> bool {
        self.without.is_some_and(|(_, rule)| self.set.given_by_default().hides_label(rule, key, value))
    }

    /// Whether a taint of the object has a value that the hidden rule, or a weaker default rule, may have assigned.
    fn is_assigned_taint(&self, taint: &TaintFact<'_>) -> bool {
        let hidden = self.without.zip(taint.effect());
        hidden.is_some_and(|((_, rule), effect)| {
            self.set.given_by_default().hides_taint(rule, &taint.key, effect, taint.value())
        })
    }

    /// The policies whose rules look at it.
    pub(crate) fn set(&self) -> &'a PolicySet {
        self.set
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

    /// The value of a label of the object (or the value used instead), without assigned values.
    pub(crate) fn base_label(&self, key: &str) -> Option<&'a str> {
        let value = match self.masked_labels.get(key) {
            Some(instead) => *instead,
            None => self.facts.labels.as_ref()?.get(key),
        };
        value.filter(|value| !self.is_assigned(key, value))
    }

    /// The value of a label as rules see it.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        match self.assigned_label(key) {
            Some(given) if given.strength == Strength::Default => Some(self.base_label(key).unwrap_or(&given.value)),
            Some(given) => Some(&given.value),
            None => self.base_label(key),
        }
    }

    /// All labels as rules see them.
    pub(crate) fn all_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let base = self
            .facts
            .labels()
            .filter(|(key, _)| !self.labels.contains_key(*key) && !self.masked_labels.contains_key(key));
        let aside = self.masked_labels.iter().filter(|(key, _)| !self.labels.contains_key(**key));
        let aside = aside.filter_map(|(key, instead)| instead.map(|value| (*key, value)));
        let given = self.labels.keys().filter_map(|key| self.label(key).map(|value| (&**key, value)));
        base.chain(aside).filter(|(key, value)| !self.is_assigned(key, value)).chain(given)
    }

    fn taint_counts(&self, key: &str, effect: &str) -> bool {
        !self.masked_taints.iter().any(|(aside_key, aside_effect)| *aside_key == key && *aside_effect == effect)
    }

    /// All taints as rules see them: key, value, effect.
    pub(crate) fn all_taints(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let base = self.facts.taints().iter().filter(|taint| {
            let given =
                taint.effect().and_then(|effect| self.taints.get_key_value(&(Cow::Borrowed(&*taint.key), effect)));
            given.is_none_or(|(key, values)| self.assigned_taint(key, values).is_none())
                && !self.is_assigned_taint(taint)
                && self.taint_counts(&taint.key, &taint.effect)
        });
        let given = self
            .taints
            .iter()
            .filter_map(|(key, values)| Some((&*key.0, &*self.assigned_taint(key, values)?.value, key.1.as_str())));
        base.map(|taint| (&*taint.key, taint.value(), &*taint.effect)).chain(given)
    }

    /// Whether a taint matches the pattern.
    pub(crate) fn has_taint(&self, pattern: &TaintPattern) -> bool {
        self.all_taints().any(|(key, value, effect)| pattern.is_met_by(key, value, effect))
    }

    /// Sets the labels that nodegate owns. They say nothing about their publishers.
    pub(crate) fn own_labels(&mut self, owned: &'a TextMap) {
        self.owned = Some(owned);
    }

    /// The inferred GPUs of the node.
    pub(crate) fn gpu(&self) -> &Gpus {
        self.gpu.get_or_init(|| gpu::infer(self.all_labels(), self.facts, self.missing()))
    }

    /// Must be called when the value of a label changes.
    pub(crate) fn label_changed(&mut self, key: &str) {
        if gpu::reads_label(key) {
            self.gpu.take();
        }
    }

    /// Evaluates a condition. If that fails, the result is unknown, and [`Self::take_failures`] returns the reason.
    pub(crate) fn evaluate_bool(&self, expression: &Expression) -> Kleene {
        self.with_variables(expression, |variables| expression.evaluate_bool(variables))
            .map_or(Kleene::Unknown, Kleene::from)
    }

    /// Calls `evaluate` with the variables that `expression` reads. [`Self::take_failures`] returns a failure.
    pub(crate) fn with_variables<T>(
        &self,
        expression: &Expression,
        evaluate: impl FnOnce(&Variables<'_>) -> Result<T, EvaluationError>,
    ) -> Option<T> {
        if let Some(failure) = self.not_told(expression) {
            self.failures.borrow_mut().push(failure);
            return None;
        }
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

    /// Whether this was a first attempt whose budget did not suffice: then nobody uses the result.
    pub(crate) fn is_tried_in_vain(&self) -> bool {
        self.budget.is_some_and(Budget::was_too_brief)
    }

    fn budget(&self) -> &Budget {
        self.budget.unwrap_or(&self.own_budget)
    }

    fn read(&self, paths: &Paths) -> Result<Excerpt<'a>, String> {
        let read = self.facts.object.read(paths, self.budget());
        // Expressions always see labels and taints, if only that there are none.
        read.map(|object| object.completed()).map_err(|error| format!("the object could not be read: {error}"))
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
        if let Some(labels) = reads.inventory.then(|| self.answers.labels()).flatten() {
            node = node.with_inventory(labels);
        }
        if let Some(devices) = self.devices.filter(|_| reads.devices) {
            node = node.with_devices(devices.text(), &expression.paths().devices, budget);
        }
        if reads.identity() {
            node = node.with_identity(self.identity_variables(reads));
        }
        // Without a copy of the object.
        if reads.labels.is_empty() && !reads.any_label && !reads.taints {
            return evaluate(&node.without_keys().within(budget));
        }
        // An expression that reads all labels or taints gets a new copy of them, and a kubelet may send very many.
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

    /// GPU facts for CEL. Unknown facts are omitted; a settled node without any GPU facts has a count of 0.
    fn gpu_variables(&self) -> GpuVariables<'_> {
        match self.gpu() {
            Gpus::Found(gpu) => GpuVariables {
                vendor: gpu.vendor.as_deref(),
                model: gpu.model.as_deref(),
                count: gpu.count.map(i64::from),
                source: gpu.source.map(GpuSource::as_str),
            },
            Gpus::None if self.facts.readiness == Readiness::Settled => {
                GpuVariables { count: Some(0), ..GpuVariables::default() }
            }
            Gpus::None | Gpus::Unknown(_) => GpuVariables::default(),
        }
    }

    /// The failures since the last call.
    pub(crate) fn take_failures(&self) -> Vec<String> {
        self.failures.take()
    }
}

mod identity;
pub(crate) mod told;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
