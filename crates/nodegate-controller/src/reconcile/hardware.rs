//! The hardware of a node: its devices, and where it differs from what was probed before.

use std::time::Instant;

use super::Reconciler;
use crate::node::NodeObject;
use nodegate_policy::gpu::probed::differences;
use nodegate_policy::{NodeDevices, PolicySet};
use nodegate_stores::devices::KnownDevices;

impl Reconciler {
    /// What is known of the devices of nodes.
    pub fn known_devices(&self) -> &KnownDevices {
        &self.devices
    }

    /// The devices of a node, if policies read them and they are known.
    pub(super) fn devices(&self, set: &PolicySet, node: &NodeObject) -> Option<NodeDevices> {
        set.reads_devices().then(|| self.devices.of(node.name())).flatten()
    }

    /// Compares the labels of a node. An event reports differences when they are first seen or become others.
    pub(crate) fn compare_hardware(&self, node: &NodeObject) {
        let text = node.text();
        let Ok(facts) = text.facts() else { return };
        let found = differences(facts.labels());
        let mut memory = self.memory();
        let report = memory.living(node).is_some_and(|known| known.hardware.note(&found, Instant::now()));
        drop(memory);
        if report {
            let each: Vec<String> = found.iter().map(ToString::to_string).collect();
            let note = format!("{}; check the hardware, the driver and the age of the labels", each.join("; "));
            tracing::warn!(node = node.name(), "{note}");
            self.events().later(node, "HardwareDiffers", note);
        }
    }
}
