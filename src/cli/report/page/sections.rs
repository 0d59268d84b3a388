//! The sections of the page.

use std::collections::BTreeMap;

use anyhow::Context as _;
use maud::{Markup, PreEscaped, html};

use super::charts::{self, Bar};
use super::table::{Column, nodes, table};
use super::{Page, Section, Tile, history, text};
use crate::cli::plan::text::with_rule;
use crate::cli::report::cost::HOURS_A_MONTH;
use crate::cli::report::document::{Conflict, Cost, LeftAlone, Missed, MissedWrite, Report, Violation};
use crate::text::counted;

/// How many bars a chart has at most, the one for all others included.
const BARS_MAX: usize = 12;

const NODES: Column = Column("Nodes", false);
const COUNT: Column = Column("Count", true);
const REPORT: &str = "nodegate report -o json";

/// All sections, in their order.
pub(super) fn all(page: &Page<'_>) -> anyhow::Result<Vec<Section>> {
    let report = page.report;
    let mut sections = vec![fleet(report)?, violations(report)?, missing(report), drift(report), conflicts(report)];
    // Files do not say what the webhook and the controller did.
    sections.extend(page.cluster.then(|| [left_alone(report), missed(report)]).into_iter().flatten());
    sections.push(unmanaged(report));
    sections.extend(page.stranded.then(|| stranded(report)));
    sections.push(history::section(page)?);
    if !report.cost.is_empty() {
        sections.push(cost(&report.cost)?);
    }
    Ok(sections)
}

/// A chart with the same values as a table, for those who cannot see the chart or want to copy them.
pub(super) fn figure(caption: &str, svg: String, summary: &str, table: Markup) -> Markup {
    html! {
        figure {
            figcaption { (caption) }
            div role="img" aria-label=(summary) { (PreEscaped(svg)) }
            details { summary { "As a table" span.unseen { ": " (caption) } } (table) }
        }
    }
}

fn fleet(report: &Report) -> anyhow::Result<Section> {
    let figures = report.by.iter().map(|(label, values)| by_label(label, values, report.without.get(label).copied()));
    let figures = figures.collect::<anyhow::Result<Vec<Markup>>>()?;
    let content = html! {
        @if figures.is_empty() { p { "No policy sets a label. To count the nodes by a label, use --by." } }
        div.charts { @for figure in figures { (figure) } }
    };
    Ok(Section { id: "fleet", title: "Nodes by label", tile: Tile::plain(report.nodes, "node", "nodes"), content })
}

fn by_label(label: &str, values: &BTreeMap<String, usize>, without: Option<usize>) -> anyhow::Result<Markup> {
    let mut counts: Vec<(String, usize)> = values.iter().map(|(value, nodes)| (valued(value), *nodes)).collect();
    counts.sort_by(|(one, one_nodes), (other, other_nodes)| (other_nodes, one).cmp(&(one_nodes, other)));
    let without = without.filter(|without| *without > 0).map(|without| ("(no label)".to_owned(), without));
    let rows = counts.iter().chain(&without);
    let rows = rows.map(|(value, nodes)| vec![html! { (value) }, html! { (nodes) }]).collect();
    let values = counted(counts.len(), "value", "values");
    let summary = format!("Bar chart of the nodes by {}: {values}. The table below has the numbers.", text(label));
    let mut bars: Vec<Bar> = counts.into_iter().map(|(value, nodes)| counted_bar(value, nodes)).collect();
    fold(&mut bars, BARS_MAX - usize::from(without.is_some()));
    bars.extend(without.map(|(value, nodes)| counted_bar(value, nodes)));
    let numbers = table("Nodes by value", &[Column("Value", false), Column("Nodes", true)], rows, REPORT);
    Ok(figure(&text(label), charts::bars(&bars)?, &summary, numbers))
}

/// The value of a label, which may be empty.
fn valued(value: &str) -> String {
    if value.is_empty() { "(empty)".to_owned() } else { text(value) }
}

fn counted_bar(name: String, count: usize) -> Bar {
    #[expect(clippy::cast_precision_loss, reason = "no chart is as wide as that")]
    let value = count as f64;
    Bar { name, value, shown: count.to_string() }
}

/// Makes one bar of the shortest ones if there are more than `max`.
fn fold(bars: &mut Vec<Bar>, max: usize) {
    if bars.len() > max {
        let others = bars.split_off(max - 1);
        let value: f64 = others.iter().map(|bar| bar.value).sum();
        bars.push(Bar { name: format!("({} others)", others.len()), value, shown: format!("{value:.0}") });
    }
}

