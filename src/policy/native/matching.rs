//! A `match` as a condition in CEL over the node as rules see it.
//!
//! Only "true" has an effect, and conditions are joined by *and* and *or* alone: so false and unknown are one here.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition has to be thought of here")]

use super::formula::{Formula, has_foreign_glob, is_one_of, list, quote};
use super::selection::{Gift, Selection, value};
use super::variables::rule_variable;
use super::{LABELS, TAINTS, node_info};
use crate::api::names::prefix_of;
use crate::api::policy::Operator;
use crate::policy::decision::{Field, Strength};
use crate::policy::matcher::{Condition, Conditions, Matcher, Requirement, TaintPattern};
use crate::policy::quantity::{Comparison, Quantity};
use crate::policy::set::PolicySet;
use crate::policy::view::is_of_publisher;

/// Who asks, which decides what counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// A rule: with what other rules give, without what a kubelet may not assert.
    Rule(usize),
    /// An entry of governance: the object as it would be stored.
    Entry,
    /// An entry of governance: the object as it is stored now, which has to be there.
    EntryBefore,
}

impl Asking {
    /// The object that is asked about.
    fn object(self) -> &'static str {
        if self == Self::EntryBefore { "oldObject" } else { "object" }
    }

    /// What is about that object: of two names the one for it as it would be stored, or as it is stored now.
    pub(super) fn of_two(self, now: &'static str, before: &'static str) -> &'static str {
        if self == Self::EntryBefore { before } else { now }
    }
}

/// Whether a matcher holds.
pub(super) fn matcher(selection: &Selection<'_>, asking: Asking, matcher: &Matcher) -> Formula {
    let all = conditions(selection, asking, &matcher.all);
    let any = matcher.any_of.as_ref().map(|alternatives| {
        Formula::any(alternatives.iter().map(|alternative| conditions(selection, asking, alternative)))
    });
    Formula::all([all].into_iter().chain(any))
}

fn conditions(selection: &Selection<'_>, asking: Asking, conditions: &Conditions) -> Formula {
    let reader = Reader { selection, asking };
    Formula::all(conditions.iter().map(|condition| reader.condition(condition)))
}

/// Why the API server cannot evaluate a condition, whoever asks.
pub(super) fn why_not(set: &PolicySet, condition: &Condition) -> Option<&'static str> {
    match condition {
        Condition::Names(group) => {
            has_foreign_glob(set.names_of(*group)).then_some("has a name glob with characters outside ASCII")
        }
        Condition::NodeInfo(info) => node_info::why_not(info),
        Condition::Gpu(_) => Some("matches on GPU inference, which only nodegate has"),
        Condition::Label(_) | Condition::Taints(_) | Condition::Capacity(..) | Condition::Expression(_) => None,
    }
}

struct Reader<'r, 'a> {
    selection: &'r Selection<'a>,
    asking: Asking,
}

impl Reader<'_, '_> {
    /// A condition. One that [`why_not`] gives a reason for never holds.
    fn condition(&self, condition: &Condition) -> Formula {
        match condition {
            Condition::Names(group) => is_one_of(
                &format!("{}.metadata.?name.orValue(\"\")", self.asking.object()),
                self.selection.set().names_of(*group),
            ),
            Condition::Label(requirement) => self.label(requirement),
            Condition::Taints(patterns) => Formula::any(patterns.iter().map(|pattern| self.taint(pattern))),
            Condition::Capacity(resource, comparison) => capacity(self.asking, resource, *comparison),
            Condition::NodeInfo(info) => node_info::condition(self.asking, info),
            Condition::Gpu(_) => Formula::Never,
            Condition::Expression(expression) => match expression.over_object(LABELS, TAINTS) {
                Some(text) => Formula::When(format!("({text})")),
                None => Formula::Never,
            },
        }
    }

    /// The rules whose gift counts for who asks. A default is about what is there without it; an enforced rule that
    /// reads what it gives reads its presence only, which its own gift does not change.
    fn givers(&self, gift: &Gift) -> Vec<usize> {
        match self.asking {
            Asking::Entry | Asking::EntryBefore => Vec::new(),
            Asking::Rule(own) => self
                .selection
                .givers(gift)
                .into_iter()
                .filter(|at| *at != own && !self.selection.stands_alone(*at))
                .collect(),
        }
    }

