//! Programs that publish labels about nodes, each with its own set of keys.
//!
//! A program that restarts takes all its labels away for a moment, and other programs that publish in the same namespace leave
//! theirs. So a node shows that a publisher is away by having had some of its labels, and now none.

use crate::api::state::{SavedState, SharedText};
use crate::facts::NodeFacts;

/// A program that publishes labels, or HAMi, which publishes annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publisher {
    /// NVIDIA GPU Feature Discovery (`NVIDIA/k8s-device-plugin`, `internal/lm`, `docs/gpu-feature-discovery`).
    GpuFeatureDiscovery,
    /// NVIDIA GPU Operator (`NVIDIA/gpu-operator`, `controllers/state_manager.go`, `nodelabeling_controller.go`). It derives its
    /// labels from those of Node Feature Discovery: without them it removes them, and sets `gpu.present` to `false`.
    GpuOperator,
    /// NVIDIA MIG Manager (`NVIDIA/mig-parted`, `deployments/container/nvidia-mig-manager.sh`).
    MigManager,
    /// NVIDIA vGPU Device Manager (`NVIDIA/vgpu-device-manager`, `cmd/nvidia-k8s-vgpu-dm`).
    VgpuDeviceManager,
    /// NVIDIA Confidential Computing Manager (`NVIDIA/k8s-cc-manager`).
    CcManager,
    /// NVIDIA Network Operator (`Mellanox/network-operator`, `pkg/nodeinfo`).
    NetworkOperator,
    /// The built-in sources of Node Feature Discovery, of which one worker on the node publishes all at once
    /// (`kubernetes-sigs/node-feature-discovery`, `source`).
    NodeFeatureDiscovery,
    /// `NodeFeatureRule` objects and feature files of others, such as `amd-gpu` of AMD's operator. Node Feature Discovery
    /// publishes them.
    FeatureRules,
    /// `nodegate probe`, through a feature file of Node Feature Discovery.
    Probe,
    /// The AMD node labeller (`ROCm/k8s-device-plugin`, `cmd/k8s-node-labeller`).
    AmdLabeller,
    /// Intel's rules for the platform labels of GPUs (`intel/intel-device-plugins-for-kubernetes`,
    /// `deployments/nfd/overlays/node-feature-rules/platform-labeling-rules.yaml`).
    IntelGpus,
    /// Intel's rules for devices (`node-feature-rules.yaml` in the same directory).
    IntelDevices,
    /// Habana feature discovery for Intel Gaudi (`HabanaAI/gaudi-feature-discovery`, `collector/collector.go`).
    HabanaFeatureDiscovery,
    /// HAMi, which divides GPUs into shares (`Project-HAMi/HAMi`, `pkg/device/devices.go`).
    Hami,
}

use Publisher::{
    AmdLabeller, CcManager, FeatureRules, GpuFeatureDiscovery, GpuOperator, HabanaFeatureDiscovery, Hami, IntelDevices,
    IntelGpus, MigManager, NetworkOperator, NodeFeatureDiscovery, Probe, VgpuDeviceManager,
};

/// All publishers.
pub(super) const ALL: [Publisher; 14] = [
    GpuFeatureDiscovery,
    GpuOperator,
    MigManager,
    VgpuDeviceManager,
    CcManager,
    NetworkOperator,
    NodeFeatureDiscovery,
    FeatureRules,
    Probe,
    AmdLabeller,
    IntelGpus,
    IntelDevices,
    HabanaFeatureDiscovery,
    Hami,
];

/// The names of labels after the `/`, of which `*` at the end stands for any rest.
type Names = &'static [&'static str];

