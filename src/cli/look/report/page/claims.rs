//! What kubelets claimed and may not, and what contradicts their proof.

use maud::{Markup, html};

use crate::cli::look::report::document::{Contradicted, Disagreed, Rejected, Report};
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

/// What is asserted about nodes and contradicts what is proven of them.
pub(super) fn contradictions(report: &Report) -> Section {
    let rows = report.contradictions.iter().map(|Contradicted { node, contradiction }| {
        vec![
            html! { (text(node)) },
            html! { (text(&contradiction.in_words())) },
            html! { code { (text(&contradiction.asserted)) } },
        ]
    });
    Listed {
        id: "contradictions",
        title: "Contradictions to what proves pools",
        tile: Tile::alert(report.contradictions.len(), "contradiction", "contradictions"),
        nothing: "Nothing contradicts what is proven of a node.",
        caption: "Certificates that were issued to other pools, and provider IDs of other machines",
        columns: &["Node", "What", "Certificate or provider ID"].map(Column::Text),
        rows: of_report(rows),
    }
    .section()
}

/// The labels on which the nodes of a pool do not agree; nothing if there are none, as in a cluster whose pools remember nothing.
pub(super) fn disagreements(report: &Report) -> Option<Section> {
    let all = report.pools.iter().flat_map(|pool| pool.disagreements.iter().map(move |found| (&pool.pool, found)));
    let rows: Vec<Vec<Markup>> = all
        .map(|(pool, Disagreed { label, text: values, .. })| {
            vec![html! { (text(pool)) }, html! { code { (text(label)) } }, html! { (text(values)) }]
        })
        .collect();
    let count = rows.len();
    (count > 0).then(|| {
        Listed {
            id: "disagreements",
            title: "Labels on which pools do not agree",
            tile: Tile::alert(count, "label that pools do not agree on", "labels that pools do not agree on"),
            nothing: "",
            caption: "Labels that no new node gets, because the nodes of its pool have different values, or lack it",
            columns: &["Pool", "Label", "Values"].map(Column::Text),
            rows: of_report(rows.into_iter()),
        }
        .section()
    })
}
