//! Keys of programs that drain, repair, restart or replace machines. They are there for minutes.

use super::Kind::{Machine, Transient};
use super::Program;

const fn for_a_moment(
    name: &'static str,
    source: &'static str,
    labels: &'static [&'static str],
    annotations: &'static [&'static str],
    taints: &'static [&'static str],
) -> Program {
    Program { name, kind: Transient, source, labels, annotations, taints }
}

pub(super) const PROGRAMS: &[Program] = &[
    for_a_moment(
        "the AWS Node Termination Handler",
        "aws/aws-node-termination-handler pkg/node/node.go",
        &[
            "aws-node-termination-handler/*",
            "node.kubernetes.io/exclude-from-external-load-balancers=aws-node-termination-handler",
        ],
        &[],
        &["aws-node-termination-handler/*"],
    ),
    for_a_moment(
        "GKE",
        "GoogleCloudPlatform/k8s-node-termination-handler main.go, and the GKE documentation of host maintenance",
        &["cloud.google.com/active-node-maintenance", "cloud.google.com/scheduled-maintenance-time"],
        &[],
        &["cloud.google.com/impending-node-termination"],
    ),
    for_a_moment(
        "AKS node auto-drain",
        "learn.microsoft.com/azure/aks/node-auto-drain, Azure/AKS CHANGELOG.md",
        &[],
        &[],
        &["remediator.aks.microsoft.com/*", "remediator.kubernetes.azure.com/*"],
    ),
    for_a_moment(
        "aks-node-termination-handler",
        "maksim-paskal/aks-node-termination-handler pkg/api/drain.go",
        &[],
        &[],
        &["aks-node-termination-handler/*"],
    ),
    for_a_moment("Nidhogg", "uswitch/nidhogg README.md", &[], &["nidhogg.uswitch.com/*"], &["nidhogg.uswitch.com/*"]),
    for_a_moment(
        "kured",
        "kubereboot/kured cmd/kured/main.go",
        &[],
        &[
            "weave.works/kured-most-recent-reboot-needed",
            "weave.works/kured-node-lock",
            "weave.works/kured-reboot-in-progress",
        ],
        &["weave.works/kured-node-reboot"],
    ),
    for_a_moment(
        "Draino",
        "planetlabs/draino internal/kubernetes/eventhandler.go",
        &["draino/*", "draino.planet.com/*"],
        &["draino/*", "draino.planet.com/*"],
        &["draino/*", "draino.planet.com/*"],
    ),
    for_a_moment(
        "medik8s",
        "medik8s/self-node-remediation internal/controller/selfnoderemediation_controller.go, medik8s/node-maintenance-operator internal/controller/taint.go",
        &[],
        &["remediation.medik8s.io/nhc-timed-out"],
        &["medik8s.io/*", "remediation.medik8s.io/*"],
    ),
    for_a_moment(
        "the node problem detector's remedy",
        "kubernetes/node-problem-detector README.md (remedy systems)",
        &["node-problem-detector/*"],
        &["node-problem-detector/*"],
        &["node-problem-detector/*"],
    ),
    for_a_moment(
        "the Node Readiness Controller",
        "kubernetes-sigs/node-readiness-controller api/v1alpha1/nodereadinessrule_types.go",
        &[],
        &["readiness.k8s.io/*"],
        &["readiness.k8s.io/*"],
    ),
    for_a_moment(
        "the Flatcar update operator",
        "flatcar/flatcar-linux-update-operator pkg/constants/constants.go",
        &[
            "flatcar-linux-update.v1.flatcar-linux.net/after-reboot",
            "flatcar-linux-update.v1.flatcar-linux.net/before-reboot",
            "flatcar-linux-update.v1.flatcar-linux.net/reboot-needed",
        ],
        &["flatcar-linux-update.v1.flatcar-linux.net/*"],
        &[],
    ),
    Program {
        name: "the Flatcar update operator",
        kind: Machine,
        source: "flatcar/flatcar-linux-update-operator pkg/constants/constants.go",
        labels: &["flatcar-linux-update.v1.flatcar-linux.net/*"],
        annotations: &[],
        taints: &[],
    },
    for_a_moment(
        "the Machine Config Operator",
        "openshift/machine-config-operator pkg/constants/constants.go, pkg/daemon/constants/constants.go",
        &[],
        &["machineconfiguration.openshift.io/*"],
        &["UpdateInProgress"],
    ),
    for_a_moment(
        "the system upgrade controller",
        "rancher/system-upgrade-controller README.md",
        &[],
        &[],
        &["plan.upgrade.cattle.io/*"],
    ),
    for_a_moment(
        "Gardener",
        "gardener/gardener pkg/apis/core/v1beta1/constants/types_constants.go",
        &[],
        &[],
        &["node.gardener.cloud/critical-components-not-ready"],
    ),
    for_a_moment(
        "Gardener's machine controller manager",
        "gardener/machine-controller-manager pkg/apis/machine/v1alpha1/constants.go",
        &[
            "node.machine.sapcloud.io/candidate-for-update",
            "node.machine.sapcloud.io/selected-for-update",
            "node.machine.sapcloud.io/update-result",
        ],
        &["node.machine.sapcloud.io/*"],
        &[],
    ),
    for_a_moment("Talos", "siderolabs/talos pkg/machinery/constants/constants.go", &[], &["talos.dev/*"], &[]),
];
