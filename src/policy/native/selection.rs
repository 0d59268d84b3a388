//! Which rules the API server can evaluate by itself, and why the others not.
//!
//! A rule is left out when its answer would be another one without what only nodegate has (saved state, GPU
//! inference, computed values), or without a rule that is left out. So what is exported gives what nodegate gives.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition has to be thought of here")]

use std::collections::{HashMap, HashSet};

use super::{LABELS, LeftOut, TAINTS, matching};
use crate::api::policy::Operator;
use crate::policy::cel::Expression;
use crate::policy::decision::{Field, Strength};
use crate::policy::matcher::{Condition, Requirement, Source};
use crate::policy::restriction::is_own;
use crate::policy::rule::{Read, Rule};
use crate::policy::set::PolicySet;
use crate::policy::view::is_of_publisher;

/// A key that a rule gives; of a taint `key:Effect`.
pub(super) type Gift = (Field, String);

/// The rules of a set, sorted into what is exported and what is not.
pub(super) struct Selection<'a> {
    set: &'a PolicySet,
    /// Why a rule is left out as a whole.
    reasons: Vec<Option<String>>,
    /// Why single keys of a rule are left out.
    dropped: HashMap<(usize, Gift), String>,
    writers: HashMap<Gift, Vec<usize>>,
    /// Rules that give keys known only when they are evaluated.
    computed: Vec<usize>,
}

impl<'a> Selection<'a> {
    /// Sorts all rules of `set`.
    pub(super) fn of(set: &'a PolicySet) -> Self {
        let rules = set.rules();
        let mut writers: HashMap<Gift, Vec<usize>> = HashMap::new();
        for (at, rule) in rules.iter().enumerate() {
            for gift in gifts(rule) {
                writers.entry(gift).or_default().push(at);
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

    pub(super) fn set(&self) -> &'a PolicySet {
        self.set
    }

    pub(super) fn rule(&self, at: usize) -> &'a Rule {
        &self.set.rules()[at]
    }

    /// Rules that are exported, in the order of evaluation.
    pub(super) fn exported(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.reasons.len()).filter(|at| self.is_exported(*at))
    }

    fn is_exported(&self, at: usize) -> bool {
        self.reasons[at].is_none() && gifts(self.rule(at)).any(|gift| !self.dropped.contains_key(&(at, gift)))
    }

    /// Whether a rule's condition may fail, so that it stands in a policy of its own.
    pub(super) fn stands_alone(&self, at: usize) -> bool {
        self.rule(at).matcher.expressions().next().is_some()
    }

