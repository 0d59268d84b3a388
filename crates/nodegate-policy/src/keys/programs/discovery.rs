//! Keys of daemons that find out what a machine has, and those of their namespaces that people set.

use super::Kind::{Machine, People, Transient};
use super::Program;

const fn discovered(name: &'static str, source: &'static str, labels: &'static [&'static str]) -> Program {
    Program { name, kind: Machine, source, labels, annotations: &[], taints: &[] }
}

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "Node Feature Discovery",
        kind: Machine,
        source: "kubernetes-sigs/node-feature-discovery api/nfd/v1alpha1/annotations_labels.go",
        labels: &["*.feature.node.kubernetes.io/*", "feature.node.kubernetes.io/*"],
        annotations: &["nfd.node.kubernetes.io/*"],
        taints: &["feature.node.kubernetes.io/*"],
    },
    discovered(
        "NVIDIA's GPU feature discovery or operator",
        "NVIDIA/k8s-device-plugin internal/lm, NVIDIA/gpu-operator controllers/state_manager.go",
        &["network.nvidia.com/*", "nvidia.com/*"],
    ),
    discovered(
        "AMD's labeller",
        "ROCm/k8s-device-plugin cmd/k8s-node-labeller/main.go",
        &["amd.com/*", "beta.amd.com/*"],
    ),
    discovered(
        "Intel's device plugins",
        "intel/intel-device-plugins-for-kubernetes cmd/gpu_nfdhook",
        &["gpu.intel.com/*"],
    ),
    discovered(
        "Habana's feature discovery",
        "HabanaAI/gaudi-feature-discovery collector/collector.go",
        &["habana.ai/*"],
    ),
    discovered(
        "KubeVirt",
        "kubevirt/kubevirt staging/src/kubevirt.io/api/core/v1/types.go",
        &["*.node.kubevirt.io/*", "kubevirt.io/*"],
    ),
    Program {
        name: "KubeVirt",
        kind: Transient,
        source: "kubevirt.io/user-guide/cluster_admin/node_maintenance",
        labels: &[],
        annotations: &[],
        taints: &["kubevirt.io/*"],
    },
    // Names of vendors' resources, and the keys with which administrators configure the vendors' operators (those that the preset
    // `vendor-guard` lets administrators write).
    Program {
        name: "an administrator",
        kind: People,
        source: "NVIDIA/gpu-operator controllers/state_manager.go, docs.nvidia.com/datacenter/cloud-native/gpu-operator",
        labels: &[
            "amd.com/gpu",
            "nvidia.com/cc.mode",
            "nvidia.com/device-plugin.config",
            "nvidia.com/gpu",
            "nvidia.com/gpu-driver-upgrade.skip",
            "nvidia.com/gpu.deploy.operands",
            "nvidia.com/gpu.workload.config",
            "nvidia.com/mig.config",
            "nvidia.com/vgpu.config",
        ],
        annotations: &[],
        taints: &[],
    },
];
