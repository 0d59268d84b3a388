//! `nodegate top`: a live view of how nodes join, wait, are corrected and drift.

mod canvas;
mod draw;
mod feed;
mod header;
mod news;
mod node_object;
mod replicas;
mod rows;
mod sources;
mod state;
mod survey;
mod terminal;
mod view;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use crossterm::event::{Event, KeyEventKind};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::cli::Findings;
use crate::cli::shared::cluster::connect::{ClusterTarget, ConnectArgs};
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output;
use draw::Place;
use news::News;
use node_object::NodeObject;
use sources::Teller;
use state::State;
use terminal::Screen;
use view::{Next, View};

/// How often the screen is drawn, whatever happens.
const REDRAW: Duration = Duration::from_millis(250);
/// How much news may wait. Then the watches wait, and the API server with them.
const WAITING_MAX: usize = 256;

/// Show live how nodes join, wait, drift and are corrected
///
/// Shows who leads, nodes with the pending taint and why they wait, nodes that differ from the policies in force, and what
/// happens: joins, what nodegate set, restored, corrected and rejected, and its warnings. Writes nothing.
///
/// It needs a terminal. In scripts, use `report`, `history` and `explain`, which print JSON.
///
/// Writes that nodegate denies are not shown: the API has no trace of them. They are in its log and metrics.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    served: ServedArgs,
}

pub(in crate::cli) fn run(args: &TopArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    for (is_terminal, name) in
        [(std::io::stdin().is_terminal(), "standard input"), (std::io::stdout().is_terminal(), "standard output")]
    {
        ensure!(
            is_terminal,
            "`nodegate top` is a live view and needs a terminal, but {name} is not one; in scripts, use `nodegate report`, \
             `nodegate history --all --since 10m` or `nodegate explain NODE`, each with -o json"
        );
    }
    ensure!(
        std::env::var_os("TERM").is_none_or(|name| name != "dumb"),
        "`nodegate top` is a live view, and a terminal with TERM=dumb cannot show it; use `nodegate report` and \
         `nodegate history --all --since 10m`"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    LocalSet::new().block_on(&runtime, top(args, invocation))?;
    Ok(Findings::None)
}

async fn top(args: &TopArgs, invocation: Invocation) -> anyhow::Result<()> {
    let Some(place) = args.connect.place_to_read(invocation).await? else {
        bail!("no cluster is selected; set --kubeconfig");
    };
    let client = place.client().await?;
    // A typo is an error, not a view that waits for ever.
    let nodes: Api<NodeObject> = Api::all(client.clone());
    nodes.list(&ListParams::default().limit(1)).await.context("could not list nodes")?;
    let shown = Place {
        cluster: place.context().unwrap_or_else(|| "this pod's cluster".to_owned()),
        namespace: place.namespace.clone(),
    };
    let state = State::new(args.served.pending.taints(), Timestamp::now());
    let view = View { has_colors: output::has_colors(), ..View::default() };
    let (sender, news) = mpsc::channel(WAITING_MAX);
    let sources = follow(&client, &place, &args.served, &Teller(sender));
    show(&shown, (state, view), news, sources).await
}

/// Follows everything that is shown.
fn follow(client: &Client, place: &ClusterTarget, served: &ServedArgs, teller: &Teller) -> JoinSet<()> {
    let mut sources = JoinSet::new();
    let all = || (client.clone(), place.namespace.clone(), teller.clone());
    let (client, _, teller) = all();
    sources.spawn_local(sources::nodes(client, served.pending.taints(), teller));
    let (client, namespace, teller) = all();
    sources.spawn_local(async move { sources::records(client, &namespace, teller).await });
    let (client, _, teller) = all();
    sources.spawn_local(sources::events(client, teller));
    let (client, namespace, teller) = all();
    sources.spawn_local(async move { replicas::lease(client, &namespace, teller).await });
    let (client, namespace, teller) = all();
    sources.spawn_local(async move { replicas::pods(client, &namespace, teller).await });
    let (client, _, teller) = all();
    sources.spawn_local(survey::keep(client, place.clone(), served.clone(), teller));
    sources
}

/// Shows it until somebody quits, or ends the process.
///
/// Keys come before the screen, and the screen before news: however much happens, both go on.
async fn show(
    place: &Place,
    (mut state, mut view): (State, View),
    mut news: mpsc::Receiver<News>,
    mut sources: JoinSet<()>,
) -> anyhow::Result<()> {
    let mut signals = terminal::Signals::new()?;
    let mut screen = Screen::enter()?;
    let mut keys = terminal::keys();
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = signals.ended() => return Ok(()),
            key = keys.recv() => match key {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if view.key(key, &state) == Next::Quit {
                        return Ok(());
                    }
                    ticks.reset_immediately();
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("could not read from the terminal"),
                None => return Ok(()),
            },
            _ = ticks.tick() => {
                let mut rooms = view.rooms;
                screen.draw(|buffer| rooms = draw::draw(buffer, place, &state, &view, Timestamp::now()))?;
                view.fit(rooms, &state);
            }
            Some(ended) = sources.join_next() => ended.context("a part of the view has failed; please report this bug")?,
            count = news.recv_many(&mut batch, WAITING_MAX) => {
                if count == 0 {
                    return Ok(());
                }
                let now = Timestamp::now();
                batch.drain(..).for_each(|news| state.apply(news, now));
            }
        }
    }
}
