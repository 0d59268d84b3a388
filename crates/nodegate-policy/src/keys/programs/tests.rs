#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use super::*;
use crate::api::names::{check_label_key, is_dns_subdomain};
use crate::api::presets;
use crate::keys::restriction::RECONCILED_LABELS;

fn kind(field: Field, key: &str) -> Option<Kind> {
    of(field, key, None).map(|program| program.kind)
}

#[test]
fn every_row_has_a_program_a_source_and_a_pattern_of_its_own() {
    let mut seen = BTreeSet::new();
    for (field, pattern, program) in table() {
        assert!(seen.insert((field, pattern)), "{field} {pattern} is there twice");
        assert!(!program.name.is_empty() && !program.source.is_empty(), "{pattern}");
        match pattern.strip_suffix("/*") {
            Some(domain) => assert!(is_dns_subdomain(&domain.replace('*', "x")), "{pattern}"),
            None => assert!(check_label_key(pattern.split('=').next().unwrap_or_default()).is_ok(), "{pattern}"),
        }
    }
}

#[test]
fn keys_of_programs_are_known_by_field_key_and_value() {
    for (field, key, expected) in [
        (Field::Label, "node-role.kubernetes.io/control-plane", Some(Kind::Installed)),
        (Field::Taint, "node-role.kubernetes.io/control-plane", Some(Kind::Installed)),
        (Field::Label, "eks.amazonaws.com/capacityType", Some(Kind::Machine)),
        (Field::Label, "vendor.feature.node.kubernetes.io/x", Some(Kind::Machine)),
        (Field::Label, "nvidia.com/mig.config.state", Some(Kind::Machine)),
        (Field::Label, "topology.ebs.csi.aws.com/zone", Some(Kind::Machine)),
        (Field::Label, "topology.hostpath.csi/node", Some(Kind::Machine)),
        (Field::Label, "csi.hetzner.cloud/location", Some(Kind::Machine)),
        (Field::Label, "cpu-model.node.kubevirt.io/Haswell", Some(Kind::Machine)),
        (Field::Label, "cloud.google.com/active-node-maintenance", Some(Kind::Transient)),
        (Field::Taint, "efs.csi.aws.com/agent-not-ready", Some(Kind::Transient)),
        (Field::Taint, "node.kubernetes.io/unschedulable", Some(Kind::Transient)),
        (Field::Taint, "kubernetes.azure.com/scalesetpriority", Some(Kind::Machine)),
        (Field::Annotation, "projectcalico.org/IPv4Address", Some(Kind::Machine)),
        (Field::Label, "node.kubernetes.io/tier", None),
        (Field::Label, "nvidia.com/gpu", None),
        (Field::Label, "nvidia.com/mig.config", None),
        (Field::Label, "node-role.kubernetes.io/worker", None),
        (Field::Label, "topology.example.com/rack", None),
        (Field::Label, "topology.mycsi.example.com/rack", None),
        (Field::Label, "csi/x", None),
        (Field::Label, "type", None),
        (Field::Annotation, "karpenter.sh/do-not-disrupt", None),
        (Field::Taint, "dedicated", None),
        (Field::Taint, "nvidia.com/gpu", None),
        (Field::Taint, "node-role.kubernetes.io/infra", None),
    ] {
        assert_eq!(kind(field, key), expected, "{field} {key}");
    }
    assert!(RECONCILED_LABELS.iter().all(|key| kind(Field::Label, key) == Some(Kind::Machine)));
}

#[test]
fn a_row_with_a_value_is_about_that_value_only() {
    let key = "node.kubernetes.io/exclude-from-external-load-balancers";
    let kind = |value| of(Field::Label, key, value).map(|program| program.kind);
    assert_eq!(kind(Some("aws-node-termination-handler")), Some(Kind::Transient));
    assert_eq!((kind(Some("true")), kind(None)), (Some(Kind::Installed), Some(Kind::Installed)));
    assert!(of(Field::Label, "type", Some("virtual-kubelet")).is_some());
    assert!(of(Field::Label, "type", Some("gpu")).is_none());
}

#[test]
fn a_written_domain_belongs_to_a_program_only_as_a_whole() {
    let kind = |written| of_pattern(Field::Label, written).map(|program| program.kind);
    assert_eq!(kind("karpenter.sh/*"), Some(Kind::Machine));
    assert_eq!(kind("topology.disk.csi.azure.com/*"), Some(Kind::Machine));
    assert_eq!(kind("node.kubernetes.io/*"), None, "people set labels there, too");
    assert_eq!((kind("*"), kind("team"), kind("agentpool")), (None, None, Some(Kind::Machine)));
}

#[test]
fn what_belongs_to_the_machine_or_is_there_for_a_moment_is_never_persisted() {
    let never = |field, key, value| never_persisted(field, key, Some(value)).map(|never| never.to_string());
    for (field, key, value, why) in [
        (Field::Label, "nodegate.dev/x", "", "it is reserved for nodegate"),
        (Field::Label, "topology.kubernetes.io/zone", "a", "the kubelet sets it for each machine"),
        (Field::Label, "karpenter.sh/capacity-type", "spot", "Karpenter sets it for each machine"),
        (
            Field::Taint,
            "aws-node-termination-handler/spot-itn",
            "",
            "the AWS Node Termination Handler sets it for a moment",
        ),
    ] {
        assert_eq!(never(field, key, value).as_deref(), Some(why), "{key}");
    }
    assert_eq!(never(Field::Label, "node-role.kubernetes.io/control-plane", ""), None);
    assert_eq!(never(Field::Label, "nvidia.com/mig.config", "all-1g.10gb"), None);
}

#[test]
fn the_keys_that_configure_operators_are_those_that_vendor_guard_lets_administrators_write() {
    let guard = presets::get("vendor-guard").unwrap();
    let reserved = &guard.spec.governance.as_ref().unwrap().reserved;
    let settings = reserved.iter().find(|entry| entry.entry.name.as_deref() == Some("nvidia-settings")).unwrap();
    for key in &settings.keys {
        assert_eq!(kind(Field::Label, key), None, "{key}");
    }
}
