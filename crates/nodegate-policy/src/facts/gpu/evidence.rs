//! What labels and capacity of a node show of GPUs, source by source.

use std::collections::BTreeMap;

use super::{INSTANCE_TYPE_LABELS, MIG, NVIDIA_COUNT, NVIDIA_PRODUCT, SHARED, VENDORS, instance_types, probed};
use crate::facts::json::borrow::Capacity;
use crate::facts::publishers::Publisher;
use crate::facts::quantity::Quantity;

/// The facts of one source about one vendor.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    pub(super) seen: bool,
    pub(super) model: Option<String>,
    pub(super) count: Option<u32>,
    pub(super) away: Away,
    /// Whether GPUs are divided.
    divided: bool,
    /// Whether there is a device that may be a GPU or a part of a processor.
    pub(super) doubtful: bool,
    /// Whether there is a part of a processor.
    pub(super) integrated: bool,
}

/// The publishers that have told a fact before and are away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Away {
    pub(super) vendor: Option<Publisher>,
    pub(super) model: Option<Publisher>,
    pub(super) count: Option<Publisher>,
}

impl Away {
    pub(super) fn all(publisher: Publisher) -> Self {
        Self { vendor: Some(publisher), model: Some(publisher), count: Some(publisher) }
    }
}

/// How AMD's GPUs are divided, such as `cpx_nps4`; `spx` is a whole GPU (`UniquePartitionConfigCount` in
/// `k8s-device-plugin/internal/pkg/amdgpu`).
const AMD_PARTITION: &str = "amd.com/gpu.compute-memory-partition";

/// Families of graphics that are part of a processor, as AMD's labeller names them (`GetCardFamilyName` there,
/// `include/uapi/drm/amdgpu_drm.h` of Linux).
const AMD_INTEGRATED: [&str; 9] = ["KV", "CZ", "RV", "VGH", "YC", "GC_10_3_6", "GC_10_3_7", "GC_11_0_1", "GC_11_5_0"];

/// What labels of discovery, of PCI devices and of the instance type show.
pub(super) fn evidence_of(labels: &BTreeMap<&str, &str>) -> ([Evidence; 3], [Evidence; 3], [Evidence; 3]) {
    let (mut discovery, mut pci): ([Evidence; 3], [Evidence; 3]) = Default::default();
    let mut instance_type = None;
    for (key, value) in labels {
        if INSTANCE_TYPE_LABELS.contains(key) {
            instance_type = instance_type.or_else(|| instance_types::find(value));
        } else if let Some(name) = key.strip_prefix("feature.node.kubernetes.io/pci-") {
            pci_label(name, value, &mut pci);
        } else if let Some(at) = key.split_once('/').and_then(|(_, name)| probed::vendor_of(name)) {
            let count = value.parse().ok().filter(|count| *count > 0);
            pci[at].seen |= count.is_some();
            pci[at].count = count;
        } else {
            discovery_label(key, value, &mut discovery);
        }
    }
    let mut by_type: [Evidence; 3] = Default::default();
    if let Some(found) = instance_type
        && let Some(at) = VENDORS.iter().position(|vendor| *vendor == found.vendor)
    {
        by_type[at].seen = true;
        (by_type[at].model, by_type[at].count) = (Some(found.model.to_owned()), Some(found.count));
    }
    (discovery, pci, by_type)
}

/// What AMD's labeller counts as devices: partitions, and graphics that are part of a processor.
pub(super) fn amd_devices(labels: &BTreeMap<&str, &str>, discovery: &mut Evidence, by_resource: &mut Evidence) {
    let is_divided = labels.get(AMD_PARTITION).is_some_and(|partition| !partition.starts_with("spx"));
    let families = labels.iter().filter_map(|(key, value)| match key.split_once("/gpu.family")?.1 {
        "" => Some(*value),
        counted => counted.strip_prefix('.'),
    });
    let (integrated, cards): (Vec<&str>, Vec<&str>) = families.partition(|family| AMD_INTEGRATED.contains(family));
    if is_divided || !integrated.is_empty() {
        (discovery.count, by_resource.count) = (None, None);
    }
    if !integrated.is_empty() && cards.is_empty() {
        (discovery.seen, by_resource.seen) = (false, false);
        discovery.integrated = true;
    }
}

