//! `nodegate migrate`: moves labels from one key to another, and says how far they are and what still uses the old key.

mod consumers;
mod document;
mod text;
mod walk;

use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget};
use kube::Client;

use crate::cli::run::serve::duration::duration;
use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output::{self, Format};
use crate::cli::{Findings, shared::cluster::effective_policies};
pub(crate) use document::MigrationsStatus;
use document::{MigrationStatus, Phase, UnequalNode};
use nodegate_base::text::on_a_line;
use nodegate_controller::{NodeApi, Unreadable};
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::{MigrationInForce, PolicySet};
use nodegate_stores::files::Sources;

/// Move a label from one key to another, phase by phase
///
/// The command writes a NodePolicy of its own. It is a dry run unless --confirm is given.
///
/// The command waits until all nodes are ready for each phase, and refuses to remove a key that something still uses.
/// From cutover on, writes that set the old key are refused. If the command is interrupted, run it again.
///
/// `nodegate serve` must run in the cluster. If one of your policies contains the migration already, change the phase
/// there.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    command: Option<MigrateCommand>,
    #[command(flatten)]
    walk: WalkArgs,
}

#[derive(Debug, clap::Args)]
struct WalkArgs {
    /// The old key
    #[arg(value_name = "OLD", required = true)]
    old: Option<LabelKey>,
    /// The new key
    #[arg(value_name = "NEW", required = true)]
    new: Option<LabelKey>,
    /// What follows the two keys, which is a mistake
    #[arg(value_name = "…", hide = true)]
    surplus: Vec<String>,
    /// The last phase to enter
    #[arg(long, value_enum, value_name = "PHASE", default_value_t = Phase::Done)]
    to: Phase,
    /// Write the NodePolicy and go through the phases, instead of only saying so
    #[arg(long)]
    confirm: bool,
    /// Only print what would happen, which is the default
    #[arg(long, conflicts_with = "confirm")]
    dry_run: bool,
    /// Remove the old key although something uses it, or although that is unknown
    #[arg(long)]
    despite_consumers: bool,
    /// Needed if kubelets may set one of the keys and not the other one: then a kubelet chooses the value
    #[arg(long)]
    trust_kubelet: bool,
    /// How long to wait for the nodes and for the policy, each time
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Subcommand)]
enum MigrateCommand {
    Status(Box<StatusArgs>),
}

/// Show the migrations in force: their phase, how many nodes have which of the two keys, and what still uses the old key
///
/// What uses a key: pods, Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs, CronJobs,
/// PersistentVolumes, StorageClasses, RuntimeClasses, NodePools of Karpenter, and policies of nodegate. Pods of the listed workloads are counted apart.
#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Only the migration from this key
    #[arg(value_name = "OLD")]
    old: Option<LabelKey>,
    /// The new key; then the migration need not be in force yet
    #[arg(value_name = "NEW")]
    new: Option<LabelKey>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Exit with 1 if something still uses an old key, or if that is unknown
    #[arg(long)]
    exit_code: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(in crate::cli) fn run(args: &MigrateArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    if let Some(first) = args.walk.surplus.first() {
        bail!("migrate moves one key to another, and {first:?} is a third; run it once for each pair of keys");
    }
    let Some(MigrateCommand::Status(args)) = &args.command else {
        return runtime.block_on(walk::walk(&args.walk, invocation));
    };
    let status = runtime.block_on(of_cluster(args, invocation))?;
    output::show(args.output, &status, text::of)?;
    let is_used = !status.unread.is_empty() || status.migrations.iter().any(MigrationStatus::is_used);
    Ok(if args.exit_code && is_used { Findings::Some } else { Findings::None })
}

async fn of_cluster(args: &StatusArgs, invocation: Invocation) -> anyhow::Result<MigrationsStatus> {
    let place = args.connect.place_to_read(invocation).await?;
    let place = place.context("no cluster is selected; set --kubeconfig")?;
    let client = place.client().await?;
    let (set, _) = effective_policies::in_force(&client, &place, &Sources::default()).await?;
    let mut status = MigrationsStatus { migrations: asked(args, &set)?, unread: Vec::new() };
    if !status.migrations.is_empty() {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        for name in nodes(&client, &mut status.migrations, &bar).await? {
            output::note(&format!("note: node {} could not be read and is not counted", on_a_line(&name)));
        }
        consumers::of_policies(&set, &mut status.migrations);
        consumers::of_cluster(&client, &mut status, &bar).await?;
        bar.finish_and_clear();
    }
    status.migrations.iter_mut().for_each(MigrationStatus::sort);
    Ok(status)
}

/// The migrations that are asked for: all, the one from a key, or one that need not be in force.
///
/// # Errors
/// Returns an error if there is no such migration.
fn asked(args: &StatusArgs, set: &PolicySet) -> anyhow::Result<Vec<MigrationStatus>> {
    let is_asked = |one: &MigrationInForce<'_>| {
        args.old.as_ref().is_none_or(|old| old.as_str() == one.from)
            && args.new.as_ref().is_none_or(|new| new.as_str() == one.to)
    };
    let mut found: Vec<MigrationStatus> =
        set.migrations().iter().filter(|one| is_asked(one)).map(MigrationStatus::in_force).collect();
    match (&args.old, &args.new) {
        (Some(old), Some(new)) if old == new => bail!("OLD and NEW are the same key, {old}; name two keys"),
        (Some(old), Some(new)) if found.is_empty() => found.push(MigrationStatus::planned(old, new)),
        (Some(old), None) if found.is_empty() => {
            bail!("no migration from {old} is in force; add the new key to look at one that is not in force yet")
        }
        _ => {}
    }
    Ok(found)
}

/// Counts the nodes by what they have of both keys. Returns the names of those that could not be read.
async fn nodes(client: &Client, migrations: &mut [MigrationStatus], bar: &ProgressBar) -> anyhow::Result<Vec<String>> {
    let mut unreadable = Vec::new();
    let each = |read| {
        let node: nodegate_controller::NodeObject = match read {
            Ok(node) => node,
            Err(Unreadable { name, .. }) => return unreadable.push(name),
        };
        let text = node.text();
        let Ok(facts) = text.facts() else { return unreadable.push(node.name().to_owned()) };
        for migration in &mut *migrations {
            let (old, new) = (facts.label(&migration.from), facts.label(&migration.to));
            count(migration, node.name(), old, new);
            let managers: Vec<&str> = text.claims().label_managers(&migration.from).collect();
            migration.note_writers(managers.into_iter());
        }
        bar.inc(1);
    };
    NodeApi::new(client.clone()).each(each).await.context("could not list nodes")?;
    Ok(unreadable)
}

fn count(migration: &mut MigrationStatus, node: &str, old: Option<&str>, new: Option<&str>) {
    let nodes = &mut migration.nodes;
    let counter = match (old, new) {
        (None, None) => &mut nodes.neither,
        (Some(_), None) => &mut nodes.old_only,
        (None, Some(_)) => &mut nodes.new_only,
        (Some(old), Some(new)) if old == new => &mut nodes.equal,
        (Some(_), Some(_)) => &mut nodes.different,
    };
    *counter += 1;
    // After the end of a migration, nodes have the new key only.
    let is_as_meant = match migration.phase {
        Some(Phase::Done) => old.is_none(),
        None | Some(Phase::DualWrite | Phase::Cutover) => old == new,
    };
    if !is_as_meant {
        let value = |value: Option<&str>| value.map(str::to_owned);
        migration.unequal.push(UnequalNode { node: node.to_owned(), old: value(old), new: value(new) });
    }
}
