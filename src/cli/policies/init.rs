//! `nodegate init`: a first policy from the labels and taints that nodes have today.

mod document;
mod text;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use kube::Client;

use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::cluster::serve_flags::PendingTaintArgs;
use crate::cli::shared::editor_schema;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output::{self, Format};
use crate::cli::{Findings, shared::node_files, shared::whole_file};
pub(crate) use document::Summary;
use document::UnreadableNode;
use nodegate_controller::{NodeApi, NodeObject, Unreadable};
use nodegate_policy::api::names::is_dns_subdomain;
use nodegate_policy::init::{FirstPolicy, FleetNode, Included, InitError, first_policy};

/// Write a first policy from the labels and taints of today's nodes
///
/// It also writes tests. The policy changes nothing on these nodes. Nodes with the same labels and taints share a rule,
/// by names or globs that match no other node. Keys that other programs set, and values of single machines, are left
/// out and listed with the reason.
///
/// Nodes come from files, such as the output of `kubectl get nodes -o yaml`, or from a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Files or directories with Nodes or Lists; - for standard input [default: the nodes of the cluster]
    #[arg(value_name = "PATH", conflicts_with_all = ["kubeconfig", "namespace"])]
    nodes: Vec<PathBuf>,
    /// Directory for policy.yaml, test.yaml and schemas for editors; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "policy")]
    dir: PathBuf,
    /// Name of the policy
    #[arg(long, default_value = "fleet", value_parser = policy_name)]
    name: String,
    /// Do not leave out this key, or all keys of this prefix (example.com/*)
    #[arg(long, value_name = "KEY")]
    include: Vec<String>,
    /// Overwrite existing files
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    pending: PendingTaintArgs,
    /// Output format of the summary
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

fn policy_name(text: &str) -> Result<String, String> {
    match is_dns_subdomain(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a valid name; write lower-case letters, digits, '-' or '.'")),
    }
}

pub(in crate::cli) fn run(args: &InitArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let fleet = if args.nodes.is_empty() { runtime.block_on(of_cluster(args, invocation))? } else { of_files(args)? };
    let included = Included::parse(args.include.iter().map(String::as_str));
    let included = included.map_err(|problem| anyhow!("--include: {problem}"))?;
    let first = match first_policy(&fleet.nodes, &args.pending.taints(), &included) {
        Err(InitError::NoNodes) => bail!("the cluster has no nodes; pass files with nodes instead"),
        first => first?,
    };
    let mut summary = Summary::of(&first, fleet.unreadable);
    if first.rules.is_empty() {
        output::print(&shown(args, invocation, &summary)?)?;
        bail!(
            "found no label or taint for a policy, so no file was written; set one on a node, or write a policy by hand"
        );
    }
    summary.files = write(args, &first)?;
    output::print(&shown(args, invocation, &summary)?)?;
    Ok(Findings::None)
}

fn shown(args: &InitArgs, invocation: Invocation, summary: &Summary) -> anyhow::Result<String> {
    match args.output {
        Format::Table => Ok(text::of(summary, invocation.program(), &selected(args, invocation))),
        format => output::structured(format, summary),
    }
}

/// The arguments with which `plan` reads the same nodes, each after a space.
fn selected(args: &InitArgs, invocation: Invocation) -> String {
    let context = args.connect.context.iter().map(|context| format!(" --context {context}"));
    let cluster = match (&args.connect.kubeconfig, invocation) {
        (Some(file), _) => {
            format!(" --kubeconfig {}{}", file.display(), context.collect::<String>())
        }
        (None, Invocation::KubectlPlugin | Invocation::WithKubeconfig) => context.collect(),
        (None, Invocation::Nodegate) => " --namespace NAMESPACE".to_owned(),
    };
    match args.nodes.as_slice() {
        [] => cluster,
        files => files.iter().map(|file| format!(" {}", file.display())).collect(),
    }
}

/// The nodes that a policy is written for.
#[derive(Default)]
struct Fleet {
    nodes: Vec<FleetNode>,
    unreadable: Vec<UnreadableNode>,
}

