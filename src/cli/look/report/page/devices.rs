//! Labels of GPUs that differ from the devices of their node.

use maud::html;

use crate::cli::look::report::devices::DeviceDifference;
use crate::cli::look::report::document::Report;
use crate::cli::look::report::page::parts::{Listed, of_report, valued};
use crate::cli::look::report::page::table::Column;
use crate::cli::look::report::page::{Section, Tile, text};

/// All of them.
pub(super) fn devices(report: &Report, unknown: Option<&str>) -> Section {
    let rows = report.devices.iter().map(|DeviceDifference { node, key, value, devices }| {
        vec![
            html! { (text(node)) },
            html! { code { (text(key)) "=" (valued(value)) } },
            html! { code { (text(&devices.join(", "))) } },
        ]
    });
    Listed {
        id: "devices",
        title: "GPU labels and devices",
        tile: Tile::alert(report.devices.len(), "wrong label of a GPU", "wrong labels of GPUs"),
        nothing: "No label of a GPU differs from the devices of its node.",
        caption: "Labels of GPUs, and what the ResourceSlices of their node say",
        columns: &["Node", "Label", "ResourceSlices"].map(Column::Text),
        rows: of_report(rows),
    }
    .section()
    .unless(unknown)
}
