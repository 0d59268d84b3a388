//! Names of nodes in the text of a plan.

/// How many nodes are named in a line.
const NAMED: usize = 3;

/// Nodes in a line: all names, or the number and some names.
pub(in crate::cli) fn named(nodes: &[&str]) -> String {
    match nodes.len() {
        0..=NAMED => nodes.join(", "),
        count => format!("{count} nodes ({}, …)", nodes[..NAMED].join(", ")),
    }
}
