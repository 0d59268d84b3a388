//! Which rules the API server can evaluate by itself, and why it cannot evaluate the others.
//!
//! A rule is not exported if its result depends on something that only nodegate has (saved state, GPU inference,
//! computed values), or on a rule that is not exported. So exported rules assign the same values as nodegate.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::collections::{HashMap, HashSet};

use crate::api::policy::Operator;
use crate::cel::Expression;
use crate::facts::publishers::{Publisher, WITHDRAWN};
use crate::keys::Field;
use crate::keys::restriction::is_own;
use crate::native::objects::{LABELS, LeftOut, TAINTS};
use crate::native::terms::formula::has_foreign_glob;
use crate::native::terms::node_info;
use crate::native::terms::subject::Subject;
use crate::set::PolicySet;
use crate::set::matcher::{Condition, Requirement, Source};
use crate::set::rule::Strength;
use crate::set::rule::{Read, Rule};

/// A key that a rule assigns; for a taint `key:Effect`.
pub(in crate::native) type AssignedKey = (Field, String);

/// The rules of a set, divided into exported ones and others.
pub(in crate::native) struct Selection<'a> {
    set: &'a PolicySet,
    /// Why a rule is not exported at all.
    reasons: Vec<Option<String>>,
    /// Why single keys of a rule are not exported.
    dropped: HashMap<(usize, AssignedKey), String>,
    writers: HashMap<AssignedKey, Vec<usize>>,
    /// Rules whose keys are computed.
    computed: Vec<usize>,
}

impl<'a> Selection<'a> {
    /// Selects the rules of `set`.
    pub(in crate::native) fn of(set: &'a PolicySet) -> Self {
        let rules = set.rules();
        let mut writers: HashMap<AssignedKey, Vec<usize>> = HashMap::new();
        for (at, rule) in rules.iter().enumerate() {
            for assigned in assigned_keys(rule) {
                writers.entry(assigned).or_default().push(at);
            }
        }
        for list in writers.values_mut() {
            list.sort_by_key(|at| (rules[*at].strength, rules[*at].rank));
        }
        let computed = (0..rules.len()).filter(|at| is_computed(&rules[*at])).collect();
        let mut selection = Self { set, reasons: Vec::new(), dropped: HashMap::new(), writers, computed };
        selection.reasons = rules.iter().map(|rule| selection.own_reason(rule)).collect();
        while selection.leave_out_dependants() {}
        selection
    }

