//! Tables of the page.

use maud::{Markup, html};

use super::text;
use crate::text::counted;

/// How many rows a table has at most. A browser shows a page with more of them slowly, and nobody reads them.
const ROWS_MAX: usize = 300;
/// How many nodes are named at once.
const NAMED: usize = 3;
/// How many nodes are named on request.
const NAMES_MAX: usize = 1000;

/// A column: its name, and whether it has numbers.
#[derive(Clone, Copy)]
pub(super) struct Column(pub(super) &'static str, pub(super) bool);

/// A table. `all`: the command that prints what is left out here.
///
/// The roles are explicit because a style sheet that lays rows out as blocks takes them away.
pub(super) fn table(caption: &str, columns: &[Column], rows: Vec<Vec<Markup>>, all: &str) -> Markup {
    let more = rows.len().saturating_sub(ROWS_MAX);
    let wide = columns.len() > 2;
    html! {
        table class=[wide.then_some("wide")] role="table" {
            caption { (caption) }
            thead role="rowgroup" {
                tr role="row" {
                    @for Column(name, number) in columns { th class=[number.then_some("number")] role="columnheader" scope="col" { (name) } }
                }
            }
            tbody role="rowgroup" {
                @for row in rows.into_iter().take(ROWS_MAX) {
                    tr role="row" {
                        @for (at, (Column(name, number), cell)) in columns.iter().zip(row).enumerate() {
                            @if at == 0 { th class=[number.then_some("number")] role="rowheader" scope="row" data-column=(name) { (cell) } }
                            @else { td class=[number.then_some("number")] role="cell" data-column=(name) { (cell) } }
                        }
                    }
                }
            }
        }
        @if more > 0 { p.quiet { (counted(more, "more row", "more rows")) "; " code { (all) } " prints all." } }
    }
}

/// Names of nodes: a few at once, more on request.
pub(super) fn nodes(names: &[&str]) -> Markup {
    let names: Vec<String> = names.iter().map(|name| text(name)).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    html! {
        @if names.len() <= NAMED { (names.join(", ")) }
        @else {
            details {
                summary { (counted(names.len(), "node", "nodes")) }
                div {
                    (names[..names.len() - more].join(", "))
                    @if more > 0 { ", and " (more) " more" }
                }
            }
        }
    }
}
