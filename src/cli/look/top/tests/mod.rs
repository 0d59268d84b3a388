//! The view without a cluster and without a terminal.

mod keys;
mod screens;
mod state;

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::{SignedDuration, Timestamp};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw::{self, Place};
use super::news::{Failure, Held, News, Node, Record, Sight, Source, Survey, Told};
use super::state::State;
use super::view::View;
use nodegate_policy::PendingTaints;

/// The key of a pending taint.
const PENDING: &str = "startup-taint.cluster-autoscaler.kubernetes.io/nodegate";

/// A time, in seconds after noon.
fn at(seconds: i64) -> Timestamp {
    let noon: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
    noon + SignedDuration::from_secs(seconds)
}

/// A ready node that was created at noon.
fn node(name: &str, pending: bool) -> News {
    News::Node(Node {
        name: Arc::from(name),
        uid: format!("uid of {name}").into(),
        created: Some(at(0)),
        is_ready: true,
        pending: pending.then(|| Arc::from(PENDING)),
    })
}

/// A record whose changes are given as in `state.json`, at noon if they do not say when.
fn record(sight: Sight, node: &str, mut changes: Value) -> News {
    for (id, change) in (1..).zip(changes.as_array_mut().unwrap()) {
        change["id"] = id.into();
        for (field, usual) in [("time", "2026-11-30T12:00:00Z"), ("field", "label")] {
            change.as_object_mut().unwrap().entry(field).or_insert(json!(usual));
        }
    }
    let changes = serde_json::from_value(changes).unwrap();
    News::Record(sight, Record { config_map: format!("node-labels-{node}"), node: node.to_owned(), changes })
}

fn event(sight: Sight, seconds: i64, reason: &str, note: &str) -> News {
    let (about, reason, note) = ("n1".to_owned(), reason.to_owned(), note.to_owned());
    News::Event(sight, Told { time: at(seconds), about, reason, note, is_warning: true })
}

fn lease(holder: &str, renewed: i64) -> News {
    let (since, renewed) = (Some(at(-7200)), Some(at(renewed)));
    News::Lease(Some(Held { holder: holder.to_owned(), since, renewed, seconds: 15 }))
}

fn failed(source: Source, why: &str) -> News {
    News::Failed(source, Failure::Other(why.to_owned()))
}

/// A state that began at noon and has listed everything, with these nodes.
fn listed(nodes: impl IntoIterator<Item = News>) -> State {
    let mut state = State::new(PendingTaints::default(), at(0));
    let sources = [Source::Nodes, Source::Records, Source::Events];
    state.apply(News::Begins(Source::Nodes), at(0));
    nodes.into_iter().for_each(|node| state.apply(node, at(0)));
    sources.into_iter().for_each(|source| state.apply(News::Listed(source), at(0)));
    state
}

/// The rows of the feed, the newest first, without their times.
fn happened(state: &State) -> Vec<String> {
    let rows = View::default();
    rows.feed(state)
        .iter()
        .map(|row| format!("{} {} {}", row.about, row.what.word(), row.text).trim().to_owned())
        .collect()
}

fn key(view: &mut View, state: &State, code: KeyCode) -> super::view::Next {
    view.key(KeyEvent::new(code, KeyModifiers::NONE), state)
}

/// The lines of the screen, without spaces at their ends.
fn screen((width, height): (u16, u16), state: &State, view: &View, now: Timestamp) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let place = Place { cluster: "kind-dev".to_owned(), namespace: "nodegate".to_owned() };
    terminal.draw(|frame| draw::draw(frame.buffer_mut(), &place, state, view, now)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    buffer.content().chunks(width.into()).map(|cells| line(cells).trim_end().to_owned()).collect()
}