    pub(in crate::native) fn set(&self) -> &'a PolicySet {
        self.set
    }

    pub(in crate::native) fn rule(&self, at: usize) -> &'a Rule {
        &self.set.rules()[at]
    }

    /// Rules that are exported, in the order of evaluation.
    pub(in crate::native) fn exported(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.reasons.len()).filter(|at| self.is_exported(*at))
    }

    fn is_exported(&self, at: usize) -> bool {
        self.reasons[at].is_none()
            && assigned_keys(self.rule(at)).any(|assigned| !self.dropped.contains_key(&(at, assigned)))
    }

    /// Whether a rule's condition may fail, so that the rule gets its own policy.
    pub(in crate::native) fn stands_alone(&self, at: usize) -> bool {
        self.rule(at).matcher.expressions().next().is_some()
    }

    /// The keys that a rule assigns natively.
    pub(in crate::native) fn assigned_keys(&self, at: usize) -> impl Iterator<Item = AssignedKey> + '_ {
        let whole = self.reasons[at].is_none();
        assigned_keys(self.rule(at))
            .filter(move |assigned| whole && !self.dropped.contains_key(&(at, assigned.clone())))
    }

    /// The rules that assign this key natively, the one with the highest precedence first.
    pub(in crate::native) fn writers_of(&self, assigned: &AssignedKey) -> Vec<usize> {
        let all = self.writers.get(assigned).into_iter().flatten().copied();
        all.filter(|at| self.reasons[*at].is_none() && !self.dropped.contains_key(&(*at, assigned.clone()))).collect()
    }

    /// The taints with this key that rules assign, by effect.
    pub(in crate::native) fn taints_assigned(&self, key: &str) -> Vec<AssignedKey> {
        let prefix = format!("{key}:");
        let mut found: Vec<AssignedKey> = self
            .writers
            .keys()
            .filter(|(field, id)| *field == Field::Taint && id.starts_with(&prefix))
            .cloned()
            .collect();
        found.sort();
        found
    }

    /// Exported rules of the main policies that this one reads, directly or through others.
    pub(in crate::native) fn reads_from(&self, at: usize) -> Vec<usize> {
        let mut found = HashSet::new();
        let mut ways = vec![at];
        while let Some(reader) = ways.pop() {
            for (assigned, _) in self.read_keys(reader) {
                ways.extend(
                    self.writers_of(&assigned).into_iter().filter(|writer| *writer != reader && found.insert(*writer)),
                );
            }
        }
        let mut found: Vec<usize> = found.into_iter().collect();
        found.sort_unstable();
        found
    }

    /// What is not exported, with the reason.
    pub(in crate::native) fn left_out(&self) -> Vec<LeftOut> {
        let mut found = Vec::new();
        for (at, rule) in self.set.rules().iter().enumerate() {
            let mut add = |what: &str, reason: &str| {
                found.push(LeftOut::of(&rule.id, what, reason));
            };
            if let Some(reason) = &self.reasons[at] {
                add("", reason);
                continue;
            }
            for (key, _) in &rule.assigns.label_expressions {
                add(&format!("label {key}"), COMPUTED);
            }
            if rule.assigns.label_map.is_some() {
                add("labelMap", COMPUTED);
            }
            for assigned in assigned_keys(rule) {
                if let Some(reason) = self.dropped.get(&(at, assigned.clone())) {
                    add(&format!("{} {}", assigned.0, assigned.1), reason);
                }
            }
        }
        found
    }

    fn exports(&self, at: usize, assigned: &AssignedKey) -> bool {
        self.reasons[at].is_none()
            && !self.dropped.contains_key(&(at, assigned.clone()))
            && assigned_keys(self.rule(at)).any(|given| given == *assigned)
    }

    /// Whether other rules can read this key natively: it is assigned by a rule whose condition cannot fail.
    fn is_known(&self, at: usize, assigned: &AssignedKey) -> bool {
        self.exports(at, assigned) && !self.stands_alone(at)
    }

    fn possible_writers(&self, assigned: &AssignedKey) -> Vec<usize> {
        let mut all = self.writers.get(assigned).cloned().unwrap_or_default();
        let may = |at: &usize| match assigned.0 {
            Field::Label => self.rule(*at).may_write_label(&assigned.1),
            Field::Annotation => false,
            Field::Taint => {
                let key = assigned.1.rsplit_once(':').map_or(assigned.1.as_str(), |(key, _)| key);
                self.rule(*at).assigns.saved.as_ref().is_some_and(|saved| saved.taints.contains(key))
            }
        };
        all.extend(self.computed.iter().copied().filter(may));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The keys that a rule reads and other rules may write, with their names for messages.
    fn read_keys(&self, at: usize) -> Vec<(AssignedKey, String)> {
        let mut found = Vec::new();
        for read in self.rule(at).reads() {
            match read {
                Read::Label(key, _) => found.push(((Field::Label, key.to_string()), format!("label {key}"))),
                Read::Taint(key, _) => {
                    let given = self.taints_assigned(&key).into_iter();
                    let any = (Field::Taint, format!("{key}:"));
                    found.extend(given.chain([any]).map(|assigned| (assigned, format!("taint {key}"))));
                }
                Read::AnyLabel | Read::AnyTaint | Read::Gpu => {}
            }
        }
        found
    }

    /// Excludes rules and keys that depend on excluded ones. Returns whether there were any.
    fn leave_out_dependants(&mut self) -> bool {
        let mut more = false;
        for at in 0..self.reasons.len() {
            if self.reasons[at].is_some() {
                continue;
            }
            if let Some(reason) = self.unknown_read(at) {
                self.reasons[at] = Some(reason);
                more = true;
                continue;
            }
            for assigned in assigned_keys(self.rule(at)) {
                if !self.dropped.contains_key(&(at, assigned.clone()))
                    && let Some(reason) = self.contested(at, &assigned)
                {
                    self.dropped.insert((at, assigned), reason);
                    more = true;
                }
            }
        }
        more
    }

    fn unknown_read(&self, at: usize) -> Option<String> {
        for (assigned, what) in self.read_keys(at) {
            for writer in self.possible_writers(&assigned).into_iter().filter(|writer| *writer != at) {
                let id = &self.rule(writer).id;
                if !self.is_known(writer, &assigned) {
                    return Some(format!(
                        "reads {what}, which rule {id} may set, but the native policy cannot evaluate that rule"
                    ));
                }
                if writer > at {
                    return Some(format!("reads {what}, which rule {id} sets, and that rule depends on this one"));
                }
            }
        }
        None
    }

    /// Why one key of a rule cannot be assigned natively.
    fn contested(&self, at: usize, assigned: &AssignedKey) -> Option<String> {
        let rule = self.rule(at);
        let alone = self.stands_alone(at);
        if alone && assigned.0 == Field::Label && (self.set.is_protected(&assigned.1)) {
            return Some(
                "a protected label can only be set natively by rules whose conditions cannot fail, and this expression may fail"
                    .to_owned(),
            );
        }
        let rivals = self.possible_writers(assigned).into_iter().filter(|rival| *rival != at);
        for rival in rivals {
            let other = self.rule(rival);
            if alone {
                return Some(format!("rule {} sets it as well, and this expression may fail", other.id));
            }
            let wins = (other.strength, other.rank) < (rule.strength, rule.rank);
            if wins && !self.is_known(rival, assigned) {
                return Some(format!("rule {}, which is not exported, may set it with higher precedence", other.id));
            }
        }
        None
    }

    /// Why a rule cannot be exported, independent of other rules.
    fn own_reason(&self, rule: &Rule) -> Option<String> {
        if rule.strength == Strength::Saved {
            return Some("restores saved state, which only nodegate has".to_owned());
        }
        if rule.strength == Strength::Inventory {
            return Some("gives the labels of an inventory, which only nodegate queries".to_owned());
        }
        if rule.assigns.migration.is_some() {
            return Some(
                "copies one label to another, and only nodegate has a record of which one is the copy".to_owned(),
            );
        }
        if assigned_keys(rule).next().is_none() {
            return Some(COMPUTED.to_owned());
        }
        rule.matcher.conditions().find_map(|condition| self.condition_reason(condition))
    }

    fn condition_reason(&self, condition: &Condition) -> Option<String> {
        if let Some(reason) = why_not(self.set, condition) {
            return Some(reason.to_owned());
        }
        match condition.source() {
            Source::Label(requirement) => absence_reason(requirement),
            Source::Expression(expression) => self.expression_reason(expression),
            Source::Name(_) | Source::Pools | Source::Taints(_) | Source::Reported(_) | Source::Gpu => None,
        }
    }

    fn expression_reason(&self, expression: &Expression) -> Option<String> {
        if let Some(name) = expression.unknown_to_kubernetes() {
            return Some(format!("its expression calls {name}(), which Kubernetes does not have"));
        }
        let reads = expression.reads();
        let writes_taints = |rule: &Rule| !rule.assigns.taints.is_empty() || rule.assigns.saved.is_some();
        let label = reads.labels.iter().map(|read| &read.key).find(|key| {
            self.set.is_protected(key)
                || is_own(key)
                || !self.possible_writers(&(Field::Label, (*key).clone())).is_empty()
        });
        let published = || reads.labels.iter().map(|read| &read.key).find(|key| Publisher::of(key).is_some());
        let what = match label {
            Some(key) => format!("label {key}, which rules set or a kubelet may not assert"),
            None if let Some(key) = published() => {
                format!("label {key}; only nodegate remembers whether its publisher has just restarted")
            }
            None if reads.gpu => "GPU inference, which only nodegate has".to_owned(),
            None if reads.inventory => "inventories, which only nodegate queries".to_owned(),
            None if reads.devices => "devices, which only nodegate watches".to_owned(),
            None if reads.identity() => "the pools of the node, which only nodegate knows".to_owned(),
            None if reads.any_label => "labels by computed keys".to_owned(),
            None if reads.taints && self.set.rules().iter().any(writes_taints) => "taints, which rules set".to_owned(),
            None if expression.in_native_node(LABELS, Subject::Entry.annotations(), TAINTS).is_none() => {
                "the node as a whole, which differs in the API server".to_owned()
            }
            None => return None,
        };
        Some(format!("its expression reads {what}"))
    }
}

