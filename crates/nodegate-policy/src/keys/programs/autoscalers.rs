//! Keys of autoscalers and of provisioners, which create and delete machines.

use super::Kind::{Machine, People, Transient};
use super::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "Cluster Autoscaler",
        kind: Transient,
        source: "kubernetes/autoscaler cluster-autoscaler/utils/taints/taints.go",
        labels: &[],
        annotations: &[],
        taints: &[
            "DeletionCandidateOfClusterAutoscaler",
            "ToBeDeletedByClusterAutoscaler",
            "ignore-taint.cluster-autoscaler.kubernetes.io/*",
            "startup-taint.cluster-autoscaler.kubernetes.io/*",
            "status-taint.cluster-autoscaler.kubernetes.io/*",
        ],
    },
    Program {
        name: "Karpenter",
        kind: Machine,
        source: "kubernetes-sigs/karpenter pkg/apis/v1/labels.go",
        labels: &["karpenter.sh/*"],
        annotations: &["karpenter.sh/*"],
        taints: &[],
    },
    Program {
        name: "Karpenter",
        kind: Transient,
        source: "kubernetes-sigs/karpenter pkg/apis/v1/taints.go",
        labels: &[],
        annotations: &[],
        taints: &["karpenter.sh/*"],
    },
    Program {
        name: "an administrator",
        kind: People,
        source: "kubernetes-sigs/karpenter pkg/apis/v1/labels.go",
        labels: &[],
        annotations: &["karpenter.sh/do-not-disrupt"],
        taints: &[],
    },
    Program {
        name: "Karpenter",
        kind: Machine,
        source: "aws/karpenter-provider-aws pkg/apis/v1/labels.go, Azure/karpenter-provider-azure pkg/apis/v1beta1/labels.go, cloudpilot-ai/karpenter-provider-gcp pkg/apis/v1alpha1/labels.go",
        labels: &["karpenter.azure.com/*", "karpenter.k8s.aws/*", "karpenter.k8s.gcp/*"],
        annotations: &["karpenter.azure.com/*", "karpenter.k8s.aws/*", "karpenter.k8s.gcp/*"],
        taints: &["karpenter.azure.com/*", "karpenter.k8s.aws/*", "karpenter.k8s.gcp/*"],
    },
    Program {
        name: "Cluster API",
        kind: Transient,
        source: "kubernetes-sigs/cluster-api api/core/v1beta2/common_types.go",
        labels: &[],
        annotations: &[],
        taints: &["node.cluster.x-k8s.io/*"],
    },
    Program {
        name: "Cluster API",
        kind: Machine,
        source: "kubernetes-sigs/cluster-api api/core/v1beta2/machine_types.go",
        labels: &["cluster.x-k8s.io/*", "node.cluster.x-k8s.io/*", "topology.cluster.x-k8s.io/*"],
        annotations: &["cluster.x-k8s.io/*"],
        taints: &[],
    },
    Program {
        name: "Gardener",
        kind: Machine,
        source: "gardener/gardener pkg/apis/core/v1beta1/constants/types_constants.go",
        labels: &[
            "networking.gardener.cloud/*",
            "node.gardener.cloud/*",
            "node.machine.sapcloud.io/machine-name",
            "worker.garden.sapcloud.io/*",
            "worker.gardener.cloud/*",
        ],
        annotations: &["node.gardener.cloud/*", "worker.gardener.cloud/*"],
        taints: &[],
    },
    Program {
        name: "HyperShift",
        kind: Machine,
        source: "openshift/hypershift control-plane-operator/controllers/hostedcontrolplane/v2/autoscaler (GetIgnoreLabels)",
        labels: &["hypershift.openshift.io/nodePool"],
        annotations: &[],
        taints: &[],
    },
];
