//! What `nodegate probe` prints.

use std::fmt::Write as _;

use crate::cli::look::probe::Format;
use crate::cli::shared::output::{self, structured, table};
use nodegate_onnode::probe::{Device, Kind, Probe};

/// The text in this format.
pub(super) fn render(format: Format, probe: &Probe) -> anyhow::Result<String> {
    match format {
        Format::Json => structured(output::Format::Json, probe),
        Format::Yaml => structured(output::Format::Yaml, probe),
        Format::Labels => Ok(labels(probe)),
        Format::Table => Ok(people(probe)),
    }
}

fn labels(probe: &Probe) -> String {
    probe.labels.iter().fold(String::new(), |mut text, (key, value)| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{key}={value}");
        text
    })
}

fn people(probe: &Probe) -> String {
    if probe.devices.is_empty() && probe.unknown.is_empty() {
        return "No accelerators found.\n".to_owned();
    }
    let mut table = table(&["address", "kind", "product", "memory", "counted", "name"]);
    for device in probe.devices.iter().chain(&probe.unknown) {
        table.add_row([
            device.address.clone(),
            kind(device.kind).to_owned(),
            device.short.clone().unwrap_or_else(|| "unknown".to_owned()),
            device.memory_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes / (1024 * 1024))),
            counted(device).to_owned(),
            device.name.clone().unwrap_or_else(|| ids(device)),
        ]);
    }
    let mut text = table.trim_fmt() + "\n";
    if !probe.labels.is_empty() {
        text.push('\n');
        text.push_str(&labels(probe));
    }
    text
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Gpu => "GPU",
        Kind::Accelerator => "accelerator",
        Kind::Switch => "switch",
        Kind::Unknown => "unknown",
    }
}

fn counted(device: &Device) -> &'static str {
    match (device.count, device.is_virtual) {
        (0, _) => "no, virtual function",
        (_, true) => "yes, virtual",
        (_, false) => "yes",
    }
}

fn ids(device: &Device) -> String {
    match (&device.vendor, &device.device) {
        (Some(vendor), Some(device)) => format!("{vendor}:{device}"),
        _ => "-".to_owned(),
    }
}
