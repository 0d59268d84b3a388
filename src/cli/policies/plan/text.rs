//! A plan as text for people.

use std::collections::{BTreeMap, BTreeSet};

use anstyle::AnsiColor;

use crate::cli::policies::plan::document::{Change, KeyOfProgram, NodePlan, Op, Plan, Policies, Summary};
use crate::cli::policies::plan::named::named;
use crate::cli::policies::plan::{autoscalers, gates, kueue, readiness};
use crate::cli::shared::terminal_lines::Lines;
use crate::scheduling::{AffectedDaemonSet, AffectedPod, Effect};
use nodegate_base::text::{counted, or_quotes};
use nodegate_policy::explain::FieldName;

/// From how many values of one key on they are counted instead of shown.
const SHOWN_VALUES: usize = 10;

/// A line; changes have a color.
struct Line {
    op: Option<Op>,
    text: String,
    nodes: String,
}

impl Line {
    fn add_to(&self, lines: &mut Lines, indent: &str) {
        let Self { op, text, nodes } = self;
        match op {
            None => lines.add(indent, &format!("{text}{nodes}")),
            Some(op) => lines.add_colored(indent, color(*op), text, nodes),
        }
    }
}

fn color(op: Op) -> AnsiColor {
    match op {
        Op::Add => AnsiColor::Green,
        Op::Change => AnsiColor::Yellow,
        Op::Remove => AnsiColor::Red,
    }
}

/// The plan as text: by node, or each change once.
pub(super) fn of(plan: &Plan, by_node: bool, colors: bool) -> Lines {
    let mut lines = Lines::new(colors);
    policies(&mut lines, &plan.policies);
    if by_node {
        plan.nodes.iter().for_each(|node| of_node(&mut lines, node));
    } else {
        for line in of_changes(&plan.nodes) {
            line.add_to(&mut lines, "");
        }
    }
    pods(&mut lines, plan);
    lines.add("", &summary(plan));
    let Summary { removals, held_back, .. } = plan.summary;
    if held_back {
        let nodes = counted(removals, "node", "nodes");
        lines.add("", &format!(
            "The controller holds removals on {nodes} back until `nodegate apply --confirm`: they exceed --max-removals, or no rule remains"
        ));
    }
    if !plan.trusting.is_empty() {
        let rules = plan.trusting.join(", ");
        lines.add("", &format!("Rules that trust values set by kubelets (trustKubelet): {rules}"));
    }
    for KeyOfProgram { policy, field, message, help } in &plan.keys_of_programs {
        let policy = policy.iter().map(|policy| format!("policy {policy:?}, ")).collect::<String>();
        let help = help.iter().map(|help| format!("; {help}")).collect::<String>();
        lines.add("", &format!("Warning: {policy}{field}: {message}{help}"));
    }
    for found in &plan.shut_out {
        lines.add("", &format!("Warning: {}", gates::in_words(found)));
    }
    for found in &plan.kueue {
        lines.add("", &format!("Warning: {}", kueue::in_words(found)));
    }
    for found in &plan.late_taints {
        lines.add("", &format!("Warning: {}", readiness::in_words(found)));
    }
    for found in &plan.autoscalers {
        lines.add("", &format!("Warning: {}", autoscalers::in_words(found)));
    }
    if !plan.autoscalers.is_empty() {
        lines.add("", "`nodegate export autoscaler` prints what autoscalers must be told");
    }
    lines
}

/// What a cluster gets instead of the policies in force.
fn policies(lines: &mut Lines, policies: &Policies) {
    let Policies { names, hash: _, in_force, added, replaced, removed } = policies;
    if in_force.is_none() && added.is_empty() {
        return;
    }
    let differ = [("adds", added), ("replaces", replaced), ("removes", removed)];
    let differ: Vec<String> = differ
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(verb, names)| format!("{verb} {}", names.join(", ")))
        .collect();
    let differ = if differ.is_empty() { "as in force".to_owned() } else { differ.join("; ") };
    lines.add("", &format!("policies: {} ({differ})", names.join(", ")));
}

fn of_node(lines: &mut Lines, plan: &NodePlan) {
    let line = |op, text| Line { op, text, nodes: String::new() };
    let mut of_this: Vec<Line> = plan.changes.iter().map(|change| line(Some(change.op), with_rule(change))).collect();
    of_this
        .extend(plan.deferred.iter().map(|change| line(Some(change.op), format!("deferred: {}", with_rule(change)))));
    let unknown = plan.unknown.iter().map(|fault| unknown(&fault.policy, &fault.rule, &[(&*fault.reason, 1)].into()));
    of_this.extend(unknown.chain(remarks(plan)).map(|text| line(None, text)));
    lines.add("", &format!("{}{}", plan.node, if of_this.is_empty() { "   no changes" } else { "" }));
    of_this.iter().for_each(|line| line.add_to(lines, "  "));
}

