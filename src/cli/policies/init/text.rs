//! The summary of `init` as text.

use crate::cli::policies::init::document::{SetValue, Summary, UnreadableNode};
use crate::cli::shared::output;
use nodegate_base::text::{counted, on_a_line, or_quotes};

/// Maximum number of names, labels and taints of one rule that are shown.
const SHOWN: usize = 4;
/// Maximum number of rules that are shown; the file has all of them.
const RULES_SHOWN: usize = 40;

/// The summary. `program` is how the commands that it names are called, `selected` the arguments that
/// select the same nodes.
pub(super) fn of(summary: &Summary, program: &str, selected: &str) -> String {
    let Summary { nodes, files, rules, cases, left_out, unreadable } = summary;
    let mut text = String::new();
    if !rules.is_empty() {
        let mut table = output::table(&["rule", "nodes", "names", "sets"]);
        for rule in rules.iter().take(RULES_SHOWN) {
            let sets: Vec<String> = rule.sets.iter().map(set).collect();
            table.add_row([&rule.rule, &rule.nodes.to_string(), &first(&rule.names), &first(&sets)]);
        }
        text.push_str(&format!("{}\n", table.trim_fmt()));
        if rules.len() > RULES_SHOWN {
            text.push_str(&format!(" and {}\n", counted(rules.len() - RULES_SHOWN, "more rule", "more rules")));
        }
        text.push('\n');
    }
    if !left_out.is_empty() {
        let mut table = output::table(&["left out", "key", "nodes", "reason"]);
        for left in left_out {
            table.add_row([left.field.as_str(), &left.key, &left.nodes.to_string(), &left.reason]);
        }
        text.push_str(&format!("{}\n\n", table.trim_fmt()));
    }
    for UnreadableNode { node, reason } in unreadable {
        text.push_str(&format!("node {} cannot be read: {}\n", on_a_line(node), on_a_line(reason)));
    }
    let read = format!("read {}", counted(*nodes, "node", "nodes"));
    let [policy, test, ..] = files.as_slice() else { return format!("{text}{read}\n") };
    let (policy, test, selected) = (on_a_line(policy), on_a_line(test), on_a_line(selected));
    text.push_str(&format!(
        "{read}, wrote {policy} ({}) and {test} ({})\n\n\
         Next, review the names in {policy}, run its tests, and see that it changes nothing:\n  \
         {program} test {test}\n  \
         {program} plan --policy {policy}{selected}\n",
        counted(rules.len(), "rule", "rules"),
        counted(*cases, "case", "cases")
    ));
    text
}

/// `key=value`, and `key=value:Effect` for a taint.
fn set(value: &SetValue) -> String {
    let SetValue { field: _, key, value, effect } = value;
    match effect {
        None => format!("{key}={}", or_quotes(value)),
        Some(effect) if value.is_empty() => format!("{key}:{effect}"),
        Some(effect) => format!("{key}={value}:{effect}"),
    }
}

/// The first few, and how many more there are.
fn first(all: &[String]) -> String {
    let shown = all[..all.len().min(SHOWN)].join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
