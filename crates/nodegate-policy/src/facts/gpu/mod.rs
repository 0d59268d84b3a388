//! Infers a node's GPUs, before or after a driver runs on it.
//!
//! Sources: the first one with a GPU determines the vendor, later ones of the same vendor add missing
//! facts:
//! 1. labels of feature discovery: NVIDIA GPU Feature Discovery (`k8s-device-plugin/internal/lm`), the
//!    AMD node labeller (`k8s-device-plugin/cmd/k8s-node-labeller`), Intel's NFD rules
//!    (`intel-device-plugins/deployments/nfd/overlays`);
//! 2. PCI labels of Node Feature Discovery (`source/pci/pci.go`), and the numbers of GPUs that `nodegate probe` found on PCI;
//! 3. extended resources in `status.capacity`;
//! 4. the cloud instance type, by the table in `instance-types.csv`.
//!
//! The kubelet, or a daemon on the node, reports all of these and can choose them.

mod instance_types;
pub mod probed;
pub mod product;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::facts::json_borrow::Capacity;
use crate::facts::quantity::Quantity;

/// The inferred GPUs of a node. A field without a source is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// `nvidia`, `amd` or `intel`.
    pub vendor: Option<String>,
    /// The model in lower case, without vendor and brand, such as `a100-sxm4-40gb` or `rtx-3050`.
    pub model: Option<String>,
    /// Number of GPUs.
    pub count: Option<u32>,
    /// The source of the vendor.
    pub source: Option<GpuSource>,
}

/// The source of GPU facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuSource {
    /// Labels of a vendor's feature discovery.
    FeatureDiscovery,
    /// PCI labels of Node Feature Discovery.
    PciDevice,
    /// Extended resources in capacity.
    Capacity,
    /// The cloud instance type.
    InstanceType,
}

impl GpuSource {
    /// The value of `gpu.source` in CEL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FeatureDiscovery => "feature-discovery",
            Self::PciDevice => "pci",
            Self::Capacity => "capacity",
            Self::InstanceType => "instance-type",
        }
    }
}

const INSTANCE_TYPE_LABELS: [&str; 2] = ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];
/// The vendors that can be inferred.
pub(crate) const VENDORS: [&str; 3] = ["nvidia", "amd", "intel"];

/// The facts of one source about one vendor.
#[derive(Clone, Debug, Default)]
struct Evidence {
    seen: bool,
    model: Option<String>,
    count: Option<u32>,
}

/// The index of NVIDIA in [`VENDORS`].
const NVIDIA: usize = 0;

/// How NVIDIA GPUs are divided between pods, according to the product label (`k8s-device-plugin/internal/lm/resource.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// Whole GPUs.
    Whole,
    /// Shared: the resource counts replicas, `gpu.count` counts GPUs.
    Shared,
    /// As MIG devices under the `single` strategy: the resource and `gpu.count` count MIG devices.
    Partitioned,
}

impl Division {
    fn of(product: &str) -> Self {
        if product.contains(MIG) {
            Self::Partitioned
        } else if product.ends_with(SHARED) {
            Self::Shared
        } else {
            Self::Whole
        }
    }
}

/// Marks the product of partitioned GPUs; the profile follows.
const MIG: &str = "-MIG-";
/// The suffix of the product of shared GPUs.
const SHARED: &str = "-SHARED";

/// Whether inference reads this label. Rules that set such a label are evaluated before rules that read
/// GPU facts. `nvidia.com/gpu` is not read, because policies often set it.
pub(crate) fn reads_label(key: &str) -> bool {
    let Some((prefix, name)) = key.split_once('/') else { return false };
    match prefix {
        "nvidia.com" => matches!(name, "gpu.product" | "gpu.count" | "gpu.present"),
        "amd.com" | "beta.amd.com" => name.starts_with("gpu."),
        "gpu.intel.com" => name == "product" || name == "device.count" || name.starts_with("device-id."),
        "intel.feature.node.kubernetes.io" => name == "gpu",
        "feature.node.kubernetes.io" => {
            name.starts_with("pci-") || probed::vendor_of(name).is_some() || matches!(name, "amd-gpu" | "amd-vgpu")
        }
        _ => INSTANCE_TYPE_LABELS.contains(&key),
    }
}

