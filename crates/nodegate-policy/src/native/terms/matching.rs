//! A `match` as a CEL condition over the node as rules see it.
//!
//! Only "true" has an effect, and conditions are combined only with *and* and *or*, so false and unknown need not be
//! distinguished.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use crate::api::policy::Operator;
use crate::facts::quantity::{Comparison, Quantity};
use crate::keys::Field;
use crate::native::objects::LABELS;
use crate::native::terms::formula::{Formula, is_one_of, list, quote};
use crate::native::terms::node_info;
use crate::native::terms::selection::{AssignedKey, Selection, rule_variable, value};
use crate::native::terms::subject::Subject;
use crate::set::matcher::{Condition, Conditions, Matcher, Requirement, TaintPattern};
use crate::set::rule::Strength;

/// Whether a matcher holds.
pub(in crate::native) fn matcher(selection: &Selection<'_>, subject: Subject, matcher: &Matcher) -> Formula {
    let all = conditions(selection, subject, &matcher.all);
    let any = matcher.any_of.as_ref().map(|alternatives| {
        Formula::any(alternatives.iter().map(|alternative| conditions(selection, subject, alternative)))
    });
    Formula::all([all].into_iter().chain(any))
}

fn conditions(selection: &Selection<'_>, subject: Subject, conditions: &Conditions) -> Formula {
    let reader = Reader { selection, subject };
    Formula::all(conditions.iter().map(|condition| reader.condition(condition)))
}

struct Reader<'r, 'a> {
    selection: &'r Selection<'a>,
    subject: Subject,
}

impl Reader<'_, '_> {
    /// A condition. It never holds if [`why_not`](super::selection::why_not) returns a reason.
    fn condition(&self, condition: &Condition) -> Formula {
        match condition {
            Condition::Names(group) => is_one_of(
                &format!("{}.metadata.?name.orValue(\"\")", self.subject.object()),
                self.selection.set().names_of(*group),
            ),
            Condition::Label(requirement) => self.label(requirement),
            Condition::Taints(patterns) => Formula::any(patterns.iter().map(|pattern| self.taint(pattern))),
            Condition::Capacity(resource, comparison) => capacity(self.subject, resource, *comparison),
            Condition::NodeInfo(info) => node_info::condition(self.subject, info),
            Condition::Gpu(_) | Condition::Pools(_) => Formula::Never,
            Condition::Expression(expression) => {
                let text = expression.in_native_node(LABELS, self.subject.annotations(), self.subject.taints());
                text.map_or(Formula::Never, |text| Formula::When(format!("({text})")))
            }
        }
    }

    /// The rules whose values are visible to the subject. A default rule depends on what is present without it, and does not
    /// see what weaker rules give to its keys. An enforced rule that reads its own key reads only its presence, which its own
    /// value does not change.
    fn writers_of(&self, assigned: &AssignedKey) -> Vec<usize> {
        match self.subject {
            Subject::Entry | Subject::EntryBefore => Vec::new(),
            Subject::Rule(own) => self
                .selection
                .writers_of(assigned)
                .into_iter()
                .filter(|at| *at != own && !self.selection.stands_alone(*at))
                .filter(|at| !self.is_hidden(*at, own, assigned))
                .collect(),
        }
    }

    /// Whether the values of a rule for this key are hidden from another one.
    fn is_hidden(&self, at: usize, from: usize, assigned: &AssignedKey) -> bool {
        let (rule, from) = (self.selection.rule(at), self.selection.rule(from));
        from.overlooks(rule.strength, rule.rank)
            && match assigned.0 {
                Field::Label => from.writes_label(&assigned.1),
                Field::Annotation | Field::Taint => {
                    from.assigns.taints.iter().any(|taint| taint.id.to_string() == assigned.1)
                }
            }
    }

    /// The values that a default rule itself, or a weaker one, may have assigned, which are hidden if the object has them.
    fn hidden_values(&self, assigned: &AssignedKey) -> Vec<&str> {
        let Subject::Rule(own) = self.subject else { return Vec::new() };
        let (rule, given) = (self.selection.rule(own), self.selection.set().given_by_default());
        match assigned.0 {
            Field::Label => given.hidden_labels(rule, &assigned.1).collect(),
            Field::Annotation | Field::Taint => {
                let own = rule.assigns.taints.iter().map(|taint| &taint.id).find(|id| id.to_string() == assigned.1);
                own.map_or_else(Vec::new, |own| given.hidden_taints(rule, own.key.as_str(), own.effect).collect())
            }
        }
    }

    fn label(&self, requirement: &Requirement) -> Formula {
        let assigned = (Field::Label, requirement.key.to_string());
        let on_value = |value: &str| -> Formula { requirement.is_met_by(Some(value)).into() };
        let (enforced, defaults): (Vec<usize>, Vec<usize>) = self
            .writers_of(&assigned)
            .into_iter()
            .partition(|at| self.selection.rule(*at).strength == Strength::Enforced);
        let base = self.base_label(requirement, &assigned);
        let rest = if defaults.is_empty() {
            base
        } else {
            let there = self.has_base_label(&assigned);
            let absent = self.chain(&defaults, &assigned, &on_value, requirement.is_met_by(None).into());
            Formula::any([Formula::all([there.clone(), base]), Formula::all([there.not(), absent])])
        };
        self.chain(&enforced, &assigned, &on_value, rest)
    }

