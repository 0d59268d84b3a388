//! Keys of kubelets, of the control plane and of cloud controllers.

use super::Kind::{Installed, Machine, Transient};
use super::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "the kubelet",
        kind: Machine,
        source: "kubernetes/kubernetes pkg/kubelet/kubelet_node_status.go (updateDefaultLabels)",
        labels: &super::super::restriction::RECONCILED_LABELS,
        annotations: &super::super::restriction::KUBELET_ANNOTATIONS,
        taints: &[],
    },
    Program {
        name: "the node lifecycle controller",
        kind: Transient,
        source: "kubernetes/kubernetes staging/src/k8s.io/api/core/v1/well_known_taints.go",
        labels: &[],
        annotations: &["node.alpha.kubernetes.io/ttl"],
        taints: &["node.kubernetes.io/*"],
    },
    Program {
        name: "an administrator",
        kind: Transient,
        source: "kubernetes.io/docs/concepts/cluster-administration/node-shutdown (non-graceful node shutdown)",
        labels: &[],
        annotations: &[],
        taints: &["node.kubernetes.io/out-of-service"],
    },
    Program {
        name: "the cloud controller",
        kind: Transient,
        source: "kubernetes/kubernetes staging/src/k8s.io/cloud-provider/api/well_known_taints.go",
        labels: &[],
        annotations: &[],
        taints: &["node.cloudprovider.kubernetes.io/*"],
    },
    Program {
        name: "the cluster's installer",
        kind: Installed,
        source: "kubernetes/kubernetes cmd/kubeadm/app/constants/constants.go",
        labels: &[
            "node-role.kubernetes.io/control-plane",
            "node-role.kubernetes.io/etcd",
            "node-role.kubernetes.io/master",
            "node.kubernetes.io/exclude-from-external-load-balancers",
        ],
        annotations: &["kubeadm.alpha.kubernetes.io/cri-socket"],
        taints: &[
            "node-role.kubernetes.io/control-plane",
            "node-role.kubernetes.io/etcd",
            "node-role.kubernetes.io/master",
        ],
    },
    Program {
        name: "the cluster's installer",
        kind: Installed,
        source: "kubernetes/kops pkg/apis/kops/util/labels.go, virtual-kubelet/virtual-kubelet node/nodeutil/controller.go",
        labels: &["kubernetes.io/role"],
        annotations: &[],
        taints: &[],
    },
];
