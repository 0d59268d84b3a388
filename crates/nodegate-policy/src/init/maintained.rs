//! Labels and taints that programs maintain, each with the reason. A first policy leaves them out: what such a program sets, it
//! also sets on a new node, and a rule for the same key would conflict with it.

use crate::facts::publishers::{PUBLISHERS, publisher_of};
use crate::keys::never_persisted;

const LABELS: [(&str, &str); 8] = [
    ("node-role.kubernetes.io/control-plane", "the cluster's installer sets it"),
    ("node-role.kubernetes.io/master", "the cluster's installer sets it"),
    ("node-role.kubernetes.io/etcd", "the cluster's installer sets it"),
    ("node.kubernetes.io/exclude-from-external-load-balancers", "the cluster's installer sets it"),
    ("node.kubernetes.io/microk8s-controlplane", "the cluster's installer sets it"),
    ("node.kubernetes.io/microk8s-worker", "the cluster's installer sets it"),
    ("k8s.io/cloud-provider-aws", "the cloud provider sets it"),
    ("projectcalico.org/ds-ready", "the network plugin sets it"),
];

/// Namespaces in which all labels and taints are maintained.
const PREFIXES: [(&str, &str); 23] = [
    ("alpha.eksctl.io", "the cloud provider sets it"),
    ("cloud.google.com", "the cloud provider sets it"),
    ("eks.amazonaws.com", "the cloud provider sets it"),
    ("iam.gke.io", "the cloud provider sets it"),
    ("kubernetes.azure.com", "the cloud provider sets it"),
    ("node.gke.io", "the cloud provider sets it"),
    ("vpc.amazonaws.com", "the cloud provider sets it"),
    ("topology.gke.io", "it describes the location of the current machine"),
    ("topology.k8s.aws", "it describes the location of the current machine"),
    ("karpenter.azure.com", "the autoscaler sets it"),
    ("karpenter.k8s.aws", "the autoscaler sets it"),
    ("karpenter.sh", "the autoscaler sets it"),
    ("k3s.io", "the cluster's installer sets it"),
    ("kops.k8s.io", "the cluster's installer sets it"),
    ("microk8s.io", "the cluster's installer sets it"),
    ("minikube.k8s.io", "the cluster's installer sets it"),
    ("node.openshift.io", "the cluster's installer sets it"),
    ("plan.upgrade.cattle.io", "the cluster's installer sets it"),
    ("rke.cattle.io", "the cluster's installer sets it"),
    ("cpu-feature.node.kubevirt.io", "KubeVirt sets it"),
    ("cpu-model.node.kubevirt.io", "KubeVirt sets it"),
    ("hyperv.node.kubevirt.io", "KubeVirt sets it"),
    ("kubevirt.io", "KubeVirt sets it"),
];

const TAINTS: [(&str, &str); 3] = [
    ("node-role.kubernetes.io/control-plane", "the cluster's installer sets it"),
    ("node-role.kubernetes.io/master", "the cluster's installer sets it"),
    ("node-role.kubernetes.io/etcd", "the cluster's installer sets it"),
];

/// Labels in the namespaces of discovery daemons that people set: names of vendors' resources, and the keys with which
/// administrators configure the vendors' operators (those that the preset `vendor-guard` lets administrators write).
const SET_BY_PEOPLE: [&str; 9] = [
    "amd.com/gpu",
    "nvidia.com/gpu",
    "nvidia.com/mig.config",
    "nvidia.com/device-plugin.config",
    "nvidia.com/gpu.workload.config",
    "nvidia.com/vgpu.config",
    "nvidia.com/cc.mode",
    "nvidia.com/gpu-driver-upgrade.skip",
    "nvidia.com/gpu.deploy.operands",
];

const DISCOVERED: &str = "a discovery daemon sets it";

fn prefix_of(key: &str) -> &str {
    key.split_once('/').map_or("", |(prefix, _)| prefix)
}