/// What is said of a node beside its changes and unknown rules.
fn remarks(plan: &NodePlan) -> impl Iterator<Item = String> {
    let notes = plan.notes.iter().map(|note| format!("note: {}", note.message));
    let violations = plan.violations.iter().map(|violation| format!("violation: {}", violation.message));
    let unreadable = plan.unreadable.iter().map(|why| format!("unreadable: {why}"));
    notes.chain(violations).chain(unreadable)
}

/// A rule that could not be evaluated: how often for each reason, and on which nodes.
#[derive(Default)]
struct Fault<'a> {
    reasons: BTreeMap<&'a str, usize>,
    nodes: Vec<&'a str>,
}

/// A rule that could not be evaluated, on one node or on several.
fn unknown(policy: &str, rule: &str, reasons: &BTreeMap<&str, usize>) -> String {
    let most = reasons.iter().max_by_key(|(_, nodes)| **nodes).map(|(reason, _)| *reason).unwrap_or_default();
    let others = match reasons.len() {
        0 | 1 => String::new(),
        2 => " (and 1 other reason)".to_owned(),
        more => format!(" (and {} other reasons)", more - 1),
    };
    format!("unknown: rule {policy}/{rule} could not be evaluated: {most}{others}")
}

/// Each change and each remark once, with its nodes.
fn of_changes(nodes: &[NodePlan]) -> Vec<Line> {
    let mut changes: BTreeMap<(bool, Change), Vec<&str>> = BTreeMap::new();
    let mut said: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut faults: BTreeMap<(&str, &str), Fault<'_>> = BTreeMap::new();
    for node in nodes {
        for fault in &node.unknown {
            let Fault { reasons, nodes } = faults.entry((&fault.policy, &fault.rule)).or_default();
            *reasons.entry(&fault.reason).or_default() += 1;
            nodes.push(&node.node);
        }
        let all = node.changes.iter().map(|change| (false, change));
        for (deferred, change) in all.chain(node.deferred.iter().map(|change| (true, change))) {
            changes.entry((deferred, change.clone())).or_default().push(&node.node);
        }
        for remark in remarks(node) {
            said.entry(remark).or_default().push(&node.node);
        }
    }
    // A rule that computes a value for each node would fill the page.
    let mut values: BTreeMap<(bool, Change), usize> = BTreeMap::new();
    for (deferred, change) in changes.keys() {
        *values.entry((*deferred, without_values(change))).or_default() += 1;
    }
    let mut shown: BTreeMap<(FieldName, String, bool, Op, String), Vec<&str>> = BTreeMap::new();
    for ((deferred, change), nodes) in &changes {
        let count = values.get(&(*deferred, without_values(change))).copied().unwrap_or_default();
        let text = if count > SHOWN_VALUES { with_count(change, count) } else { with_rule(change) };
        let order = (change.field, change.key.clone(), *deferred, change.op, text);
        shown.entry(order).or_default().extend(nodes);
    }
    let deferred = |deferred: bool| if deferred { "deferred: " } else { "" };
    let line = |op, text, nodes: &[&str]| Line { op, text, nodes: format!(": {}", named(nodes)) };
    let changes = shown.into_iter().map(|((_, _, later, op, text), mut nodes)| {
        nodes.sort_unstable();
        line(Some(op), format!("{}{text}", deferred(later)), &nodes)
    });
    let faults = faults
        .into_iter()
        .map(|((policy, rule), Fault { reasons, nodes })| line(None, unknown(policy, rule, &reasons), &nodes));
    let said = said.into_iter().map(|(remark, nodes)| line(None, remark, &nodes));
    changes.chain(faults).chain(said).collect()
}

fn without_values(change: &Change) -> Change {
    Change { value: None, was: None, ..change.clone() }
}

/// `+ label tier=gold (rule fleet/gold)`
pub(in crate::cli) fn with_rule(change: &Change) -> String {
    let equals = change.value.as_deref().or(change.was.as_deref());
    let equals = equals.filter(|value| !value.is_empty() || change.field != FieldName::Taint);
    let equals = equals.map(|value| format!("={}", or_quotes(value))).unwrap_or_default();
    let was = match (&change.was, change.op) {
        (Some(was), Op::Change) => format!(", was {}", or_quotes(was)),
        _ => String::new(),
    };
    format!("{}{equals}{}{was}{}", start(change), effect(change), end(change))
}

/// The same without the time of a removal, for one that is held back.
pub(in crate::cli) fn without_time(change: &Change) -> String {
    with_rule(&Change { after_seconds: change.after_seconds.map(|_| 0), ..change.clone() })
}

