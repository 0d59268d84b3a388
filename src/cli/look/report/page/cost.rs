//! What nodes have, and what they cost.

use maud::html;

use crate::cli::look::report::cost::HOURS_A_MONTH;
use crate::cli::look::report::document::Cost;
use crate::cli::look::report::page::charts::{self, Bar};
use crate::cli::look::report::page::parts::{BARS_MAX, fold, of_report, valued};
use crate::cli::look::report::page::table::{Column, Rows, table};
use crate::cli::look::report::page::{Content, Section, Tile, counted, separated, text};

/// The resources and the price of the nodes, by a label.
pub(super) fn section(label: &str, costs: &[Cost]) -> Section {
    let currency = text(costs.iter().find_map(|cost| cost.currency.as_deref()).unwrap_or_default());
    let priced = costs.iter().any(|cost| cost.per_hour.is_some());
    let unpriced: usize = costs.iter().filter_map(|cost| cost.unpriced).sum();
    let named = |cost: &Cost| cost.value.as_deref().map_or_else(|| "(no label)".to_owned(), valued);
    let bar = |cost: &Cost| {
        let value = cost.per_hour.map_or(cost.cpu, |hour| hour * HOURS_A_MONTH);
        Bar { name: named(cost), value, shown: brief(value) }
    };
    let mut bars: Vec<Bar> = costs.iter().map(bar).collect();
    let sum = brief(bars.iter().map(|bar| bar.value).sum());
    bars.sort_by(|one, other| other.value.total_cmp(&one.value));
    fold(&mut bars, BARS_MAX);
    let unit = if priced { format!("{currency} per month") } else { "CPU cores".to_owned() };
    let mut columns = vec![Column::Text("Value"), Column::Number("Nodes"), Column::Number("CPU")];
    columns.extend(["Memory (GiB)", "GPUs"].map(Column::Number));
    if priced {
        columns.extend(["Per hour", "Per month", "Nodes without a price"].map(Column::Number));
    }
    let rows = costs.iter().map(|cost| {
        let price = |price: Option<f64>| html! { (price.map(|price| format!("{price:.2}")).unwrap_or_default()) };
        vec![
            html! { (named(cost)) },
            html! { (cost.nodes) },
            html! { ((cost.cpu * 100.0).round() / 100.0) },
            html! { (format!("{:.1}", cost.memory_gib)) },
            html! { (cost.gpu) },
            price(cost.per_hour),
            price(cost.per_hour.map(|hour| hour * HOURS_A_MONTH)),
            html! { (cost.unpriced.unwrap_or_default()) },
        ]
    });
    let caption = if priced { format!("Resources, and prices in {currency}") } else { "Resources".to_owned() };
    let rows = Rows { all: format!("nodegate report --cost --by {label} -o csv"), ..of_report(rows) };
    let numbers = table(&caption, &columns, rows);
    let without = counted(unpriced, "node without a price", "nodes without a price");
    let content = html! {
        @if unpriced > 0 { p { "The sums leave out " (without) "." } }
        div.charts {
            figure {
                figcaption { (unit) " by " (label) }
                div role="img" aria-label={ "Bar chart: " (unit) " by " (label) ". The table below has the numbers." } {
                    (charts::bars(&bars))
                }
            }
        }
        (numbers)
    };
    let what = if unpriced > 0 { format!("{unit}, plus {without}") } else { unit };
    let tile = Tile { number: sum, what, alert: false };
    Section { id: "cost", title: "Cost", tile, content: Content::Shown(content) }
}

/// A sum, with decimal places only if it is small.
fn brief(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { separated(&format!("{value:.0}")) }
}