/// What several nodes have in common, and their names.
fn grouped<'a, Key: Ord>(of_nodes: impl Iterator<Item = (Key, &'a str)>) -> Vec<(Key, Vec<&'a str>)> {
    let mut groups: BTreeMap<Key, Vec<&str>> = BTreeMap::new();
    for (key, node) in of_nodes {
        groups.entry(key).or_default().push(node);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    for (_, nodes) in &mut groups {
        nodes.dedup();
    }
    groups.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    groups
}

fn violations(report: &Report) -> anyhow::Result<Section> {
    let found = &report.violations;
    let by_rule = grouped(found.iter().map(|found| (ruled(&found.policy, &found.rule), &*found.node)));
    let mut bars: Vec<Bar> = by_rule.into_iter().map(|(rule, nodes)| counted_bar(rule, nodes.len())).collect();
    fold(&mut bars, BARS_MAX);
    let key = |found: &Violation| (found.mode.as_str(), ruled(&found.policy, &found.rule), text(&found.message));
    let rows = grouped(found.iter().map(|found| (key(found), &*found.node)));
    let rows: Vec<Vec<Markup>> = rows
        .into_iter()
        .map(|((mode, rule, message), names)| {
            vec![html! { (rule) }, html! { (mode) }, html! { (message) }, html! { (names.len()) }, nodes(&names)]
        })
        .collect();
    let columns = [Column("Rule", false), Column("Mode", false), Column("Violation", false), COUNT, NODES];
    let content = html! {
        @if rows.is_empty() { p { "No node violates a policy." } }
        @else {
            div.charts {
                figure {
                    figcaption { "Nodes by rule" }
                    div role="img" aria-label="Bar chart of the nodes that violate each rule. The table below has the numbers." {
                        (PreEscaped(charts::bars(&bars)?))
                    }
                }
            }
            (table("Violations by rule", &columns, rows, REPORT))
        }
    };
    let tile = Tile::alert(found.len(), "violation", "violations");
    Ok(Section { id: "violations", title: "Violations", tile, content })
}

/// A rule as `policy/rule`. A node that cannot be read violates none.
fn ruled(policy: &str, rule: &str) -> String {
    if policy.is_empty() { "(node unreadable)".to_owned() } else { text(&format!("{policy}/{rule}")) }
}

/// A section with one table, or with a sentence that says that there is nothing.
fn listed(
    (id, title): (&'static str, &'static str),
    tile: Tile,
    (nothing, caption): (&str, &str),
    (columns, rows): (&[Column], Vec<Vec<Markup>>),
) -> Section {
    let content = html! {
        @if rows.is_empty() { p { (nothing) } }
        @else { (table(caption, columns, rows, REPORT)) }
    };
    Section { id, title, tile, content }
}

fn missing(report: &Report) -> Section {
    let lacking = report.missing.iter();
    let groups = grouped(lacking.map(|lack| ((text(&lack.key), ruled(&lack.policy, &lack.rule)), &*lack.node)));
    let rows = groups.into_iter().map(|((key, rule), names)| {
        vec![html! { code { (key) } }, html! { (rule) }, html! { (names.len()) }, nodes(&names)]
    });
    listed(
        ("missing", "Required labels and taints that are missing"),
        Tile::alert(report.missing.len(), "missing required key", "missing required keys"),
        ("Every node has the labels and taints that policies require.", "Missing keys"),
        (&[Column("Key", false), Column("Required by", false), COUNT, NODES], rows.collect()),
    )
}

fn drift(report: &Report) -> Section {
    let groups = grouped(report.drift.iter().map(|drift| (text(&with_rule(&drift.change)), &*drift.node)));
    let rows = groups
        .into_iter()
        .map(|(change, names)| vec![html! { code { (change) } }, html! { (names.len()) }, nodes(&names)]);
    listed(
        ("drift", "Drift from the policies"),
        Tile::alert(report.drift.len(), "drifted key", "drifted keys"),
        ("Every node has what the policies assign.", "What the controller will change, unless it leaves the key alone"),
        (&[Column("Change", false), COUNT, NODES], rows.collect()),
    )
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
    listed(
        ("conflicts", "Conflicts between rules"),
        Tile::alert(report.conflicts.len(), "conflict between rules", "conflicts between rules"),
        ("No two rules assign different values to one key of a node.", "Rules that assign different values to one key"),
        (&[Column("Key", false), Column("Precedence", false), Column("Over", false), COUNT, NODES], rows.collect()),
    )
}

fn left_alone(report: &Report) -> Section {
    let rows = report.left_alone.iter().map(|LeftAlone { node, field, key, policy, writers, .. }| {
        vec![
            html! { (text(node)) },
            html! { (text(field)) " " code { (text(key)) } },
            html! { (text(policy)) },
            html! { (text(writers)) },
        ]
    });
    listed(
        ("left-alone", "Keys that are not repaired"),
        Tile::alert(report.left_alone.len(), "key not repaired", "keys not repaired"),
        (
            "The controller repairs every key.",
            "Other writers keep reverting these keys, so the controller leaves them alone",
        ),
        (
            &[Column("Node", false), Column("Key", false), Column("Policy", false), Column("Last reverted by", false)],
            rows.collect(),
        ),
    )
}

fn missed(report: &Report) -> Section {
    let rows = report.missed.iter().map(|Missed { node, what, keys }| {
        let what = match what {
            MissedWrite::Joined => "joined without these labels",
            MissedWrite::Changed => "these protected labels changed",
        };
        vec![html! { (text(node)) }, html! { (what) }, html! { code { (text(&keys.join(", "))) } }]
    });
    listed(
        ("missed", "Written without admission"),
        Tile::alert(report.missed.len(), "write without admission", "writes without admission"),
        ("No write without nodegate’s admission was detected.", "Writes that the webhook did not see"),
        (&[Column("Node", false), Column("What happened", false), Column("Labels", false)], rows.collect()),
    )
}

fn unmanaged(report: &Report) -> Section {
    let names: Vec<&str> = report.unmanaged.iter().map(String::as_str).collect();
    let content = html! {
        @if names.is_empty() { p { "At least one rule assigns something to every node." } }
        @else { p { "No rule assigns anything to:" } (nodes(&names)) }
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
    listed(
        ("stranded", "Stranded pods"),
        Tile::alert(report.stranded.len(), "stranded pod", "stranded pods"),
        ("Every running pod fits its node.", "Running pods that their nodes would not accept again"),
        (&[Column("Pod", false), Column("Node", false), Column("Reason", false)], rows.collect()),
    )
}

fn cost(costs: &[Cost]) -> anyhow::Result<Section> {
    let label = text(&costs.first().context("no cost")?.label);
    let currency = text(costs.iter().find_map(|cost| cost.currency.as_deref()).unwrap_or_default());
    let priced = costs.iter().any(|cost| cost.per_hour.is_some());
    let named = |cost: &Cost| cost.value.as_deref().map_or_else(|| "(no label)".to_owned(), valued);
    let mut bars: Vec<Bar> = costs
        .iter()
        .map(|cost| {
            let value = cost.per_hour.map_or(cost.cpu, |hour| hour * HOURS_A_MONTH);
            Bar { name: named(cost), value, shown: format!("{value:.0}") }
        })
        .collect();
    bars.sort_by(|one, other| other.value.total_cmp(&one.value));
    fold(&mut bars, BARS_MAX);
    let unit = if priced { format!("{currency} per month") } else { "CPU cores".to_owned() };
    let summary = format!("Bar chart: {unit} by {label}. The table below has the numbers.");
    let mut columns = vec![Column("Value", false), Column("Nodes", true), Column("CPU", true)];
    columns.extend([Column("Memory (GiB)", true), Column("GPUs", true)]);
    if priced {
        columns.extend([Column("Per hour", true), Column("Per month", true), Column("Nodes without price", true)]);
    }
    let rows = costs.iter().map(|cost| {
        let price = |price: Option<f64>| html! { (price.map(|price| format!("{price:.2}")).unwrap_or_default()) };
        vec![
            html! { (named(cost)) },
            html! { (cost.nodes) },
            html! { ((cost.cpu * 100.0).round() / 100.0) },
            html! { (format!("{:.1}", cost.memory_gib)) },
            html! { (cost.gpu) },
            price(cost.per_hour),
            price(cost.per_hour.map(|hour| hour * HOURS_A_MONTH)),
            html! { (cost.unpriced.unwrap_or_default()) },
        ]
    });
    let caption = if priced { format!("Resources and price in {currency}") } else { "Resources".to_owned() };
    let content = html! {
        div.charts {
            figure {
                figcaption { (unit) " by " (label) }
                div role="img" aria-label=(summary) { (PreEscaped(charts::bars(&bars)?)) }
            }
        }
        (table(&caption, &columns, rows.collect(), "nodegate report --cost -o csv"))
    };
    let sum: f64 = bars.iter().map(|bar| bar.value).sum();
    let tile = Tile { number: format!("{sum:.0}"), what: unit, alert: false };
    Ok(Section { id: "cost", title: "Cost", tile, content })
}
