//! `nodegate plan`: shows the changes that policies would make to nodes in files.

use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value as Json;

use super::nodes::{self, Found};
use super::output::{self, Format};
use super::{Findings, saved_state};
use crate::controller::published::Published;
use crate::files::Sources;
use crate::text::{counted, on_a_line};
use nodegate_policy::simulate::{Scene, Simulated, identity, node_name, simulate, taints};
use nodegate_policy::{Decision, Exemptions, NodeChange};

/// Show what policies would change on nodes, without changing anything.
///
/// Nodes come from files: the output of `kubectl get nodes -o yaml`, single Nodes, or AdmissionReviews (which contain
/// their requester). By default, a Node is planned as an existing node; with --create, as a CREATE by its own
/// kubelet.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// Files or directories with Nodes, Lists or AdmissionReviews; - for standard input
    #[arg(required = true, value_name = "PATH")]
    nodes: Vec<PathBuf>,
    /// NodePolicy file, or directory of them [default: the preset `baseline`]
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Directory of flat label files
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
    /// Directory of saved state, one <node>.json per node
    #[arg(long, value_name = "DIR", env = "NODEGATE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Plan the CREATE of each node by its kubelet
    #[arg(long)]
    create: bool,
    /// The requester: `kubelet`, `admin` or a user name [default: admin, with --create kubelet]
    #[arg(long = "as", value_name = "USER")]
    requester: Option<String>,
    /// Additional group of the requester
    #[arg(long = "as-group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Exit with 1 if something would change
    #[arg(long)]
    exit_code: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The plan of all nodes.
#[derive(Serialize)]
struct Plan {
    /// The policies that were used.
    policies: Published,
    nodes: Vec<NodePlan>,
}

/// The plan of one node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodePlan {
    node: String,
    file: String,
    /// The changes in this write, one per line: `+` added, `~` changed, `-` removed.
    changes: Vec<String>,
    /// The changes that the controller makes later, because the request may not carry them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deferred: Vec<String>,
    /// Conflicts, conditions that could not be evaluated, and the like.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// Violations of governance by the write itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violations: Vec<String>,
}

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<Findings> {
    let sources =
        Sources { policies: args.policies.clone(), labels_dir: args.labels_dir.clone(), ..Sources::default() };
    let set = sources.load().map_err(|errors| output::load_errors(&errors))?;
    let saved = args.state_dir.as_deref().map(saved_state::in_directory).transpose()?.unwrap_or_default();
    let mut plans = Vec::new();
    for found in nodes::read(&args.nodes)? {
        let mut scene = scene(args, &found);
        scene.saved = saved.get(node_name(&found.node)).cloned();
        let simulated = simulate(&set, &scene, &Exemptions::default()).with_context(|| found.file.clone())?;
        plans.push(plan(&found, &simulated));
    }
    let plan = Plan { policies: Published::of(&set), nodes: plans };
    match args.output {
        Format::Table => output::print(&text(&plan.nodes, &set.trusting_rules().collect::<Vec<_>>()))?,
        format => output::print(&output::structured(format, &plan)?)?,
    }
    let pending = plan.nodes.iter().any(|plan| !plan.changes.is_empty() || !plan.deferred.is_empty());
    Ok(if args.exit_code && pending { Findings::Some } else { Findings::None })
}

fn scene(args: &PlanArgs, found: &Found) -> Scene {
    let (old, status, (username, groups)) = match &found.review {
        Some(review) => (review.old.clone(), review.status, (review.username.clone(), review.groups.clone())),
        None => {
            let requester = args.requester.as_deref().unwrap_or(if args.create { "kubelet" } else { "admin" });
            let old = (!args.create).then(|| found.node.clone());
            (old, false, identity(requester, node_name(&found.node), &args.groups))
        }
    };
    Scene { node: found.node.clone(), old, status, username, groups, saved: None, pending_taint: None }
}

fn plan(found: &Found, simulated: &Simulated) -> NodePlan {
    let Decision { change, deferred, notes, .. } = &simulated.decision;
    let lines = |change: &Option<NodeChange>| {
        change.as_ref().map(|change| lines(&found.node, change, &simulated.decision)).unwrap_or_default()
    };
    NodePlan {
        node: node_name(&found.node).to_owned(),
        file: found.file.clone(),
        changes: lines(change),
        deferred: lines(deferred),
        notes: notes.iter().map(ToString::to_string).collect(),
        violations: simulated.verdict.violations.iter().map(|violation| violation.message.clone()).collect(),
    }
}

/// Formats a change as lines, each with the rule it comes from.
fn lines(node: &Json, change: &NodeChange, decision: &Decision) -> Vec<String> {
    let mut lines = Vec::new();
    let by = |desired: Option<&nodegate_policy::Desired>| {
        desired.map(|desired| format!("   ({})", desired.by)).unwrap_or_default()
    };
    for (field, entries, desired) in
        [("label", change.labels(), &decision.labels), ("annotation", change.annotations(), &decision.annotations)]
    {
        for (key, value) in entries {
            let there = node["metadata"][format!("{field}s")].get(key).and_then(Json::as_str);
            let why = by(desired.get(key));
            lines.push(match (there, value) {
                (None, Some(value)) => format!("+ {field} {key}={value}{why}"),
                (Some(old), Some(value)) => format!("~ {field} {key}={value}, was {old}{why}"),
                (_, None) => format!("- {field} {key}{why}"),
            });
        }
    }
    for (id, value) in change.taints() {
        let sign = if taints(node).iter().any(|taint| taint.starts_with(id.key.as_str())) { '~' } else { '+' };
        let sign = if value.is_some() { sign } else { '-' };
        let value = value.as_deref().unwrap_or_default();
        let equals = if value.is_empty() { String::new() } else { format!("={value}") };
        lines.push(format!("{sign} taint {}{equals}:{}{}", id.key, id.effect, by(decision.taints.get(id))));
    }
    lines
}

fn text(plans: &[NodePlan], trusting: &[String]) -> String {
    let mut text = String::new();
    let mut line = |indent: &str, what: &str| text.push_str(&format!("{indent}{}\n", on_a_line(what)));
    for plan in plans {
        let sections = [("deferred", &plan.deferred), ("note", &plan.notes), ("violation", &plan.violations)];
        let quiet = plan.changes.is_empty() && sections.iter().all(|(_, lines)| lines.is_empty());
        line("", &format!("{}{}", plan.node, if quiet { "   no changes" } else { "" }));
        plan.changes.iter().for_each(|change| line("  ", change));
        for (name, lines) in sections {
            lines.iter().for_each(|what| line("  ", &format!("{name}: {what}")));
        }
    }
    let changed = plans.iter().filter(|plan| !plan.changes.is_empty()).count();
    let deferred = plans.iter().filter(|plan| !plan.deferred.is_empty()).count();
    let nodes = counted(plans.len(), "node", "nodes");
    line("", &format!("{nodes}: {changed} to change, {deferred} with deferred changes"));
    if !trusting.is_empty() {
        line("", &format!("Rules that trust values set by kubelets (trustKubelet): {}", trusting.join(", ")));
    }
    text
}
