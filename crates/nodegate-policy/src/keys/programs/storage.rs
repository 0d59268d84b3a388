//! Keys of storage drivers. A kubelet writes the topology of a driver as labels of its node when the driver registers, and refuses
//! the driver if a label with another value is there.

use super::Kind::{Machine, Transient};
use super::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "a storage driver",
        kind: Machine,
        source: "kubernetes/kubernetes pkg/volume/csi/nodeinfomanager/nodeinfomanager.go (updateTopologyLabels)",
        labels: &["*.csi/*", "*.csi.*/*", "csi.*/*"],
        annotations: &[],
        taints: &[],
    },
    Program {
        name: "a storage driver",
        kind: Transient,
        source: "kubernetes-sigs/aws-ebs-csi-driver pkg/driver/driver.go, kubernetes-sigs/azuredisk-csi-driver pkg/azureconstants/azure_constants.go, kubernetes-sigs/aws-efs-csi-driver pkg/driver/driver.go",
        labels: &[],
        annotations: &[],
        taints: &["*.csi/*", "*.csi.*/*", "csi.*/*"],
    },
    Program {
        name: "the Compute Engine disk driver",
        kind: Machine,
        source: "kubernetes-sigs/gcp-compute-persistent-disk-csi-driver pkg/constants/constants.go",
        labels: &["topology.gke.io/*"],
        annotations: &[],
        taints: &["topology.gke.io/*"],
    },
    Program {
        name: "the Linode block storage driver",
        kind: Machine,
        source: "linode/linode-blockstorage-csi-driver internal/driver/nodeserver.go",
        labels: &["topology.linode.com/*"],
        annotations: &[],
        taints: &[],
    },
    Program {
        name: "TopoLVM",
        kind: Machine,
        source: "topolvm/topolvm constants.go",
        labels: &["topology.topolvm.io/*"],
        annotations: &["capacity.topolvm.io/*"],
        taints: &[],
    },
    Program {
        name: "OpenEBS",
        kind: Machine,
        source: "openebs/lvm-localpv pkg/lvm/volume.go",
        labels: &["openebs.io/nodeid", "openebs.io/nodename"],
        annotations: &[],
        taints: &[],
    },
];