    /// What a rule gives natively.
    pub(super) fn gifts(&self, at: usize) -> impl Iterator<Item = Gift> + '_ {
        let whole = self.reasons[at].is_none();
        gifts(self.rule(at)).filter(move |gift| whole && !self.dropped.contains_key(&(at, gift.clone())))
    }

    /// The rules that give this natively, the strongest first.
    pub(super) fn givers(&self, gift: &Gift) -> Vec<usize> {
        let all = self.writers.get(gift).into_iter().flatten().copied();
        all.filter(|at| self.reasons[*at].is_none() && !self.dropped.contains_key(&(*at, gift.clone()))).collect()
    }

    /// Effects with which some rule gives the taint natively.
    pub(super) fn taints_given(&self, key: &str) -> Vec<Gift> {
        let prefix = format!("{key}:");
        let mut found: Vec<Gift> = self
            .writers
            .keys()
            .filter(|(field, id)| *field == Field::Taint && id.starts_with(&prefix))
            .cloned()
            .collect();
        found.sort();
        found
    }

    /// Exported rules of the main policies that this one reads, directly or through others.
    pub(super) fn reads_from(&self, at: usize) -> Vec<usize> {
        let mut found = HashSet::new();
        let mut ways = vec![at];
        while let Some(reader) = ways.pop() {
            for (gift, _) in self.read_gifts(reader) {
                ways.extend(self.givers(&gift).into_iter().filter(|writer| *writer != reader && found.insert(*writer)));
            }
        }
        let mut found: Vec<usize> = found.into_iter().collect();
        found.sort_unstable();
        found
    }

    /// What is not exported, with the reason.
    pub(super) fn left_out(&self) -> Vec<LeftOut> {
        let mut found = Vec::new();
        for (at, rule) in self.set.rules().iter().enumerate() {
            let mut add = |what: &str, reason: &str| {
                found.push(LeftOut::of(&rule.id, what, reason));
            };
            if let Some(reason) = &self.reasons[at] {
                add("", reason);
                continue;
            }
            for (key, _) in &rule.gives.label_expressions {
                add(&format!("label {key}"), COMPUTED);
            }
            if rule.gives.label_map.is_some() {
                add("labelMap", COMPUTED);
            }
            for gift in gifts(rule) {
                if let Some(reason) = self.dropped.get(&(at, gift.clone())) {
                    add(&format!("{} {}", gift.0, gift.1), reason);
                }
            }
        }
        found
    }

    fn exports(&self, at: usize, gift: &Gift) -> bool {
        self.reasons[at].is_none()
            && !self.dropped.contains_key(&(at, gift.clone()))
            && gifts(self.rule(at)).any(|given| given == *gift)
    }

    /// Whether rules read this as if it were known: given by rules whose conditions cannot fail.
    fn is_known(&self, at: usize, gift: &Gift) -> bool {
        self.exports(at, gift) && !self.stands_alone(at)
    }

    fn possible_givers(&self, gift: &Gift) -> Vec<usize> {
        let mut all = self.writers.get(gift).cloned().unwrap_or_default();
        let may = |at: &usize| match gift.0 {
            Field::Label => self.rule(*at).may_write_label(&gift.1),
            Field::Annotation => false,
            Field::Taint => {
                let key = gift.1.rsplit_once(':').map_or(gift.1.as_str(), |(key, _)| key);
                self.rule(*at).gives.saved.as_ref().is_some_and(|saved| saved.taints.contains(key))
            }
        };
        all.extend(self.computed.iter().copied().filter(may));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What a rule reads that rules may write, and how messages name it.
    fn read_gifts(&self, at: usize) -> Vec<(Gift, String)> {
        let mut found = Vec::new();
        for read in self.rule(at).reads() {
            match read {
                Read::Label(key, _) => found.push(((Field::Label, key.to_string()), format!("label {key}"))),
                Read::Taint(key, _) => {
                    let given = self.taints_given(&key).into_iter();
                    let any = (Field::Taint, format!("{key}:"));
                    found.extend(given.chain([any]).map(|gift| (gift, format!("taint {key}"))));
                }
                Read::AnyLabel | Read::AnyTaint | Read::Gpu => {}
            }
        }
        found
    }

    /// Leaves out what depends on something that is left out; whether there was anything.
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
            for gift in gifts(self.rule(at)) {
                if !self.dropped.contains_key(&(at, gift.clone()))
                    && let Some(reason) = self.contested(at, &gift)
                {
                    self.dropped.insert((at, gift), reason);
                    more = true;
                }
            }
        }
        more
    }

    fn unknown_read(&self, at: usize) -> Option<String> {
        for (gift, what) in self.read_gifts(at) {
            for writer in self.possible_givers(&gift).into_iter().filter(|writer| *writer != at) {
                let id = &self.rule(writer).id;
                if !self.is_known(writer, &gift) {
                    return Some(format!("reads {what}, which rule {id} may give, and that is not known here"));
                }
                if writer > at {
                    return Some(format!("reads {what}, which rule {id} gives, and that depends on this rule"));
                }
            }
        }
        None
    }

    /// Why one key of a rule cannot be given natively.
    fn contested(&self, at: usize, gift: &Gift) -> Option<String> {
        let rule = self.rule(at);
        let alone = self.stands_alone(at);
        if alone && gift.0 == Field::Label && (self.set.is_protected(&gift.1)) {
            return Some(
                "a protected label is judged together with rules whose conditions cannot fail, and this expression may"
                    .to_owned(),
            );
        }
        let rivals = self.possible_givers(gift).into_iter().filter(|rival| *rival != at);
        for rival in rivals {
            let other = self.rule(rival);
            if alone {
                return Some(format!("rule {} gives it as well, and this expression may fail", other.id));
            }
            let wins = (other.strength, other.rank) < (rule.strength, rule.rank);
            if wins && !self.is_known(rival, gift) {
                return Some(format!("rule {}, which is not exported, may give it with precedence", other.id));
            }
        }
        None
    }

    /// Why a rule cannot be exported, whatever the others are.
    fn own_reason(&self, rule: &Rule) -> Option<String> {
        if rule.strength == Strength::Saved {
            return Some("restores saved state, which only nodegate has".to_owned());
        }
        if gifts(rule).next().is_none() {
            return Some(COMPUTED.to_owned());
        }
        rule.matcher.conditions().find_map(|condition| self.condition_reason(condition))
    }

    fn condition_reason(&self, condition: &Condition) -> Option<String> {
        if let Some(reason) = matching::why_not(self.set, condition) {
            return Some(reason.to_owned());
        }
        match condition.source() {
            Source::Label(requirement) => absence_reason(requirement),
            Source::Expression(expression) => self.expression_reason(expression),
            Source::Name(_) | Source::Taints(_) | Source::Status(_) | Source::Gpu => None,
        }
    }

    fn expression_reason(&self, expression: &Expression) -> Option<String> {
        let reads = expression.reads();
        let writes_taints = |rule: &Rule| !rule.gives.taints.is_empty() || rule.gives.saved.is_some();
        let label = reads.labels.iter().map(|read| &read.key).find(|key| {
            self.set.is_protected(key)
                || is_own(key)
                || !self.possible_givers(&(Field::Label, (*key).clone())).is_empty()
        });
        let what = match label {
            Some(key) => format!("label {key}, which rules give or a kubelet may not assert"),
            None if reads.gpu => "GPU inference, which only nodegate has".to_owned(),
            None if reads.inventory => "inventories, which only nodegate asks".to_owned(),
            None if reads.any_label => "labels by keys that are known only when it is evaluated".to_owned(),
            None if reads.taints && self.set.rules().iter().any(writes_taints) => "taints, which rules give".to_owned(),
            None if expression.over_object(LABELS, TAINTS).is_none() => {
                "the node as a whole, which is another object to the API server".to_owned()
            }
            None => return None,
        };
        Some(format!("its expression reads {what}"))
    }
}

