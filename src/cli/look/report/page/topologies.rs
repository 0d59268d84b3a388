//! Where nodes are, by the topologies of the policies.

use maud::{Markup, html};

use crate::cli::look::report::document::Report;
use crate::cli::look::report::page::parts::{Listed, of_report, ruled, valued};
use crate::cli::look::report::page::table::{Column, nodes};
use crate::cli::look::report::page::{Section, Tile, text};
use crate::cli::look::report::topologies::{Level, SHOWN, Split, TopologyNodes};

/// The levels of all topologies, with the nodes that lack them and the values that are in several places.
pub(super) fn topologies(report: &Report) -> Section {
    let mut all: Vec<(String, &Level)> = Vec::new();
    for TopologyNodes { policy, rule, levels, nodes: _ } in &report.topologies {
        all.extend(levels.iter().map(|level| (ruled(policy, rule), level)));
    }
    let faults = all.iter().map(|(_, level)| level.lacking.len() + level.split.len()).sum();
    let row = |(topology, Level { key, values, lacking, split }): (String, &Level)| {
        let lacking: Vec<&str> = lacking.iter().map(String::as_str).collect();
        vec![
            html! { (topology) },
            html! { code { (text(key)) } },
            html! { (values) },
            nodes(&lacking),
            html! {
                @for (at, split) in split.iter().take(SHOWN).enumerate() { @if at > 0 { "; " } (in_several(split)) }
                @if split.len() > SHOWN { "; and " (split.len() - SHOWN) " other values" }
            },
        ]
    };
    let columns = [
        Column::Text("Topology"),
        Column::Text("Level"),
        Column::Number("Values"),
        Column::Text("Missing on"),
        Column::Text("In several values of the outer level"),
    ];
    Listed {
        id: "topologies",
        title: "Topologies",
        tile: Tile::alert(faults, "wrong place in a topology", "wrong places in a topology"),
        nothing: "No policy has topologies.",
        caption: "The levels of topologies, outermost first, and what is wrong there",
        columns: &columns,
        rows: of_report(all.into_iter().map(row)),
    }
    .section()
}

fn in_several(Split { value, within }: &Split) -> Markup {
    html! {
        code { (valued(value)) } " in "
        @for (at, (outer, nodes)) in within.iter().take(SHOWN).enumerate() {
            @if at > 0 { ", " }
            code { (valued(outer)) } " (" (nodes.len()) ")"
        }
        @if within.len() > SHOWN { ", …" }
    }
}
