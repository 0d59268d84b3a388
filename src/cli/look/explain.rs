//! `nodegate explain NODE [KEY]`: why a node has each label, annotation and taint, and lacks others.

mod text;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kube::Client;

use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs};
use crate::cli::shared::cluster::known_node::{self, KnownNode};
use crate::cli::shared::cluster::saved_state::{InCluster, SavedFiles};
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::parse_name;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::policy_files::PolicyFiles;
use crate::cli::{Findings, shared::cluster::effective_policies, shared::cluster::saved_state, shared::node_files};
use nodegate_base::kube_error::in_words;
use nodegate_controller::tell::observed::{self, Observed};
use nodegate_controller::{NodeApi, NodeObject, machine};
use nodegate_policy::api::state::SavedState;
use nodegate_policy::explain::{Subject, explain, why_not};
use nodegate_policy::simulate::node_name;
use nodegate_policy::{FIELD_MANAGER, Field, PolicySet, Publishers};
use nodegate_stores::files::Sources;
use nodegate_stores::state::{Identity, UnusedDocument};

/// Explain why a node has or lacks a label, annotation or taint
///
/// Shows the source of each value, since when it is there, which other values rules assign, and what would remove it.
///
/// In a cluster, uses the policies in force there, and --policy only if the cluster does not publish them. With
/// --nodes, uses --policy, or else the preset `baseline`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Name of the node
    #[arg(value_name = "NODE", value_parser = parse_name)]
    node: String,
    /// Explain only this label, annotation or taint, even if the node does not have it
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Also show keys that no rule affects
    #[arg(long, conflicts_with_all = ["key", "why_not"])]
    all: bool,
    /// Show each rule that could set this key, with the result of each of its conditions
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    why_not: Option<String>,
    /// Files or directories with Nodes, as printed by `kubectl get nodes -o yaml --show-managed-fields`; - for standard
    /// input [default: the nodes of the cluster]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["kubeconfig", "namespace"])]
    nodes: Vec<PathBuf>,
    #[command(flatten)]
    files: PolicyFiles,
    #[command(flatten)]
    saved: SavedFiles,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    served: ServedArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// A node and the policies for it.
struct Gathered {
    set: PolicySet,
    node: KnownNode,
    /// Keys of this node that the controller does not repair anymore.
    left_alone: Vec<(Field, String)>,
    /// Whether the controller holds removals back.
    braked: bool,
    /// Why saved state is unknown, if it is.
    unknown_state: Option<String>,
}

pub(in crate::cli) fn run(args: &ExplainArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let gathered =
        if args.nodes.is_empty() { runtime.block_on(of_cluster(args, invocation))? } else { of_files(args)? };
    show(args, &gathered)?;
    Ok(Findings::None)
}

fn show(args: &ExplainArgs, gathered: &Gathered) -> anyhow::Result<()> {
    let Gathered { set, node, left_alone, braked, unknown_state } = gathered;
    let facts = node.facts()?;
    let pending = args.served.pending.taints();
    let created = node.node.created().map(|time| time.to_string());
    let subject = Subject {
        stored: node.stored(&facts, &pending),
        own_manager: FIELD_MANAGER,
        created: created.as_deref(),
        left_alone,
        braked: *braked,
    };
    if let Some(key) = &args.why_not {
        let answer = why_not(set, &subject, key);
        return output::show(args.output, &answer, text::of_rules);
    }
    let mut answer = explain(set, &subject, args.key.as_deref());
    answer.saved_state_unknown.clone_from(unknown_state);
    answer.writers_unknown = (!args.nodes.is_empty() && !subject.stored.claims.are_tracked()).then(|| {
        format!(
            "the file has no managedFields; print it with `kubectl get node {} -o yaml --show-managed-fields`",
            args.node
        )
    });
    output::show(args.output, &answer, |answer| match &args.key {
        Some(key) => text::of_key(answer, key),
        None => text::of_node(answer, args.all),
    })
}

/// The node and its past from files.
fn of_files(args: &ExplainArgs) -> anyhow::Result<Gathered> {
    let set = sources(args).load().map_err(|errors| output::load_errors(&errors))?;
    let all = node_files::read(&args.nodes)?;
    let Some(found) = all.iter().find(|found| node_name(&found.node) == args.node) else {
        let mut names: Vec<&str> = all.iter().map(|found| node_name(&found.node)).collect();
        names.sort_unstable();
        let more = if names.len() > 5 { ", …" } else { "" };
        bail!("no node {} in the files; they contain {}{more}", args.node, names[..names.len().min(5)].join(", "));
    };
    let mut saved = args.saved.read()?.unwrap_or_default();
    let publishers = known_node::publishers(&all, &saved);
    let node = KnownNode::of_file(&found.node, saved.remove(&args.node), publishers)?;
    Ok(Gathered { set, node, left_alone: Vec::new(), braked: false, unknown_state: None })
}