/// Infers GPU facts from the labels as rules see them and from capacity; `None` if there is no sign of a GPU.
///
/// # Guarantees
/// The order of the labels does not matter.
pub(crate) fn infer<'v>(labels: impl Iterator<Item = (&'v str, &'v str)>, capacity: &Capacity<'_>) -> Option<GpuFacts> {
    let mut discovery: [Evidence; 3] = Default::default();
    let mut pci: [Evidence; 3] = Default::default();
    let mut instance_type = None;
    let labels: BTreeMap<&str, &str> = labels.filter(|(key, _)| reads_label(key)).collect();
    for (key, value) in &labels {
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
    let mut by_resource = capacity_evidence(capacity);
    let division = labels.get("nvidia.com/gpu.product").map_or(Division::Whole, |product| Division::of(product));
    if division == Division::Partitioned {
        discovery[NVIDIA].count = None;
    }
    if division != Division::Whole {
        by_resource[NVIDIA].count = None;
    }
    let mut by_type: [Evidence; 3] = Default::default();
    if let Some(found) = instance_type
        && let Some(at) = VENDORS.iter().position(|vendor| *vendor == found.vendor)
    {
        by_type[at] = Evidence { seen: true, model: Some(found.model.to_owned()), count: Some(found.count) };
    }
    let sources = [
        (GpuSource::FeatureDiscovery, discovery),
        (GpuSource::PciDevice, pci),
        (GpuSource::Capacity, by_resource),
        (GpuSource::InstanceType, by_type),
    ];
    let (source, at) =
        sources.iter().find_map(|(source, evidence)| Some((*source, evidence.iter().position(|one| one.seen)?)))?;
    let of_vendor = || sources.iter().map(|(_, evidence)| &evidence[at]);
    Some(GpuFacts {
        vendor: Some(VENDORS[at].to_owned()),
        model: of_vendor().find_map(|evidence| evidence.model.clone()),
        count: of_vendor().find_map(|evidence| evidence.count),
        source: Some(source),
    })
}

fn discovery_label(key: &str, value: &str, evidence: &mut [Evidence; 3]) {
    let [nvidia, amd, intel] = evidence;
    match key {
        "nvidia.com/gpu.present" => nvidia.seen |= value == "true",
        "nvidia.com/gpu.product" => {
            nvidia.seen = true;
            nvidia.model = normalize_model(value);
        }
        "nvidia.com/gpu.count" => {
            nvidia.count = value.parse().ok().filter(|count| *count > 0);
            nvidia.seen |= nvidia.count.is_some();
        }
        "feature.node.kubernetes.io/amd-gpu" | "feature.node.kubernetes.io/amd-vgpu" => amd.seen |= value == "true",
        "gpu.intel.com/product" => {
            intel.seen = true;
            intel.model = normalize_model(value);
        }
        "gpu.intel.com/device.count" => {
            intel.count = value.parse().ok();
            intel.seen = true;
        }
        "intel.feature.node.kubernetes.io/gpu" => intel.seen |= value == "true",
        _ => match (key.split_once("/gpu."), key.strip_prefix("gpu.intel.com/device-id.")) {
            (Some((domain, name)), _) => amd_label(domain, name, value, amd),
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

/// `<class>_<vendor>[…].present` or `<vendor>.present`. Intel display controllers (0300) are nearly
/// always integrated graphics, and an Intel device without a class may be anything, so both are ignored.
fn pci_label(name: &str, value: &str, [nvidia, amd, intel]: &mut [Evidence; 3]) {
    let Some(fields) = name.strip_suffix(".present").filter(|_| value == "true") else { return };
    let (class, vendor) = match fields.split_once('_') {
        Some((vendor @ ("10de" | "1002" | "8086"), _)) => ("", vendor),
        Some((class, rest)) => (class, rest.split('_').next().unwrap_or_default()),
        None => ("", fields),
    };
    match (vendor, class) {
        ("10de", "" | "0300" | "0302" | "0380") => nvidia.seen = true,
        ("1002", "" | "0300" | "0302" | "0380" | "1200") => amd.seen = true,
        ("8086", "0302" | "0380") => intel.seen = true,
        _ => {}
    }
}

fn capacity_evidence(capacity: &Capacity<'_>) -> [Evidence; 3] {
    let mut evidence: [Evidence; 3] = Default::default();
    let [nvidia, amd, intel] = &mut evidence;
    for (resource, quantity) in capacity.iter() {
        if quantity.parse::<Quantity>().is_ok_and(|quantity| quantity <= Quantity::ZERO) {
            continue;
        }
        match resource {
            "nvidia.com/gpu" => nvidia.add(quantity.parse().ok()),
            // The number of shared or partitioned devices is not the number of GPUs, but they prove the vendor.
            "nvidia.com/gpu.shared" => nvidia.add(None),
            "amd.com/gpu" => amd.add(quantity.parse().ok()),
            "gpu.intel.com/i915" | "gpu.intel.com/xe" => intel.add(quantity.parse().ok()),
            _ if resource.starts_with("nvidia.com/mig-") => nvidia.add(None),
            _ => {}
        }
    }
    evidence
}

impl Evidence {
    fn add(&mut self, count: Option<u32>) {
        self.seen = true;
        self.count = match (self.count, count) {
            (Some(so_far), Some(more)) => Some(so_far.saturating_add(more)),
            (so_far, more) => so_far.or(more),
        };
    }
}

/// Brand words at the start of a product name that add nothing to the vendor.
const BRANDS: [&str; 9] = ["nvidia", "tesla", "geforce", "quadro", "grid", "amd", "radeon", "instinct", "intel"];

/// Converts a driver's product name to the form of the instance type table: `NVIDIA-GeForce-RTX-3050`
/// becomes `rtx-3050`. Sharing, MIG and virtual GPU suffixes are cut off.
fn normalize_model(product: &str) -> Option<String> {
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
