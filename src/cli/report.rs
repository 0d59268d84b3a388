//! `nodegate report`: lists what the nodes of a cluster violate.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kube::Client;
use serde::Serialize;
use serde_json::Value as Json;

use super::connect::ConnectArgs;
use super::nodes;
use super::output::{self, Format};
use super::{Findings, effective_policies, telemetry_for_command};
use crate::controller::published::Published;
use crate::controller::{NodeApi, Unreadable};
use crate::files::Sources;
use crate::text::counted;
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::simulate::{Scene, identity, node_name, simulate};
use nodegate_policy::{Exemptions, NodeFacts, PolicySet, violations};

/// List the violations of existing nodes, so that you can try a policy before you enforce it.
///
/// The report covers required and allowed values, names, dependencies and expressions. It does not cover reserved and
/// immutable keys, which restrict writes. Each node is judged with the labels and taints that the policies set on it.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Report violations of governance
    #[arg(long, required = true)]
    violations: bool,
    /// Files or directories with Nodes, as printed by `kubectl get nodes -o yaml`; - for standard input [default: the
    /// nodes of the cluster]
    #[arg(value_name = "PATH")]
    nodes: Vec<PathBuf>,
    /// NodePolicy file, or directory of them [default: the NodePolicy objects of the cluster, or the preset
    /// `baseline`]
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Directory of flat label files
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Judge the nodes of a cluster by the given policies even if they differ from the ones in force
    #[arg(long)]
    force: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The violations, and the policies that were used.
#[derive(Serialize)]
struct Report {
    policies: Published,
    nodes: usize,
    violations: Vec<Line>,
}

/// One violation of one node.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    node: String,
    policy: String,
    rule: String,
    /// `enforce`, `warn` or `audit`; `unknown` if an expression failed to evaluate; `unreadable` if the node cannot
    /// be read.
    mode: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    key: String,
    message: String,
}

pub(super) fn run(args: &ReportArgs) -> anyhow::Result<Findings> {
    telemetry_for_command()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let Gathered { set, policies, nodes, unreadable } = runtime.block_on(gather(args))?;
    let count = nodes.len() + unreadable.len();
    let mut violations = unreadable;
    for node in &nodes {
        violations.extend(judge(&set, node).with_context(|| format!("node {}", node_name(node)))?);
    }
    let report = Report { policies, nodes: count, violations };
    match args.output {
        Format::Table => output::print(&text(&report))?,
        format => output::print(&output::structured(format, &report)?)?,
    }
    // An expression that fails to evaluate is a finding: nodegate cannot tell whether the node is compliant.
    Ok(if report.violations.is_empty() { Findings::None } else { Findings::Some })
}

/// The input of the report.
struct Gathered {
    set: PolicySet,
    policies: Published,
    nodes: Vec<Json>,
    /// One line for each node that cannot be read.
    unreadable: Vec<Line>,
}

/// Reads the policies and the nodes.
async fn gather(args: &ReportArgs) -> anyhow::Result<Gathered> {
    let sources =
        Sources { policies: args.policies.clone(), labels_dir: args.labels_dir.clone(), ..Sources::default() };
    let loaded = sources.load_documents().map_err(|errors| output::load_errors(&errors))?;
    let from_files = || sources.load().map_err(|errors| output::load_errors(&errors));
    let (mut found, mut unreadable): (Vec<Json>, Vec<Line>) = Default::default();
    if !args.nodes.is_empty() {
        found.extend(nodes::read(&args.nodes)?.into_iter().map(|found| found.node));
    }
    let Some(place) = args.connect.reading_place()? else {
        if args.nodes.is_empty() {
            bail!(
                "no nodes are selected; pass files with nodes (- for standard input), or select a cluster with --kubeconfig"
            );
        }
        let set = from_files()?;
        return Ok(Gathered { policies: Published::of(&set), set, nodes: found, unreadable });
    };
    let client = place.client().await?;
    let set = if args.policies.is_empty() {
        let read = effective_policies::combined(&client, args.connect.namespace.as_deref(), &loaded).await;
        read.context("could not read the NodePolicy objects")?.set
    } else {
        from_files()?
    };
    let policies = match &args.connect.namespace {
        Some(_) => effective_policies::compare(&client, &place, &set, args.force).await?,
        None => {
            output::note(
                "note: set --namespace to nodegate's namespace to compare these policies with the ones in force",
            );
            Published::of(&set)
        }
    };
    if args.nodes.is_empty() {
        (found, unreadable) = of_cluster(client).await?;
    }
    Ok(Gathered { set, policies, nodes: found, unreadable })
}

