//! The sections of the page.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use crate::cli::look::report::document::{
    AtGate, Conflict, LeftAlone, Missed, MissedWrite, NativeFailure, PoolNodes, Report, Violation,
};
use crate::cli::look::report::page::charts::{self, Bar};
use crate::cli::look::report::page::parts::{
    BARS_MAX, Listed, REPORT, counted_bar, figure, fold, numbers, of_report, ruled, valued,
};
use crate::cli::look::report::page::table::{Column, Rows, nodes, table};
use crate::cli::look::report::page::{
    Content, Page, Section, Tile, claims, cost, counted, devices, history, text, topologies,
};
use crate::cli::look::report::text::drifted;
use crate::cli::look::report::{self, Source};

const NODES: Column<'_> = Column::Text("Nodes");
const COUNT: Column<'_> = Column::Number("Count");

/// All sections, in their order.
pub(super) fn all(page: &Page<'_>) -> anyhow::Result<Vec<Section>> {
    let report = page.report;
    let mut sections = vec![fleet(report)];
    if !report.pools.is_empty() {
        sections.extend([pools(report), claims::contradictions(report)]);
        sections.extend(claims::disagreements(report));
    }
    sections.extend([violations(report), missing(report), drift(report), conflicts(report)]);
    // Files do not say what the webhook and the controller did.
    if let Source::Cluster { left_alone_unknown, native_unknown, .. } = page.source {
        let native = native_failures(report, native_unknown.as_deref());
        sections.extend([left_alone(report, left_alone_unknown.as_deref()), missed(report), native]);
    }
    sections.push(gates(report));
    sections.extend((!report.topologies.is_empty()).then(|| topologies::topologies(report)));
    let unknown = match page.source {
        Source::Cluster { devices_unknown, .. } => devices_unknown.as_deref(),
        Source::Files(_) => None,
    };
    sections.extend((unknown.is_some() || !report.devices.is_empty()).then(|| devices::devices(report, unknown)));
    sections.push(claims::rejected(report));
    sections.push(unmanaged(report));
    sections.extend(page.stranded.then(|| stranded(report)));
    if let Some(recorded) = &page.recorded {
        sections.push(history::section(recorded, page.now)?);
    }
    if let Some(first) = report.cost.first() {
        sections.push(cost::section(&text(&first.label), &report.cost));
    }
    Ok(sections)
}

fn fleet(report: &Report) -> Section {
    let figures = report.by.iter().map(|(label, values)| by_label(label, values, report.without.get(label).copied()));
    let content = match report.by.len() {
        0 => Content::Nothing("No policy sets a label. To count the nodes by a label, use --by.".to_owned()),
        _ => Content::Shown(html! { div.charts { @for figure in figures { (figure) } } }),
    };
    Section { id: "fleet", title: "Nodes by label", tile: Tile::plain(report.nodes, "node", "nodes"), content }
}

fn pools(report: &Report) -> Section {
    let row = |pool: Markup, proven: usize, unknown: &[String], remembered: &BTreeMap<String, String>| {
        let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let labels = html! {
            @for (at, (key, value)) in remembered.iter().enumerate() {
                @if at > 0 { ", " }
                code { (text(key)) "=" (valued(value)) }
            }
        };
        vec![pool, html! { (proven) }, html! { (unknown.len()) }, nodes(&unknown), labels]
    };
    let rows = report.pools.iter().map(|PoolNodes { pool, nodes: proven, unknown, remembered, disagreements: _ }| {
        row(html! { (text(pool)) }, *proven, unknown, remembered)
    });
    let of_any = &report.pools_unknown;
    let any = (!of_any.is_empty()).then(|| row(html! { "any" }, 0, of_any, &BTreeMap::new()));
    let unproven = report.pools.iter().flat_map(|pool| &pool.unknown).chain(&report.pools_unknown);
    let unproven: BTreeSet<&str> = unproven.map(String::as_str).collect();
    let columns = [
        Column::Text("Pool"),
        Column::Number("Proven"),
        Column::Number("Unknown"),
        Column::Text("Unknown of"),
        Column::Text("New nodes get"),
    ];
    Listed {
        id: "pools",
        title: "Nodes by pool",
        tile: Tile::alert(unproven.len(), "node without a known pool", "nodes without a known pool"),
        nothing: "No policy has pools.",
        caption: "Nodes that are proven to belong to each pool, and those of whose kubelets too little is recorded",
        columns: &columns,
        rows: of_report(rows.chain(any).collect::<Vec<_>>().into_iter()),
    }
    .section()
}