const NVIDIA: &[(Publisher, Names)] = &[
    (
        GpuFeatureDiscovery,
        &[
            "cuda.*",
            "gfd.*",
            "gpu.clique",
            "gpu.compute.*",
            "gpu.count",
            "gpu.engines.*",
            "gpu.family",
            "gpu.imex-domain",
            "gpu.machine",
            "gpu.memory",
            "gpu.mode",
            "gpu.multiprocessors",
            "gpu.product",
            "gpu.replicas",
            "gpu.sharing-strategy",
            "gpu.slices.*",
            "mig-*",
            "mig.capable",
            "mig.strategy",
            "mps.capable",
            "vgpu.host-driver-*",
            "vgpu.present",
        ],
    ),
    (GpuOperator, &["gpu.present", "gpu.deploy.*", "gpu-operator.*", "gpu-driver-upgrade-state"]),
    (MigManager, &["mig.config.state"]),
    (VgpuDeviceManager, &["vgpu.config.state"]),
    (CcManager, &["cc.mode.state", "cc.ready.state"]),
];

const FEATURES: &[(Publisher, Names)] = &[
    (
        NodeFeatureDiscovery,
        &["cpu-*", "custom-*", "kernel-*", "memory-*", "network-*", "pci-*", "storage-*", "system-*", "usb-*"],
    ),
    (Probe, &["nodegate-*"]),
    (FeatureRules, &["*"]),
];

/// The publishers of each namespace, with their names in it.
const TABLE: [(&str, &[(Publisher, Names)]); 8] = [
    ("feature.node.kubernetes.io", FEATURES),
    ("nvidia.com", NVIDIA),
    ("amd.com", &[(AmdLabeller, &["gpu.*"])]),
    ("beta.amd.com", &[(AmdLabeller, &["gpu.*"])]),
    ("gpu.intel.com", &[(IntelGpus, &["*"])]),
    ("intel.feature.node.kubernetes.io", &[(IntelDevices, &["*"])]),
    ("network.nvidia.com", &[(NetworkOperator, &["*"])]),
    ("habana.ai", &[(HabanaFeatureDiscovery, &["device.*", "driver.*", "hfd.*", "machine.*", "product.*"])]),
];

/// The annotation in which HAMi lists the GPUs of a node.
pub(crate) const HAMI_DEVICES: &str = "hami.io/node-nvidia-register";
/// The value that the GPU operator gives its label for nodes with GPUs while Node Feature Discovery is away.
pub(crate) const WITHDRAWN: &str = "false";

