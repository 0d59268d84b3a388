//! Tables of the page.

use maud::{Markup, PreEscaped, html};

use crate::cli::look::report::page::{counted, separated, text};

/// How many rows a table has at most. A browser shows a page with more of them slowly, and nobody reads them.
const ROWS_MAX: usize = 300;
/// How many nodes are named at once.
const NAMED: usize = 3;
/// How many nodes are named on request.
const NAMES_MAX: usize = 50;

/// A column, by its name.
#[derive(Clone, Copy)]
pub(super) enum Column<'a> {
    Text(&'a str),
    Number(&'a str),
}

impl Column<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Text(name) | Self::Number(name) => name,
        }
    }

    fn shown(&self, cell: Markup) -> Markup {
        match self {
            Self::Text(_) => cell,
            Self::Number(_) => PreEscaped(separated(&cell.into_string())),
        }
    }

    fn class(self) -> Option<&'static str> {
        match self {
            Self::Text(_) => None,
            Self::Number(_) => Some("number"),
        }
    }
}

/// The rows of a table, which are made only as far as they are shown.
pub(super) struct Rows<I> {
    pub(super) count: usize,
    pub(super) rows: I,
    /// The command that prints those that are not shown.
    pub(super) all: String,
}

/// A table.
///
/// The roles are explicit because a style sheet that lays rows out as blocks takes them away.
pub(super) fn table(caption: &str, columns: &[Column<'_>], rows: Rows<impl Iterator<Item = Vec<Markup>>>) -> Markup {
    let Rows { count, rows, all } = rows;
    let more = count.saturating_sub(ROWS_MAX);
    let wide = columns.len() > 2;
    html! {
        table class=[wide.then_some("wide")] role="table" {
            caption { (caption) }
            thead role="rowgroup" {
                tr role="row" {
                    @for column in columns { th class=[column.class()] role="columnheader" scope="col" { (column.name()) } }
                }
            }
            tbody role="rowgroup" {
                @for row in rows.take(ROWS_MAX) {
                    tr role="row" {
                        @for (at, (column, cell)) in columns.iter().zip(row).enumerate() {
                            @if at == 0 {
                                th class=[column.class()] role="rowheader" scope="row" data-column=(column.name()) { (column.shown(cell)) }
                            } @else {
                                td class=[column.class()] role="cell" data-column=(column.name()) { (column.shown(cell)) }
                            }
                        }
                    }
                }
            }
        }
        @if more > 0 {
            p.quiet {
                (counted(more, "more row", "more rows")) ". With the same nodes and policies, " code { (text(&all)) } " prints all of them."
            }
        }
    }
}

/// Names of nodes: a few at once, more on request.
pub(super) fn nodes(names: &[&str]) -> Markup {
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(|name| text(name)).collect();
    let more = names.len() - shown.len();
    html! {
        @if names.len() <= NAMED { (shown.join(", ")) }
        @else {
            details {
                summary { (counted(names.len(), "node", "nodes")) }
                div {
                    (shown.join(", "))
                    @if more > 0 { ", and " (more) " more" }
                }
            }
        }
    }
}