fn by_label(label: &str, values: &BTreeMap<String, usize>, without: Option<usize>) -> Markup {
    let mut counts: Vec<(String, usize)> = values.iter().map(|(value, nodes)| (valued(value), *nodes)).collect();
    counts.sort_by(|(one, one_nodes), (other, other_nodes)| (other_nodes, one).cmp(&(one_nodes, other)));
    let without = without.filter(|without| *without > 0).map(|without| ("(no label)".to_owned(), without));
    let numbers = numbers("Value", &counts.iter().chain(&without).cloned().collect::<Vec<_>>());
    let values = counted(counts.len(), "value", "values");
    let summary = format!("Bar chart of the nodes by {}: {values}.", text(label));
    let mut bars: Vec<Bar> = counts.into_iter().map(|(value, nodes)| counted_bar(value, nodes)).collect();
    fold(&mut bars, BARS_MAX - usize::from(without.is_some()));
    bars.extend(without.map(|(value, nodes)| counted_bar(value, nodes)));
    figure(&text(label), charts::bars(&bars), &summary, numbers)
}

/// What several nodes have in common, and their names; what most nodes have comes first.
fn grouped<'a, Key: Ord>(of_nodes: impl Iterator<Item = (Key, &'a str)>) -> Vec<(Key, Vec<&'a str>)> {
    let mut groups: Vec<_> = report::text::grouped(of_nodes).into_iter().collect();
    groups.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    groups
}

fn violations(report: &Report) -> Section {
    let found = &report.violations;
    let by_rule = grouped(found.iter().map(|found| (ruled(&found.policy, &found.rule), &*found.node)));
    let by_rule: Vec<(String, usize)> = by_rule.into_iter().map(|(rule, nodes)| (rule, nodes.len())).collect();
    let numbers = numbers("Rule", &by_rule);
    let mut bars: Vec<Bar> = by_rule.into_iter().map(|(rule, nodes)| counted_bar(rule, nodes)).collect();
    fold(&mut bars, BARS_MAX);
    let key = |found: &Violation| (found.mode.as_str(), ruled(&found.policy, &found.rule), text(&found.message));
    let groups = grouped(found.iter().map(|found| (key(found), &*found.node)));
    let count = groups.len();
    let rows = groups.into_iter().map(|((mode, rule, message), names)| {
        vec![html! { (rule) }, html! { (mode) }, html! { (message) }, html! { (names.len()) }, nodes(&names)]
    });
    let columns = [Column::Text("Rule"), Column::Text("Mode"), Column::Text("Finding"), COUNT, NODES];
    let summary = "Bar chart: the number of nodes with findings, by rule.";
    let content = match count {
        0 => Content::Nothing("No violations were found.".to_owned()),
        _ => Content::Shown(html! {
            div.charts { (figure("Nodes with findings, by rule", charts::bars(&bars), summary, numbers)) }
            (table("Findings", &columns, Rows { count, rows, all: REPORT.to_owned() }))
        }),
    };
    Section { id: "violations", title: "Violations", tile: violations_tile(found), content }
}

/// The violations that are certain, and how many are not.
fn violations_tile(found: &[Violation]) -> Tile {
    let uncertain = found.iter().filter(|found| !found.mode.is_certain()).count();
    let tile = Tile::alert(found.len() - uncertain, "violation", "violations");
    match uncertain {
        0 => tile,
        _ => Tile { what: format!("{}, {uncertain} uncertain", tile.what), alert: true, ..tile },
    }
}