/// The nodes of a cluster, and one line for each that cannot be read. Such a node does not affect the others.
async fn of_cluster(client: Client) -> anyhow::Result<(Vec<Json>, Vec<Line>)> {
    let api = NodeApi::new(client);
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let mut next = None;
    loop {
        let mut page = Vec::new();
        let read = api.page(next.as_deref(), |node| page.push(node)).await.context("could not list nodes")?;
        for node in page {
            let json = node.and_then(|node| {
                let unreadable =
                    |error: serde_json::Error| Unreadable { name: node.name().to_owned(), why: error.to_string() };
                serde_json::from_str(node.text()).map_err(unreadable)
            });
            match json {
                Ok(json) => found.push(json),
                Err(error) => unreadable.push(Line {
                    message: error.to_string(),
                    node: error.name,
                    mode: "unreadable",
                    ..Line::default()
                }),
            }
        }
        next = read.next;
        if next.is_none() {
            return Ok((found, unreadable));
        }
    }
}

/// The violations of one node.
fn judge(set: &PolicySet, node: &Json) -> anyhow::Result<Vec<Line>> {
    let (username, groups) = identity("admin", node_name(node), &[]);
    let old = Some(node.clone());
    let scene = Scene { node: node.clone(), old, status: false, username, groups, saved: None, pending_taint: None };
    let object = simulate(set, &scene, &Exemptions::default())?.node.to_string();
    let verdict = violations(set, &NodeFacts::parse(&object)?);
    let line = |by: &nodegate_policy::RuleId, mode, key: &str, message: &str| Line {
        node: node_name(node).to_owned(),
        policy: by.policy.to_string(),
        rule: by.rule.to_string(),
        mode,
        key: key.to_owned(),
        message: message.to_owned(),
    };
    let found = verdict.violations.iter().map(|violation| {
        let mode = match violation.mode {
            EntryMode::Enforce => "enforce",
            EntryMode::Warn => "warn",
            EntryMode::Audit => "audit",
        };
        line(&violation.by, mode, &violation.key, &violation.what)
    });
    let unknown = verdict.unknown.iter().map(|(by, reason)| line(by, "unknown", "", reason));
    Ok(found.chain(unknown).collect())
}

fn text(report: &Report) -> String {
    let Report { policies, nodes, violations: lines } = report;
    let of = |mode: &str| lines.iter().filter(|line| line.mode == mode).count();
    let mut violating: Vec<&str> = lines
        .iter()
        .filter(|line| !matches!(line.mode, "unknown" | "unreadable"))
        .map(|line| line.node.as_str())
        .collect();
    violating.sort_unstable();
    violating.dedup();
    let mut text = String::new();
    if !lines.is_empty() {
        let mut table = output::table(&["node", "policy", "rule", "mode", "violation"]);
        for line in lines {
            table.add_row([&line.node, &line.policy, &line.rule, line.mode, &line.message]);
        }
        text.push_str(&format!("{}\n\n", table.trim_fmt()));
    }
    let (enforce, warn, audit, unknown) = (of("enforce"), of("warn"), of("audit"), of("unknown"));
    text.push_str(&format!(
        "{}, {} with violations: {enforce} in enforce mode, {warn} in warn mode, {audit} in audit mode",
        counted(*nodes, "node", "nodes"),
        violating.len()
    ));
    if unknown > 0 {
        text.push_str(&format!(
            "; {} failed to evaluate, which counts as a finding",
            counted(unknown, "expression", "expressions")
        ));
    }
    let unreadable = of("unreadable");
    if unreadable > 0 {
        text.push_str(&format!(
            "; {}, which counts as a finding",
            counted(unreadable, "node is unreadable", "nodes are unreadable")
        ));
    }
    text.push_str(&format!("\npolicies: {policies}\n"));
    text
}
