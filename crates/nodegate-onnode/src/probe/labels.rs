//! The labels of a machine's accelerators. `docs/reference/probe.md` lists them.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Device, Kind};
use nodegate_policy::api::names::{check_label_key, check_label_value};
use nodegate_policy::gpu::probed::PREFIX;

/// The vendors that have a label with the number of their GPUs.
const VENDORS: [(&str, &str); 3] = [("10de", "nvidia"), ("1002", "amd"), ("8086", "intel")];

const MIB: u64 = 1024 * 1024;

/// The labels. A label about all GPUs, such as the product, is left out if they differ.
pub(super) fn of(devices: &[Device]) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        let key = format!("{PREFIX}{name}");
        // The name of a product may be too long.
        if check_label_key(&key).is_ok() && check_label_value(&value).is_ok() {
            labels.insert(key, value);
        }
    };
    let gpus: Vec<&Device> = counted(devices, Kind::Gpu).collect();
    if !gpus.is_empty() {
        set("gpu.present", "true".to_owned());
        set("gpu.count", gpus.len().to_string());
        let vendors = tally(gpus.iter().map(|gpu| vendor(gpu)));
        if let Some(vendor) = only(gpus.iter().map(|gpu| vendor(gpu))) {
            set("gpu.vendor", vendor.to_owned());
        }
        for (vendor, count) in vendors {
            set(&format!("{vendor}.count"), count.to_string());
        }
        if let Some(short) = only(gpus.iter().map(|gpu| gpu.short.as_deref())) {
            set("gpu.product", short.to_owned());
        }
        if let Some(bytes) = only(gpus.iter().map(|gpu| gpu.memory_bytes)) {
            set("gpu.memory", (bytes / MIB).to_string());
        }
        for (short, count) in tally(gpus.iter().map(|gpu| gpu.short.as_deref())) {
            set(&format!("gpu.{short}.count"), count.to_string());
        }
    }
    let switches = counted(devices, Kind::Switch).count();
    if switches > 0 {
        set("nvswitch.count", switches.to_string());
    }
    let sockets =
        gpus.iter().filter_map(|gpu| gpu.short.as_deref()).filter(|short| short.split('-').any(|w| w == "sxm"));
    if switches > 0 || sockets.count() > 1 {
        set("nvlink.present", "true".to_owned());
    }
    let accelerators: Vec<&Device> = counted(devices, Kind::Accelerator).collect();
    for (short, count) in tally(accelerators.iter().map(|device| device.short.as_deref())) {
        set(&format!("accelerator.{short}.count"), count.to_string());
    }
    let unknown = devices.iter().filter(|device| device.short.is_none() && device.count > 0).count();
    if unknown > 0 {
        set("unknown.count", unknown.to_string());
    }
    labels
}

fn counted(devices: &[Device], kind: Kind) -> impl Iterator<Item = &Device> {
    devices.iter().filter(move |device| device.kind == kind && device.count > 0)
}

fn vendor(device: &Device) -> Option<&'static str> {
    VENDORS.iter().find(|(id, _)| device.vendor.as_deref() == Some(id)).map(|(_, name)| *name)
}

/// The value that all have.
fn only<T: Ord>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let mut distinct = values.collect::<Option<BTreeSet<T>>>()?;
    let first = distinct.pop_first()?;
    distinct.is_empty().then_some(first)
}

/// How often each value occurs.
fn tally<'a>(values: impl Iterator<Item = Option<&'a str>>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for value in values.flatten() {
        *counts.entry(value).or_default() += 1;
    }
    counts
}