impl Publisher {
    /// Parts of the names, images or commands of the DaemonSets by which it publishes from each node; none if it does so from
    /// elsewhere.
    pub(crate) fn daemon_sets(self) -> &'static [&'static str] {
        match self {
            // Its image may be that of the device plugin (`NVIDIA/k8s-device-plugin`, `deployments/helm/nvidia-device-plugin`).
            GpuFeatureDiscovery => &["gpu-feature-discovery"],
            // The rules of others are evaluated with what its worker finds.
            NodeFeatureDiscovery | FeatureRules | IntelGpus | IntelDevices | GpuOperator => {
                &["nfd-worker", "node-feature-discovery-worker"]
            }
            AmdLabeller => &["node-labeller"],
            HabanaFeatureDiscovery => &["habana-feature-discovery", "gaudi-feature-discovery"],
            MigManager => &["mig-manager"],
            VgpuDeviceManager => &["vgpu-device-manager"],
            CcManager => &["cc-manager"],
            NetworkOperator | Hami | Probe => &[],
        }
    }

    /// The publisher of a label, if any. Allocates nothing.
    pub(crate) fn of(key: &str) -> Option<Self> {
        let (namespace, name) = key.split_once('/')?;
        let (_, publishers) = TABLE.iter().find(|(listed, _)| *listed == namespace)?;
        let publishes = |names: Names| names.iter().any(|pattern| fits(pattern, name));
        publishers.iter().find(|(_, names)| publishes(names)).map(|(publisher, _)| *publisher)
    }

    /// Its name in records. The first one of a namespace has the name that older versions wrote for all labels of it.
    fn name(self) -> &'static str {
        match self {
            GpuFeatureDiscovery => "nvidia.com",
            GpuOperator => "nvidia.com/gpu-operator",
            MigManager => "nvidia.com/mig-manager",
            VgpuDeviceManager => "nvidia.com/vgpu-device-manager",
            CcManager => "nvidia.com/cc-manager",
            NetworkOperator => "network.nvidia.com",
            NodeFeatureDiscovery => "feature.node.kubernetes.io",
            FeatureRules => "feature.node.kubernetes.io/rules",
            Probe => "feature.node.kubernetes.io/nodegate-probe",
            AmdLabeller => "amd.com",
            IntelGpus => "gpu.intel.com",
            IntelDevices => "intel.feature.node.kubernetes.io",
            HabanaFeatureDiscovery => "habana.ai",
            Hami => "hami.io",
        }
    }

    /// Its name in messages.
    fn describe(self) -> &'static str {
        match self {
            GpuFeatureDiscovery => "NVIDIA GPU Feature Discovery",
            GpuOperator => "NVIDIA GPU Operator",
            MigManager => "NVIDIA MIG Manager",
            VgpuDeviceManager => "NVIDIA vGPU Device Manager",
            CcManager => "NVIDIA Confidential Computing Manager",
            NetworkOperator => "NVIDIA Network Operator",
            NodeFeatureDiscovery => "Node Feature Discovery",
            FeatureRules => "a rule of Node Feature Discovery",
            Probe => "nodegate probe",
            AmdLabeller => "AMD's node labeller",
            IntelGpus => "Intel's rules for GPUs",
            IntelDevices => "Intel's rules for devices",
            HabanaFeatureDiscovery => "Habana feature discovery",
            Hami => "HAMi",
        }
    }

    /// A sentence that says that it is away.
    pub(crate) fn is_away_in_words(self) -> String {
        format!("the labels of {} are gone, which may have restarted", self.describe())
    }

    /// The publisher that its labels come through or are derived from. While that one is away, they may be missing as well.
    pub(crate) fn through(self) -> Option<Self> {
        match self {
            GpuFeatureDiscovery | GpuOperator | FeatureRules | Probe | IntelGpus | IntelDevices => {
                Some(NodeFeatureDiscovery)
            }
            MigManager
            | VgpuDeviceManager
            | CcManager
            | NetworkOperator
            | NodeFeatureDiscovery
            | AmdLabeller
            | HabanaFeatureDiscovery
            | Hami => None,
        }
    }

    /// Its namespaces, with its names in them.
    pub(crate) fn names(self) -> impl Iterator<Item = (&'static str, Names)> {
        let of = move |(namespace, publishers): &(&'static str, &'static [(Self, Names)])| {
            publishers.iter().find(|(publisher, _)| *publisher == self).map(|(_, names)| (*namespace, *names))
        };
        TABLE.iter().filter_map(of)
    }

    /// Whether a label with this value is what the publisher sets because another one is away.
    pub(crate) fn withdraws(self, key: &str, value: &str) -> bool {
        self == GpuOperator && key == "nvidia.com/gpu.present" && value == WITHDRAWN
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// All publishers as rows for the documentation: the name in records, the program, and its keys.
pub fn table() -> impl Iterator<Item = [String; 3]> {
    ALL.into_iter().map(|publisher| {
        let through = publisher.through().map(|other| format!(" ({})", other.describe())).unwrap_or_default();
        let named = publisher
            .names()
            .flat_map(|(namespace, names)| names.iter().map(move |name| format!("`{namespace}/{name}`")));
        let keys: Vec<String> = if publisher == Hami { vec![format!("`{HAMI_DEVICES}`")] } else { named.collect() };
        [format!("`{}`", publisher.name()), publisher.describe().to_owned() + &through, keys.join(", ")]
    })
}

/// A set of publishers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publishers(u16);

impl Publishers {
    /// Those that the node has labels of now.
    pub fn on(node: &NodeFacts<'_>) -> Self {
        Self::on_without(node, |_, _| false)
    }

    /// Those that the node has labels of now, apart from some labels.
    pub(crate) fn on_without(node: &NodeFacts<'_>, is_hidden: impl Fn(&str, &str) -> bool) -> Self {
        let labels = node.labels().filter(|(key, value)| !is_hidden(key, value)).map(|(key, _)| key);
        Self::of_keys(labels, node.annotation(HAMI_DEVICES).map(|_| HAMI_DEVICES))
    }

    /// Those of these labels and annotations.
    pub fn of_keys<'k>(
        labels: impl IntoIterator<Item = &'k str>,
        annotations: impl IntoIterator<Item = &'k str>,
    ) -> Self {
        let hami = annotations.into_iter().filter(|key| *key == HAMI_DEVICES).map(|_| Hami);
        labels.into_iter().filter_map(Publisher::of).chain(hami).collect()
    }

    /// Those that these records name.
    pub fn recorded<'r>(records: impl IntoIterator<Item = &'r SavedState>) -> Self {
        let named = records.into_iter().map(|record| Self::named(&record.publishers));
        named.fold(Self::default(), Self::and)
    }

    /// Those that a record names.
    pub fn named(names: &[SharedText]) -> Self {
        let named = |publisher: &Publisher| names.iter().any(|name| **name == *publisher.name());
        ALL.into_iter().filter(named).collect()
    }

    /// Whether this one is among them.
    pub(crate) fn contains(self, publisher: Publisher) -> bool {
        self.0 & publisher.bit() != 0
    }

    /// These and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Their names in records.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        ALL.into_iter().filter(move |publisher| self.contains(*publisher)).map(Publisher::name)
    }

    /// The set as a number.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set that a number stands for.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

