//! `nodegate history NODE`: the recorded changes of nodes, and how to revert one.

mod document;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use jiff::{Span, SpanRelativeTo, Timestamp};

use crate::cli::leave::revert::revert;
use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs};
use crate::cli::shared::cluster::saved_state::InCluster;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::node_files::parse_name;
use crate::cli::shared::output::{self, Format};
use crate::cli::{Findings, shared::cluster::saved_state};
pub(crate) use document::Entry;
use document::{ByKind, FieldName};
use nodegate_policy::api::state::{How, SavedState};
use nodegate_stores::state::UnusedDocument;

/// Show the recorded changes of a node's labels and taints
///
/// Shows when each change was made, by whom and how, what nodegate set and restored when the node joined, and when the
/// node was deleted and returned.
///
/// The controller of `nodegate serve` records changes while it runs; `apply` does not record any.
///
/// Only `serve --stamp-changes` records requesters. Without it, the history has the names of field managers, which
/// clients choose themselves.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Name of the node
    #[arg(value_name = "NODE", value_parser = parse_name, required_unless_present = "all", conflicts_with = "all")]
    node: Option<String>,
    #[command(flatten)]
    shown: ShownArgs,
    /// Directory of saved state, one <node>.json per node [default: the cluster]
    #[arg(long, value_name = "DIR", env = "NODEGATE_STATE_DIR", conflicts_with_all = ["kubeconfig", "namespace", "revert"])]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Revert the change with this ID: set the key to its previous value. Exit with 1 if this fails, or if a rule
    /// will change the key again
    #[arg(long, value_name = "ID", conflicts_with = "ShownArgs")]
    revert: Option<u64>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// Which changes are shown. `--revert` excludes each of these, because it names one change.
#[derive(Debug, clap::Args)]
struct ShownArgs {
    /// Show the changes of all nodes, the newest last
    #[arg(long)]
    all: bool,
    /// Show only changes of this last period, such as 30m, 12h or 7d
    #[arg(long, value_name = "DURATION", value_parser = period)]
    since: Option<Span>,
}

/// Parses a period such as `12h`.
pub(in crate::cli) fn period(text: &str) -> Result<Span, String> {
    let wrong = || format!("{text:?} is not a period; write a number with a unit, such as 30m, 12h or 7d");
    let span: Span = text.parse().map_err(|_| wrong())?;
    if span.is_positive() && seconds(span).is_some() { Ok(span) } else { Err(wrong()) }
}

/// The length of a period whose days have 24 hours; `None` for months and years.
fn seconds(span: Span) -> Option<i64> {
    Some(span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?.as_secs())
}

pub(in crate::cli) fn run(args: &HistoryArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(history(args, invocation))
}

async fn history(args: &HistoryArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    let states = match &args.state_dir {
        Some(directory) => of_directory(args, directory)?,
        None => {
            let place = match args.revert {
                Some(_) => args.connect.place(invocation)?,
                None => args.connect.place_to_read(invocation).await?,
            };
            let place = place.context("no cluster is selected; set --kubeconfig and --namespace, or --state-dir")?;
            let client = place.client().await?;
            let states = of_cluster(args, &client, &place).await?;
            if let (Some(id), [state]) = (args.revert, states.as_slice()) {
                let node = &state.node_name;
                let change = state.history.iter().find(|change| change.id == id).with_context(|| {
                    format!("node {node} has no change with ID {id}; run `nodegate history {node}` to list the changes")
                })?;
                return revert(&client, &place, node, change).await;
            }
            states
        }
    };
    let since = args.shown.since.and_then(|period| before(period, Timestamp::now()));
    let entries = entries(&states, since);
    output::show(args.output, &entries, |entries| text(entries, args))?;
    Ok(Findings::None)
}

/// The saved state of the one node, or of all.
async fn of_cluster(
    args: &HistoryArgs,
    client: &kube::Client,
    place: &ClusterTarget,
) -> anyhow::Result<Vec<SavedState>> {
    let Some(node) = &args.node else {
        let all = saved_state::all_in_cluster(client, &place.namespace, saved_state::tell_unused).await;
        return all.context("could not read saved state");
    };
    let saved = saved_state::of_name(client, &place.namespace, node).await;
    match saved.context("could not read saved state")? {
        InCluster::Record(state) => Ok(vec![*state]),
        InCluster::Unreadable(UnusedDocument { config_map, node: _, why }) => {
            bail!("saved state in ConfigMap {config_map} of namespace {} is not used: {why}", place.namespace)
        }
        InCluster::Nothing => {
            bail!("no saved state for node {node} in namespace {}; check the name and --namespace", place.namespace)
        }
    }
}