/// Why a rule that needs the absence of a label cannot be exported.
fn absence_reason(requirement: &Requirement) -> Option<String> {
    let of_absence = match requirement.operator {
        Operator::NotIn | Operator::DoesNotExist => !requirement.plain && is_of_publisher(&requirement.key),
        Operator::In | Operator::Exists => false,
    };
    let key = &requirement.key;
    of_absence.then(|| {
        format!("matches on the absence of {key}; whether its publisher has only restarted is what nodegate remembers")
    })
}

const COMPUTED: &str =
    "the value is computed; one that is no valid label is dropped by nodegate and would be refused by the API server";

fn is_computed(rule: &Rule) -> bool {
    !rule.gives.label_expressions.is_empty() || rule.gives.label_map.is_some() || rule.gives.saved.is_some()
}

/// What a rule gives with values that are written down.
pub(super) fn gifts(rule: &Rule) -> impl Iterator<Item = Gift> {
    let labels = rule.gives.labels.iter().map(|(key, _)| (Field::Label, key.as_str().to_owned()));
    let annotations = rule.gives.annotations.iter().map(|(key, _)| (Field::Annotation, key.as_str().to_owned()));
    let taints = rule.gives.taints.iter().map(|taint| (Field::Taint, taint.id.to_string()));
    labels.chain(annotations).chain(taints)
}

/// The value a rule gives to a key.
pub(super) fn value<'r>(rule: &'r Rule, gift: &Gift) -> &'r str {
    let (field, key) = gift;
    let found = match field {
        Field::Label => {
            rule.gives.labels.iter().find(|(given, _)| given.as_str() == key).map(|(_, value)| value.as_str())
        }
        Field::Annotation => {
            rule.gives.annotations.iter().find(|(given, _)| given.as_str() == key).map(|(_, value)| &**value)
        }
        Field::Taint => {
            rule.gives.taints.iter().find(|taint| taint.id.to_string() == *key).map(|taint| taint.value.as_str())
        }
    };
    found.unwrap_or_default()
}
