//! `nodegate history NODE`: the recorded changes of a node, and how to revert one.

use anyhow::{Context as _, bail};

use super::connect::ConnectArgs;
use super::output::{self, Format};
use super::revert::revert;
use super::{Findings, saved_state, telemetry_for_command};
use nodegate_policy::api::state::Change;

/// Show the recorded changes of a node's labels and taints: when, by whom and how.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Revert the change with this ID: set the key to its previous value. Exit with 1 if this fails, or if a rule
    /// will change the key again
    #[arg(long, value_name = "ID")]
    revert: Option<u64>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) fn run(args: &HistoryArgs) -> anyhow::Result<Findings> {
    telemetry_for_command()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(history(args))
}

async fn history(args: &HistoryArgs) -> anyhow::Result<Findings> {
    let place = args.connect.place()?.context("no cluster is selected; set --kubeconfig and --namespace")?;
    let client = place.client().await?;
    let saved = saved_state::in_cluster(&client, &place.namespace, &args.node).await;
    let Some(state) = saved.context("could not read saved state")? else {
        bail!("no saved state for node {} in namespace {}; check the name and --namespace", args.node, place.namespace);
    };
    if let Some(id) = args.revert {
        let change = state.history.iter().find(|change| change.id == id);
        let change = change.with_context(|| {
            format!("node {} has no change with ID {id}; run `nodegate history {0}` to list the changes", args.node)
        })?;
        return revert(&client, &place, &args.node, change).await;
    }
    output::print(&text(&state.history, args.output)?)?;
    Ok(Findings::None)
}

fn text(history: &[Change], format: Format) -> anyhow::Result<String> {
    if format != Format::Table {
        return output::structured(format, &history);
    }
    if history.is_empty() {
        return Ok("no changes are recorded\n".to_owned());
    }
    let mut table = output::table(&["id", "time", "by", "how", "what", "key", "change"]);
    for change in history {
        let value = |value: &Option<String>| value.as_deref().map_or("-".to_owned(), |value| format!("{value:?}"));
        table.add_row([
            change.id.to_string(),
            change.time.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned(),
            if change.by.is_empty() { "-".to_owned() } else { change.by.clone() },
            change.how.clone(),
            change.field.clone(),
            change.key.clone(),
            format!("{} → {}", value(&change.old), value(&change.new)),
        ]);
    }
    Ok(format!("{}\n", table.trim_fmt()))
}
