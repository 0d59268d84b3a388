//! `nodegate init`: a first policy from the labels and taints that nodes have today, or from the rules of another program.

mod document;
mod text;
mod translation;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use kube::Client;

use crate::cli::shared::cluster::connect::{ConnectArgs, NO_NODES};
use crate::cli::shared::cluster::serve_flags::PendingTaintArgs;
use crate::cli::shared::editor_schema;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output::{self, Format};
use crate::cli::{Findings, shared::node_files, shared::whole_file};
pub(crate) use document::Summary;
use document::UnreadableNode;
use nodegate_controller::{NodeApi, NodeObject, Unreadable};
use nodegate_policy::api::names::is_dns_subdomain;
use nodegate_policy::init::{By, FirstPolicy, FleetNode, Included, InitError, Wishes, first_policy};
use nodegate_policy::translate::Program;
pub(crate) use translation::TranslationSummary;

/// What `--by` takes for pools.
const POOL: &str = "pool";
/// The default of `--dir`, and that of `--name`.
const DIR: &str = "policy";
const NAME: &str = "fleet";
/// What is about nodes, and not about rules of other programs.
const NOT_FROM: [&str; 7] = ["nodes", "include", "by", "trust_kubelet", "kubeconfig", "namespace", "pending_taint_key"];

/// Write a first policy from the labels and taints of today's nodes
///
/// It also writes tests. The policy changes nothing on these nodes. Nodes with the same labels and taints share a rule,
/// by names or globs that match no other node. Where names say nothing, as in most clouds, the rules match the label of
/// the node group, or what --by names. Keys that other programs set, and values of single machines, are left
/// out and listed with the reason.
///
/// Nodes come from files, such as the output of `kubectl get nodes -o yaml`, or from a cluster.
///
/// --from-kyverno and --from-nfd translate rules instead, if they match exactly the same nodes and set the same values here. All
/// others are listed with the reasons. When a value comes and goes is not the same: taints are added to those of the node and
/// replace none, a NoExecute taint is given only to nodes that join, Kyverno's anchor +(key) sets a key once, and what a rule
/// has set is removed when it stops matching. Exits with 0 if some rules were left out, and with 2 if all were.
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Files or directories with Nodes or Lists; - for standard input [default: the nodes of the cluster]
    #[arg(value_name = "PATH", conflicts_with_all = ["kubeconfig", "namespace"])]
    nodes: Vec<PathBuf>,
    /// Translate the rules for Nodes in these files or directories with Kyverno's ClusterPolicies; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = NOT_FROM, conflicts_with = "from_nfd")]
    from_kyverno: Vec<PathBuf>,
    /// Translate the NodeFeatureRules of Node Feature Discovery in these files or directories; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = NOT_FROM)]
    from_nfd: Vec<PathBuf>,
    /// Directory for policy.yaml, test.yaml and schemas for editors; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
    /// Name of the policy
    #[arg(long, default_value = NAME, value_parser = policy_name)]
    name: String,
    /// Do not leave out this key, or all keys of this prefix (example.com/*)
    #[arg(long, value_name = "KEY")]
    include: Vec<String>,
    /// What rules match: pool (the pools of Karpenter, EKS or AKS), or the key of a label; may be given more than once:
    /// a node is in the group of the first key that it has. For a label named pool, write label:pool [default: names,
    /// or the labels of node groups if names say nothing]
    #[arg(long, value_name = "pool|KEY")]
    by: Vec<String>,
    /// Trust every kubelet not to claim a label of another group: rules by label also give labels that kubelets may not
    /// set, such as node roles
    #[arg(long, requires = "by")]
    trust_kubelet: bool,
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
    for (program, files) in [(Program::Kyverno, &args.from_kyverno), (Program::Nfd, &args.from_nfd)] {
        if !files.is_empty() {
            return translation::run(args, program, files, invocation);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let fleet = if args.nodes.is_empty() { runtime.block_on(of_cluster(args, invocation))? } else { of_files(args)? };
    let included = Included::parse(args.include.iter().map(String::as_str));
    let included = included.map_err(|problem| anyhow!("--include: {problem}"))?;
    let by = by(args)?;
    let is_auto = by == By::Auto;
    let wishes = Wishes { pending: args.pending.taints(), included, by, trust_kubelet: args.trust_kubelet };
    let first = match first_policy(&fleet.nodes, &wishes) {
        Err(InitError::NoNodes) => bail!("the cluster has no nodes; pass files with nodes instead"),
        Err(
            error @ (InitError::Key(..)
            | InitError::NoSuchKey(..)
            | InitError::NoGroups { .. }
            | InitError::Platform(_)),
        ) => {
            bail!("--by: {error}")
        }
        first => first?,
    };
    let mut summary = Summary::of(&first, fleet.unreadable);
    if first.rules.is_empty() {
        show(args, invocation, &summary, &first)?;
        return Err(nothing(&first));
    }
    summary.files = write(args, &first)?;
    show(args, invocation, &summary, &first)?;
    if is_auto && first.names_say_nothing {
        output::note(&text::names_say_nothing(&first, &format!("{} init{}", invocation.program(), again(args))));
    }
    Ok(Findings::None)
}

/// What `--by` says.
fn by(args: &InitArgs) -> anyhow::Result<By> {
    match args.by.as_slice() {
        [] => Ok(By::Auto),
        [only] if only == POOL && args.trust_kubelet => {
            bail!("--trust-kubelet has no effect with --by pool, because no kubelet chooses its pool; remove it")
        }
        [only] if only == POOL => Ok(By::Pool),
        several if several.iter().any(|by| by == POOL) => {
            bail!("--by pool cannot be combined with a label; for a label named pool, write --by label:pool")
        }
        keys => Ok(By::Labels(keys.iter().map(|key| key.strip_prefix("label:").unwrap_or(key).to_owned()).collect())),
    }
}

/// Why no file was written.
fn nothing(first: &FirstPolicy) -> anyhow::Error {
    if !first.withheld.is_empty() {
        return anyhow!(
            "all that these groups have are labels that kubelets may not set, so no file was written; use --by pool, or --trust-kubelet if you trust every kubelet not to claim the label of another group"
        );
    }
    if first.names_say_nothing {
        return anyhow!(
            "the names of the nodes have too little in common for rules, so no file was written; {}",
            first.advice()
        );
    }
    anyhow!(
        "found no label or taint for a policy, so no file was written; set one on a node, or write a policy by hand"
    )
}

fn show(args: &InitArgs, invocation: Invocation, summary: &Summary, first: &FirstPolicy) -> anyhow::Result<()> {
    let odd_ones = first.odd_ones.len() + first.more_odd_ones;
    let text = |summary: &Summary| text::of(summary, odd_ones, invocation.program(), &selected(args, invocation));
    output::show(args.output, summary, text)
}

/// The arguments with which `plan` reads the same nodes, each after a space.
fn selected(args: &InitArgs, invocation: Invocation) -> String {
    let same = same_nodes(args);
    let needs_namespace = args.connect.kubeconfig.is_none() && invocation == Invocation::Nodegate;
    if args.nodes.is_empty() && needs_namespace { " --namespace NAMESPACE".to_owned() } else { same }
}

/// The files with the nodes, or else the cluster, as arguments, each after a space.
fn same_nodes(args: &InitArgs) -> String {
    if !args.nodes.is_empty() {
        return args.nodes.iter().map(|file| format!(" {}", file.display())).collect();
    }
    let file = args.connect.kubeconfig.iter().map(|file| format!(" --kubeconfig {}", file.display()));
    file.chain(args.connect.context.iter().map(|context| format!(" --context {context}"))).collect()
}

/// The arguments with which `init` writes the files of this run again, each after a space.
fn again(args: &InitArgs) -> String {
    let other = |flag: &str, value: &str, usual: &str| match value == usual {
        true => String::new(),
        false => format!(" {flag} {value}"),
    };
    let (dir, name) = (other("--dir", &args.dir.to_string_lossy(), DIR), other("--name", &args.name, NAME));
    let include: String = args.include.iter().map(|key| format!(" --include '{key}'")).collect();
    format!("{}{dir}{name}{include} --force", same_nodes(args))
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
        fleet.nodes.push(FleetNode::of(&node.text().facts()?));
    }
    Ok(fleet)
}

