//! What of it all is shown: which list has the room, how far it is scrolled, whether it stands still, and for which nodes.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::{Feed, Row};
use super::news::Node;
use super::state::State;

/// Maximum length of a filter, in characters.
const FILTER_MAX: usize = 64;
/// How many rows a page is.
const PAGE: usize = 10;

/// A number for each list.
pub(super) type OfLists = [usize; 3];

/// A list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    /// Nodes with the pending taint.
    Waiting,
    /// Nodes that differ from what they should have.
    Drift,
    /// What happens.
    #[default]
    Feed,
}

/// What comes after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The view goes on.
    Draw,
    /// It ends.
    Quit,
}

/// What is shown.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The list that has the most room, and that keys scroll.
    pub(super) list: List,
    pub(super) scrolled: OfLists,
    /// How many rows each list had on the screen.
    pub(super) rooms: OfLists,
    /// The feed as it was when it began to stand still, while it does. Of the one that goes on, rows are dropped.
    pub(super) still: Option<Feed>,
    pub(super) is_paused: bool,
    /// A part of a node's name or of a text.
    pub(super) filter: String,
    /// The filter that is being typed.
    pub(super) typed: Option<String>,
    /// Whether the keys are explained.
    pub(super) helps: bool,
    pub(super) has_colors: bool,
}

impl View {
    /// How far a list of this length is scrolled on a screen that has `room` for it. It may have become shorter.
    pub(super) fn scrolled(&self, list: List, length: usize, room: usize) -> usize {
        self.scrolled[list as usize].min(furthest(length, room))
    }

    /// Takes how many rows each list has on the screen. No list stays scrolled beyond its end.
    pub(super) fn fit(&mut self, rooms: OfLists, state: &State) {
        self.rooms = rooms;
        for list in List::ALL {
            let room = rooms[list as usize];
            self.scrolled[list as usize] = self.scrolled(list, self.length(list, state), room);
        }
        self.settle(state);
    }

    /// The nodes that wait and that the filter leaves, the newest first.
    pub(super) fn waiting<'s>(&self, state: &'s State) -> Vec<&'s Node> {
        let mut waiting = state.waiting();
        waiting.retain(|node| self.fits(&[&node.name, state.why_waiting(&node.name).unwrap_or_default()]));
        waiting
    }

    /// The nodes that drift and that the filter leaves, with what differs.
    pub(super) fn drift<'s>(&self, state: &'s State) -> Vec<&'s (String, String)> {
        let all = state.survey.iter().flat_map(|(_, survey)| &survey.drift);
        all.filter(|(node, text)| self.fits(&[node, text])).collect()
    }

    /// The rows of the feed that the filter leaves, the newest first.
    pub(super) fn feed<'s>(&'s self, state: &'s State) -> Vec<&'s Row> {
        let rows = self.shown(state).rows();
        rows.filter(|row| self.fits(&[&row.about, row.what.word(), &row.text])).collect()
    }

    /// The feed that is shown.
    pub(super) fn shown<'s>(&'s self, state: &'s State) -> &'s Feed {
        self.still.as_ref().unwrap_or(&state.feed)
    }

    /// How many rows of the feed came since it stands still.
    pub(super) fn unseen(&self, state: &State) -> u64 {
        state.feed.count() - self.shown(state).count()
    }

    /// How many rows a list has.
    pub(super) fn length(&self, list: List, state: &State) -> usize {
        match list {
            List::Waiting => self.waiting(state).len(),
            List::Drift => self.drift(state).len(),
            List::Feed => self.feed(state).len(),
        }
    }

    fn fits(&self, texts: &[&str]) -> bool {
        self.filter.is_empty() || texts.iter().any(|text| text.contains(&self.filter))
    }

    /// Does what a key asks for.
    pub(super) fn key(&mut self, key: KeyEvent, state: &State) -> Next {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (&mut self.typed, key.code) {
            (_, KeyCode::Char('c')) if is_control => return Next::Quit,
            (_, KeyCode::Char(_)) if is_control => {}
            (Some(_), KeyCode::Esc) => self.typed = None,
            (Some(_), KeyCode::Enter) => {
                self.filter = self.typed.take().unwrap_or_default();
                self.scrolled = OfLists::default();
                self.settle(state);
            }
            (Some(typed), KeyCode::Backspace) => drop(typed.pop()),
            (Some(typed), KeyCode::Char(letter)) if typed.chars().count() < FILTER_MAX => typed.push(letter),
            (Some(_), _) => {}
            (None, KeyCode::Esc | KeyCode::Char('q')) if self.helps => self.helps = false,
            (None, KeyCode::Esc | KeyCode::Char('q')) => return Next::Quit,
            (None, KeyCode::Char('?')) => self.helps = !self.helps,
            (None, KeyCode::Char('/')) => self.typed = Some(self.filter.clone()),
            (None, KeyCode::Char('p')) => {
                self.is_paused = !self.is_paused;
                self.settle(state);
            }
            (None, KeyCode::Tab) => self.list = self.list.next(),
            (None, KeyCode::BackTab) => self.list = self.list.next().next(),
            (None, code) => self.scroll(code, state),
        }
        Next::Draw
    }

    fn scroll(&mut self, code: KeyCode, state: &State) {
        let (length, room) = (self.length(self.list, state), self.rooms[self.list as usize]);
        let at = self.scrolled(self.list, length, room);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(PAGE),
            KeyCode::PageDown | KeyCode::Char(' ') => at + PAGE,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => return,
        };
        self.scrolled[self.list as usize] = to.min(furthest(length, room));
        self.settle(state);
    }

    /// The feed stands still while it is paused, or scrolled: its rows would run away from who reads them.
    fn settle(&mut self, state: &State) {
        let stands = self.is_paused || self.scrolled[List::Feed as usize] > 0;
        self.still = stands.then(|| self.still.take().unwrap_or_else(|| state.feed.clone()));
    }
}

/// The furthest that a list can be scrolled: its last row is at the end of its room.
fn furthest(length: usize, room: usize) -> usize {
    length.saturating_sub(room.max(1))
}

impl List {
    /// All of them, from the top of the screen.
    pub(super) const ALL: [Self; 3] = [Self::Waiting, Self::Drift, Self::Feed];

    fn next(self) -> Self {
        match self {
            Self::Waiting => Self::Drift,
            Self::Drift => Self::Feed,
            Self::Feed => Self::Waiting,
        }
    }
}