/// Why a rule that matches on the absence of a label cannot be exported.
fn absence_reason(requirement: &Requirement) -> Option<String> {
    let of_absence = match requirement.operator {
        Operator::NotIn | Operator::DoesNotExist => requirement.publisher.is_some(),
        Operator::In | Operator::Exists => {
            requirement.is_withdrawn_by(WITHDRAWN) && requirement.is_met_by(Some(WITHDRAWN))
        }
    };
    let key = &requirement.key;
    of_absence.then(|| {
        format!("matches on the absence of {key}; only nodegate remembers whether its publisher has just restarted")
    })
}

const COMPUTED: &str =
    "the value is computed; nodegate drops an invalid label, but the API server would refuse the write";

fn is_computed(rule: &Rule) -> bool {
    let assigns = &rule.assigns;
    !assigns.label_expressions.is_empty()
        || assigns.label_map.is_some()
        || assigns.saved.is_some()
        || assigns.inventory.is_some()
        || assigns.migration.is_some()
}

/// The keys to which a rule assigns fixed values.
pub(in crate::native) fn assigned_keys(rule: &Rule) -> impl Iterator<Item = AssignedKey> {
    let labels = rule.assigns.labels.iter().map(|(key, _)| (Field::Label, key.as_str().to_owned()));
    let annotations = rule.assigns.annotations.iter().map(|(key, _)| (Field::Annotation, key.as_str().to_owned()));
    let taints = rule.assigns.taints.iter().map(|taint| (Field::Taint, taint.id.to_string()));
    labels.chain(annotations).chain(taints)
}

