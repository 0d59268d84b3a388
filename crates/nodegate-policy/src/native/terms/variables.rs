//! The variables of native policies: the requester, the node, which rules match, and the values that they assign.

use serde_json::{Value as Json, json};

use crate::facts::pending_taints::PendingTaints;
use crate::facts::request::UNINITIALIZED_TAINT;
use crate::keys::Field;
use crate::keys::control_plane::ELSEWHERE;
use crate::native::terms::formula::{Formula, is_own, list, quote};
use crate::native::terms::matching::{self, labels_of};
use crate::native::terms::request::{self, KUBELET};
use crate::native::terms::selection::{AssignedKey, Selection, rule_variable, value, variable_name};
use crate::native::terms::subject::Subject;
use crate::set::rule::Strength;

/// Named expressions. Each may use the ones before it.
#[derive(Clone, Debug, Default)]
pub(in crate::native) struct Variables(Vec<(String, String)>);

impl Variables {
    /// The variables about the request that any policy may need.
    pub(in crate::native) fn new(pending: &PendingTaints) -> Self {
        let uninitialized = |taints: &str| format!("{taints}.exists(t, t.key == {})", quote(UNINITIALIZED_TAINT));
        let (now, before) = (uninitialized("variables.taints"), uninitialized("variables.oldTaints"));
        let mut variables = Self::default();
        for (name, text) in [
            ("kubelet", KUBELET),
            ("controlPlane", &control_plane()),
            ("create", r#"request.operation == "CREATE""#),
            ("labels", "object.metadata.?labels.orValue({})"),
            ("oldLabels", "oldObject == null ? {} : oldObject.metadata.?labels.orValue({})"),
            ("annotations", "object.metadata.?annotations.orValue({})"),
            ("oldAnnotations", "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})"),
            ("taints", "object.?spec.?taints.orValue([])"),
            ("ruleTaints", &not_pending(pending)),
            ("oldTaints", "oldObject == null ? [] : oldObject.?spec.?taints.orValue([])"),
            // For labels that a kubelet may not set, the stored values are used instead of its own.
            ("trustedLabels", "variables.kubelet ? variables.oldLabels : variables.labels"),
            ("initial", &format!("variables.create || ({before} && !{now})")),
            ("settled", &settled("object")),
            ("oldSettled", &settled("oldObject")),
        ] {
            variables.add(name, text);
        }
        for (name, text) in crate::native::terms::node_info::variables() {
            variables.add(name, text);
        }
        variables
    }

    /// Adds a variable.
    pub(in crate::native) fn add(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.0.push((name.into(), text.into()));
    }

    /// Adds whether these rules match, in the order of evaluation.
    pub(in crate::native) fn add_rules(&mut self, selection: &Selection<'_>, rules: &[usize]) {
        for at in rules {
            let rule = selection.rule(*at);
            let matches = matching::matcher(selection, Subject::Rule(*at), &rule.matcher);
            let matches = match rule.strength {
                Strength::Default => Formula::all([Formula::When("variables.initial".to_owned()), matches]),
                _ => matches,
            };
            self.add(variable_name(selection, *at), matches.text());
        }
    }

    /// Adds the values that rules assign, as maps by key: `desiredLabels`, `desiredAnnotations`, and `desiredTaints` as a list.
    pub(in crate::native) fn add_desired(&mut self, selection: &Selection<'_>, assigned_keys: &[AssignedKey]) {
        let of = |field: Field| assigned_keys.iter().filter(move |assigned| assigned.0 == field);
        let map = |field: Field| {
            let entry = |assigned: &AssignedKey| {
                format!("?{}: {}", quote(&assigned.1), desired(selection, assigned, &quote_value))
            };
            braces('{', of(field).map(entry).collect(), '}')
        };
        self.add("desiredLabels", map(Field::Label));
        self.add("desiredAnnotations", map(Field::Annotation));
        let taint = |assigned: &AssignedKey| {
            let (key, effect) = assigned.1.rsplit_once(':').unwrap_or_default();
            let object = |value: &str| {
                format!("{{\"key\": {}, \"value\": {}, \"effect\": {}}}", quote(key), quote(value), quote(effect))
            };
            format!("?{}", desired(selection, assigned, &object))
        };
        self.add("desiredTaints", braces('[', of(Field::Taint).map(taint).collect(), ']'));
    }

    /// The variables that `texts` need, as the field of a policy.
    pub(in crate::native) fn needed_by(self, texts: &str) -> Json {
        let mut needed = texts.to_owned();
        let mut kept: Vec<Json> = Vec::new();
        for (name, expression) in self.0.into_iter().rev() {
            if mentions(&needed, &name) {
                needed.push('\n');
                needed.push_str(&expression);
                kept.push(json!({"name": name, "expression": expression}));
            }
        }
        kept.reverse();
        kept.into()
    }
}

/// The taints that rules see: nodegate itself adds and removes the others.
fn not_pending(pending: &PendingTaints) -> String {
    let keys = list(pending.all().iter().map(|id| id.key.as_str()));
    // All pending taints have this effect.
    let pending = Formula::When(format!("(t.effect == \"NoSchedule\" && t.key in {keys})"));
    format!("variables.taints.filter(t, {})", Formula::any([is_own("t.key"), pending]).not().text())
}

/// Whether the requester is the control plane, or a part of it that is elsewhere.
fn control_plane() -> String {
    format!("{} || request.userInfo.username in {}", request::control_plane(), list(ELSEWHERE))
}

/// Whether the node has been Ready for two minutes by the kubelet's clock.
fn settled(object: &str) -> String {
    format!("{object}{SETTLED}")
}

const SETTLED: &str = r#".?status.?conditions.orValue([]).exists(c, c.type == "Ready" && c.status == "True" && !(c.?lastHeartbeatTime.orValue(null) != null && c.?lastTransitionTime.orValue(null) != null && timestamp(c.lastHeartbeatTime) - timestamp(c.lastTransitionTime) < duration("120s")))"#;

fn mentions(text: &str, name: &str) -> bool {
    let wanted = format!("variables.{name}");
    text.match_indices(&wanted).any(|(at, found)| {
        let next = text.get(at + found.len()..).and_then(|rest| rest.chars().next());
        !next.is_some_and(|next| next.is_ascii_alphanumeric() || next == '_')
    })
}

fn braces(open: char, lines: Vec<String>, close: char) -> String {
    if lines.is_empty() { format!("{open}{close}") } else { format!("{open}\n  {}\n{close}", lines.join(",\n  ")) }
}

fn quote_value(value: &str) -> String {
    quote(value)
}

/// The desired value of a key as an optional, formatted by `as_value`.
fn desired(selection: &Selection<'_>, assigned: &AssignedKey, as_value: &dyn Fn(&str) -> String) -> String {
    let mut stronger: Vec<Formula> = Vec::new();
    let mut ways = Vec::new();
    for at in selection.writers_of(assigned) {
        let rule = selection.rule(at);
        let with = value(rule, assigned);
        let matches = Formula::When(rule_variable(selection, at));
        let mut when = vec![matches.clone()];
        when.extend(stronger.iter().cloned().map(Formula::not));
        let fits = (rule.strength == Strength::Default).then(|| absent_or(selection, assigned, with));
        let fits: Vec<Formula> = fits.into_iter().chain(may_be_added(selection, at, assigned, with)).collect();
        if !fits.is_empty() {
            // If the value of the winning rule is not applied, a weaker rule must not replace it.
            stronger.push(matches);
        }
        when.extend(fits);
        ways.push(format!("({} ? optional.of({}) : optional.none())", Formula::all(when).text(), as_value(with)));
    }
    match ways.as_slice() {
        [one] => one.clone(),
        _ => format!("[?{}][?0]", ways.join(", ?")),
    }
}

/// Whether a key is absent or has this value.
fn absent_or(selection: &Selection<'_>, assigned: &AssignedKey, value: &str) -> Formula {
    let (key, value) = (quote(&assigned.1), quote(value));
    let map = match assigned.0 {
        Field::Label => labels_of(selection, &assigned.1),
        Field::Annotation => "variables.annotations",
        Field::Taint => {
            let (key, effect) = assigned.1.rsplit_once(':').unwrap_or_default();
            return Formula::When(format!(
                "!variables.taints.exists(t, t.key == {} && t.effect == {} && t.?value.orValue(\"\") != {value})",
                quote(key),
                quote(effect)
            ));
        }
    };
    Formula::When(format!("(!({key} in {map}) || {map}[{key}] == {value})"))
}

/// NoExecute evicts pods, so it is not added to an existing node without `evict: true`.
fn may_be_added(selection: &Selection<'_>, at: usize, assigned: &AssignedKey, value: &str) -> Option<Formula> {
    let (key, effect) = assigned.1.rsplit_once(':').filter(|_| assigned.0 == Field::Taint)?;
    if effect != "NoExecute" || selection.rule(at).evict {
        return None;
    }
    let there = |taints: &str, and: &str| {
        format!("{taints}.exists(t, t.key == {} && t.effect == \"NoExecute\"{and})", quote(key))
    };
    let with_value = format!(" && t.?value.orValue(\"\") == {}", quote(value));
    Some(Formula::any([
        Formula::When("variables.initial".to_owned()),
        Formula::When(there("variables.oldTaints", "")),
        Formula::When(there("variables.taints", &with_value)),
    ]))
}
