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
//!
//! A count is of whole GPUs: what a device plugin advertises may be shares or partitions of them. Graphics of class 0300 (VGA) of
//! AMD and Intel are nearly always parts of a processor, so they are no GPUs. What a publisher of labels would tell is unknown
//! while it is away.

mod evidence;
mod instance_types;
pub mod probed;
pub mod product;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::facts::NodeFacts;
use crate::facts::missing::Missing;
use crate::facts::publishers::{self, Publisher};
use evidence::{Away, Evidence, amd_devices, capacity_evidence, evidence_of, hami_devices};

/// The GPUs of a node, as far as they can be inferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// There is no sign of one.
    None,
    /// Whether there is one, or which, is unknown. The text says why.
    Unknown(String),
    /// There are some.
    Found(GpuFacts),
}

/// The facts about the GPUs of a node. A field without a source is unknown.
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
    /// Why a fact is missing that the node has shown before, if one is.
    pub untold: Option<String>,
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

/// The indices in [`VENDORS`].
const NVIDIA: usize = 0;
const AMD: usize = 1;
const INTEL: usize = 2;

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

const NVIDIA_PRODUCT: &str = "nvidia.com/gpu.product";
const NVIDIA_COUNT: &str = "nvidia.com/gpu.count";
/// Marks the product of partitioned GPUs; the profile follows.
const MIG: &str = "-MIG-";
/// The suffix of the product of shared GPUs.
const SHARED: &str = "-SHARED";

/// Intel's device plugin advertises both as `i915` or `xe`, and Intel's rules label both.
const MAY_BE_INTEGRATED: &str = "what is reported of Intel may be a card or a part of a processor";

/// Whether inference reads this label. Rules that set such a label are evaluated before rules that read
/// GPU facts. `nvidia.com/gpu` is not read, because policies often set it.
pub(crate) fn reads_label(key: &str) -> bool {
    let Some((prefix, name)) = key.split_once('/') else { return false };
    match prefix {
        "nvidia.com" => matches!(name, "gpu.product" | "gpu.count" | "gpu.present"),
        "amd.com" | "beta.amd.com" => name.starts_with("gpu."),
        "gpu.intel.com" => matches!(name, "product" | "family" | "device.count") || name.starts_with("device-id."),
        "intel.feature.node.kubernetes.io" => name == "gpu",
        "feature.node.kubernetes.io" => {
            name.starts_with("pci-") || probed::vendor_of(name).is_some() || matches!(name, "amd-gpu" | "amd-vgpu")
        }
        _ => INSTANCE_TYPE_LABELS.contains(&key),
    }
}

/// Infers the GPUs of `node` from the labels as rules see them, and from its capacity.
///
/// # Guarantees
/// - The order of the labels does not matter.
/// - While a publisher is away that may contradict what is left, or has told what is missing, the GPUs are unknown.
pub(crate) fn infer<'v>(
    labels: impl Iterator<Item = (&'v str, &'v str)>,
    node: &NodeFacts<'_>,
    missing: &Missing,
) -> Gpus {
    let labels: BTreeMap<&str, &str> = labels.filter(|(key, _)| reads_label(key)).collect();
    let (mut discovery, mut pci, instance_type) = evidence_of(&labels);
    let mut by_resource = capacity_evidence(&node.capacity);
    let product = labels.get(NVIDIA_PRODUCT).copied();
    let division = product.map_or(Division::Whole, Division::of);
    // Without the product, it is not known whether the label counts MIG devices.
    if division == Division::Partitioned || product.is_none() {
        discovery[NVIDIA].count = None;
    }
    let is_counted = labels.contains_key(NVIDIA_COUNT);
    if division != Division::Whole || (product.is_none() && (is_counted || may_be_shared(node, missing))) {
        by_resource[NVIDIA].count = None;
    }
    if by_resource[NVIDIA].seen
        && let Some(devices) = node.annotation(publishers::HAMI_DEVICES)
    {
        by_resource[NVIDIA].count = hami_devices(devices);
    }
    amd_devices(&labels, &mut discovery[AMD], &mut by_resource[AMD]);
    if !discovery[AMD].seen && missing.expected.contains(Publisher::AmdLabeller) {
        by_resource[AMD].count = None;
    }
    note_absent(&mut discovery, &mut pci, &mut by_resource, product.is_some(), missing);
    conclude(&[
        (GpuSource::FeatureDiscovery, discovery),
        (GpuSource::PciDevice, pci),
        (GpuSource::Capacity, by_resource),
        (GpuSource::InstanceType, instance_type),
    ])
}

