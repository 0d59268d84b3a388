//! `nodegate apply`: applies the policies to all nodes once, and exits. A Job runs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use futures_util::StreamExt as _;
use indicatif::{ProgressBar, ProgressDrawTarget};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use serde::Serialize;

use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::cluster::serve_flags::{PaceArgs, ServedArgs};
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::policy_files::PolicyFiles;
use crate::cli::{Findings, shared::cluster::effective_policies, shared::cluster::known_node, shared::whole_file};
use nodegate_base::metrics::{ApplyRun, Metrics};
use nodegate_base::text::counted;
use nodegate_controller::tell::published::Published;
use nodegate_controller::{
    Done, Events, Failure, KeepConfig, MaxRemovals, NotTaken, Read, Reconciler, Unreadable, not_taken,
};
use nodegate_policy::NodeChange;
use nodegate_stores::files::Sources;
use nodegate_stores::state::{ConfigMaps, SavedStates};

/// Number of nodes that are processed concurrently.
const CONCURRENCY: usize = 16;
/// Number of attempts for a node that changes concurrently.
const TRIES: usize = 5;

/// Apply the policies to all nodes once, and exit
///
/// This is safe to repeat, even while `serve` runs. The policies are the NodePolicy objects of the cluster and those of --policy.
#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    files: PolicyFiles,
    /// Also remove keys that nodegate owns and no policy sets anymore, without a limit on the number of nodes
    #[arg(long)]
    confirm: bool,
    /// Take ownership of keys that already have the desired value, whoever set them
    #[arg(long)]
    adopt: bool,
    /// Apply the given policies even if they differ from the ones in force in the cluster
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pace: PaceArgs,
    /// Write metrics of this run to a file, for the textfile collector of node_exporter
    #[arg(long, value_name = "FILE", env = "NODEGATE_METRICS_FILE")]
    metrics_file: Option<PathBuf>,
    #[command(flatten)]
    served: ServedArgs,
    /// Additional label prefix to persist, for compatibility with the label operator
    #[arg(long, value_name = "PREFIX", env = "PERSIST_LABEL_PREFIX", hide = true)]
    persist_label_prefix: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The result of the command.
#[derive(Serialize)]
struct Outcome {
    /// The policies that were applied.
    policies: Published,
    nodes: Vec<Line>,
}

/// The result for one node.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    node: String,
    set: usize,
    changed: usize,
    removed: usize,
    kept: usize,
    /// Owned keys that no policy sets anymore and that are still present.
    lingering: usize,
    /// Keys whose stored value differs from the written one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_taken: Vec<NotTaken>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

pub(in crate::cli) fn run(args: &ApplyArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    if let Some(file) = &args.metrics_file {
        check_metrics_file(file)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let started = Instant::now();
    let applied = runtime.block_on(apply(args, invocation));
    let Some(file) = &args.metrics_file else { return applied.map(|applied| applied.findings()) };
    let nodes = applied.as_ref().map_or((0, 0), |applied| (applied.complete, applied.unfinished));
    let run = ApplyRun {
        ended: Timestamp::now().as_second() as f64,
        seconds: started.elapsed().as_secs_f64(),
        succeeded: applied.as_ref().is_ok_and(|applied| applied.unfinished == 0),
        complete: nodes.0,
        unfinished: nodes.1,
    };
    let written = write_metrics(file, &run);
    // Why nothing was applied is more important than that it could not be counted.
    let applied = applied?;
    written?;
    Ok(applied.findings())
}

/// How many nodes a run has left as they should be, and how many not.
struct Applied {
    complete: usize,
    unfinished: usize,
}

impl Applied {
    fn findings(&self) -> Findings {
        if self.unfinished > 0 { Findings::Some } else { Findings::None }
    }
}

/// Whether the file can be written, before any node is changed.
fn check_metrics_file(file: &Path) -> anyhow::Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(
        directory.is_dir(),
        "--metrics-file {}: there is no directory {}; create it, or name another file",
        file.display(),
        directory.display()
    );
    anyhow::ensure!(!file.is_dir(), "--metrics-file {}: it is a directory; name a file in it", file.display());
    Ok(())
}