async fn of_cluster(args: &InitArgs, invocation: Invocation) -> anyhow::Result<Fleet> {
    let Some(place) = args.connect.reading_place(invocation).await? else {
        bail!(NO_NODES);
    };
    read_nodes(place.client().await?).await
}

/// Reads all nodes of a cluster, a page at a time. A node that cannot be read does not affect the others.
async fn read_nodes(client: Client) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::default();
    NodeApi::new(client).each(|read| fleet.add(read)).await.context("could not list nodes")?;
    Ok(fleet)
}

impl Fleet {
    fn add(&mut self, read: Result<NodeObject, Unreadable>) {
        let facts = |node: &NodeObject| match node.text().facts() {
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

fn write(args: &InitArgs, first: &FirstPolicy) -> anyhow::Result<Vec<String>> {
    let policy = first.policy_yaml(&args.name, "nodepolicy.schema.json")?;
    place(args, policy, first.test_yaml("policy.yaml", "policytest.schema.json")?)
}

/// Writes a policy, its tests and the schemas that their first lines name. Returns the paths.
fn place(args: &InitArgs, policy: String, test: String) -> anyhow::Result<Vec<String>> {
    let files = [
        ("policy.yaml", policy),
        ("test.yaml", test),
        ("nodepolicy.schema.json", editor_schema::node_policy()?),
        ("policytest.schema.json", editor_schema::policy_test()?),
    ];
    let files = files.map(|(name, text)| (args.dir.join(name), text));
    let there = whole_file::there(&files);
    if !args.force && !there.is_empty() {
        bail!(
            "these files already exist: {}; use --force to overwrite the files of an earlier `init`, or --dir for another directory",
            there.join(", ")
        );
    }
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    whole_file::place_all(&args.dir, &files, args.force)?;
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
