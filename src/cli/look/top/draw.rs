//! Draws what is known: a header, the nodes that wait, those that drift, what happens, and the keys.

use jiff::Timestamp;
use ratatui::buffer::Buffer;

use super::canvas::{Canvas, Tone};
use super::feed::{Feed, Row, What};
use super::header;
use super::news::Source;
use super::state::{State, Status, age};
use super::view::{List, OfLists, View};
use nodegate_base::text::counted;

/// With fewer rows for lists, only one list is shown.
const ROWS_FOR_ALL: u16 = 9;

/// What is shown of the cluster's place.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// What people call the cluster.
    pub(super) cluster: String,
    /// The namespace of nodegate.
    pub(super) namespace: String,
}

/// Draws everything, and returns how many rows each list has, or had when it was last there.
pub(super) fn draw(buffer: &mut Buffer, place: &Place, state: &State, view: &View, now: Timestamp) -> OfLists {
    let mut rooms = view.rooms;
    let mut canvas = Canvas { buffer, has_colors: view.has_colors };
    let top = header::draw(&mut canvas, place, state, view, now);
    let bottom = canvas.height().saturating_sub(1);
    let rows = bottom.saturating_sub(top);
    if view.helps {
        help(&mut canvas, top, rows);
    } else if rows < ROWS_FOR_ALL {
        rooms[view.list as usize] = list(&mut canvas, view.list, (top, rows), state, view, now);
    } else {
        rooms = all(&mut canvas, (top, rows), state, view, now);
    }
    footer(&mut canvas, bottom, view);
    rooms
}

/// The three lists. Those without the focus have as many rows as they need, up to a limit.
fn all(canvas: &mut Canvas<'_>, (top, rows): (u16, u16), state: &State, view: &View, now: Timestamp) -> OfLists {
    let room = rows - 3;
    let of_other = |list: List| {
        let limit = match list {
            List::Waiting => room / 4,
            List::Drift => room / 5,
            List::Feed => room / 3,
        };
        u16::try_from(view.length(list, state)).unwrap_or(u16::MAX).min(limit)
    };
    let others: u16 = List::ALL.into_iter().filter(|list| *list != view.list).map(of_other).sum();
    let mut y = top;
    List::ALL.map(|list| {
        let rows = if list == view.list { room - others } else { of_other(list) };
        let room = self::list(canvas, list, (y, rows + 1), state, view, now);
        y += rows + 1;
        room
    })
}

/// A list with its heading, in so many rows. Returns how many of them are left for the list.
fn list(
    canvas: &mut Canvas<'_>,
    list: List,
    (top, rows): (u16, u16),
    state: &State,
    view: &View,
    now: Timestamp,
) -> usize {
    let room = usize::from(rows.saturating_sub(1));
    let length = view.length(list, state);
    let scrolled = view.scrolled(list, length, room);
    let title = match list {
        List::Waiting => {
            let waiting = view.waiting(state);
            let widths = Widths::of(canvas, waiting.iter().map(|node| &*node.name));
            for (y, node) in (top + 1..).zip(waiting.iter().skip(scrolled).take(room)) {
                let since = node.created.map_or_else(|| "?".to_owned(), |created| age(now.duration_since(created)));
                let why = match (state.why_waiting(&node.name), &node.pending) {
                    (Some(why), _) => why.to_owned(),
                    (None, key) => format!("has the taint {}", key.as_deref().unwrap_or_default()),
                };
                let why = if node.is_ready { why } else { format!("not ready; {why}") };
                widths.row(canvas, y, &node.name, (&since, Tone::Notice), &why);
            }
            waiting_title(state)
        }
        List::Drift => {
            let drift = view.drift(state);
            let widths = Widths::of(canvas, drift.iter().map(|(node, _)| node.as_str()));
            for (y, (node, text)) in (top + 1..).zip(drift.iter().skip(scrolled).take(room)) {
                widths.row(canvas, y, node, ("", Tone::Plain), text);
            }
            drift_title(state, now)
        }
        List::Feed => {
            let rows = view.feed(state);
            let widths = Widths::of(canvas, rows.iter().skip(scrolled).take(room).map(|row| row.about.as_str()));
            for (y, row) in (top + 1..).zip(rows.iter().skip(scrolled).take(room)) {
                widths.happened(canvas, y, row);
            }
            feed_title(view.shown(state))
        }
    };
    let shown = length.saturating_sub(scrolled).min(room);
    let part = match shown {
        shown if shown == length => String::new(),
        0 => String::new(),
        shown => format!(" ({} to {} of {length})", scrolled + 1, scrolled + shown),
    };
    heading(canvas, top, &format!("{title}{part}"), list == view.list);
    room
}

fn waiting_title(state: &State) -> String {
    match state.is_listed(Source::Nodes) {
        true => format!("WAITING with the pending taint: {}", state.waiting().len()),
        false => "WAITING with the pending taint: not known yet".to_owned(),
    }
}