fn missing(report: &Report) -> Section {
    let lacking = report.missing.iter();
    let groups = grouped(lacking.map(|lack| ((text(&lack.key), ruled(&lack.policy, &lack.rule)), &*lack.node)));
    let rows = groups.into_iter().map(|((key, rule), names)| {
        vec![html! { code { (key) } }, html! { (rule) }, html! { (names.len()) }, nodes(&names)]
    });
    Listed {
        id: "missing",
        title: "Missing labels and taints that policies require",
        tile: Tile::alert(report.missing.len(), "missing required key", "missing required keys"),
        nothing: "No missing keys were found.",
        caption: "Missing keys",
        columns: &[Column::Text("Key"), Column::Text("Required by"), COUNT, NODES],
        rows: of_report(rows),
    }
    .section()
}

fn drift(report: &Report) -> Section {
    let groups = grouped(report.drift.iter().map(|drift| (text(&drifted(report, drift)), &*drift.node)));
    let rows = groups
        .into_iter()
        .map(|(change, names)| vec![html! { code { (change) } }, html! { (names.len()) }, nodes(&names)]);
    let held_back = report.held_back.as_deref().map(|why| format!(". Removals are held back: {}", text(why)));
    let caption =
        "The changes that would make the nodes match the policies".to_owned() + &held_back.unwrap_or_default();
    Listed {
        id: "drift",
        title: "Drift from the policies",
        tile: Tile::alert(report.drift.len(), "key with drift", "keys with drift"),
        nothing: "No drift was found.",
        caption: &caption,
        columns: &[Column::Text("Change"), COUNT, NODES],
        rows: of_report(rows),
    }
    .section()
}

fn conflicts(report: &Report) -> Section {
    let rows = report.conflicts.iter().map(|Conflict { field, key, policy, rule, over, nodes: names }| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        vec![
            html! { (field.as_str()) " " code { (text(key)) } },
            html! { (ruled(policy, rule)) },
            html! { (ruled(&over.policy, &over.rule)) },
            html! { (names.len()) },
            nodes(&names),
        ]
    });
    Listed {
        id: "conflicts",
        title: "Conflicts between rules",
        // A rule that takes precedence may be meant to.
        tile: Tile::plain(report.conflicts.len(), "conflict between rules", "conflicts between rules"),
        nothing: "No conflicts were found.",
        caption: "Rules that assign different values to the same key",
        columns: &[Column::Text("Key"), Column::Text("Winning rule"), Column::Text("Overridden rule"), COUNT, NODES],
        rows: of_report(rows),
    }
    .section()
}

/// `unknown`: why it is not known what the controller leaves alone.
fn left_alone(report: &Report, unknown: Option<&str>) -> Section {
    let rows = report.left_alone.iter().map(|LeftAlone { node, field, key, policy, writers, .. }| {
        vec![
            html! { (text(node)) },
            html! { (text(field)) " " code { (text(key)) } },
            html! { (text(policy)) },
            html! { (text(writers)) },
        ]
    });
    Listed {
        id: "left-alone",
        title: "Keys that are not repaired",
        tile: Tile::alert(report.left_alone.len(), "key not repaired", "keys not repaired"),
        nothing: "The controller leaves no keys alone.",
        caption: "The controller leaves these keys alone, because other writers keep reverting them",
        columns: &["Node", "Key", "Policy", "Last reverted by"].map(Column::Text),
        rows: of_report(rows),
    }
    .section()
    .unless(unknown)
}

fn gates(report: &Report) -> Section {
    let rows = report.gates.iter().map(|AtGate { node, policy, rule, missing, timeout_seconds, on_timeout }| {
        vec![
            html! { (text(node)) },
            html! { (ruled(policy, rule)) },
            html! { code { (text(&missing.join(", "))) } },
            html! { (timeout_seconds) " s, then " (on_timeout) },
        ]
    });
    Listed {
        id: "gates",
        title: "Nodes that wait at a gate",
        tile: Tile::alert(report.gates.len(), "gate not passed", "gates not passed"),
        nothing: "No node waits at a gate.",
        caption: "Pending nodes, and the labels that they wait for",
        columns: &["Node", "Gate", "Missing labels", "Timeout"].map(Column::Text),
        rows: of_report(rows),
    }
    .section()
}

