//! What several sections are made of.

use maud::{Markup, html};

use crate::cli::look::report::page::charts::Bar;
use crate::cli::look::report::page::table::{Column, Rows, table};
use crate::cli::look::report::page::{Content, Section, Tile, separated, text};

/// How many bars a chart has at most, the one for all others included.
pub(super) const BARS_MAX: usize = 12;

pub(super) const REPORT: &str = "nodegate report -o json";

/// A chart with the same values as a table, for those who cannot see the chart or want to copy them.
pub(super) fn figure(caption: &str, drawing: Markup, summary: &str, table: Markup) -> Markup {
    html! {
        figure {
            figcaption { (caption) }
            div role="img" aria-label=(summary) { (drawing) }
            details { summary { "As a table" span.unseen { ": " (caption) } } (table) }
        }
    }
}

/// The numbers of nodes as a table.
pub(super) fn numbers(what: &str, counts: &[(String, usize)]) -> Markup {
    let rows = counts.iter().map(|(name, nodes)| vec![html! { (name) }, html! { (nodes) }]);
    let rows = Rows { count: counts.len(), rows, all: REPORT.to_owned() };
    table("Number of nodes", &[Column::Text(what), Column::Number("Nodes")], rows)
}

/// The value of a label, which may be empty.
pub(super) fn valued(value: &str) -> String {
    if value.is_empty() { "(empty)".to_owned() } else { text(value) }
}

pub(super) fn counted_bar(name: String, count: usize) -> Bar {
    #[expect(clippy::cast_precision_loss, reason = "no chart is as wide as that")]
    let value = count as f64;
    Bar { name, value, shown: separated(&count.to_string()) }
}

/// Makes one bar of the shortest ones if there are more than `max`.
pub(super) fn fold(bars: &mut Vec<Bar>, max: usize) {
    if bars.len() > max {
        let others = bars.split_off(max - 1);
        let value: f64 = others.iter().map(|bar| bar.value).sum();
        bars.push(Bar { name: format!("({} others)", others.len()), value, shown: separated(&format!("{value:.0}")) });
    }
}

/// A rule as `policy/rule`. A node that cannot be read violates none.
pub(super) fn ruled(policy: &str, rule: &str) -> String {
    if policy.is_empty() { "(node unreadable)".to_owned() } else { text(&format!("{policy}/{rule}")) }
}

/// A section with one table.
pub(super) struct Listed<'a, I> {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) tile: Tile,
    /// What is said if there are no rows.
    pub(super) nothing: &'a str,
    pub(super) caption: &'a str,
    pub(super) columns: &'a [Column<'a>],
    pub(super) rows: Rows<I>,
}

impl<I: Iterator<Item = Vec<Markup>>> Listed<'_, I> {
    pub(super) fn section(self) -> Section {
        let Self { id, title, tile, nothing, caption, columns, rows } = self;
        let content = match rows.count {
            0 => Content::Nothing(nothing.to_owned()),
            _ => Content::Shown(table(caption, columns, rows)),
        };
        Section { id, title, tile, content }
    }
}

pub(super) fn of_report<I: ExactSizeIterator>(rows: I) -> Rows<I> {
    Rows { count: rows.len(), rows, all: REPORT.to_owned() }
}