fn write_metrics(file: &Path, run: &ApplyRun) -> anyhow::Result<()> {
    // What cannot be read has no last success.
    let before = std::fs::read_to_string(file).unwrap_or_default();
    whole_file::replace(file, &run.exposition(&before), None)
        .with_context(|| format!("--metrics-file {}: could not write it", file.display()))
}

async fn apply(args: &ApplyArgs, invocation: Invocation) -> anyhow::Result<Applied> {
    let place = args.connect.place(invocation)?.context("no cluster is selected; set --kubeconfig and --namespace")?;
    let sources = Sources {
        persist_prefix: args.persist_label_prefix.clone().filter(|prefix| !prefix.is_empty()),
        ..args.files.sources()
    };
    let loaded = sources.load_documents().map_err(|errors| output::load_errors(&errors))?;
    let client = place.client().await?;
    let read = effective_policies::combined(&client, Some(&place.namespace), &loaded).await;
    let combined = read.context("could not read the NodePolicy objects")?;
    let policies = effective_policies::compare(&client, &place, &combined.set, args.force).await?;
    let states = Arc::new(SavedStates::new(args.served.identity));
    let maps = ConfigMaps::new(client.clone(), &place.namespace, states);
    let unreadable = |problem: nodegate_stores::state::UnusedDocument| {
        tracing::warn!("saved state in ConfigMap {} is not used, and stays there: {}", problem.config_map, problem.why);
    };
    maps.read(unreadable).await.context("could not read saved state")?;
    let inventory = known_node::all_inventory_answers(&client, &place.namespace).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = configurations
        .get_opt(&args.served.configuration.name(&client).await)
        .await
        .context("could not read the webhook configuration")?;
    let (events, publishing) = Events::new(client.clone(), "apply");
    let reads_devices = combined.set.reads_devices();
    let reconciler = Reconciler::new(
        client.clone(),
        keep_config(args),
        Arc::new(ArcSwap::from_pointee(combined.set)),
        maps,
        Arc::new(inventory),
        events,
        Metrics::new(),
    );
    if reads_devices {
        reconciler.known_devices().list(&client).await.context("could not list ResourceSlices")?;
    }
    reconciler.registered(configuration.and_then(|found| found.metadata.creation_timestamp).map(|time| time.0));

    let lines = tokio::select! {
        lines = fleet(&reconciler) => lines?,
        () = publishing => Vec::new(),
    };
    let outcome = Outcome { policies, nodes: lines };
    output::show(args.output, &outcome, text)?;
    let unfinished = |line: &Line| line.failed.is_some() || line.lingering > 0 || !line.not_taken.is_empty();
    let unfinished = outcome.nodes.iter().filter(|line| unfinished(line)).count();
    Ok(Applied { complete: outcome.nodes.len() - unfinished, unfinished })
}

fn keep_config(args: &ApplyArgs) -> KeepConfig {
    KeepConfig {
        // Without --confirm, removal is left to the controller, which knows for how long a key has been undesired.
        max_removals: if args.confirm { MaxRemovals::Confirmed } else { MaxRemovals::Nodes(0) },
        writes_per_second: args.pace.writes_per_second,
        pending: args.served.pending.taints(),
        pending_timeout: Duration::MAX,
        release_pending: false,
        adopt: args.adopt,
        records_last_change: false,
        counted_labels: Vec::new(),
    }
}