fn missed(report: &Report) -> Section {
    let rows = report.missed.iter().map(|Missed { node, what, keys }| {
        let what = match what {
            MissedWrite::Joined => "joined without these labels",
            MissedWrite::Changed => "these protected labels changed",
        };
        vec![html! { (text(node)) }, html! { (what) }, html! { code { (text(&keys.join(", "))) } }]
    });
    Listed {
        id: "missed",
        title: "Writes without admission",
        tile: Tile::alert(report.missed.len(), "write without admission", "writes without admission"),
        nothing: "No writes without nodegate’s admission were detected.",
        caption: "Writes that the webhook did not see",
        columns: &["Node", "What happened", "Labels"].map(Column::Text),
        rows: of_report(rows),
    }
    .section()
}

/// `unknown`: why it is not known which fail.
fn native_failures(report: &Report, unknown: Option<&str>) -> Section {
    let rows = report.native_failures.iter().map(|NativeFailure { policy, error_type, count }| {
        vec![html! { (text(policy)) }, html! { (text(error_type)) }, html! { (count) }]
    });
    Listed {
        id: "native",
        title: "Native policies that fail",
        tile: Tile::alert(report.native_failures.len(), "failing native policy", "failing native policies"),
        nothing: "The API server could evaluate all native policies of nodegate since it was started.",
        caption: "Native policies that the API server could not evaluate since it was started",
        columns: &[Column::Text("Policy"), Column::Text("Error"), COUNT],
        rows: of_report(rows),
    }
    .section()
    .unless(unknown)
}

fn unmanaged(report: &Report) -> Section {
    let names: Vec<&str> = report.unmanaged.iter().map(String::as_str).collect();
    let content = match names.len() {
        0 => Content::Nothing("Every node gets something from a rule.".to_owned()),
        _ => Content::Shown(html! { p { "No rule assigns anything to:" } (nodes(&names)) }),
    };
    let tile = Tile::alert(names.len(), "node without a rule", "nodes without a rule");
    Section { id: "unmanaged", title: "Nodes without a rule", tile, content }
}

fn stranded(report: &Report) -> Section {
    let rows = report.stranded.iter().map(|pod| {
        vec![
            html! { (text(&pod.namespace)) "/" (text(&pod.name)) },
            html! { (text(pod.node.as_deref().unwrap_or_default())) },
            html! { (text(&pod.reason)) },
        ]
    });
    Listed {
        id: "stranded",
        title: "Stranded pods",
        tile: Tile::alert(report.stranded.len(), "stranded pod", "stranded pods"),
        nothing: "No stranded pods were found.",
        caption: "Running pods that their nodes would not accept again",
        columns: &["Pod", "Node", "Reason"].map(Column::Text),
        rows: Rows { all: "nodegate report --stranded-pods -o json".to_owned(), ..of_report(rows) },
    }
    .section()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shortest_bars_become_one() {
        let all = || (1..=5).rev().map(|count| counted_bar(format!("b{count}"), count)).collect::<Vec<_>>();
        let mut bars = all();
        fold(&mut bars, 5);
        assert_eq!(bars, all());
        fold(&mut bars, 3);
        let shown: Vec<(&str, &str)> = bars.iter().map(|bar| (&*bar.name, &*bar.shown)).collect();
        assert_eq!(shown, [("b5", "5"), ("b4", "4"), ("(3 others)", "6")]);
    }

    #[test]
    fn groups_are_sorted_by_size_and_name_each_node_once() {
        let groups = grouped([("x", "a"), ("y", "a"), ("x", "b"), ("y", "a"), ("x", "b")].into_iter());
        assert_eq!(groups, [("x", vec!["a", "b"]), ("y", vec!["a"])]);
    }
}
