//! What kubelets claimed and may not.

use maud::html;

use crate::cli::look::report::document::{Rejected, Report};
use crate::cli::look::report::page::parts::{Listed, of_report, ruled};
use crate::cli::look::report::page::table::Column;
use crate::cli::look::report::page::{Section, Tile, text};
use nodegate_base::text::or_quotes;

/// What kubelets claimed when their nodes joined, and what was rejected of it.
pub(super) fn rejected(report: &Report) -> Section {
    let rows = report.rejected.iter().map(|Rejected { node, field, key, asserted, policy, rule, text: _ }| {
        vec![
            html! { (text(node)) },
            html! { @if let Some(field) = field { (field.as_str()) " " } code { (text(key)) } },
            html! { @if field.is_some() { code { (text(or_quotes(asserted))) } } },
            html! { (ruled(policy, rule)) },
        ]
    });
    Listed {
        id: "rejected",
        title: "Rejected claims of kubelets",
        tile: Tile::alert(report.rejected.len(), "rejected claim", "rejected claims"),
        nothing: "No kubelet claimed what it may not set.",
        caption: "What kubelets claimed when their nodes joined, and what was rejected",
        columns: &["Node", "Claim", "Claimed value", "Rejected by"].map(Column::Text),
        rows: of_report(rows),
    }
    .section()
}
