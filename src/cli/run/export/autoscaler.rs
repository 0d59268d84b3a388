//! `nodegate export autoscaler`: what the templates of autoscalers must say about the next node of each pool.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};

use crate::cli::Findings;
use crate::cli::shared::autoscalers::declared::{Declared, Provisioner};
use crate::cli::shared::autoscalers::document::{Differences, Templates};
use crate::cli::shared::autoscalers::groups::Groups;
use crate::cli::shared::autoscalers::{TemplateFormat, check, files, formats};
use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs, NO_NODES};
use crate::cli::shared::cluster::effective_policies;
use crate::cli::shared::cluster::known_node::{self, Known, KnownNode};
use crate::cli::shared::cluster::saved_state::SavedFiles;
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::policy_files::PolicyFiles;
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::simulate::node_name;

/// What the templates of autoscalers must say, so that they know nodegate's labels and taints
///
/// An autoscaler decides by a template of a pool's next node. Pods that select a label which nodegate adds, and the template lacks, get
/// no node from zero; a taint that it lacks makes the autoscaler start nodes that fit nobody. This simulates the join of each pool's
/// next node, from the nodes that the pool has, or from its NodePool or MachineDeployment if it has none.
///
/// Files contain Nodes, as printed by `kubectl get nodes -o yaml`. In a cluster, each given policy is added to the ones in force, or
/// replaces the one with its name. Nodes are grouped by the label of their node group, or else by their proven pool.
#[derive(Debug, clap::Args)]
pub(super) struct ExportAutoscalerArgs {
    /// Files or directories with Nodes; - for standard input [default: the nodes of the cluster]
    #[arg(value_name = "PATH", conflicts_with_all = ["kubeconfig", "namespace"])]
    nodes: Vec<PathBuf>,
    #[command(flatten)]
    files: PolicyFiles,
    /// What to print: in the words of an autoscaler, or by default a table or JSON for other programs
    #[arg(long, value_enum)]
    format: Option<TemplateFormat>,
    /// Group nodes by this label
    #[arg(long, value_name = "KEY")]
    by: Option<LabelKey>,
    /// File with what autoscalers are told now: NodePools or MachineDeployments, as kubectl prints them, or tags, as printed by
    /// `aws autoscaling describe-auto-scaling-groups` or `az vmss list` [default: the NodePools and MachineDeployments of the cluster, as --format asks for them]
    #[arg(long, value_name = "FILE")]
    groups: Vec<PathBuf>,
    /// Compare with what autoscalers are told now, and exit with 1 if something is missing or different
    #[arg(long)]
    check: bool,
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

pub(super) fn run(args: &ExportAutoscalerArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    ensure!(
        !(args.check && args.format == Some(TemplateFormat::Flags)),
        "--check compares templates; --format flags prints none"
    );
    ensure!(
        !(args.check
            && args.groups.is_empty()
            && matches!(args.format, Some(TemplateFormat::AsgTags | TemplateFormat::VmssTags))),
        "--check with tags needs --groups FILE: the cluster does not have them"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let place = match args.nodes.is_empty() {
        true => runtime.block_on(args.connect.place_to_read(invocation))?,
        false => None,
    };
    let (templates, declared) = match place {
        Some(place) => runtime.block_on(of_cluster(args, &place))?,
        None if args.nodes.is_empty() && args.groups.is_empty() => bail!(NO_NODES),
        None => of_files(args)?,
    };
    templates.tell_unknown();
    if args.check {
        let differences = check::differences(&templates, &declared, args.format, |_| false)?;
        output::show(args.output, &differences, Differences::in_words)?;
        return Ok(if differences.is_none() { Findings::None } else { Findings::Some });
    }
    match (args.format, args.output) {
        (Some(format), as_) => output::print(&formats::text(format, &templates, &declared, as_)?)?,
        (None, format) => output::show(format, &templates, Templates::in_words)?,
    }
    Ok(Findings::None)
}

fn of_files(args: &ExportAutoscalerArgs) -> anyhow::Result<(Templates, Vec<Declared>)> {
    let set = args.files.sources().load().map_err(|errors| output::load_errors(&errors))?;
    let mut groups = Groups::new(&set, args.by.as_ref(), args.format, args.served.pending.taints());
    let mut saved = args.saved.read()?.unwrap_or_default();
    let all = if args.nodes.is_empty() { Vec::new() } else { node_files::read(&args.nodes)? };
    let publishers = known_node::publishers(&all, &saved);
    for found in all {
        let saved = saved.remove(node_name(&found.node));
        let node = KnownNode::of_file(&found.node, saved, publishers).with_context(|| found.file.clone())?;
        groups.add(&node).with_context(|| found.file.clone())?;
    }
    let declared = declared_in_files(args)?;
    finish(args, groups, declared)
}

async fn of_cluster(args: &ExportAutoscalerArgs, place: &ClusterTarget) -> anyhow::Result<(Templates, Vec<Declared>)> {
    let client = place.client().await?;
    let proposal = effective_policies::proposed(&client, place, &args.files.sources(), false).await?;
    let set = &proposal.set;
    let mut groups = Groups::new(set, args.by.as_ref(), args.format, args.served.pending.taints());
    let known = Known { set, identity: args.served.identity, configuration: &args.served.configuration };
    let mut unreadable = Vec::new();
    let remembered = known_node::each(&client, place, &known, |node| match node {
        Ok(node) => groups.add(&node),
        Err(error) => {
            unreadable.push(error.name);
            Ok(())
        }
    })
    .await?;
    groups.remembered = remembered;
    if let Some(first) = unreadable.first() {
        output::note(&format!("note: {} nodes cannot be read and are left out, such as {first}", unreadable.len()));
    }
    let mut declared = declared_in_files(args)?;
    if args.groups.is_empty() {
        let provisioners = Provisioner::ALL.into_iter().filter(|one| one.is_meant(args.format));
        for provisioner in provisioners {
            declared.extend(provisioner.list(&client).await?.into_iter().filter(|one| groups.is_of_this_fleet(one)));
        }
    }
    finish(args, groups, declared)
}

fn declared_in_files(args: &ExportAutoscalerArgs) -> anyhow::Result<Vec<Declared>> {
    let mut declared = Vec::new();
    for file in &args.groups {
        declared.extend(files::read(file, args.format)?);
    }
    Ok(declared)
}

/// Adds the pools that have no node yet.
fn finish(
    args: &ExportAutoscalerArgs,
    mut groups: Groups<'_>,
    declared: Vec<Declared>,
) -> anyhow::Result<(Templates, Vec<Declared>)> {
    for pool in declared.iter().filter(|pool| pool.is_meant(args.format)) {
        groups.add_empty(pool)?;
    }
    let templates = groups.finish();
    ensure!(
        !templates.pools.is_empty(),
        "no pool was found: no node has the label of a node group or a proven pool; {}",
        match args.by.as_ref() {
            Some(key) => format!("no node has the label {key}"),
            None => "pass --by KEY with a label that groups nodes".to_owned(),
        }
    );
    Ok((templates, declared))
}
