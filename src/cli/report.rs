//! `nodegate report`: what today's fleet is like, measured by policies.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kube::Client;
use serde::Serialize;
use serde_json::Value as Json;

use super::connect::ConnectArgs;
use super::nodes;
use super::output::{self, Format};
use super::simulate::{Scene, identity, node_name, simulate};
use super::{Findings, judged, telemetry_for_command};
use crate::api::policy::EntryMode;
use crate::controller::published::Published;
use crate::controller::{NodeApi, Unreadable};
use crate::files::Sources;
use crate::policy::{Exemptions, NodeFacts, PolicySet, violations};

/// List what the nodes of today violate, so that a policy can be tried before it is enforced.
///
/// Judged are required, allowed and named keys, dependencies and expressions; who may write a key, and what does not change
/// once set, is about writes and not about nodes. A node counts as it is with what the policies themselves give it.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Violations of governance
    #[arg(long, required = true)]
    violations: bool,
    /// Files or directories with Nodes, as `kubectl get nodes -o yaml` prints them; - for standard input. Without them the
    /// nodes of the cluster
    #[arg(value_name = "PATH")]
    nodes: Vec<PathBuf>,
    /// NodePolicy file, or directory of them; without it the NodePolicy objects of the cluster, or the preset `baseline`
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Directory of flat label files
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Judge a cluster by policies that are not the ones in force there
    #[arg(long)]
    force: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// What the fleet is like, and by which policies it was judged.
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
    /// `enforce`, `warn`, `audit`; `unknown` when an expression has no answer; `unreadable` when the node cannot be read.
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
    // An expression without an answer is a finding too: nobody knows whether the node is as it should be.
    Ok(if report.violations.is_empty() { Findings::None } else { Findings::Some })
}

/// What is judged, and by what.
struct Gathered {
    set: PolicySet,
    policies: Published,
    nodes: Vec<Json>,
    /// A line for each node that cannot be read.
    unreadable: Vec<Line>,
}

/// The policies, and the nodes to judge.
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
            bail!("which nodes? name files with them (- for standard input), or a cluster by --kubeconfig FILE");
        }
        let set = from_files()?;
        return Ok(Gathered { policies: Published::of(&set), set, nodes: found, unreadable });
    };
    let client = place.client().await?;
    let set = if args.policies.is_empty() {
        let read = judged::combined(&client, args.connect.namespace.as_deref(), &loaded).await;
        read.context("NodePolicy objects could not be read")?.set
    } else {
        from_files()?
    };
    let policies = match &args.connect.namespace {
        Some(_) => judged::compare(&client, &place, &set, args.force).await?,
        None => {
            output::note(
                "note: with --namespace NAMESPACE of nodegate these policies are compared with the ones in force",
            );
            Published::of(&set)
        }
    };
    if args.nodes.is_empty() {
        (found, unreadable) = of_cluster(client).await?;
    }
    Ok(Gathered { set, policies, nodes: found, unreadable })
}

/// The nodes of a cluster, and a line for each that cannot be read: it costs no other node its report.
async fn of_cluster(client: Client) -> anyhow::Result<(Vec<Json>, Vec<Line>)> {
    let api = NodeApi::new(client);
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let mut next = None;
    loop {
        let mut page = Vec::new();
        let read = api.page(next.as_deref(), |node| page.push(node)).await.context("nodes could not be listed")?;
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

/// What one node violates.
fn judge(set: &PolicySet, node: &Json) -> anyhow::Result<Vec<Line>> {
    let (username, groups) = identity("admin", node_name(node), &[]);
    let old = Some(node.clone());
    let scene = Scene { node: node.clone(), old, status: false, username, groups, saved: None, pending_taint: None };
    let object = simulate(set, &scene, &Exemptions::default())?.node.to_string();
    let verdict = violations(set, &NodeFacts::parse(&object)?);
    let line = |by: &crate::policy::RuleId, mode, key: &str, message: &str| Line {
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
        "{nodes} nodes, {} with violations: {enforce} of entries that enforce, {warn} that warn, {audit} that audit",
        violating.len()
    ));
    if unknown > 0 {
        text.push_str(&format!("; {unknown} expressions had no answer, which counts as a finding"));
    }
    let unreadable = of("unreadable");
    if unreadable > 0 {
        text.push_str(&format!("; {unreadable} nodes could not be read, which counts as a finding"));
    }
    text.push_str(&format!("\npolicies: {policies}\n"));
    text
}