    /// The value that is the own gift of a default rule, and does not count where the object has it.
    fn own_gift(&self, gift: &Gift) -> Option<&str> {
        let Asking::Rule(own) = self.asking else { return None };
        let rule = self.selection.rule(own);
        let gives = match gift.0 {
            Field::Label => rule.gives.labels.iter().any(|(key, _)| key.as_str() == gift.1),
            Field::Annotation | Field::Taint => rule.gives.taints.iter().any(|taint| taint.id.to_string() == gift.1),
        };
        (gives && rule.strength == Strength::Default).then(|| value(rule, gift))
    }

    fn label(&self, requirement: &Requirement) -> Formula {
        let gift = (Field::Label, requirement.key.to_string());
        let on_value = |value: &str| -> Formula { meets(requirement, Some(value)).into() };
        let (enforced, defaults): (Vec<usize>, Vec<usize>) =
            self.givers(&gift).into_iter().partition(|at| self.selection.rule(*at).strength == Strength::Enforced);
        let base = self.base_label(requirement, &gift);
        let rest = if defaults.is_empty() {
            base
        } else {
            let there = self.has_base_label(&gift);
            let absent = self.chain(&defaults, &gift, &on_value, meets(requirement, None).into());
            Formula::any([Formula::all([there.clone(), base]), Formula::all([there.not(), absent])])
        };
        self.chain(&enforced, &gift, &on_value, rest)
    }

    /// `on_value` of the first giver that matches, or `rest` if none does.
    fn chain(&self, givers: &[usize], gift: &Gift, on_value: &impl Fn(&str) -> Formula, rest: Formula) -> Formula {
        // Neighbours with one outcome are one step, so that tables of machines do not nest deeply.
        let mut steps: Vec<(Formula, Vec<Formula>)> = Vec::new();
        for at in givers {
            let outcome = on_value(value(self.selection.rule(*at), gift));
            let matches = Formula::When(rule_variable(self.selection, *at));
            match steps.last_mut() {
                Some((last, all)) if *last == outcome => all.push(matches),
                _ => steps.push((outcome, vec![matches])),
            }
        }
        if steps.len() > NESTED_MAX {
            return first_of(steps, rest);
        }
        steps.into_iter().rev().fold(rest, |rest, (outcome, matches)| {
            let matches = Formula::any(matches);
            match outcome {
                Formula::Always => Formula::any([matches, rest]),
                Formula::Never | Formula::When(_) => Formula::all([matches.not(), rest]),
            }
        })
    }

    fn has_base_label(&self, gift: &Gift) -> Formula {
        let (labels, key) = (self.labels(&gift.1), quote(&gift.1));
        let there = Formula::When(format!("({key} in {labels})"));
        match self.own_gift(gift) {
            Some(own) => Formula::all([there, Formula::When(format!("({labels}[{key}] != {})", quote(own)))]),
            None => there,
        }
    }

    fn base_label(&self, requirement: &Requirement, gift: &Gift) -> Formula {
        let (labels, key) = (self.labels(&gift.1), quote(&gift.1));
        let own = self.own_gift(gift);
        let listed = || {
            let values = requirement.values.iter().map(|value| &**value).filter(|value| Some(*value) != own);
            Formula::When(format!("({key} in {labels} && {labels}[{key}] in {})", list(values)))
        };
        match requirement.operator {
            Operator::Exists => self.has_base_label(gift),
            Operator::In => listed(),
            Operator::DoesNotExist => Formula::all([self.has_base_label(gift).not(), self.publisher(requirement)]),
            Operator::NotIn => {
                let spoken = Formula::any([self.has_base_label(gift), self.publisher(requirement)]);
                Formula::all([listed().not(), spoken])
            }
        }
    }

    /// Whether absence can be told from a publisher that has restarted.
    fn publisher(&self, requirement: &Requirement) -> Formula {
        let Some(prefix) =
            prefix_of(&requirement.key).filter(|_| !requirement.plain && is_of_publisher(&requirement.key))
        else {
            return Formula::Always;
        };
        let prefix = quote(&format!("{prefix}/"));
        let has = |labels: &str| Formula::When(format!("{labels}.exists(k, k.startsWith({prefix}))"));
        Formula::any([has("variables.oldLabels").not(), has(LABELS)])
    }

