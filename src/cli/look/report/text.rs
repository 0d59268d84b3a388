//! A report as text for people.

use crate::cli::look::report::cost::HOURS_A_MONTH;
use crate::cli::look::report::document::{
    AtGate, Conflict, Contradicted, Cost, Disagreed, Drift, LeftAlone, Missed, MissedWrite, NativeFailure, PoolNodes,
    Rejected, Report, Violation,
};
use crate::cli::look::report::{devices, topologies};
use crate::cli::policies::plan::named::named;
use crate::cli::policies::plan::text::{with_rule, without_time};
use crate::cli::shared::output;
use nodegate_base::text::{counted, on_a_line, or_quotes};
use std::collections::BTreeMap;

/// How many values of a label are listed. A label with a value of its own on each node would fill the page.
const VALUES_MAX: usize = 20;

/// The whole report.
pub(super) fn of(report: &Report) -> String {
    let mut text =
        format!("{}; policies: {}\n", counted(report.nodes, "node", "nodes"), report.policies.names.join(", "));
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let lines: Vec<String> = lines.iter().map(|line| format!("  {}\n", on_a_line(line))).collect();
            text.push_str(&format!("\n{title}:\n{}", lines.concat()));
        }
    };
    for (label, values) in &report.by {
        let mut lines: Vec<(usize, String)> =
            values.iter().map(|(value, nodes)| (*nodes, format!("{nodes:>6}  {}", or_quotes(value)))).collect();
        lines.sort_by(|one, other| other.cmp(one));
        if lines.len() > VALUES_MAX {
            let more = lines.split_off(VALUES_MAX);
            let nodes: usize = more.iter().map(|(nodes, _)| nodes).sum();
            lines.push((nodes, format!("{nodes:>6}  ({} more values)", more.len())));
        }
        let without = report.without.get(label).filter(|without| **without > 0);
        lines.extend(without.map(|without| (*without, format!("{without:>6}  (without the label)"))));
        section(&format!("By {}", on_a_line(label)), lines.into_iter().map(|(_, line)| line).collect());
    }
    let unknown: Vec<&str> = report.pools_unknown.iter().map(String::as_str).collect();
    let any = (!unknown.is_empty()).then(|| format!("{:>6}  any, unknown of {}", 0, named(&unknown)));
    section("Pools", report.pools.iter().map(pool).chain(any).collect());
    let disagreements = report.pools.iter().flat_map(|pool| {
        let line = |found: &Disagreed| format!("pool {}, {}: {}", pool.pool, found.label, found.text);
        pool.disagreements.iter().map(line)
    });
    section("Labels that no new node gets, because the nodes of its pool do not agree", disagreements.collect());
    section("Violations", by_what(report.violations.iter().map(violation)));
    section("Removals are held back", report.held_back.iter().cloned().collect());
    section(
        "Drift from the policies",
        by_what(report.drift.iter().map(|drift| (drifted(report, drift), &*drift.node))),
    );
    section("Conflicts", report.conflicts.iter().map(conflict).collect());
    section(
        "Not repaired, because other writers keep reverting it",
        report.left_alone.iter().map(left_alone).collect(),
    );
    section("Written without admission", report.missed.iter().map(missed).collect());
    section(
        "Contradictions to what proves pools",
        report
            .contradictions
            .iter()
            .map(|Contradicted { node, contradiction: found }| {
                format!("node {node}: {} ({})", found.in_words(), found.asserted)
            })
            .collect(),
    );
    section("Nodes that wait at a gate", by_what(report.gates.iter().map(at_gate)));
    section("Topologies", report.topologies.iter().map(topologies::in_words).collect());
    section("Wrong places in a topology", topologies::faults(&report.topologies));
    section(
        "GPU labels that differ from the devices of the node",
        by_what(report.devices.iter().map(|found| (devices::in_words(found), &*found.node))),
    );
    section("Rejected claims of kubelets", by_what(report.rejected.iter().map(rejected)));
    section(
        "Native policies that the API server could not evaluate since it was started",
        report.native_failures.iter().map(native_failure).collect(),
    );
    let unmanaged: Vec<&str> = report.unmanaged.iter().map(String::as_str).collect();
    section("No rule assigns anything to", if unmanaged.is_empty() { Vec::new() } else { vec![named(&unmanaged)] });
    let stranded = report.stranded.iter().map(|pod| {
        let (namespace, name, node) = (&pod.namespace, &pod.name, pod.node.as_deref().unwrap_or_default());
        format!("pod {namespace}/{name} on {node}: {}", pod.reason)
    });
    section("Stranded pods", stranded.collect());
    if !report.cost.is_empty() {
        text.push_str(&format!("\n{}", cost(&report.cost)));
    }
    text
}

