//! The recorded changes on the page.

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};

use super::charts;
use super::sections::figure;
use super::table::{Column, table};
use super::{Page, Section, Tile, minute, text};
use crate::cli::history::{Entry, changed, keyed, who};
use crate::text::counted;
use nodegate_policy::api::state::How;

/// How many columns the chart has at least; twice as many at most, or as many days.
const COLUMNS: i64 = 24;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The section with the changes.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, which is a bug in nodegate.
pub(super) fn section(page: &Page<'_>) -> anyhow::Result<Section> {
    let history = page.history;
    let period = format!("from {} to {}", minute(page.since), minute(page.now));
    let rows = history.iter().rev().map(|entry| {
        let time = entry.time.parse::<Timestamp>().map_or_else(|_| text(&entry.time), minute);
        vec![
            html! { (time) },
            html! { (text(&entry.node)) },
            html! { (text(&who(entry))) },
            html! { (entry.how.as_str()) },
            html! { (entry.field.as_str()) " " code { (text(&keyed(entry))) } },
            html! { code { (text(&changed(entry))) } },
        ]
    });
    let columns = ["Time", "Node", "By", "How", "Key", "Change"].map(|name| Column(name, false));
    let caption = "Names in parentheses are field managers, which clients choose themselves";
    let changes = table(caption, &columns, rows.collect(), "nodegate history --all");
    let content = html! {
        @if history.is_empty() { p { "No change is recorded " (period) "." } }
        @else {
            p.quiet { "Recorded " (period) "." }
            div.charts { (chart(page)?) }
            details { summary { (counted(history.len(), "change", "changes")) ", the latest first" } (changes) }
        }
    };
    let tile = Tile::plain(history.len(), "recorded change", "recorded changes");
    Ok(Section { id: "history", title: "History", tile, content })
}

/// Changes over time, a row for each way in which they came about: no colour has to be told from another.
fn chart(page: &Page<'_>) -> anyhow::Result<Markup> {
    let steps = Steps::of(page.since, page.now);
    let times: Vec<(How, usize)> =
        page.history.iter().filter_map(|entry| Some((entry.how, steps.at(entry)?))).collect();
    let kinds = [How::Admission, How::Controller, How::Restored, How::Kubelet, How::User, How::Deleted, How::Returned];
    let mut rows = Vec::new();
    for kind in kinds {
        let mut counts = vec![0; steps.count];
        let of_kind = times.iter().filter(|(how, _)| *how == kind);
        of_kind.for_each(|(_, at)| counts[*at] += 1);
        if counts.iter().any(|count| *count > 0) {
            rows.push((kind.as_str(), counts));
        }
    }
    let ticks: Vec<String> = (0..steps.count).map(|at| steps.name(at)).collect();
    let cells = rows.iter().map(|(kind, counts)| vec![html! { (kind) }, html! { (counts.iter().sum::<u32>()) }]);
    let numbers =
        table("Changes by how they came about", &[Column("How", false), Column("Changes", true)], cells.collect(), "");
    let caption = format!("Changes per {}", steps.unit());
    let summary =
        format!("Column chart of {} over time, by how they came about.", counted(times.len(), "change", "changes"));
    Ok(figure(&caption, charts::columns(&rows, &ticks)?, &summary, numbers))
}

/// The columns of the chart.
struct Steps {
    /// Where the first one starts, in seconds since 1970.
    start: i64,
    /// The length of one, in seconds.
    length: i64,
    count: usize,
}

impl Steps {
    /// Hours for a short period, otherwise days or as many days as fit; all start at midnight or on the hour.
    fn of(since: Timestamp, now: Timestamp) -> Self {
        let seconds = (now.as_second() - since.as_second()).max(1);
        let length = match seconds {
            ..=172_800 => HOUR,
            _ => DAY * (seconds / DAY / (2 * COLUMNS)).max(1),
        };
        let start = since.as_second().div_euclid(length) * length;
        let count = usize::try_from((now.as_second() - start) / length + 1).unwrap_or(1);
        Self { start, length, count }
    }

    /// The column of a change. Clocks differ, so a change may lie in the future.
    fn at(&self, entry: &Entry) -> Option<usize> {
        let time: Timestamp = entry.time.parse().ok()?;
        let at = usize::try_from((time.as_second() - self.start).div_euclid(self.length)).ok()?;
        Some(at.min(self.count - 1))
    }

    fn name(&self, at: usize) -> String {
        let from_start = i64::try_from(at).unwrap_or_default() * self.length;
        let start = Timestamp::from_second(self.start).unwrap_or_default();
        let time = start.checked_add(SignedDuration::from_secs(from_start)).unwrap_or(start);
        time.strftime(if self.length < DAY { "%H:%M" } else { "%m-%d" }).to_string()
    }

    fn unit(&self) -> String {
        match self.length / DAY {
            0 => "hour".to_owned(),
            1 => "day".to_owned(),
            days => format!("{days} days"),
        }
    }
}