    /// The labels that count for this key: a kubelet's word does not count for what it may not assert.
    fn labels(&self, key: &str) -> &'static str {
        match self.asking {
            Asking::Rule(_) => labels_of(self.selection, key),
            Asking::Entry => LABELS,
            Asking::EntryBefore => "variables.oldLabels",
        }
    }

    fn taint(&self, pattern: &TaintPattern) -> Formula {
        let ids: Vec<Gift> = self
            .selection
            .taints_given(&pattern.key)
            .into_iter()
            .filter(|(_, id)| pattern.effect.is_none_or(|effect| id.ends_with(&format!(":{effect}"))))
            .collect();
        let meets = |value: &str| -> Formula { pattern.value.as_deref().is_none_or(|wanted| wanted == value).into() };
        let mut ways = Vec::new();
        let mut own: Vec<Formula> = vec![Formula::When(format!("t.key == {}", quote(&pattern.key)))];
        own.extend(pattern.effect.map(|effect| Formula::When(format!("t.effect == {}", quote(effect.as_str())))));
        own.extend(pattern.value.as_deref().map(taint_value));
        for gift in &ids {
            let givers = self.givers(gift);
            let effect = gift.1.rsplit_once(':').map_or("", |(_, effect)| effect);
            let of_effect = Formula::When(format!("t.effect == {}", quote(effect)));
            if let Some(value) = self.own_gift(gift) {
                own.push(in_brackets(Formula::all([of_effect.clone(), taint_value(value)])).not());
            }
            if givers.is_empty() {
                continue;
            }
            ways.push(self.chain(&givers, gift, &meets, Formula::Never));
            let given = Formula::any(givers.iter().map(|at| Formula::When(rule_variable(self.selection, *at))));
            own.push(in_brackets(Formula::all([of_effect, given])).not());
        }
        ways.push(Formula::When(format!(
            "{}.exists(t, {})",
            self.asking.of_two(TAINTS, "variables.oldTaints"),
            Formula::all(own).text()
        )));
        Formula::any(ways)
    }
}

/// Steps written inside each other, at most: cel-go reads 250 brackets deep.
const NESTED_MAX: usize = 20;

/// The outcome of the first step that matches, as a flat list.
fn first_of(steps: Vec<(Formula, Vec<Formula>)>, rest: Formula) -> Formula {
    let step = |(outcome, matches): (Formula, Vec<Formula>)| {
        format!("?({} ? optional.of({}) : optional.none())", Formula::any(matches).text(), outcome.text())
    };
    let steps: Vec<String> = steps.into_iter().map(step).collect();
    Formula::When(format!("[{}][?0].orValue({})", steps.join(", "), rest.text()))
}

/// A comparison as an operand of `!`.
fn in_brackets(condition: Formula) -> Formula {
    match condition {
        Formula::When(text) if !text.starts_with('(') => Formula::When(format!("({text})")),
        Formula::Always | Formula::Never | Formula::When(_) => condition,
    }
}

fn taint_value(value: &str) -> Formula {
    Formula::When(format!("(t.?value.orValue(\"\") == {})", quote(value)))
}

/// The variable with the labels that count for this key where rules are concerned.
pub(super) fn labels_of(selection: &Selection<'_>, key: &str) -> &'static str {
    let guarded = selection.set().is_protected(key) || crate::policy::restriction::is_own(key);
    if guarded { "variables.trustedLabels" } else { LABELS }
}

fn meets(requirement: &Requirement, value: Option<&str>) -> bool {
    let listed = |value: &str| requirement.values.iter().any(|wanted| **wanted == *value);
    match (requirement.operator, value) {
        (Operator::Exists, value) => value.is_some(),
        (Operator::DoesNotExist, value) => value.is_none(),
        (Operator::In, value) => value.is_some_and(listed),
        (Operator::NotIn, value) => !value.is_some_and(listed),
    }
}

fn capacity(asking: Asking, resource: &str, comparison: Comparison) -> Formula {
    let field = format!("{}.?status.?capacity[?{}]", asking.object(), quote(resource));
    let compare = |text: &str| {
        Formula::When(format!(
            "(quantity({text}).compareTo(quantity({})) {} 0)",
            quote(&comparison.with()),
            comparison.sign()
        ))
    };
    if !resource.contains('/') {
        // What every node has and this one does not is unknown.
        return Formula::all([Formula::When(format!("{field}.hasValue()")), compare(&format!("{field}.value()"))]);
    }
    let or_zero = format!("{field}.orValue(\"0\")");
    let holds = compare(&or_zero);
    if !comparison.holds(Quantity::ZERO) {
        return holds;
    }
    // A device plugin registers after the kubelet does: none is told from "not yet" by how settled the node is.
    let some = Formula::When(format!("(quantity({or_zero}).compareTo(quantity(\"0\")) != 0)"));
    Formula::all([
        Formula::any([some, Formula::When(asking.of_two("variables.settled", "variables.oldSettled").to_owned())]),
        holds,
    ])
}
