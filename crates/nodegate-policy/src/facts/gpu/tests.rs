//! What is inferred of real nodes' labels and capacity.
#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::evidence::normalize_model;
use super::*;
use crate::facts::publishers::Publishers;

fn gpus(labels: &[(&str, &str)], capacity: &str, missing: &Missing) -> Gpus {
    let all: BTreeMap<_, _> = labels.iter().copied().collect();
    let capacity: serde_json::Value = serde_json::from_str(capacity).unwrap();
    // Annotations are among the labels of these tests.
    let node = json!({"metadata": {"name": "n", "labels": all, "annotations": all}, "status": {"capacity": capacity}});
    infer(labels.iter().copied(), &NodeFacts::parse(&node.to_string()).unwrap(), missing)
}

fn facts(labels: &[(&str, &str)], capacity: &str) -> Option<(String, Option<String>, Option<u32>, GpuSource)> {
    match gpus(labels, capacity, &Missing::default()) {
        Gpus::None => None,
        Gpus::Found(found) => Some((found.vendor.unwrap(), found.model, found.count, found.source.unwrap())),
        Gpus::Unknown(why) => panic!("{why}"),
    }
}

fn expect(
    vendor: &str,
    model: Option<&str>,
    count: Option<u32>,
    source: GpuSource,
) -> Option<(String, Option<String>, Option<u32>, GpuSource)> {
    Some((vendor.to_owned(), model.map(str::to_owned), count, source))
}