/// The node and its past from the cluster.
async fn of_cluster(args: &ExplainArgs, invocation: Invocation) -> anyhow::Result<Gathered> {
    let Some(place) = args.connect.place_to_read(invocation).await? else {
        bail!("no node is selected; pass files with --nodes, or select a cluster with --kubeconfig");
    };
    let client = place.client().await?;
    let node = match NodeApi::new(client.clone()).get(&args.node).await.context("could not read the node")? {
        Some(node) => node?,
        None => bail!("no node {} in the cluster; `kubectl get nodes` lists them", args.node),
    };
    let set = effective_policies::in_force(&client, &place, &sources(args)).await?.0;
    let identity = args.served.identity;
    let saved = saved_of(&client, &place, identity, &node).await;
    let unknown_state = saved.as_ref().err().cloned();
    let since = known_node::webhook_since(&client, &args.served.configuration).await;
    let observed = observed_in(&client, &place).await;
    let of_node = observed.left_alone.iter().filter(|key| key.node == args.node);
    let left_alone = of_node.filter_map(|key| Some((Field::parse(&key.field)?, key.key.clone()))).collect();
    let braked = observed.held_back.is_some();
    let answers = known_node::inventory_answers(&client, &place.namespace).await;
    let publishers = publishers_elsewhere(&client, &place, &node).await;
    let node = KnownNode::of_cluster(node, saved.unwrap_or_default(), since, identity, publishers)
        .answered(&set, &answers)
        .with_devices(&known_node::devices_read_by(&set, &client).await)
        .remembering(known_node::pool_memory(&client, &place.namespace).await);
    Ok(Gathered { set, node, left_alone, braked, unknown_state })
}

/// The saved state of a node, or why it is unknown. Without it, the rest can still be explained.
async fn saved_of(
    client: &Client,
    place: &ClusterTarget,
    identity: Identity,
    node: &NodeObject,
) -> Result<SavedState, String> {
    let name = node.name();
    let text = node.text();
    let facts = text.facts().map_err(|error| error.to_string())?;
    let unknown = |why: String| {
        output::note(&format!("note: it is unknown what nodegate owns: {why}"));
        Err(why)
    };
    match saved_state::of_machine(client, &place.namespace, identity, machine(&facts)).await {
        Ok(InCluster::Record(saved)) => Ok(*saved),
        Ok(InCluster::Nothing) => unknown(format!("namespace {} has no saved state for node {name}", place.namespace)),
        Ok(InCluster::Unreadable(UnusedDocument { config_map, node: _, why })) => {
            unknown(format!("saved state in ConfigMap {config_map} is not used: {why}"))
        }
        Err(error) => unknown(format!("could not read saved state: {}", in_words(&error))),
    }
}

/// The programs that publish labels on any node, by the records of all. Only GPUs in a node's capacity depend on them.
async fn publishers_elsewhere(client: &Client, place: &ClusterTarget, node: &NodeObject) -> Publishers {
    let is_gpu = |resource: &str| ["nvidia.com/gpu", "amd.com/gpu"].contains(&resource);
    if !node.text().facts().is_ok_and(|facts| facts.capacity.iter().any(|(resource, _)| is_gpu(resource))) {
        return Publishers::default();
    }
    match saved_state::all_in_cluster(client, &place.namespace, |_| {}).await {
        Ok(states) => Publishers::recorded(&states),
        Err(error) => {
            output::note(&format!(
                "note: could not read the saved state of other nodes, so the number of GPUs may be one of shares: {}",
                in_words(&error)
            ));
            Publishers::default()
        }
    }
}

/// What the leader has published about keys that it does not write.
async fn observed_in(client: &Client, place: &ClusterTarget) -> Observed {
    match observed::read(client.clone(), &place.namespace).await {
        Ok(observed) => observed.unwrap_or_default(),
        Err(error) => {
            output::note(&format!(
                "note: could not read what the controller leaves alone, so that may be missing: {}",
                in_words(&error)
            ));
            Observed::default()
        }
    }
}

fn sources(args: &ExplainArgs) -> Sources {
    args.files.sources()
}
