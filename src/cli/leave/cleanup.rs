//! `nodegate cleanup`: removes what nodegate has set on nodes, and its own objects.

mod files;
mod nodes;
mod objects;
mod running;
mod text;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget};
use kube::Client;

use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs};
use crate::cli::shared::cluster::effective_policies::{self, Unpublished};
use crate::cli::shared::cluster::saved_state::SavedFiles;
use crate::cli::shared::cluster::serve_flags::{PaceArgs, ServedArgs};
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::parse_name;
use crate::cli::shared::output::{self, Format};
use crate::cli::{Findings, shared::cluster::known_node};
use nodegate_controller::kept_objects::kept_objects;
use nodegate_controller::{NodeApi, WriteBudget};
use nodegate_policy::cleanup::{Cleanup, CleanupResult, CleanupScope, Extent, KeptBecause};
use nodegate_policy::{PendingTaints, PolicySet};
use nodegate_stores::inventory::InventoryCache;
use nodegate_stores::state::{ConfigMaps, SavedStates, StateWriter};

/// The field manager of the command's writes.
const MANAGER: &str = "nodegate-cleanup";

/// How long API servers may go on applying an admission policy after it was deleted: they look for changes once per second
/// (`k8s.io/apiserver/pkg/admission/plugin/policy/generic`, `policyRefreshIntervalDefault`).
const POLICIES_LINGER: Duration = Duration::from_secs(3);

/// Remove what nodegate has set on nodes, and its own objects
///
/// Use it before nodegate is uninstalled, or for some nodes or policies. It is a dry run unless --confirm is given.
///
/// A label, annotation or taint is removed only if saved state says that nodegate owns it, and if it still has the value
/// that nodegate set. To remove everything, stop nodegate first. If the command is interrupted, run it again.
#[derive(Debug, clap::Args)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Remove what the command otherwise only lists
    #[arg(long)]
    confirm: bool,
    /// Only on these nodes, with their saved state
    #[arg(long = "node", value_name = "NAME", value_parser = parse_name, num_args = 1.., value_delimiter = ',')]
    node: Vec<String>,
    /// Only keys that rules of these policies assign, or could assign if no rule assigns them now. The policies must be
    /// in force in the cluster
    #[arg(long = "policy", value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    policy: Vec<String>,
    /// Only saved state of nodes that do not exist anymore, and keys that no rule assigns anymore
    #[arg(long)]
    decommissioned: bool,
    /// Exit with 1 if there is something to remove
    #[arg(long, conflicts_with = "confirm")]
    exit_code: bool,
    /// List what would be removed from the nodes in these files or directories, as printed by `kubectl get nodes -o yaml`;
    /// - for standard input
    #[arg(long, value_name = "PATH", requires = "state_dir",
        conflicts_with_all = ["kubeconfig", "namespace", "confirm", "policy", "decommissioned"])]
    nodes: Vec<PathBuf>,
    #[command(flatten)]
    saved: SavedFiles,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    served: ServedArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl CleanupArgs {
    /// Whether only a part is meant.
    fn is_narrowed(&self) -> bool {
        !self.node.is_empty() || self.is_by_rules()
    }

    /// Whether it depends on rules what is meant.
    fn is_by_rules(&self) -> bool {
        !self.policy.is_empty() || self.decommissioned
    }
}

pub(in crate::cli) fn run(args: &CleanupArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let cleanup = if args.nodes.is_empty() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
        runtime.block_on(of_cluster(args, invocation))?
    } else {
        files::cleanup(args)?
    };
    output::show(args.output, &cleanup, text::of)?;
    Ok(findings(args, &cleanup))
}

/// Whether there is something left that was to be removed.
fn findings(args: &CleanupArgs, cleanup: &Cleanup) -> Findings {
    let is_left = |result: CleanupResult, why: Option<KeptBecause>| match (result, why) {
        (CleanupResult::WouldRemove, _) => args.exit_code,
        (CleanupResult::Removed, _) => false,
        (CleanupResult::Failed, _) => true,
        // These are not nodegate's anymore.
        (CleanupResult::Kept, Some(KeptBecause::Changed | KeptBecause::EarlierNode)) => false,
        (CleanupResult::Kept, _) => args.confirm,
    };
    let keys = cleanup.nodes.iter().flat_map(|node| &node.keys).map(|key| (key.result, key.why));
    let objects = cleanup.objects.iter().map(|object| (object.result, object.why));
    let failed = cleanup.nodes.iter().any(|node| node.error.is_some());
    if failed || keys.chain(objects).any(|(result, why)| is_left(result, why)) {
        Findings::Some
    } else {
        Findings::None
    }
}

/// Everything that the steps need.
struct Cleaner<'a> {
    args: &'a CleanupArgs,
    place: ClusterTarget,
    nodes: NodeApi,
    maps: ConfigMaps,
    writer: StateWriter,
    budget: WriteBudget,
    /// The policies in force, where it matters what they assign.
    set: Option<PolicySet>,
    /// The answers of inventories.
    inventory: InventoryCache,
    /// Whether nodegate is running.
    is_running: bool,
    pending: PendingTaints,
    bar: ProgressBar,
}