/// Labels with which GPUs of NVIDIA are configured, and the value that says that they are not divided. Before discovery has run,
/// they are the only sign that they may be.
const SIGNS_OF_SHARING: [(&str, &str); 3] = [
    ("nvidia.com/gpu.deploy.gpu-feature-discovery", "false"),
    ("nvidia.com/device-plugin.config", ""),
    ("nvidia.com/mig.config", "all-disabled"),
];

/// Whether `nvidia.com/gpu` may count shares, which only a publisher tells that is not there yet.
fn may_be_shared(node: &NodeFacts<'_>, missing: &Missing) -> bool {
    let configured = |(key, undivided): &(&str, &str)| node.label(key).is_some_and(|value| value != *undivided);
    missing.expected.contains(Publisher::GpuFeatureDiscovery)
        || missing.expected.contains(Publisher::Hami)
        || SIGNS_OF_SHARING.iter().any(configured)
}

/// Notes which publishers are away that have told about GPUs.
fn note_absent(
    discovery: &mut [Evidence; 3],
    pci: &mut [Evidence; 3],
    by_resource: &mut [Evidence; 3],
    has_product: bool,
    missing: &Missing,
) {
    let away = |publisher| Some(publisher).filter(|publisher| missing.away.contains(*publisher));
    // What may be left of its labels says neither what the GPUs are nor what the labels count.
    if !has_product && missing.here.contains(Publisher::GpuFeatureDiscovery) {
        discovery[NVIDIA].away = Away::all(Publisher::GpuFeatureDiscovery);
    }
    by_resource[NVIDIA].away.count = away(Publisher::Hami);
    for (at, labeller) in [(AMD, Publisher::AmdLabeller), (INTEL, Publisher::IntelGpus)] {
        if !discovery[at].seen {
            discovery[at].away = away(labeller).map(Away::all).unwrap_or_default();
        }
    }
    for evidence in pci {
        evidence.away.count = away(Publisher::Probe);
        evidence.away.vendor = away(Publisher::NodeFeatureDiscovery).or(evidence.away.count);
    }
}

/// The GPUs that evidence shows, the strongest source first.
fn conclude(sources: &[(GpuSource, [Evidence; 3]); 4]) -> Gpus {
    let all =
        || sources.iter().flat_map(|(source, evidence)| (0..).zip(evidence).map(move |(at, one)| (*source, at, one)));
    let first = all().find(|(_, _, one)| one.seen || one.away.vendor.is_some());
    let Some((_, at, strongest)) = first else {
        let is_doubtful = all().any(|(_, _, one)| one.doubtful) && !all().any(|(_, _, one)| one.integrated);
        return if is_doubtful { Gpus::Unknown(MAY_BE_INTEGRATED.to_owned()) } else { Gpus::None };
    };
    let Some((source, _, _)) = all().find(|(_, of, one)| *of == at && one.seen) else {
        return Gpus::Unknown(strongest.away.vendor.map(Publisher::is_away_in_words).unwrap_or_default());
    };
    let of_vendor = || sources.iter().map(|(_, evidence)| &evidence[at]);
    let model = of_vendor().find(|one| one.model.is_some() || one.away.model.is_some());
    let count = of_vendor().find(|one| one.count.is_some() || one.away.count.is_some());
    let untold = [strongest.away.vendor.filter(|_| !strongest.seen)]
        .into_iter()
        .chain(model.filter(|one| one.model.is_none()).map(|one| one.away.model))
        .chain(count.filter(|one| one.count.is_none()).map(|one| one.away.count));
    Gpus::Found(GpuFacts {
        vendor: Some(VENDORS[at].to_owned()),
        model: model.and_then(|one| one.model.clone()),
        count: count.and_then(|one| one.count),
        source: Some(source),
        untold: untold.flatten().next().map(Publisher::is_away_in_words),
    })
}
