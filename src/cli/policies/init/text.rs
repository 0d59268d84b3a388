//! The summary of `init` as text.

use crate::cli::policies::init::document::{SetValue, Summary, SummedRule, UnreadableNode};
use crate::cli::shared::output;
use nodegate_base::text::{counted, on_a_line, or_quotes};
use nodegate_policy::init::FirstPolicy;

/// Maximum number of names, labels and taints of one rule that are shown.
const SHOWN: usize = 4;
/// Maximum number of rules that are shown; the file has all of them.
const RULES_SHOWN: usize = 40;

/// The summary. `program` is how the commands that it names are called, `selected` the arguments that
/// select the same nodes.
pub(super) fn of(summary: &Summary, odd_ones: usize, program: &str, selected: &str) -> String {
    let Summary { nodes, files, rules, cases, left_out, unreadable } = summary;
    let mut text = String::new();
    let column = column(rules);
    if !rules.is_empty() {
        let mut table = output::table(&["rule", "nodes", column, "sets"]);
        for rule in rules.iter().take(RULES_SHOWN) {
            let sets: Vec<String> = rule.sets.iter().map(set).collect();
            table.add_row([&rule.rule, &rule.nodes.to_string(), &matched(rule), &first(&sets)]);
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
    let odd_ones = match odd_ones {
        0 => String::new(),
        some => format!("; {} at the end of {policy}", counted(some, "odd one out is", "odd ones out are")),
    };
    // What was read from a pipe cannot be read again.
    let nodes = if selected.trim() == "-" { "kubectl get nodes -o json | " } else { "" };
    text.push_str(&format!(
        "{read}, wrote {policy} ({}) and {test} ({}){odd_ones}\n\n\
         Next, review the {column} in {policy}, run its tests, and see that it changes nothing:\n  \
         {program} test {test}\n  \
         {nodes}{program} plan --policy {policy}{selected}\n",
        counted(rules.len(), "rule", "rules"),
        counted(*cases, "case", "cases")
    ));
    text
}

/// What the rules match.
fn column(rules: &[SummedRule]) -> &'static str {
    match rules.first() {
        Some(SummedRule { label: Some(_), .. }) => "labels",
        Some(SummedRule { pools, .. }) if !pools.is_empty() => "pools",
        _ => "names",
    }
}

/// The names of a rule's nodes, the label, or the pools.
fn matched(rule: &SummedRule) -> String {
    match &rule.label {
        Some(label) => format!("{label}={}", first(&rule.values)),
        None if !rule.pools.is_empty() => first(&rule.pools),
        None => first(&rule.names),
    }
}

/// What `init` says if names say nothing. `command` is how it is called for the same nodes.
pub(super) fn names_say_nothing(policy: &FirstPolicy, command: &str) -> String {
    let rules = match policy.rules.iter().find_map(|rule| rule.groups.as_ref()?.key.as_deref()) {
        Some(key) => format!("So the rules match the label {key}, which each kubelet says of its own node."),
        None => "Labels and taints of many such nodes are left out.".to_owned(),
    };
    let mut text = format!(
        "note: the names of most nodes are addresses, or have too little in common to match nodes that join later. {rules}"
    );
    if policy.choices.is_empty() {
        text.push_str(&format!(" To choose a label that groups the nodes:\n{command} --by KEY"));
        return text;
    }
    text.push_str(" To choose:");
    for choice in &policy.choices {
        let groups = counted(choice.groups, "group", "groups");
        text.push_str(&format!(
            "\n{command} --by {}  # {groups}, {}",
            choice.by,
            counted(choice.nodes, "node", "nodes")
        ));
    }
    text
}

/// `key=value`, and `key=value:Effect` for a taint.
pub(super) fn set(value: &SetValue) -> String {
    let SetValue { field: _, key, value, effect } = value;
    match effect {
        None => format!("{key}={}", or_quotes(value)),
        Some(effect) if value.is_empty() => format!("{key}:{effect}"),
        Some(effect) => format!("{key}={value}:{effect}"),
    }
}

/// The first few, and how many more there are.
pub(super) fn first(all: &[String]) -> String {
    let shown = all[..all.len().min(SHOWN)].join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
