//! The labels of `nodegate probe`, and how they compare with those of NVIDIA GPU Feature Discovery.
//!
//! `probe` reads PCI before any driver runs; GPU Feature Discovery asks the driver. If the two differ, a GPU has failed, was
//! exchanged or is not what it claims to be, or a label is stale.

use std::collections::BTreeMap;
use std::fmt;

use super::{Division, VENDORS, product};

/// What all labels of `probe` start with. Node Feature Discovery writes them in its default namespace.
pub const PREFIX: &str = "feature.node.kubernetes.io/nodegate-";

/// Is `true` where the GPUs are parts of GPUs of the host (`internal/lm/nvml.go` of `k8s-device-plugin`).
const VGPU: &str = "nvidia.com/vgpu.present";

/// The vendor, as an index of [`VENDORS`], whose GPUs a label such as `nodegate-nvidia.count` counts.
pub(super) fn vendor_of(name: &str) -> Option<usize> {
    let vendor = name.strip_prefix("nodegate-")?.strip_suffix(".count")?;
    VENDORS.iter().position(|known| *known == vendor)
}

/// How much less memory a driver reports than a product has: error correction takes a sixteenth, firmware a little.
const RESERVED_PERCENT: u64 = 10;

/// A fact that both sources state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fact {
    /// The product.
    Product,
    /// The number of GPUs.
    Count,
    /// The memory of one GPU.
    Memory,
}

impl Fact {
    /// All facts.
    pub const ALL: [Self; 3] = [Self::Product, Self::Count, Self::Memory];

    /// The fact as a metric label and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Count => "count",
            Self::Memory => "memory",
        }
    }
}

/// A fact about which `probe` and GPU Feature Discovery differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The fact.
    pub fact: Fact,
    /// What `probe` found.
    pub probed: String,
    /// What GPU Feature Discovery reports.
    pub reported: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.fact == Fact::Memory { " MiB" } else { "" };
        let Self { fact, probed, reported } = self;
        write!(f, "GPU {}: probe found {probed}{unit}, GPU feature discovery reports {reported}{unit}", fact.as_str())
    }
}

/// The differences between the labels of `probe` and those of GPU Feature Discovery on one node. A fact that only one of them
/// states is no difference. Where GPU Feature Discovery describes MIG devices, nothing is compared, and where it describes parts
/// of GPUs in a virtual machine (vGPU), only their number is. Unless `probe` knows that all GPUs are the same product, fewer than
/// it found are no difference.
pub fn differences<'v>(labels: impl Iterator<Item = (&'v str, &'v str)>) -> Vec<Difference> {
    let labels: BTreeMap<&str, &str> = labels
        .filter(|(key, _)| key.starts_with(PREFIX) || key.starts_with("nvidia.com/gpu.") || *key == VGPU)
        .collect();
    let probed = |name: &str| labels.get(&*format!("{PREFIX}{name}")).copied();
    let reported = |name: &str| labels.get(&*format!("nvidia.com/gpu.{name}")).copied();
    let mut found = Vec::new();
    let mut note = |fact, probed: &str, reported: &str| {
        found.push(Difference { fact, probed: probed.to_owned(), reported: reported.to_owned() });
    };
    let division = reported("product").map_or(Division::Whole, Division::of);
    if division == Division::Partitioned {
        return found;
    }
    let is_whole = probed("gpu.vendor") == Some("nvidia") && labels.get(VGPU) != Some(&"true");
    if let (Some(short), Some(product), true) = (probed("gpu.product"), reported("product"), is_whole)
        && product::short_name(product).is_some_and(|named| !product::agree(short, &named))
    {
        note(Fact::Product, short, product);
    }
    if let (Some(of_probe), Some(of_driver)) = (probed("nvidia.count"), reported("count"))
        && let (Ok(one), Ok(other)) = (of_probe.parse::<u32>(), of_driver.parse::<u32>())
        // Of several products GPU Feature Discovery counts only one (`newGPULabelers` in `internal/lm/nvml.go`).
        && (other > one || other < one && probed("gpu.product").is_some())
    {
        note(Fact::Count, of_probe, of_driver);
    }
    if let (Some(of_probe), Some(of_driver), true) = (probed("gpu.memory"), reported("memory"), is_whole)
        && let (Ok(one), Ok(other)) = (of_probe.parse::<u64>(), of_driver.parse::<u64>())
        && !is_about(one, other)
    {
        note(Fact::Memory, of_probe, of_driver);
    }
    found
}

