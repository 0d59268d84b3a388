//! The recorded changes on the page.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, PreEscaped, html};

use crate::cli::look::history::{Entry, changed, keyed, who};
use crate::cli::look::report::page::charts;
use crate::cli::look::report::page::parts::figure;
use crate::cli::look::report::page::table::{Column, Rows, table};
use crate::cli::look::report::page::{Content, Recorded, Section, Tile, counted, minute, text};

/// How many columns the chart has at most, not counting the first one, of which only a part is in the period.
const COLUMNS: i64 = 48;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The section with the changes until `now`.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, which is a bug in nodegate.
pub(super) fn section(recorded: &Recorded<'_>, now: Timestamp) -> anyhow::Result<Section> {
    let Recorded { changes, since, period } = recorded;
    let between = format!("between {} and {}", minute(*since), minute(now));
    let rows = changes.iter().rev().map(|entry| {
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
    let columns = ["Time", "Node", "By", "How", "Key", "Change"].map(Column::Text);
    let caption = "Latest changes first. Names in parentheses are field managers, which clients choose themselves";
    let all = format!("nodegate history --all --since {period:#}");
    let steps = Steps::of(*since, now);
    let list = table(caption, &columns, Rows { count: changes.len(), rows, all: all.clone() });
    let content = match changes.len() {
        0 => Content::Nothing(format!("No changes were recorded {between}.")),
        count => Content::Shown(html! {
            p.quiet { "Recorded " (between) ". nodegate keeps the last 50 changes of each node." }
            div.charts { (chart(changes, &steps, all)?) }
            details { summary { (counted(count, "change", "changes")) } (list) }
        }),
    };
    let tile = Tile::plain(changes.len(), "recorded change", "recorded changes");
    Ok(Section { id: "history", title: "History", tile, content })
}

/// Changes over time, a row for each way in which they came about: no color has to be told from another.
fn chart(changes: &[Entry], steps: &Steps, all: String) -> anyhow::Result<Markup> {
    let mut kinds: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for entry in changes {
        let Some(at) = steps.at(entry) else { continue };
        used.insert(at);
        if let Some(count) = kinds.entry(entry.how.as_str()).or_insert_with(|| vec![0; steps.count]).get_mut(at) {
            *count += 1;
        }
    }
    let kinds: Vec<(&str, Vec<u32>)> = kinds.into_iter().collect();
    let ticks: Vec<String> = (0..steps.count).map(|at| steps.name(at)).collect();
    let columns: Vec<Column<'_>> =
        std::iter::once(Column::Text("Start")).chain(kinds.iter().map(|(kind, _)| Column::Number(kind))).collect();
    let rows = used.iter().map(|at| {
        let counts = kinds.iter().filter_map(|(_, counts)| counts.get(*at));
        std::iter::once(html! { (minute(steps.start(*at))) }).chain(counts.map(|count| html! { (count) })).collect()
    });
    let caption = format!("Changes per {}", steps.unit());
    let numbers = table(&caption, &columns, Rows { count: used.len(), rows, all });
    let summary = format!("Column chart: {}, a row for each way in which they came about.", caption.to_lowercase());
    Ok(figure(&caption, PreEscaped(charts::columns(&kinds, &ticks)?), &summary, numbers))
}

/// The columns of the chart.
#[derive(Debug, PartialEq)]
struct Steps {
    /// Where the first one starts, in seconds since 1970.
    first: i64,
    /// The length of one, in seconds.
    length: i64,
    count: usize,
}

impl Steps {
    /// Hours for two days at most, otherwise days or as many days as are needed; they start on the hour or at midnight.
    fn of(since: Timestamp, now: Timestamp) -> Self {
        let seconds = (now.as_second() - since.as_second()).max(1);
        let days = seconds / (DAY * COLUMNS) + i64::from(seconds % (DAY * COLUMNS) > 0);
        let length = if seconds <= HOUR * COLUMNS { HOUR } else { DAY * days };
        let first = since.as_second().div_euclid(length) * length;
        let count = usize::try_from((now.as_second() - first) / length + 1).unwrap_or(1);
        Self { first, length, count }
    }

    /// The column of a change. Clocks differ, so a change may lie in the future.
    fn at(&self, entry: &Entry) -> Option<usize> {
        let time: Timestamp = entry.time.parse().ok()?;
        let at = usize::try_from((time.as_second() - self.first).div_euclid(self.length)).ok()?;
        Some(at.min(self.count - 1))
    }

    fn start(&self, at: usize) -> Timestamp {
        let from_first = i64::try_from(at).unwrap_or_default().saturating_mul(self.length);
        let first = Timestamp::from_second(self.first).unwrap_or_default();
        first.checked_add(SignedDuration::from_secs(from_first)).unwrap_or(first)
    }

    fn name(&self, at: usize) -> String {
        self.start(at).strftime(if self.length < DAY { "%a %H:%M" } else { "%m-%d" }).to_string()
    }

    fn unit(&self) -> String {
        match self.length / DAY {
            0 => "hour".to_owned(),
            1 => "day".to_owned(),
            days => format!("{days} days"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_columns_of_hours_days_or_several_days() {
        let now: Timestamp = "2026-11-22T18:40:00Z".parse().unwrap();
        for (hours, unit, count, first) in [
            (1, "hour", 2, "Sun 17:00"),
            (24, "hour", 25, "Sat 18:00"),
            (48, "hour", 49, "Fri 18:00"),
            (49, "day", 3, "11-20"),
            (7 * 24, "day", 8, "11-15"),
            (48 * 24, "day", 49, "10-05"),
            (95 * 24, "2 days", 48, "08-19"),
            (365 * 24, "8 days", 47, "11-16"),
        ] {
            let steps = Steps::of(now.checked_sub(SignedDuration::from_hours(hours)).unwrap(), now);
            assert_eq!((&*steps.unit(), steps.count, &*steps.name(0)), (unit, count, first), "{hours} h");
            assert!(steps.start(steps.count - 1) <= now && steps.start(steps.count) > now, "{hours} h");
        }
    }
}