impl FromIterator<Publisher> for Publishers {
    fn from_iter<I: IntoIterator<Item = Publisher>>(publishers: I) -> Self {
        Self(publishers.into_iter().fold(0, |bits, publisher| bits | publisher.bit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_publisher_has_its_own_keys() {
        for (key, publisher) in [
            ("nvidia.com/gpu.product", GpuFeatureDiscovery),
            ("nvidia.com/cuda.driver-version.full", GpuFeatureDiscovery),
            ("nvidia.com/mig-1g.10gb.count", GpuFeatureDiscovery),
            ("nvidia.com/gpu.present", GpuOperator),
            ("nvidia.com/gpu.deploy.device-plugin", GpuOperator),
            ("nvidia.com/mig.config.state", MigManager),
            ("feature.node.kubernetes.io/pci-0302_10de.present", NodeFeatureDiscovery),
            ("feature.node.kubernetes.io/nodegate-nvidia.count", Probe),
            ("feature.node.kubernetes.io/amd-gpu", FeatureRules),
            ("beta.amd.com/gpu.device-id.74a1", AmdLabeller),
            ("gpu.intel.com/device-id.0380-56c0.count", IntelGpus),
            ("intel.feature.node.kubernetes.io/gpu", IntelDevices),
            ("habana.ai/device.count", HabanaFeatureDiscovery),
            ("network.nvidia.com/operator.mofed.wait", NetworkOperator),
        ] {
            assert_eq!(Publisher::of(key), Some(publisher), "{key}");
        }
        for key in ["nvidia.com/gpu", "nvidia.com/mig.config", "amd.com/gpu", "team.example.com/cpu-x", "gpu.product"] {
            assert_eq!(Publisher::of(key), None, "{key}");
        }
    }

    #[test]
    fn records_name_each_publisher_once_and_read_what_older_versions_wrote() {
        for (at, publisher) in ALL.into_iter().enumerate() {
            assert_eq!(publisher as usize, at);
            let name = publisher.name();
            assert_eq!(Publishers::named(&[name.into()]).names().collect::<Vec<_>>(), [name]);
        }
        assert!(Publishers::named(&["nvidia.com".into()]).contains(GpuFeatureDiscovery));
        assert_eq!(Publishers::named(&["of-a-newer-version".into()]), Publishers::default());
    }
}