fn drift_title(state: &State, now: Timestamp) -> String {
    match (&state.survey, state.status(Source::Survey)) {
        (Some((at, survey)), _) => {
            let unreadable = match survey.unreadable {
                0 => String::new(),
                unreadable => format!(", {unreadable} unreadable"),
            };
            format!("DRIFT from the policies: {}{unreadable}, {} ago", survey.drifting, age(now.duration_since(*at)))
        }
        (None, Status::Failing { .. } | Status::Denied) => "DRIFT from the policies: unknown".to_owned(),
        (None, Status::Waiting | Status::Works) => "DRIFT from the policies: not known yet".to_owned(),
    }
}

fn feed_title(feed: &Feed) -> String {
    match feed.dropped() {
        0 => "EVENTS, the newest first".to_owned(),
        dropped => format!("EVENTS, the newest first; {dropped} older ones are dropped"),
    }
}

/// A heading with a line to the end. That of the list with the focus begins with a mark.
fn heading(canvas: &mut Canvas<'_>, y: u16, title: &str, has_focus: bool) {
    let width = canvas.width();
    let mark = if has_focus { "▸ " } else { "  " };
    let end = canvas.put_all((0, y), [(Tone::Bold, mark), (Tone::Bold, title), (Tone::Plain, " ")]);
    let line = "─".repeat(usize::from(width.saturating_sub(end)));
    canvas.put((end, y), width.saturating_sub(end), &line, Tone::Plain);
}

/// The widths of columns.
struct Widths {
    node: u16,
}

impl Widths {
    /// As wide as the longest name, up to a third of the screen.
    fn of<'n>(canvas: &Canvas<'_>, names: impl Iterator<Item = &'n str>) -> Self {
        let longest = names.map(|name| name.chars().count()).max().unwrap_or_default();
        let longest = u16::try_from(longest).unwrap_or(u16::MAX);
        Self { node: longest.clamp(6, (canvas.width() / 3).max(6)) }
    }

    /// A node, a column of eight, if it has something, and the rest.
    fn row(&self, canvas: &mut Canvas<'_>, y: u16, node: &str, (brief, tone): (&str, Tone), rest: &str) {
        let width = canvas.width();
        canvas.put((2, y), self.node, node, Tone::Plain);
        let mut x = 2 + self.node + 2;
        if !brief.is_empty() {
            canvas.put((x, y), 7, brief, tone);
            x += 8;
        }
        canvas.put((x, y), width.saturating_sub(x), rest, Tone::Plain);
    }

    fn happened(&self, canvas: &mut Canvas<'_>, y: u16, row: &Row) {
        let width = canvas.width();
        canvas.put((2, y), 8, &row.time.strftime("%H:%M:%S").to_string(), Tone::Plain);
        canvas.put((11, y), self.node, &row.about, Tone::Plain);
        let x = 11 + self.node + 1;
        canvas.put((x, y), 9, row.what.word(), tone(row.what));
        canvas.put((x + 10, y), width.saturating_sub(x + 10), &row.text, Tone::Plain);
    }
}

fn tone(what: What) -> Tone {
    match what {
        What::Joined | What::Changed | What::Deleted | What::Told => Tone::Plain,
        What::Complete | What::Admitted | What::Restored | What::Set => Tone::Good,
        What::Corrected | What::Removed => Tone::Notice,
        What::Rejected | What::Warning => Tone::Bad,
    }
}

fn footer(canvas: &mut Canvas<'_>, y: u16, view: &View) {
    if let Some(typed) = &view.typed {
        canvas.put_all((0, y), [(Tone::Bold, "filter: "), (Tone::Plain, typed.as_str()), (Tone::Bold, "_")]);
        canvas.put_last(y, "  Enter applies, Esc cancels", Tone::Plain);
        return;
    }
    let filter = match view.filter.is_empty() {
        true => String::new(),
        false => format!("filter: {}  ", view.filter),
    };
    let keys = "q quit  Tab list  ↑↓ scroll  p pause  / filter  ? help";
    canvas.put_all((0, y), [(Tone::Bold, &*filter), (Tone::Plain, keys)]);
}

/// What the keys do, and what the lists are.
fn help(canvas: &mut Canvas<'_>, top: u16, rows: u16) {
    let kept = counted(super::feed::ROWS_MAX, "row", "rows");
    let lines = [
        "q, Esc, Ctrl-C   quit".to_owned(),
        "Tab              give the next list the room; keys scroll that list".to_owned(),
        "↑ ↓ PgUp PgDn    scroll; Home and End go to the ends".to_owned(),
        "p                pause: the events stand still, and new ones are counted".to_owned(),
        "/                show only what contains a text, such as a node or a key".to_owned(),
        "?                close this help".to_owned(),
        String::new(),
        "WAITING  nodes with the pending taint, the newest first, and why they wait".to_owned(),
        "DRIFT    nodes that differ from the policies in force, as in `report`".to_owned(),
        format!("EVENTS   what happened, UTC; the last {kept}"),
        "Names in parentheses are field managers, which clients choose themselves.".to_owned(),
        "Writes that nodegate denies are not in the API: see its log and metrics.".to_owned(),
    ];
    for (y, line) in (top..top + rows).zip(&lines) {
        let width = canvas.width();
        canvas.put((0, y), width, line, Tone::Plain);
    }
}