/// Applies the policies to all nodes, page by page.
async fn fleet(reconciler: &Reconciler) -> anyhow::Result<Vec<Line>> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let mut lines = Vec::new();
    let mut next = None;
    loop {
        let mut nodes = Vec::new();
        let read = reconciler.nodes().page(next.as_deref(), |node| nodes.push(node)).await;
        let page = read.context("could not list nodes")?;
        bar.set_length((lines.len() + nodes.len() + page.remaining) as u64);
        let work = futures_util::stream::iter(nodes).map(|node| one(reconciler, node));
        let mut done = work.buffer_unordered(CONCURRENCY);
        while let Some(line) = done.next().await {
            bar.inc(1);
            lines.push(line);
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    lines.sort_by(|one, other| one.node.cmp(&other.node));
    Ok(lines)
}

async fn one(reconciler: &Reconciler, node: Read) -> Line {
    let unreadable = |node: Unreadable| Line { failed: Some(node.to_string()), node: node.name, ..Line::default() };
    let mut node = match node {
        Ok(node) => node,
        Err(node) => return unreadable(node),
    };
    let name = node.name().to_owned();
    let mut outcome = reconciler.reconcile_listed(&node).await;
    for _ in 1..TRIES {
        if !matches!(outcome, Err(Failure::Conflict(_))) {
            break;
        }
        match reconciler.nodes().get(&name).await {
            Ok(Some(Ok(fresh))) => node = fresh,
            Ok(Some(Err(node))) => return unreadable(node),
            Ok(None) => break,
            Err(error) => tracing::debug!(%error, "could not read the node; retrying"),
        }
        outcome = reconciler.reconcile_listed(&node).await;
    }
    let failed = outcome.as_ref().err().map(ToString::to_string);
    let Done { set, changed, removed, kept, lingering, made, unrecorded, again: _, awaited: _ } =
        outcome.unwrap_or_default();
    // Without a record, nodegate would not know that it owns what this command set.
    let failed = failed.or(unrecorded);
    let not_taken = match &made {
        Some(made) => read_back(reconciler, &name, made).await,
        None => Vec::new(),
    };
    Line { node: name, set, changed, removed, kept, lingering, not_taken, failed }
}

/// The parts of a change that the stored node does not have. Empty if the node is gone or unreadable.
async fn read_back(reconciler: &Reconciler, node: &str, made: &NodeChange) -> Vec<NotTaken> {
    match reconciler.nodes().get(node).await {
        Ok(Some(Ok(stored))) => stored.text().facts().map_or_else(|_| Vec::new(), |stored| not_taken(&stored, made)),
        Ok(Some(Err(_)) | None) => Vec::new(),
        Err(error) => {
            output::note(&format!(
                "note: could not read node {node} after the write, so the stored values are unknown: {error}"
            ));
            Vec::new()
        }
    }
}

fn text(outcome: &Outcome) -> String {
    let lines = &outcome.nodes;
    let mut table = output::table(&["node", "set", "changed", "removed", "kept", "failed"]);
    for line in lines {
        let counts = [line.set, line.changed, line.removed, line.kept].map(|count| count.to_string());
        let row = [line.node.clone()].into_iter().chain(counts).chain([line.failed.clone().unwrap_or_default()]);
        table.add_row(row);
    }
    let sum = |of: fn(&Line) -> usize| lines.iter().map(of).sum::<usize>();
    let failed = lines.iter().filter(|line| line.failed.is_some()).count();
    let mut text = format!(
        "{}\n\n{}: {} set, {} changed, {} removed, {} kept; {} failed\n",
        table.trim_fmt(),
        counted(lines.len(), "node", "nodes"),
        counted(sum(|line| line.set), "key", "keys"),
        sum(|line| line.changed),
        sum(|line| line.removed),
        sum(|line| line.kept),
        counted(failed, "node", "nodes"),
    );
    let lingering = sum(|line| line.lingering);
    if lingering > 0 {
        let them = if lingering == 1 { "it" } else { "them" };
        text.push_str(&format!(
            "{} owned by nodegate and no longer set by any policy; the controller removes {them} after the grace period, or \
             --confirm removes {them} now\n",
            counted(lingering, "key is", "keys are"),
        ));
    }
    for line in lines {
        for not_taken in &line.not_taken {
            text.push_str(&format!(
                "node {}: {not_taken}: the stored value differs from the written one, because another admission webhook or \
                 policy, or a `nodegate serve` with other policies, changed it\n",
                line.node
            ));
        }
    }
    text.push_str(&format!("policies: {}\n", outcome.policies));
    text
}
