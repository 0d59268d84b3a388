//! Keys of installers, of network plugins, and of programs that stand for nodes.

use super::Kind::{Installed, Machine, Transient};
use super::Program;

const fn set_by(
    name: &'static str,
    source: &'static str,
    labels: &'static [&'static str],
    taints: &'static [&'static str],
) -> Program {
    Program { name, kind: Installed, source, labels, annotations: &[], taints }
}

const fn per_machine(name: &'static str, source: &'static str, labels: &'static [&'static str]) -> Program {
    Program { name, kind: Machine, source, labels, annotations: &[], taints: &[] }
}

pub(super) const PROGRAMS: &[Program] = &[
    per_machine("k3s", "docs.k3s.io (node labels and annotations)", &["k3s.io/*"]),
    per_machine("kops", "kubernetes/kops pkg/apis/kops/instancegroup.go", &["kops.k8s.io/*"]),
    set_by(
        "MicroK8s",
        "canonical/microk8s microk8s-resources/default-args/kubelet, scripts/wrappers/join.py",
        &["microk8s.io/*", "node.kubernetes.io/microk8s-controlplane", "node.kubernetes.io/microk8s-worker"],
        &["microk8s.io/*"],
    ),
    per_machine("minikube", "kubernetes/minikube pkg/minikube/bootstrapper/kubeadm/kubeadm.go", &["minikube.k8s.io/*"]),
    per_machine(
        "OpenShift",
        "openshift/machine-config-operator templates/worker/01-worker-kubelet/_base/units/kubelet.service.yaml",
        &["node.openshift.io/*"],
    ),
    per_machine("Rancher", "rancher/rancher (labels of provisioned machines)", &["rke.cattle.io/*"]),
    per_machine(
        "the system upgrade controller",
        "rancher/system-upgrade-controller README.md",
        &["plan.upgrade.cattle.io/*"],
    ),
    set_by(
        "Kubernetes' scripts for Compute Engine",
        "kubernetes/kubernetes cluster/gce/util.sh",
        &[
            "node.kubernetes.io/kube-proxy-ds-ready",
            "node.kubernetes.io/masq-agent-ds-ready",
            "projectcalico.org/ds-ready",
        ],
        &[],
    ),
    Program {
        name: "Calico",
        kind: Machine,
        source: "projectcalico/calico libcalico-go/lib/backend/k8s/resources/node.go",
        labels: &[],
        annotations: &["projectcalico.org/*"],
        taints: &[],
    },
    Program {
        name: "Cilium",
        kind: Transient,
        source: "docs.cilium.io/en/stable/installation/taints",
        labels: &[],
        annotations: &[],
        taints: &["node.cilium.io/*"],
    },
    Program {
        name: "Flannel",
        kind: Machine,
        source: "flannel-io/flannel pkg/subnet/kube/annotations.go",
        labels: &[],
        annotations: &["flannel.alpha.coreos.com/*"],
        taints: &[],
    },
    Program {
        name: "Kube-OVN",
        kind: Machine,
        source: "kubeovn/kube-ovn pkg/util/const.go",
        labels: &["ovn.kubernetes.io/node-name"],
        annotations: &["ovn.kubernetes.io/*"],
        taints: &[],
    },
    set_by(
        "Virtual Kubelet",
        "virtual-kubelet/virtual-kubelet cmd/virtual-kubelet/internal/commands/root/opts.go, node/nodeutil/controller.go",
        &["type=virtual-kubelet"],
        &["virtual-kubelet.io/*"],
    ),
    set_by("KWOK", "kubernetes-sigs/kwok kustomize/kwokctl/resource/node.yaml", &["type=kwok"], &["kwok.x-k8s.io/*"]),
];