fn pool(PoolNodes { pool, nodes, unknown, remembered, disagreements: _ }: &PoolNodes) -> String {
    let labels: Vec<String> = remembered.iter().map(|(key, value)| format!("{key}={}", or_quotes(value))).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("; new nodes get {}", labels.join(", ")) };
    let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
    let unknown = if unknown.is_empty() { String::new() } else { format!(" (unknown of {})", named(&unknown)) };
    format!("{nodes:>6}  {pool}{unknown}{labels}")
}

/// What several nodes have in common, and their names.
pub(super) fn grouped<'a, Key: Ord>(of_nodes: impl Iterator<Item = (Key, &'a str)>) -> BTreeMap<Key, Vec<&'a str>> {
    let mut groups: BTreeMap<Key, Vec<&str>> = BTreeMap::new();
    for (key, node) in of_nodes {
        groups.entry(key).or_default().push(node);
    }
    groups.values_mut().for_each(Vec::dedup);
    groups
}

/// The same thing of several nodes in one line.
fn by_what<'a>(of_nodes: impl Iterator<Item = (String, &'a str)>) -> Vec<String> {
    grouped(of_nodes).into_iter().map(|(what, nodes)| format!("{what}: {}", named(&nodes))).collect()
}

fn violation(violation: &Violation) -> (String, &str) {
    let Violation { node, policy, rule, mode, key: _, message } = violation;
    let rule = if policy.is_empty() { String::new() } else { format!(" {policy}/{rule}") };
    (format!("{}{rule}: {message}", mode.as_str()), node)
}

/// What drifted, as a line.
pub(super) fn drifted(report: &Report, drift: &Drift) -> String {
    if report.held_back.is_some() { without_time(&drift.change) } else { with_rule(&drift.change) }
}

fn conflict(conflict: &Conflict) -> String {
    let Conflict { field, key, policy, rule, over, nodes } = conflict;
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let field = field.as_str();
    format!(
        "{field} {key}: rule {policy}/{rule} takes precedence over rule {}/{}: {}",
        over.policy,
        over.rule,
        named(&nodes)
    )
}

fn left_alone(LeftAlone { node, field, key, policy, writers, writer_names: _ }: &LeftAlone) -> String {
    format!("{field} {key} of node {node} (policy {policy}), last reverted by {writers}")
}

fn missed(Missed { node, what, keys }: &Missed) -> String {
    let keys = keys.join(", ");
    match what {
        MissedWrite::Joined => format!("node {node} joined without the labels {keys}"),
        MissedWrite::Changed => format!("protected labels of node {node} changed: {keys}"),
    }
}

fn native_failure(NativeFailure { policy, error_type, count }: &NativeFailure) -> String {
    format!("policy {policy}: {} ({error_type})", counted(*count, "time", "times"))
}

fn at_gate(AtGate { node, policy, rule, missing, .. }: &AtGate) -> (String, &str) {
    (format!("{policy}/{rule} waits for {}", missing.join(", ")), node)
}

fn rejected(Rejected { node, text, .. }: &Rejected) -> (String, &str) {
    (text.clone(), node)
}

fn cost(costs: &[Cost]) -> String {
    let label = costs.first().map(|cost| cost.label.as_str()).unwrap_or_default();
    let priced = costs.iter().any(|cost| cost.per_hour.is_some());
    let currency = costs.iter().find_map(|cost| cost.currency.as_deref()).unwrap_or_default();
    let (hour, month) = (format!("{currency} per hour"), format!("{currency} per month"));
    let columns = ["value", "nodes", "cpu", "GiB", "gpu", &hour, &month, "without price"];
    let shown = if priced { columns.len() } else { columns.len() - 3 };
    let mut table = output::table(&columns[..shown]);
    for Cost { label: _, value, nodes, cpu, memory_gib, gpu, per_hour, currency: _, unpriced } in costs {
        let price = |price: Option<f64>| price.map_or_else(String::new, |price| format!("{price:.2}"));
        let cells = [
            value.as_deref().map_or("(without the label)", or_quotes).to_owned(),
            nodes.to_string(),
            format!("{}", (cpu * 100.0).round() / 100.0),
            format!("{memory_gib:.1}"),
            gpu.to_string(),
            price(*per_hour),
            price(per_hour.map(|hour| hour * HOURS_A_MONTH)),
            unpriced.map(|count| count.to_string()).unwrap_or_default(),
        ];
        table.add_row(cells.into_iter().take(shown));
    }
    format!("Cost by {}:\n{}\n", on_a_line(label), table.trim_fmt())
}