/// The same for a key with many values.
fn with_count(change: &Change, count: usize) -> String {
    format!("{}{}, {count} different values{}", start(change), effect(change), end(change))
}

fn start(change: &Change) -> String {
    let sign = match change.op {
        Op::Add => '+',
        Op::Change => '~',
        Op::Remove => '-',
    };
    format!("{sign} {} {}", change.field.as_str(), change.key)
}

fn effect(change: &Change) -> String {
    change.effect.as_ref().map(|effect| format!(":{effect}")).unwrap_or_default()
}

fn end(change: &Change) -> String {
    let rule = change.policy.as_ref().zip(change.rule.as_ref()).map(|(policy, rule)| format!("rule {policy}/{rule}"));
    let told = match (rule, change.op, change.after_seconds) {
        (Some(rule), Op::Remove, _) => format!("not assigned by {rule} anymore"),
        (Some(rule), _, _) => rule,
        (None, _, Some(_)) => "not assigned by any rule anymore".to_owned(),
        (None, _, None) => return String::new(),
    };
    let after = change.after_seconds.filter(|seconds| *seconds > 0);
    let after = after.map(|seconds| format!(", removed after {seconds} s")).unwrap_or_default();
    format!(" ({told}{after})")
}

/// The pods of one controller that something happens to for one reason.
#[derive(Default)]
struct PodGroup<'a> {
    pods: Vec<&'a AffectedPod>,
    nodes: BTreeSet<&'a str>,
}

fn pods(lines: &mut Lines, plan: &Plan) {
    if let Some(why) = &plan.pods_unknown {
        lines.add("", &format!("The effect on pods is unknown: {why}"));
    }
    let mut groups: BTreeMap<(Effect, &str, &str, &str, Option<i64>), PodGroup<'_>> = BTreeMap::new();
    for pod in &plan.pods {
        let owner = pod.owner.as_deref().unwrap_or(&pod.name);
        let group = groups.entry((pod.effect, &pod.namespace, owner, &pod.reason, pod.after_seconds)).or_default();
        group.pods.push(pod);
        group.nodes.extend(pod.node.as_deref());
    }
    for ((effect, namespace, owner, reason, after), group) in groups {
        lines.add("", &of_pods(effect, namespace, owner, reason, after, &group));
    }
    for AffectedDaemonSet { namespace, name, starts, stops } in &plan.daemon_sets {
        let on = |verb: &str, nodes: &[String]| {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            (!nodes.is_empty()).then(|| format!("{verb} pods on {}", named(&nodes)))
        };
        let both: Vec<String> = [on("starts", starts), on("stops", stops)].into_iter().flatten().collect();
        lines.add("", &format!("DaemonSet {namespace}/{name}: {}", both.join("; ")));
    }
}

fn of_pods(
    effect: Effect,
    namespace: &str,
    owner: &str,
    reason: &str,
    after: Option<i64>,
    PodGroup { pods, nodes }: &PodGroup<'_>,
) -> String {
    let what = match effect {
        Effect::Evicted => "evicted",
        Effect::Unschedulable => "unschedulable",
        Effect::TopologyChanged => "topology changed",
        Effect::Schedulable => "schedulable",
    };
    let which = match pods.first().filter(|pod| pod.owner.is_some()) {
        Some(_) => format!("{} of {namespace}/{owner}", counted(pods.len(), "pod", "pods")),
        None => format!("pod {namespace}/{owner}"),
    };
    let nodes: Vec<&str> = nodes.iter().copied().collect();
    let place = if nodes.is_empty() { String::new() } else { format!(" on {}", named(&nodes)) };
    let after = after.map(|seconds| format!(" after {seconds} s")).unwrap_or_default();
    let left = pods.iter().filter_map(|pod| pod.nodes_left).min();
    let left = left.filter(|_| matches!(effect, Effect::Evicted | Effect::Unschedulable) && !nodes.is_empty());
    let left = match left {
        Some(0) => "; no node accepts such a pod anymore".to_owned(),
        Some(left) => format!("; {} such a pod", counted(left, "node accepts", "nodes accept")),
        None => String::new(),
    };
    format!("{what}{after}: {which}{place}: {reason}{left}")
}

fn summary(plan: &Plan) -> String {
    let Summary { nodes, changed, deferred, removals: _, held_back: _, unreadable, pods, evicted } = plan.summary;
    let mut text =
        format!("{}: {changed} to change, {deferred} with deferred changes", counted(nodes, "node", "nodes"));
    if unreadable > 0 {
        text.push_str(&format!(", {unreadable} unreadable"));
    }
    if pods > 0 {
        text.push_str(&format!("; {} affected, {evicted} evicted", counted(pods, "pod", "pods")));
    }
    text
}