#[test]
fn product_names_are_converted_to_the_form_of_the_table() {
    for (product, model) in [
        ("NVIDIA-A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("Tesla-T4", "t4"),
        ("NVIDIA-GeForce-RTX-3050", "rtx-3050"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "h100-80gb-hbm3"),
        ("A100-SXM4-40GB-MIG-1g.5gb", "a100-sxm4-40gb"),
        ("NVIDIA-A10-24Q", "a10"),
        ("Quadro-RTX-6000-24Q", "rtx-6000"),
        ("RTX-Pro-6000-Blackwell-DC-4-96Q", "rtx-pro-6000-blackwell"),
        ("AMD_Instinct_MI300X_VF", "mi300x"),
        ("Max_1550", "max-1550"),
    ] {
        assert_eq!(normalize_model(product).as_deref(), Some(model), "{product}");
    }
    assert_eq!(normalize_model("AMD_Radeon_Graphics"), None);
}

#[test]
fn discovery_labels_take_precedence() {
    let labels = [
        ("feature.node.kubernetes.io/pci-0302_10de.present", "true"),
        ("node.kubernetes.io/instance-type", "p4d.24xlarge"),
        ("nvidia.com/gpu.count", "4"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB"),
    ];
    assert_eq!(
        facts(&labels, r#"{"nvidia.com/gpu": "8"}"#),
        expect("nvidia", Some("a100-sxm4-40gb"), Some(4), GpuSource::FeatureDiscovery)
    );
}

#[test]
fn what_probe_found_on_pci_tells_vendor_and_number() {
    let probed = |vendor: &str, count: &'static str| (format!("{}{vendor}.count", probed::PREFIX), count);
    let (nvidia, none, odd) = (probed("nvidia", "8"), probed("amd", "0"), probed("intel", "many"));
    assert_eq!(facts(&[(&nvidia.0, nvidia.1)], "{}"), expect("nvidia", None, Some(8), GpuSource::PciDevice));
    assert_eq!(facts(&[(&none.0, none.1), (&odd.0, odd.1)], "{}"), None);
    let with_driver =
        [(&*nvidia.0, nvidia.1), ("nvidia.com/gpu.count", "7"), ("nvidia.com/gpu.product", "NVIDIA-H200")];
    assert_eq!(facts(&with_driver, "{}"), expect("nvidia", Some("h200"), Some(7), GpuSource::FeatureDiscovery));
}

#[test]
fn later_sources_add_missing_facts() {
    let labels =
        [("feature.node.kubernetes.io/pci-10de.present", "true"), ("node.kubernetes.io/instance-type", "p4d.24xlarge")];
    assert_eq!(facts(&labels, "{}"), expect("nvidia", Some("a100-sxm4-40gb"), Some(8), GpuSource::PciDevice));
}

#[test]
fn mig_devices_are_not_counted_as_gpus() {
    let labels = [("nvidia.com/gpu.count", "7"), ("nvidia.com/gpu.product", "A100-SXM4-40GB-MIG-1g.5gb")];
    assert_eq!(facts(&labels, "{}"), expect("nvidia", Some("a100-sxm4-40gb"), None, GpuSource::FeatureDiscovery));
}

#[test]
fn the_order_of_labels_does_not_matter() {
    let labels = [
        ("beta.amd.com/gpu.device-id.74a1", "6"),
        ("beta.amd.com/gpu.product-name", "AMD_Instinct_MI210"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
        ("beta.kubernetes.io/instance-type", "p4d.24xlarge"),
        ("node.kubernetes.io/instance-type", "g4dn.xlarge"),
        ("nvidia.com/gpu.count", "7"),
        ("nvidia.com/gpu.product", "A100-SXM4-40GB-MIG-1g.5gb"),
        ("gpu.intel.com/device-id.0380-56c0.count", "2"),
        ("gpu.intel.com/device.count", "3"),
    ];
    for subset in 1..1 << labels.len() {
        let drawn: Vec<(&str, &str)> =
            (0..).zip(labels).filter(|(at, _)| subset >> at & 1 == 1).map(|(_, label)| label).collect();
        let sorted: Vec<(&str, &str)> =
            drawn.iter().copied().collect::<std::collections::BTreeMap<_, _>>().into_iter().collect();
        let reversed: Vec<(&str, &str)> = sorted.iter().rev().copied().collect();
        let expected = facts(&sorted, "{}");
        assert_eq!(facts(&drawn, "{}"), expected, "{drawn:?}");
        assert_eq!(facts(&reversed, "{}"), expected, "{reversed:?}");
    }
}

#[test]
fn the_advertised_number_of_partitioned_or_shared_devices_is_not_the_number_of_gpus() {
    for product in ["A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB-SHARED"] {
        let labels = [("nvidia.com/gpu.product", product), ("node.kubernetes.io/instance-type", "p4d.24xlarge")];
        assert_eq!(
            facts(&labels[..1], r#"{"nvidia.com/gpu": "7"}"#),
            expect("nvidia", Some("a100-sxm4-40gb"), None, GpuSource::FeatureDiscovery)
        );
        assert_eq!(
            facts(&labels, r#"{"nvidia.com/gpu": "7"}"#),
            expect("nvidia", Some("a100-sxm4-40gb"), Some(8), GpuSource::FeatureDiscovery)
        );
    }
}

#[test]
fn amd_counts_are_summed_over_device_ids() {
    let labels = [
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
        ("beta.amd.com/gpu.device-id.74a1", "6"),
        ("beta.amd.com/gpu.device-id.74a2", "2"),
    ];
    assert_eq!(facts(&labels, "{}"), expect("amd", Some("mi300x-oam"), Some(8), GpuSource::FeatureDiscovery));
}

#[test]
fn of_amds_labels_only_the_beta_ones_of_device_ids_count_gpus() {
    let labels = [
        ("amd.com/gpu.device-id.74a1", "6"),
        ("amd.com/gpu.device-id.74a2", "2"),
        ("beta.amd.com/gpu.device-id.74a1", "6"),
        ("beta.amd.com/gpu.device-id.74a2", "2"),
        ("beta.amd.com/gpu.vram.192G", "8"),
    ];
    let amd = |count| expect("amd", None, count, GpuSource::FeatureDiscovery);
    assert_eq!(facts(&labels, "{}"), amd(Some(8)));
    assert_eq!(facts(&labels[..2], "{}"), amd(None));
    assert_eq!(facts(&labels[4..], "{}"), amd(None));
}

#[test]
fn amd_gpus_are_found_in_capacity() {
    assert_eq!(facts(&[], r#"{"amd.com/gpu": "8"}"#), expect("amd", None, Some(8), GpuSource::Capacity));
}

#[test]
fn intel_gpus_are_found_by_each_of_their_labels() {
    let intel = |model, count| expect("intel", model, count, GpuSource::FeatureDiscovery);
    let product = ("gpu.intel.com/product", "Max_1550");
    let count = ("gpu.intel.com/device.count", "3");
    let present = ("intel.feature.node.kubernetes.io/gpu", "true");
    assert_eq!(facts(&[product], "{}"), intel(Some("max-1550"), None));
    assert_eq!(facts(&[count], "{}"), intel(None, Some(3)));
    assert_eq!(facts(&[("gpu.intel.com/family", "A_Series")], "{}"), intel(None, None));
    assert_eq!(facts(&[(present.0, "false")], "{}"), None);
    assert_eq!(facts(&[product, count, present], "{}"), intel(Some("max-1550"), Some(3)));
}

#[test]
fn graphics_that_are_part_of_a_processor_are_no_gpus() {
    let shares = r#"{"gpu.intel.com/i915": "5", "gpu.intel.com/i915_monitoring": "1"}"#;
    let mini_pc = [
        ("gpu.intel.com/device-id.0300-3e92.present", "true"),
        ("gpu.intel.com/device-id.0300-3e92.count", "1"),
        ("intel.feature.node.kubernetes.io/gpu", "true"),
    ];
    assert_eq!(facts(&mini_pc, shares), None);
    for (label, capacity) in [
        ("feature.node.kubernetes.io/pci-0300_8086.present", shares),
        ("feature.node.kubernetes.io/pci-8086.present", "{}"),
        ("feature.node.kubernetes.io/pci-0300_1002.present", "{}"),
        ("feature.node.kubernetes.io/pci-1002.present", "{}"),
    ] {
        assert_eq!(facts(&[(label, "true")], capacity), None, "{label}");
    }
    assert_eq!(
        facts(&[mini_pc[0], ("nvidia.com/gpu.product", "Tesla-T4"), ("nvidia.com/gpu.count", "1")], shares),
        expect("nvidia", Some("t4"), Some(1), GpuSource::FeatureDiscovery)
    );
}

#[test]
fn intels_shares_are_no_count_and_alone_may_be_of_either_kind() {
    let flex = [("feature.node.kubernetes.io/pci-0380_8086.present", "true")];
    assert_eq!(facts(&flex, r#"{"gpu.intel.com/i915": "20"}"#), expect("intel", None, None, GpuSource::PciDevice));
    let counted = [("gpu.intel.com/device-id.0380-56c0.count", "2")];
    assert_eq!(
        facts(&counted, r#"{"gpu.intel.com/xe": "20"}"#),
        expect("intel", None, Some(2), GpuSource::FeatureDiscovery)
    );
    for (labels, capacity) in [
        (&[][..], r#"{"gpu.intel.com/i915": "5"}"#),
        (&[][..], r#"{"gpu.intel.com/xe": "1"}"#),
        (&[("intel.feature.node.kubernetes.io/gpu", "true")][..], "{}"),
    ] {
        assert!(matches!(gpus(labels, capacity, &Missing::default()), Gpus::Unknown(_)), "{labels:?} {capacity}");
    }
}

#[test]
fn hamis_shares_are_counted_by_the_gpus_that_it_lists() {
    let old = "GPU-1,10,24576,100,NVIDIA-NVIDIA A10,0,true:GPU-2,10,24576,100,NVIDIA-NVIDIA A10,0,true:";
    let new = r#"[{"id":"GPU-1","count":10,"devmem":24576},{"id":"GPU-2","count":10,"devmem":24576}]"#;
    for (listed, count) in [(old, Some(2)), (new, Some(2)), ("", None), ("[]", None), ("[", None), ("x:y", None)] {
        assert_eq!(
            facts(&[("hami.io/node-nvidia-register", listed)], r#"{"nvidia.com/gpu": "20"}"#),
            expect("nvidia", None, count, GpuSource::Capacity),
            "{listed}"
        );
    }
}

#[test]
fn what_a_device_plugin_advertises_is_no_count_where_shares_are_possible() {
    let nvidia = |labels: &[(&str, &str)], capacity| {
        let Some((vendor, _, count, _)) = facts(labels, capacity) else { panic!("{labels:?}") };
        assert_eq!(vendor, "nvidia");
        count
    };
    assert_eq!(nvidia(&[], r#"{"nvidia.com/gpu": "8"}"#), Some(8));
    assert_eq!(nvidia(&[("nvidia.com/mig.config", "all-disabled")], r#"{"nvidia.com/gpu": "8"}"#), Some(8));
    for sign in [
        ("nvidia.com/mig.config", "all-1g.10gb"),
        ("nvidia.com/device-plugin.config", "time-sliced"),
        ("nvidia.com/gpu.deploy.gpu-feature-discovery", "true"),
        ("nvidia.com/gpu.deploy.gpu-feature-discovery", "paused-for-mig-change"),
    ] {
        assert_eq!(nvidia(&[sign], r#"{"nvidia.com/gpu": "56"}"#), None, "{sign:?}");
    }
    assert_eq!(nvidia(&[], r#"{"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "28"}"#), None);
    assert_eq!(nvidia(&[], r#"{"nvidia.com/gpu": "1", "nvidia.com/gpu.shared": "4"}"#), None);
    let elsewhere = Missing { expected: [Publisher::GpuFeatureDiscovery].into_iter().collect(), ..Missing::default() };
    let Gpus::Found(found) = gpus(&[], r#"{"nvidia.com/gpu": "12"}"#, &elsewhere) else { panic!() };
    assert_eq!((found.vendor.as_deref(), found.count), (Some("nvidia"), None));
}

#[test]
fn partitions_of_amds_gpus_are_not_counted_as_gpus() {
    let product = ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM");
    let counted = ("beta.amd.com/gpu.device-id.74a1", "64");
    let amd = |count| expect("amd", Some("mi300x-oam"), count, GpuSource::FeatureDiscovery);
    let whole = ("amd.com/gpu.compute-memory-partition", "spx_nps1");
    let divided = ("amd.com/gpu.compute-memory-partition", "cpx_nps4");
    assert_eq!(
        facts(&[product, ("beta.amd.com/gpu.device-id.74a1", "8"), whole], r#"{"amd.com/gpu": "8"}"#),
        amd(Some(8))
    );
    assert_eq!(facts(&[product, counted, divided], r#"{"amd.com/gpu": "64"}"#), amd(None));
    let mixed = r#"{"amd.com/spx_nps1": "5", "amd.com/cpx_nps1": "24", "amd.com/gpu": "0"}"#;
    assert_eq!(facts(&[], mixed), expect("amd", None, None, GpuSource::Capacity));
}

#[test]
fn graphics_of_an_amd_processor_are_no_gpus_and_spoil_the_count_of_cards() {
    let apu = [("beta.amd.com/gpu.family.RV", "1"), ("beta.amd.com/gpu.device-id.1638", "1")];
    assert_eq!(facts(&apu, r#"{"amd.com/gpu": "1"}"#), None);
    assert_eq!(facts(&[("amd.com/gpu.family", "GC_11_0_1"), ("amd.com/gpu.vram", "1G")], "{}"), None);
    let both = [apu[0], apu[1], ("beta.amd.com/gpu.family.GC_11_0_0", "1"), ("beta.amd.com/gpu.device-id.744c", "1")];
    assert_eq!(facts(&both, r#"{"amd.com/gpu": "2"}"#), expect("amd", None, None, GpuSource::FeatureDiscovery));
}

#[test]
fn a_number_without_a_product_may_be_one_of_mig_devices() {
    let count = ("nvidia.com/gpu.count", "56");
    assert_eq!(facts(&[count], "{}"), expect("nvidia", None, None, GpuSource::FeatureDiscovery));
}

/// The labels of several publishers on one node, and what it has besides.
const PUBLISHED: [&[(&str, &str)]; 4] = [
    &[
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
        ("nvidia.com/gpu.count", "56"),
        ("nvidia.com/gpu.memory", "9728"),
        ("nvidia.com/mig.capable", "true"),
    ],
    &[("feature.node.kubernetes.io/pci-0302_10de.present", "true"), ("feature.node.kubernetes.io/cpu-model.id", "1")],
    &[("nvidia.com/gpu.present", "true"), ("nvidia.com/gpu.deploy.device-plugin", "true")],
    &[("gpu.intel.com/device-id.0380-56c0.count", "2"), ("gpu.intel.com/device-id.0380-56c0.present", "true")],
];

#[test]
fn labels_that_go_and_come_in_any_order_change_no_fact() {
    let (capacity, instance) = (r#"{"nvidia.com/gpu": "56"}"#, ("node.kubernetes.io/instance-type", "p4d.24xlarge"));
    let all: Vec<(&str, &str)> = PUBLISHED.iter().flat_map(|labels| labels.iter().copied()).chain([instance]).collect();
    let text = |labels: &[(&str, &str)]| {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        json!({"metadata": {"name": "n", "labels": labels}, "status": {"capacity": {"nvidia.com/gpu": "56"}}})
            .to_string()
    };
    let (before, memory) = (text(&all), Default::default());
    let before = Publishers::on(&NodeFacts::parse(&before).unwrap());
    let Gpus::Found(whole) = gpus(&all, capacity, &Missing::default()) else { panic!() };
    assert_eq!((whole.model.as_deref(), whole.count), (Some("a100-sxm4-80gb"), Some(8)));
    for subset in 0..1_u32 << (all.len() - 1) {
        let left: Vec<(&str, &str)> =
            (0..).zip(&all).filter(|(at, _)| subset >> at & 1 == 0).map(|(_, one)| *one).collect();
        let now = text(&left);
        let now = NodeFacts::parse(&now).unwrap();
        let missing = Missing::on(now.readiness, before, &memory, || Publishers::on(&now));
        match gpus(&left, capacity, &missing) {
            Gpus::None => panic!("{left:?}"),
            Gpus::Unknown(_) => {}
            Gpus::Found(found) => {
                let same = |one: &Option<String>, other: &Option<String>| one.is_none() || one == other;
                assert!(same(&found.vendor, &whole.vendor) && same(&found.model, &whole.model), "{left:?}: {found:?}");
                assert!(found.count.is_none() || found.count == whole.count, "{left:?}: {found:?}");
                let is_whole = (&found.model, found.count) == (&whole.model, whole.count);
                assert!(is_whole || found.untold.is_some(), "{left:?}: {found:?}");
            }
        }
    }
}

#[test]
fn nothing_is_inferred_from_zero_or_from_the_label_that_policies_set() {
    assert_eq!(
        facts(
            &[("nvidia.com/gpu", "true"), ("nvidia.com/gpu.present", "false")],
            r#"{"nvidia.com/gpu": "0", "cpu": "4"}"#
        ),
        None
    );
}

#[test]
fn azure_names_are_found_in_any_case() {
    let (vendor, _, count, source) =
        facts(&[("node.kubernetes.io/instance-type", "standard_nd96asr_v4")], "{}").unwrap();
    assert_eq!((vendor.as_str(), count, source), ("nvidia", Some(8), GpuSource::InstanceType));
}