fn listed(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(listed, _)| *listed == name).map(|(_, reason)| *reason)
}

/// Whether this is the domain of a storage driver's topology: `topology.ebs.csi.aws.com`, `topology.hostpath.csi`.
fn is_storage_topology(prefix: &str) -> bool {
    prefix.strip_prefix("topology.").is_some_and(|driver| driver.split('.').any(|part| part == "csi"))
}

/// Who maintains this label, as a reason to leave it out; `None` if people set it, as far as its key tells.
pub(crate) fn label(key: &str) -> Option<&'static str> {
    if SET_BY_PEOPLE.contains(&key) {
        return None;
    }
    let prefix = prefix_of(key);
    never_persisted::label(key)
        .or_else(|| listed(&LABELS, key))
        .or_else(|| listed(&PREFIXES, prefix))
        .or_else(|| publisher_of(key).map(|_| DISCOVERED))
        .or_else(|| prefix.ends_with(".feature.node.kubernetes.io").then_some(DISCOVERED))
        .or_else(|| is_storage_topology(prefix).then_some("a storage driver sets it"))
}

/// Who maintains this taint, as a reason to leave it out; `None` if people set it, as far as its key tells.
pub(crate) fn taint(key: &str) -> Option<&'static str> {
    never_persisted::taint(key).or_else(|| listed(&TAINTS, key)).or_else(|| listed(&PREFIXES, prefix_of(key)))
}

/// All entries that [`never_persisted::table`] does not have, for the documentation: key or `prefix/*`, and the reason.
pub fn table() -> impl Iterator<Item = (String, &'static str)> {
    let exact = LABELS.iter().map(|(key, reason)| ((*key).to_owned(), *reason));
    let prefixes = PREFIXES.iter().map(|(prefix, reason)| (format!("{prefix}/*"), *reason));
    let discovered = PUBLISHERS.iter().map(|prefix| (format!("{prefix}/*"), DISCOVERED));
    exact.chain(prefixes).chain(discovered)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::api::presets;
    use crate::keys::restriction::RECONCILED_LABELS;

    #[test]
    fn keys_that_programs_maintain_are_known() {
        for key in RECONCILED_LABELS.into_iter().chain([
            "nodegate.dev/anything",
            "node-role.kubernetes.io/control-plane",
            "eks.amazonaws.com/capacityType",
            "feature.node.kubernetes.io/cpu-cpuid.AVX512",
            "vendor.feature.node.kubernetes.io/x",
            "nvidia.com/gpu.product",
            "nvidia.com/mig.config.state",
            "topology.ebs.csi.aws.com/zone",
        ]) {
            assert!(label(key).is_some(), "{key}");
        }
        for key in [
            "node.kubernetes.io/not-ready",
            "nodegate.dev/pending",
            "node-role.kubernetes.io/control-plane",
            "kubernetes.azure.com/scalesetpriority",
        ] {
            assert!(taint(key).is_some(), "{key}");
        }
    }

    #[test]
    fn keys_that_people_set_are_not_among_them() {
        for key in [
            "team",
            "nvidia.com/gpu",
            "nvidia.com/mig.config",
            "node-role.kubernetes.io/worker",
            "topology.example.com/rack",
        ] {
            assert_eq!(label(key), None, "{key}");
        }
        for key in ["dedicated", "nvidia.com/gpu", "node-role.kubernetes.io/infra"] {
            assert_eq!(taint(key), None, "{key}");
        }
    }

    #[test]
    fn the_keys_that_configure_operators_are_those_that_vendor_guard_lets_administrators_write() {
        let guard = presets::get("vendor-guard").unwrap();
        let reserved = &guard.spec.governance.as_ref().unwrap().reserved;
        let settings = reserved.iter().find(|entry| entry.entry.name.as_deref() == Some("nvidia-settings")).unwrap();
        for key in &settings.keys {
            assert!(SET_BY_PEOPLE.contains(&key.as_str()), "{key}");
        }
    }
}