/// The number of GPUs that HAMi lists: as JSON, or separated by colons in versions before 2.6.
pub(super) fn hami_devices(text: &str) -> Option<u32> {
    let count = if text.starts_with('[') {
        serde_json::from_str::<Vec<serde::de::IgnoredAny>>(text).ok()?.len()
    } else {
        let devices = text.split(':').filter(|device| !device.is_empty());
        devices.map(|device| device.contains(',').then_some(())).collect::<Option<Vec<()>>>()?.len()
    };
    u32::try_from(count).ok().filter(|count| *count > 0)
}

fn discovery_label(key: &str, value: &str, evidence: &mut [Evidence; 3]) {
    let [nvidia, amd, intel] = evidence;
    match key {
        "nvidia.com/gpu.present" => nvidia.seen |= value == "true",
        NVIDIA_PRODUCT => {
            nvidia.seen = true;
            nvidia.model = normalize_model(value);
        }
        NVIDIA_COUNT => {
            nvidia.count = value.parse().ok().filter(|count| *count > 0);
            nvidia.seen |= nvidia.count.is_some();
        }
        "feature.node.kubernetes.io/amd-gpu" | "feature.node.kubernetes.io/amd-vgpu" => amd.seen |= value == "true",
        "gpu.intel.com/product" => {
            intel.seen = true;
            intel.model = normalize_model(value);
        }
        "gpu.intel.com/family" => intel.seen = true,
        "gpu.intel.com/device.count" => {
            intel.count = value.parse().ok();
            intel.seen = true;
        }
        "intel.feature.node.kubernetes.io/gpu" => intel.doubtful |= value == "true",
        _ => match (key.split_once("/gpu."), key.strip_prefix("gpu.intel.com/device-id.")) {
            (Some((domain, name)), _) => amd_label(domain, name, value, amd),
            (_, Some(name)) if name.starts_with("0300-") => intel.integrated = true,
            (_, Some(name)) => {
                intel.seen = true;
                if name.ends_with(".count") && !value.is_empty() {
                    intel.count = Some(intel.count.unwrap_or(0).saturating_add(value.parse().unwrap_or(0)));
                }
            }
            _ => {}
        },
    }
}

/// AMD's labeller writes `gpu.<kind>=<value>` if all devices are equal, else `gpu.<kind>.<value>=<n>`;
/// under `beta.amd.com` it always writes the counting form.
fn amd_label(domain: &str, name: &str, value: &str, amd: &mut Evidence) {
    amd.seen = true;
    if name == "product-name" {
        amd.model = normalize_model(value);
    } else if domain == "beta.amd.com" && name.starts_with("device-id.") {
        let count: u32 = value.parse().unwrap_or(0);
        amd.count = Some(amd.count.unwrap_or(0).saturating_add(count)).filter(|count| *count > 0);
    }
}

/// `<class>_<vendor>[…].present` or `<vendor>.present`. Display controllers (0300) of AMD and Intel are nearly always parts of
/// processors, and a device of theirs without a class may be one.
fn pci_label(name: &str, value: &str, [nvidia, amd, intel]: &mut [Evidence; 3]) {
    let Some(fields) = name.strip_suffix(".present").filter(|_| value == "true") else { return };
    let (class, vendor) = match fields.split_once('_') {
        Some((vendor @ ("10de" | "1002" | "8086"), _)) => ("", vendor),
        Some((class, rest)) => (class, rest.split('_').next().unwrap_or_default()),
        None => ("", fields),
    };
    match (vendor, class) {
        ("10de", "" | "0300" | "0302" | "0380") => nvidia.seen = true,
        ("1002", "0302" | "0380" | "1200") => amd.seen = true,
        ("8086", "0302" | "0380") => intel.seen = true,
        ("8086", "0300") => intel.integrated = true,
        _ => {}
    }
}