impl Cleaner<'_> {
    fn scope(&self) -> CleanupScope<'_> {
        let extent = match &self.set {
            Some(set) if self.args.is_by_rules() => {
                Extent::Policies { set, names: &self.args.policy, leftovers: self.args.decommissioned }
            }
            _ => Extent::Everything,
        };
        CleanupScope { extent, running: self.set.as_ref().filter(|_| self.is_running) }
    }
}

async fn of_cluster(args: &CleanupArgs, invocation: Invocation) -> anyhow::Result<Cleanup> {
    let place =
        if args.confirm { args.connect.place(invocation)? } else { args.connect.place_to_read(invocation).await? };
    let place = place.context(
        "no cluster is selected; set --kubeconfig and --namespace, or pass files with --nodes and --state-dir",
    )?;
    let client = place.client().await?;
    let is_running = is_running(args, &client, &place).await?;
    let needs_rules = args.is_by_rules() || (args.is_narrowed() && is_running);
    let set = if needs_rules { Some(in_force(&client, &place).await?) } else { None };
    if let Some(unknown) =
        args.policy.iter().find(|name| !set.iter().flat_map(|set| set.policies()).any(|one| one == *name))
    {
        let names: Vec<&str> = set.iter().flat_map(|set| set.policies()).collect();
        bail!(
            "policy {unknown} is not in force, so it is unknown which keys it assigned; in force: {}; \
             --decommissioned removes keys that no rule assigns anymore",
            names.join(", ")
        );
    }
    let states = Arc::new(SavedStates::new(args.served.identity));
    let maps = ConfigMaps::new(client.clone(), &place.namespace, states);
    // Records are read before nodes: a node that joins in between has a record that is not read, and not the reverse.
    let stored = maps.stored().await.context("could not read saved state")?;
    let own = if args.is_narrowed() { Vec::new() } else { kept_objects(&client, &place.namespace).await? };
    let inventory = known_node::all_inventory_answers(&client, &place.namespace).await?;
    let cleaner = Cleaner {
        args,
        nodes: NodeApi::new(client),
        writer: StateWriter::new(maps.clone(), MANAGER),
        maps,
        budget: WriteBudget::per_second(args.pace.writes_per_second),
        set,
        is_running,
        inventory,
        pending: args.served.pending.taints(),
        bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
        place,
    };
    // What judges or changes writes of nodes goes first, or it would refuse or undo the rest. Records go after their nodes:
    // they say what is left to do if the command is interrupted.
    let (judging, others): (Vec<_>, Vec<_>) = own.into_iter().partition(|object| object.judges_nodes);
    let mut objects = cleaner.own_objects(&judging).await?;
    if args.confirm && !objects.is_empty() {
        output::note("note: waiting until the API server no longer applies the deleted admission policies");
        tokio::time::sleep(POLICIES_LINGER).await;
    }
    let fleet = cleaner.fleet(&stored).await?;
    objects.extend(cleaner.records(&stored, &fleet).await?);
    objects.extend(cleaner.own_objects(&others).await?);
    cleaner.bar.finish_and_clear();
    objects.sort();
    let nodes = fleet.nodes.into_iter().filter(|node| !node.keys.is_empty() || node.error.is_some());
    Ok(Cleanup { namespace: Some(cleaner.place.namespace), confirmed: args.confirm, nodes: nodes.collect(), objects })
}

/// Whether nodegate is running, which is no error if only a part is meant.
async fn is_running(args: &CleanupArgs, client: &Client, place: &ClusterTarget) -> anyhow::Result<bool> {
    let running = running::look(client, place, &args.served.configuration.name(client).await).await?;
    if running.is_nothing() {
        return Ok(false);
    }
    if args.is_narrowed() {
        output::note(&format!("note: {running}: what rules still assign stays, because nodegate would set it again"));
    } else if args.confirm {
        bail!("{running}: nodegate would set everything again\n{}", running.remedy());
    } else {
        output::note(&format!("note: {running}: --confirm refuses to remove everything; {}", running.remedy()));
    }
    Ok(true)
}

/// The policies in force.
async fn in_force(client: &Client, place: &ClusterTarget) -> anyhow::Result<PolicySet> {
    let remedy = "start `nodegate serve` of this version until it leads, or clean up everything";
    match effective_policies::published_set(client, place).await {
        Ok(Some(set)) => Ok(set),
        Ok(None) => {
            bail!("cannot tell which keys rules assign: {}; {remedy}", effective_policies::never_led(place))
        }
        Err(Unpublished::Unusable(why)) => {
            bail!("cannot read the policies in force {why}, so it is unknown which keys rules assign; {remedy}")
        }
        Err(because @ Unpublished::Unread(_)) => {
            bail!("{because}, so it is unknown which keys rules assign")
        }
    }
}

/// The nodes that were looked at.
#[derive(Default)]
struct Fleet {
    /// Sorted by name.
    nodes: Vec<nodegate_policy::cleanup::NodeCleanup>,
    /// The names of all nodes in the cluster.
    names: HashSet<String>,
    /// The identities of all nodes in the cluster.
    identities: HashSet<String>,
    /// The names of nodes that could not be cleaned up.
    failed: HashSet<String>,
}
