//! The status of migrations as text for people.

use std::collections::BTreeMap;

use crate::cli::leave::migrate::document::{
    Consumer, MigrationStatus, MigrationsStatus, NodeCounts, Phase, UnequalNode, Writer,
};
use crate::cli::shared::output;
use crate::cli::shared::terminal_lines::Lines;
use nodegate_base::text::counted;

/// How many nodes are named.
const NAMED: usize = 10;

/// The status as text.
pub(super) fn of(status: &MigrationsStatus) -> Lines {
    let mut lines = Lines::new(output::has_colors());
    if status.migrations.is_empty() {
        lines.add("", "no migrations are in force");
    }
    for (at, migration) in status.migrations.iter().enumerate() {
        if at > 0 {
            lines.add("", "");
        }
        add(&mut lines, migration);
    }
    for unread in &status.unread {
        lines.add("", &format!("It is unknown whether {}s use an old key: {}", unread.kind.as_str(), unread.reason));
    }
    lines
}

fn add(lines: &mut Lines, migration: &MigrationStatus) {
    let MigrationStatus { from, to, policy, phase, nodes, unequal, writers, consumers, pods_of_workloads } = migration;
    let state = match (policy, phase) {
        (Some(policy), Some(phase)) => format!("phase {} (policy {policy})", phase.as_str()),
        _ => "not in force".to_owned(),
    };
    lines.add("", &format!("{from} → {to}: {state}"));
    let NodeCounts { equal, different, old_only, new_only, neither } = nodes;
    lines.add("  ", &format!(
        "nodes: {equal} with both keys and one value, {different} with two values, {old_only} with the old key only, {new_only} \
         with the new key only, {neither} with neither"
    ));
    let what = match phase {
        Some(Phase::Done) => "still have the old key",
        None | Some(Phase::DualWrite | Phase::Cutover) => "do not have both keys with one value",
    };
    for UnequalNode { node, old, new } in unequal.iter().take(NAMED) {
        let value = |value: &Option<String>| value.as_ref().map_or("absent".to_owned(), |value| format!("{value:?}"));
        lines.add("    ", &format!("{node}: {from} {}, {to} {}", value(old), value(new)));
    }
    if unequal.len() > NAMED {
        lines.add("    ", &format!("and {} more nodes {what}", unequal.len() - NAMED));
    }
    if let Some(text) = writers_of(from, *phase, writers) {
        lines.add("  ", &text);
    }
    if !migration.is_used() {
        lines.add("  ", &format!("nothing uses {from}"));
        return;
    }
    let pods = match pods_of_workloads {
        0 => String::new(),
        pods => format!("; {} of workloads", counted(*pods, "pod", "pods")),
    };
    lines.add("  ", &format!("{from} is used by {}{pods}", kinds(consumers)));
    for one in consumers {
        let uses: Vec<&str> = one.uses.iter().map(|one| one.describe()).collect();
        lines.add("    ", &format!("{}: {}", consumer(one), uses.join(", ")));
    }
}

/// Who sets the old key. After cutover, claims say only who did.
pub(super) fn writers_of(from: &str, phase: Option<Phase>, writers: &[Writer]) -> Option<String> {
    if writers.is_empty() || matches!(phase, Some(Phase::Cutover | Phase::Done)) {
        return None;
    }
    let mut all: Vec<&Writer> = writers.iter().collect();
    all.sort_by_key(|writer| std::cmp::Reverse(writer.nodes));
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    let mut named: Vec<String> =
        all.iter().map(|writer| format!("{} ({})", writer.manager, counted(writer.nodes, "node", "nodes"))).collect();
    named.extend((more > 0).then(|| format!("{more} more")));
    Some(format!(
        "{from} is set by these field managers: {}; let them set the new key before cutover, which denies writes that set the old one",
        named.join(", ")
    ))
}

/// A consumer in a line.
pub(super) fn consumer(consumer: &Consumer) -> String {
    let Consumer { kind, namespace, name, uses: _ } = consumer;
    let namespace = namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    format!("{} {namespace}{name}", kind.as_str())
}

/// How many consumers there are of each kind.
fn kinds(consumers: &[Consumer]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for consumer in consumers {
        *counts.entry(consumer.kind.as_str()).or_default() += 1;
    }
    let all = counted(consumers.len(), "object", "objects");
    let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if counts.is_empty() { all } else { format!("{all} ({})", counts.join(", ")) }
}