pub(super) fn capacity_evidence(capacity: &Capacity<'_>) -> [Evidence; 3] {
    let mut evidence: [Evidence; 3] = Default::default();
    let [nvidia, amd, intel] = &mut evidence;
    for (resource, quantity) in capacity.iter() {
        if quantity.parse::<Quantity>().is_ok_and(|quantity| quantity <= Quantity::ZERO) {
            continue;
        }
        match resource {
            "nvidia.com/gpu" => nvidia.add(quantity.parse().ok()),
            // The number of shared or partitioned devices is not the number of GPUs, but they prove the vendor.
            "nvidia.com/gpu.shared" => nvidia.divide(),
            "amd.com/gpu" => amd.add(quantity.parse().ok()),
            "gpu.intel.com/i915" | "gpu.intel.com/xe" => intel.doubtful = true,
            _ if resource.starts_with("nvidia.com/mig-") => nvidia.divide(),
            _ if is_amd_partition(resource) => amd.divide(),
            _ => {}
        }
    }
    evidence
}

/// Whether this is a resource of partitioned GPUs, such as `amd.com/cpx_nps4` (`docs/user-guide/configuration.md` of
/// `ROCm/k8s-device-plugin`).
fn is_amd_partition(resource: &str) -> bool {
    resource.strip_prefix("amd.com/").is_some_and(|name| name.contains("_nps"))
}

impl Evidence {
    fn add(&mut self, count: Option<u32>) {
        self.seen = true;
        self.count = count.filter(|_| !self.divided);
    }

    /// Notes devices that are parts of GPUs, so that no resource counts whole ones.
    fn divide(&mut self) {
        (self.seen, self.divided, self.count) = (true, true, None);
    }
}

/// Brand words at the start of a product name that add nothing to the vendor.
const BRANDS: [&str; 9] = ["nvidia", "tesla", "geforce", "quadro", "grid", "amd", "radeon", "instinct", "intel"];

/// Converts a driver's product name to the form of the instance type table: `NVIDIA-GeForce-RTX-3050`
/// becomes `rtx-3050`. Sharing, MIG and virtual GPU suffixes are cut off.
pub(super) fn normalize_model(product: &str) -> Option<String> {
    let product = product.trim().strip_suffix(SHARED).unwrap_or(product.trim());
    let product = product.split(MIG).next().unwrap_or(product);
    let lower = product.to_lowercase().replace(['_', ' '], "-");
    let mut words: Vec<&str> = lower.split('-').filter(|word| !word.is_empty()).collect();
    while words.len() > 1 && BRANDS.contains(&words[0]) {
        words.remove(0);
    }
    if words.last().is_some_and(|word| matches!(*word, "vf" | "mxgpu")) {
        words.pop();
    }
    if words.last().is_some_and(|word| is_virtual_profile(word)) && words.len() > 1 {
        words.pop();
        if words.len() > 1
            && words.last().is_some_and(|word| word.len() == 1 && word.bytes().all(|c| c.is_ascii_digit()))
        {
            words.pop();
        }
        if words.len() > 1 && words.last() == Some(&"dc") {
            words.pop();
        }
    }
    // A known bug of AMD's labeller gives this name to every device.
    (!words.is_empty() && words != ["graphics"]).then(|| words.join("-"))
}

/// `24q`, `3q`, `96c`: the profile of a virtual GPU.
fn is_virtual_profile(word: &str) -> bool {
    word.strip_suffix(['a', 'b', 'c', 'q'])
        .is_some_and(|size| !size.is_empty() && size.bytes().all(|c| c.is_ascii_digit()))
}
