//! The view without a cluster and without a terminal.

mod keys;
mod screens;
mod sources;
mod state;
mod survey;

use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::{SignedDuration, Timestamp};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use serde_json::{Value, json};

use super::draw::{self, Place};
use super::news::{Failure, News, Node, Policies, Published, Record, Sight, Source, Survey, Told, Withheld};
use super::state::State;
use super::view::{OfLists, View};
use nodegate_controller::leader::Held;
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

/// An event, which is named by what it says.
fn event(sight: Sight, seconds: i64, reason: &str, note: &str) -> News {
    let (about, reason, note) = ("n1".to_owned(), reason.to_owned(), note.to_owned());
    let event = format!("{reason} {note}");
    News::Event(sight, Told { event, time: at(seconds), about, reason, note, is_warning: true })
}

fn lease(holder: &str, renewed: i64) -> News {
    let (since, renewed) = (Some(at(-7200)), Some(at(renewed)));
    let duration = Some(Duration::from_secs(15));
    News::Lease(Some(Held { holder: holder.to_owned(), since, renewed, duration }))
}

fn published(names: &[&str], withheld: Withheld) -> News {
    let policies = Policies::Named(names.iter().map(|name| (*name).to_owned()).collect());
    News::Published(Published { policies, withheld })
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
fn screen(size: (u16, u16), state: &State, view: &View, now: Timestamp) -> Vec<String> {
    lines(&drawn(size, state, view, now).0)
}

/// As [`screen`], and as the program does it: afterwards, the view knows how many rows the lists have.
fn shown(size: (u16, u16), state: &State, view: &mut View, now: Timestamp) -> Vec<String> {
    let (buffer, rooms) = drawn(size, state, view, now);
    view.fit(rooms, state);
    lines(&buffer)
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let line = |cells: &[Cell]| cells.iter().map(Cell::symbol).collect::<String>();
    buffer.content().chunks(buffer.area.width.into()).map(|cells| line(cells).trim_end().to_owned()).collect()
}

fn drawn((width, height): (u16, u16), state: &State, view: &View, now: Timestamp) -> (Buffer, OfLists) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let place = Place { cluster: "kind-dev".to_owned(), namespace: "nodegate".to_owned() };
    let mut rooms = OfLists::default();
    terminal.draw(|frame| rooms = draw::draw(frame.buffer_mut(), &place, state, view, now)).unwrap();
    (terminal.backend().buffer().clone(), rooms)
}