/// The value that a rule assigns to a key.
pub(in crate::native) fn value<'r>(rule: &'r Rule, assigned: &AssignedKey) -> &'r str {
    let (field, key) = assigned;
    let found = match field {
        Field::Label => {
            rule.assigns.labels.iter().find(|(given, _)| given.as_str() == key).map(|(_, value)| value.as_str())
        }
        Field::Annotation => {
            rule.assigns.annotations.iter().find(|(given, _)| given.as_str() == key).map(|(_, value)| &**value)
        }
        Field::Taint => {
            rule.assigns.taints.iter().find(|taint| taint.id.to_string() == *key).map(|taint| taint.value.as_str())
        }
    };
    found.unwrap_or_default()
}

/// Why the API server cannot evaluate a condition for any subject.
pub(in crate::native) fn why_not(set: &PolicySet, condition: &Condition) -> Option<&'static str> {
    match condition {
        Condition::Names(group) => {
            has_foreign_glob(set.names_of(*group)).then_some("contains a name glob with non-ASCII characters")
        }
        Condition::NodeInfo(info) => node_info::why_not(info),
        Condition::Gpu(_) => Some("matches on GPU inference, which only nodegate has"),
        Condition::Pools(_) => Some("matches on pools, whose proof only nodegate has"),
        Condition::Label(_) | Condition::Taints(_) | Condition::Capacity(..) | Condition::Expression(_) => None,
    }
}

/// The name of the variable for whether a rule matches.
pub(in crate::native) fn variable_name(selection: &Selection<'_>, at: usize) -> String {
    let name = &selection.rule(at).id.rule;
    let plain: String = name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("rule{at}_{plain}")
}

/// The reference to that variable.
pub(in crate::native) fn rule_variable(selection: &Selection<'_>, at: usize) -> String {
    format!("variables.{}", variable_name(selection, at))
}
