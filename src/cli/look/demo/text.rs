//! What the demo prints: the lines that matter, or everything.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;

use super::fleet::FLEETS;
use super::steps::{ATTACKED, Attempt, Happened, Joined, RECREATED, TIER, WORKER};
use crate::cli::shared::output;

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// A line for each thing that nodegate does.
///
/// # Errors
/// Returns an error if no node has a tier or a taint, which the tests rule out.
pub(super) fn brief(happened: &Happened) -> anyhow::Result<String> {
    let Happened { joined, added_to_worker, owner, attempts } = happened;
    let richest = joined.iter().max_by_key(|node| node.labels.len()).context("nodes join")?;
    let tainted = joined.iter().find(|node| !node.taints.is_empty()).context("a node is tainted")?;
    let tier = richest.labels.iter().find(|label| label.starts_with(TIER)).context("it has a tier")?;
    let mut table = output::table(&["what happens", "what nodegate does"]);
    let mut row = |what: String, does: String| table.add_row_of_lines([vec![what], vec![does]]);
    row(format!("{} joins", richest.node), format!("{} labels, such as {tier}", richest.labels.len()));
    for key in &richest.deferred {
        row(String::new(), format!("defers {key}"));
    }
    row(format!("{} joins", tainted.node), format!("taint {}", tainted.taints.join(", ")));
    row(format!("{WORKER} becomes a worker"), format!("adds {} in the same write", added_to_worker.join(", ")));
    row(format!("{RECREATED} is deleted and joins again"), format!("restores team.owner={owner}"));
    for Attempt { brief, outcome, .. } in attempts {
        let does = outcome.as_ref().map_or_else(|_| "denies it".to_owned(), |tier| format!("keeps {TIER}={tier}"));
        row((*brief).to_owned(), does);
    }
    let mut times: Vec<Duration> = joined.iter().map(|node| node.time).collect();
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(format!(
        "{table}\n\n{} nodes joined over HTTPS, half of them within {}.\n\
         `nodegate demo --all` shows each of them, and every message.\n",
        joined.len(),
        milliseconds(median)
    ))
}

/// Each node with all that it gets, and every message.
pub(super) fn all(happened: &Happened) -> String {
    let Happened { joined, added_to_worker, owner, attempts } = happened;
    let mut text = "nodegate serves two example fleets over HTTPS, with certificates that it created.\n\n".to_owned();
    for fleet in &FLEETS {
        let name = fleet.name;
        let _ = writeln!(
            text,
            "Fleet {name}: every kubelet registers its node (examples/{name}).\n\n{}\n",
            nodes(name, joined)
        );
    }
    let _ = write!(
        text,
        "Deferred: the controller sets role labels, because an API server rejects them in a kubelet's request.\n\
         The GPU nodes register without nvidia.com/gpu in their capacity, because no driver runs yet.\n\n\
         Roles: an administrator labels {WORKER} as a worker (node-role.kubernetes.io/worker). The same write adds:\n\
         \x20 {}\n\n\
         Re-creation: an administrator set the label team.owner=platform on {RECREATED}; it is in saved state.\n\
         The node is deleted, and its kubelet registers it again. The object that its CREATE returns has:\n\
         \x20 team.owner={owner}\n\n\
         Forbidden changes to {ATTACKED}, whose tier is standard:\n",
        added_to_worker.join("\n  ")
    );
    for Attempt { what, outcome, warnings, .. } in attempts {
        let _ = match outcome {
            Err(denial) => writeln!(text, "- {what}\n  denied: {denial}"),
            Ok(tier) => writeln!(text, "- {what}\n  admitted, corrected: {TIER}={tier}"),
        };
        text.extend(warnings.iter().map(|warning| format!("  warning: {warning}\n")));
    }
    text
}

/// The nodes of a fleet as a table.
fn nodes(fleet: &str, joined: &[Joined]) -> impl std::fmt::Display + use<> {
    let mut table = output::table(&["node", "labels it gets", "taints it gets", "deferred", "verdict", "time"]);
    for node in joined.iter().filter(|node| node.fleet == fleet) {
        let verdict = node.denial.clone().unwrap_or_else(|| "admitted".to_owned());
        let cells = [
            vec![node.node.clone()],
            node.labels.clone(),
            node.taints.clone(),
            node.deferred.clone(),
            vec![verdict],
            vec![milliseconds(node.time)],
        ];
        table.add_row_of_lines(cells);
    }
    table
}
