//! What is inferred of real nodes' labels and capacity.
#![allow(clippy::unwrap_used)]

use super::*;

fn facts(labels: &[(&str, &str)], capacity: &str) -> Option<(String, Option<String>, Option<u32>, GpuSource)> {
    let capacity: Capacity<'_> = serde_json::from_str(capacity).unwrap();
    let found = infer(labels.iter().copied(), &capacity)?;
    Some((found.vendor.unwrap(), found.model, found.count, found.source.unwrap()))
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
    assert_eq!(facts(&[present], "{}"), intel(None, None));
    assert_eq!(facts(&[(present.0, "false")], "{}"), None);
    assert_eq!(facts(&[product, count, present], "{}"), intel(Some("max-1550"), Some(3)));
}

#[test]
fn integrated_intel_graphics_are_not_gpus() {
    assert_eq!(facts(&[("feature.node.kubernetes.io/pci-0300_8086.present", "true")], "{}"), None);
    assert_eq!(facts(&[("feature.node.kubernetes.io/pci-8086.present", "true")], "{}"), None);
    let flex = [("feature.node.kubernetes.io/pci-0380_8086.present", "true")];
    assert_eq!(facts(&flex, r#"{"gpu.intel.com/i915": "2"}"#), expect("intel", None, Some(2), GpuSource::PciDevice));
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