fn of_directory(args: &HistoryArgs, directory: &std::path::Path) -> anyhow::Result<Vec<SavedState>> {
    let mut states = saved_state::in_directory(directory)?;
    match &args.node {
        None => Ok(states.into_values().collect()),
        Some(node) => match states.remove(node) {
            Some(state) => Ok(vec![state]),
            None => bail!("no saved state for node {node} in --state-dir {}", directory.display()),
        },
    }
}

/// The start of a period that ends at `now`; `None` for months and years, and for periods longer than time is counted.
pub(in crate::cli) fn before(period: Span, now: Timestamp) -> Option<Timestamp> {
    now.checked_sub(jiff::SignedDuration::from_secs(seconds(period)?)).ok()
}

/// The changes since `since`, the oldest first. The changes of one node stay in their own order: some times have whole
/// seconds, others are of a clock that was set back.
pub(in crate::cli) fn entries(states: &[SavedState], since: Option<Timestamp>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for state in states {
        let mut latest = None;
        for change in &state.history {
            let time = change.time.parse::<Timestamp>().ok();
            latest = latest.max(time);
            // A time that cannot be read may be recent.
            if since.is_none_or(|since| time.is_none_or(|time| time >= since)) {
                entries.push((latest, Entry::new(&state.node_name, change)));
            }
        }
    }
    entries.sort_by(|(one_time, one), (other_time, other)| {
        (one_time, &one.node, one.id).cmp(&(other_time, &other.node, other.id))
    });
    entries.into_iter().map(|(_, entry)| entry).collect()
}

fn text(entries: &[Entry], args: &HistoryArgs) -> String {
    if entries.is_empty() {
        return match args.shown.since {
            Some(since) => format!("no changes are recorded in the last {since:#}\n"),
            None => {
                "no changes are recorded; `nodegate serve` records changes while it runs in the cluster\n".to_owned()
            }
        };
    }
    let node: &[&str] = if args.shown.all { &["node"] } else { &[] };
    let mut table =
        output::table(&[&["id", "time"] as &[&str], node, &["by", "how", "field", "key", "change"]].concat());
    for entry in entries {
        let brief = entry.time.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned();
        let node = args.shown.all.then(|| entry.node.clone());
        let how = how(entry);
        let last = [who(entry), how, entry.field.as_str().to_owned(), keyed(entry), changed(entry)];
        table.add_row([entry.id.to_string(), format!("{brief}Z")].into_iter().chain(node).chain(last));
    }
    let mut text = format!("{}\n", table.trim_fmt());
    if entries.iter().any(|entry| entry.by_kind == Some(ByKind::FieldManager)) {
        text.push_str("\nNames in parentheses are field managers, which clients choose themselves.\n");
    }
    text
}

/// Who made a change, in parentheses if it is only a field manager.
pub(in crate::cli) fn who(entry: &Entry) -> String {
    match (&entry.by, entry.by_kind) {
        (Some(by), Some(ByKind::FieldManager)) => format!("({by})"),
        (Some(by), _) => by.clone(),
        (None, _) => "-".to_owned(),
    }
}

/// How a change came about, with the rule of a change that nodegate made.
pub(in crate::cli) fn how(entry: &Entry) -> String {
    let rule = entry.rule.as_ref().map(|rule| format!(" ({rule})")).unwrap_or_default();
    format!("{}{rule}", entry.how.as_str())
}

/// The key of a change; for a taint `key:Effect`.
pub(in crate::cli) fn keyed(entry: &Entry) -> String {
    let effect = entry.effect.as_ref().map(|effect| format!(":{effect}")).unwrap_or_default();
    entry.key.as_ref().map_or("-".to_owned(), |key| format!("{key}{effect}"))
}

/// The values before and after a change.
pub(in crate::cli) fn changed(entry: &Entry) -> String {
    let quoted = |value: &Option<String>| value.as_deref().map_or("-".to_owned(), |value| format!("{value:?}"));
    match (entry.field, entry.how) {
        (FieldName::Node, How::Rejected) => "claimed by the kubelet".to_owned(),
        (FieldName::Node, how) if how != How::Adopted => "-".to_owned(),
        (_, How::Rejected) => format!("kubelet asserted {}", quoted(&entry.value)),
        _ => format!("{} → {}", quoted(&entry.was), quoted(&entry.value)),
    }
}