    /// `on_value` of the first matching rule, or `rest` if none matches.
    fn chain(
        &self,
        writers: &[usize],
        assigned: &AssignedKey,
        on_value: &impl Fn(&str) -> Formula,
        rest: Formula,
    ) -> Formula {
        // Consecutive rules with the same outcome are one step, so that long tables do not nest deeply.
        let mut steps: Vec<(Formula, Vec<Formula>)> = Vec::new();
        for at in writers {
            let outcome = on_value(value(self.selection.rule(*at), assigned));
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

    fn has_base_label(&self, assigned: &AssignedKey) -> Formula {
        let (labels, key) = (self.labels(&assigned.1), quote(&assigned.1));
        let there = Formula::When(format!("({key} in {labels})"));
        match *self.hidden_values(assigned) {
            [] => there,
            [hidden] => Formula::all([there, Formula::When(format!("({labels}[{key}] != {})", quote(hidden)))]),
            ref hidden => {
                let hidden = list(hidden.iter().copied());
                Formula::all([there, Formula::When(format!("!({labels}[{key}] in {hidden})"))])
            }
        }
    }

    fn base_label(&self, requirement: &Requirement, assigned: &AssignedKey) -> Formula {
        let (labels, key) = (self.labels(&assigned.1), quote(&assigned.1));
        let hidden = self.hidden_values(assigned);
        let listed = || {
            let values = requirement.values.iter().map(|value| &**value).filter(|value| !hidden.contains(value));
            Formula::When(format!("({key} in {labels} && {labels}[{key}] in {})", list(values)))
        };
        // Nothing is unknown: what matches on the absence of a publisher's label is not exported, and entries do not remember.
        match requirement.operator {
            Operator::Exists => self.has_base_label(assigned),
            Operator::In => listed(),
            Operator::DoesNotExist => self.has_base_label(assigned).not(),
            Operator::NotIn => listed().not(),
        }
    }

    /// The labels to use for this key: a kubelet's labels are ignored if it may not set them.
    fn labels(&self, key: &str) -> &'static str {
        match self.subject {
            Subject::Rule(_) => labels_of(self.selection, key),
            Subject::Entry => LABELS,
            Subject::EntryBefore => "variables.oldLabels",
        }
    }

    fn taint(&self, pattern: &TaintPattern) -> Formula {
        let ids: Vec<AssignedKey> = self
            .selection
            .taints_assigned(&pattern.key)
            .into_iter()
            .filter(|(_, id)| pattern.effect.is_none_or(|effect| id.ends_with(&format!(":{effect}"))))
            .collect();
        let meets = |value: &str| -> Formula { pattern.value.as_deref().is_none_or(|wanted| wanted == value).into() };
        let mut ways = Vec::new();
        let mut own: Vec<Formula> = vec![Formula::When(format!("t.key == {}", quote(&pattern.key)))];
        own.extend(pattern.effect.map(|effect| Formula::When(format!("t.effect == {}", quote(effect.as_str())))));
        own.extend(pattern.value.as_deref().map(taint_value));
        for assigned in &ids {
            let writers = self.writers_of(assigned);
            let effect = assigned.1.rsplit_once(':').map_or("", |(_, effect)| effect);
            let of_effect = Formula::When(format!("t.effect == {}", quote(effect)));
            for value in self.hidden_values(assigned) {
                own.push(in_brackets(Formula::all([of_effect.clone(), taint_value(value)])).not());
            }
            if writers.is_empty() {
                continue;
            }
            ways.push(self.chain(&writers, assigned, &meets, Formula::Never));
            let given = Formula::any(writers.iter().map(|at| Formula::When(rule_variable(self.selection, *at))));
            own.push(in_brackets(Formula::all([of_effect, given])).not());
        }
        ways.push(Formula::When(format!("{}.exists(t, {})", self.subject.taints(), Formula::all(own).text())));
        Formula::any(ways)
    }
}

/// Maximum number of nested steps: cel-go parses 250 nested brackets.
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

/// The variable with the labels that rules see for this key.
pub(in crate::native) fn labels_of(selection: &Selection<'_>, key: &str) -> &'static str {
    let guarded = selection.set().is_protected(key) || crate::keys::restriction::is_own(key);
    if guarded { "variables.trustedLabels" } else { LABELS }
}

fn capacity(subject: Subject, resource: &str, comparison: Comparison) -> Formula {
    let field = format!("{}.?status.?capacity[?{}]", subject.object(), quote(resource));
    let compare = |text: &str| {
        Formula::When(format!(
            "(quantity({text}).compareTo(quantity({})) {} 0)",
            quote(&comparison.with()),
            comparison.sign()
        ))
    };
    if !resource.contains('/') {
        // A missing resource that every node has is unknown.
        return Formula::all([Formula::When(format!("{field}.hasValue()")), compare(&format!("{field}.value()"))]);
    }
    let or_zero = format!("{field}.orValue(\"0\")");
    let holds = compare(&or_zero);
    if !comparison.holds(Quantity::ZERO) {
        return holds;
    }
    // A device plugin registers after the kubelet, so absence counts only if the node has been ready for a while.
    let some = Formula::When(format!("(quantity({or_zero}).compareTo(quantity(\"0\")) != 0)"));
    Formula::all([
        Formula::any([some, Formula::When(subject.of_two("variables.settled", "variables.oldSettled").to_owned())]),
        holds,
    ])
}