fn of_files(args: &InitArgs) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::default();
    for found in node_files::read(&args.nodes)? {
        let node = NodeObject::read(&found.node.to_string()).with_context(|| found.file.clone())?;
        fleet.nodes.push(FleetNode::of(&node.facts()?));
    }
    Ok(fleet)
}

async fn of_cluster(args: &InitArgs, invocation: Invocation) -> anyhow::Result<Fleet> {
    let Some(place) = args.connect.reading_place(invocation).await? else {
        bail!(
            "no nodes are selected; pass files with nodes (- for standard input), or select a cluster with --kubeconfig"
        );
    };
    read_nodes(place.client().await?).await
}

/// Reads all nodes of a cluster, a page at a time. A node that cannot be read does not affect the others.
async fn read_nodes(client: Client) -> anyhow::Result<Fleet> {
    let api = NodeApi::new(client);
    let mut fleet = Fleet::default();
    let mut next: Option<String> = None;
    loop {
        let page = api.page(next.as_deref(), |read| fleet.add(read)).await.context("could not list nodes")?;
        next = page.next;
        if next.is_none() {
            return Ok(fleet);
        }
    }
}

impl Fleet {
    fn add(&mut self, read: Result<NodeObject, Unreadable>) {
        let facts = |node: &NodeObject| match node.facts() {
            Ok(facts) => Ok(FleetNode::of(&facts)),
            Err(error) => Err(Unreadable { name: node.name().to_owned(), why: error.to_string() }),
        };
        match read.and_then(|node| facts(&node)) {
            Ok(node) => self.nodes.push(node),
            Err(error) => {
                // No glob may match a node whose labels are unknown.
                self.nodes.extend(Some(FleetNode::named(&error.name)).filter(|_| !error.name.is_empty()));
                self.unreadable.push(UnreadableNode { node: error.name, reason: error.why });
            }
        }
    }
}

/// Writes the policy, its tests and the schemas that their first lines name. Returns the paths.
fn write(args: &InitArgs, first: &FirstPolicy) -> anyhow::Result<Vec<String>> {
    let files = [
        ("policy.yaml", first.policy_yaml(&args.name, "nodepolicy.schema.json")?),
        ("test.yaml", first.test_yaml("policy.yaml", "policytest.schema.json")?),
        ("nodepolicy.schema.json", editor_schema::node_policy()?),
        ("policytest.schema.json", editor_schema::policy_test()?),
    ];
    let files = files.map(|(name, text)| (args.dir.join(name), text));
    let there: Vec<String> = files
        .iter()
        .filter(|(path, _)| !args.force && path.symlink_metadata().is_ok())
        .map(|(path, _)| path.display().to_string())
        .collect();
    if !there.is_empty() {
        bail!(
            "these files already exist: {}; use --force to overwrite the files of an earlier `init`, or --dir for another directory",
            there.join(", ")
        );
    }
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    // If the command is ended while it writes, no file is half, and a policy has its tests.
    let mut written = Vec::new();
    for (path, text) in &files {
        written.push(whole_file::unnamed(&args.dir, text).with_context(|| path.display().to_string())?);
    }
    for ((path, _), file) in files.iter().zip(written) {
        let placed = match args.force {
            true => file.persist(path),
            // Whatever appears between the check and now is not overwritten either.
            false => file.persist_noclobber(path),
        };
        placed.map_err(|error| error.error).with_context(|| path.display().to_string())?;
    }
    Ok(files.iter().map(|(path, _)| path.display().to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_cannot_be_read_is_reported_and_keeps_its_name() {
        let mut fleet = Fleet::default();
        fleet.add(NodeObject::read(r#"{"metadata": {"name": "a", "labels": {"tier": "x"}}}"#));
        fleet.add(NodeObject::read(r#"{"metadata": {"name": "b", "labels": "none"}}"#));
        fleet.add(NodeObject::read("[]"));
        assert_eq!(fleet.nodes[1..], [FleetNode::named("b")]);
        let named: Vec<&str> = fleet.unreadable.iter().map(|node| node.node.as_str()).collect();
        assert_eq!(named, ["b", ""]);
    }
}