/// Whether a driver may report so much memory for a GPU with that much.
fn is_about(installed: u64, reported: u64) -> bool {
    let least = installed.saturating_sub(installed / 100 * RESERVED_PERCENT);
    (least..=installed.saturating_add(installed / 100)).contains(&reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(labels: &[(&str, &str)]) -> Vec<String> {
        let full: Vec<(String, &str)> = labels
            .iter()
            .map(|(key, value)| match key.strip_prefix("p:") {
                Some(name) => (format!("{PREFIX}{name}"), *value),
                None => (format!("nvidia.com/{key}"), *value),
            })
            .collect();
        differences(full.iter().map(|(key, value)| (key.as_str(), *value))).iter().map(ToString::to_string).collect()
    }

    const PROBED: [(&str, &str); 4] =
        [("p:gpu.vendor", "nvidia"), ("p:gpu.product", "h100-sxm"), ("p:nvidia.count", "8"), ("p:gpu.memory", "81920")];

    fn with(reported: &[(&'static str, &'static str)]) -> Vec<String> {
        found_in(&[&PROBED, reported].concat())
    }

    #[test]
    fn what_a_driver_reports_of_the_same_gpus_is_no_difference() {
        let same = [("gpu.product", "NVIDIA-H100-80GB-HBM3"), ("gpu.count", "8"), ("gpu.memory", "81559")];
        assert_eq!(with(&same), Vec::<String>::new());
        let ecc =
            [("p:gpu.vendor", "nvidia"), ("p:gpu.memory", "24576"), ("gpu.memory", "23028"), ("gpu.product", "A10G")];
        assert_eq!(found_in(&ecc), Vec::<String>::new());
    }

    #[test]
    fn each_fact_that_differs_is_found_in() {
        let others = [("gpu.product", "NVIDIA-H200"), ("gpu.count", "7"), ("gpu.memory", "143771")];
        assert_eq!(
            with(&others),
            [
                "GPU product: probe found h100-sxm, GPU feature discovery reports NVIDIA-H200",
                "GPU count: probe found 8, GPU feature discovery reports 7",
                "GPU memory: probe found 81920 MiB, GPU feature discovery reports 143771 MiB",
            ]
        );
    }

    #[test]
    fn what_only_one_states_is_no_difference() {
        assert_eq!(with(&[]), Vec::<String>::new());
        assert_eq!(found_in(&[("gpu.product", "NVIDIA-H200"), ("gpu.count", "7")]), Vec::<String>::new());
        assert_eq!(with(&[("gpu.count", "many"), ("gpu.memory", "-1"), ("gpu.product", "a/b")]), Vec::<String>::new());
    }

    #[test]
    fn mig_devices_are_not_compared_with_gpus_and_replicas_are_the_gpu() {
        let mig = [("gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"), ("gpu.count", "56"), ("gpu.memory", "9728")];
        assert_eq!(with(&mig), Vec::<String>::new());
        assert_eq!(with(&[("gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED")]), Vec::<String>::new());
    }

    #[test]
    fn of_parts_of_gpus_in_a_virtual_machine_only_the_number_is_compared() {
        let vgpu = [("gpu.product", "NVIDIA-H100-20C"), ("gpu.count", "8"), ("gpu.memory", "20480")];
        assert_eq!(with(&[&vgpu as &[_], &[("vgpu.present", "true")]].concat()), Vec::<String>::new());
        assert_eq!(with(&[&vgpu as &[_], &[("vgpu.present", "false")]].concat()).len(), 2);
        assert_eq!(with(&[("vgpu.present", "true"), ("gpu.count", "7")]).len(), 1);
    }

    #[test]
    fn of_several_products_of_one_vendor_the_driver_counts_one() {
        let counts =
            |reported| found_in(&[("p:gpu.vendor", "nvidia"), ("p:nvidia.count", "4"), ("gpu.count", reported)]);
        assert_eq!(counts("2"), Vec::<String>::new());
        assert_eq!(counts("5"), ["GPU count: probe found 4, GPU feature discovery reports 5"]);
    }

    #[test]
    fn on_a_node_with_gpus_of_several_vendors_only_the_number_is_compared() {
        let mixed = [("p:nvidia.count", "1"), ("p:gpu.count", "3"), ("gpu.count", "1"), ("gpu.product", "Tesla-T4")];
        assert_eq!(found_in(&mixed), Vec::<String>::new());
    }

    #[test]
    fn memory_is_compared_within_what_error_correction_takes() {
        assert!(is_about(16_384, 15_360) && is_about(81_920, 81_559) && is_about(40_960, 40_960));
        assert!(!is_about(81_920, 40_960) && !is_about(40_960, 81_559) && !is_about(0, 1));
        assert!(is_about(u64::MAX, u64::MAX));
    }
}
