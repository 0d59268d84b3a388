//! What publishers of labels and inventories have told of a node, and have yet to tell.

use super::View;
use crate::cel::Expression;
use crate::facts::devices::NodeDevices;
use crate::facts::gpu::Gpus;
use crate::facts::missing::{Memory, Missing};
use crate::facts::proof::asserted::CONTRADICTIONS_UNKNOWN;
use crate::facts::publishers::{Publisher, Publishers};
use crate::set::inventory::Inventory;
use crate::set::pools::KUBELET_UNKNOWN;

/// Why nothing is known of the devices of a node.
pub(crate) const DEVICES_UNKNOWN: &str = "the drivers (DRA) have not published all of them as ResourceSlices";

impl<'a> View<'a> {
    /// Reads these devices.
    pub(crate) fn with_devices(self, devices: Option<&'a NodeDevices>) -> Self {
        Self { devices, ..self }
    }

    /// The devices of the node, if they are known.
    pub(crate) fn devices(&self) -> Option<&'a NodeDevices> {
        self.devices
    }

    /// Sets what is remembered of the publishers of labels. Must be called before anything is evaluated, as masks are set.
    pub(crate) fn remember(&mut self, memory: Memory<'a>) {
        self.memory = memory;
    }

    /// Whether a label says nothing about its publisher, because it is hidden or a rule may have given it.
    fn is_silent(&self, key: &str) -> bool {
        self.masked_labels.get(key).is_some_and(Option::is_none) || self.set.gives_publishers(key)
    }

    /// The publishers of the object's labels.
    pub(crate) fn publishers(&self) -> Publishers {
        Publishers::on_without(self.facts, |key, _| self.is_silent(key))
    }

    pub(super) fn missing(&self) -> &Missing {
        self.missing.get_or_init(|| {
            // What nodegate owns or gives says nothing about a publisher, whether the write leaves or removes it.
            let is_owned =
                |key: &str, value: &str| self.owned.and_then(|owned| owned.get(key)).is_some_and(|own| own == value);
            let is_silent = |key: &str, value: &str| is_owned(key, value) || self.set.gives_publishers(key);
            let old = self.old.map(|old| Publishers::on_without(old, is_silent)).unwrap_or_default();
            Missing::on(self.facts.readiness, old, &self.memory, || {
                // What a kubelet has removed and this review puts back is there again in the next one.
                let stays = self.masked_labels.iter().filter(|(_, instead)| instead.is_some());
                let put_back = stays.filter(|(key, _)| !self.set.gives_publishers(key));
                let put_back = put_back.filter_map(|(key, _)| Publisher::of(key)).collect();
                self.publishers().and(put_back)
            })
        })
    }

    /// Whether a publisher is away: its labels are gone, in this write or since they were recorded.
    pub(crate) fn is_away(&self, publisher: Publisher) -> bool {
        self.missing().awaited.contains(publisher)
    }

    /// The publisher of this label, if it is away.
    pub(crate) fn away(&self, key: &str) -> Option<Publisher> {
        Publisher::of(key).filter(|publisher| self.is_away(*publisher))
    }

    /// The inventory to wait for if this label is absent: it has not answered yet and may give the label.
    pub(crate) fn awaited(&self, key: &str) -> Option<&'a Inventory> {
        if self.label(key).is_some() { None } else { self.answers.awaited(key) }
    }

    /// Why a fact that an expression reads is unknown, if one is: somebody has yet to tell it.
    pub(super) fn not_told(&self, expression: &Expression) -> Option<String> {
        let reads = expression.reads();
        let absent = reads.labels.iter().map(|read| read.key.as_str()).filter(|key| self.label(key).is_none());
        let mut labels = absent.filter_map(|key| match (self.answers.awaited(key), self.away(key)) {
            (Some(inventory), _) => {
                Some(format!("label {key}: inventory {} has not answered for this node yet", inventory.id))
            }
            (None, Some(publisher)) => Some(format!("label {key}: {}", publisher.is_away_in_words())),
            (None, None) => None,
        });
        let gpu = || match reads.gpu.then(|| self.gpu())? {
            Gpus::Unknown(why) => Some(format!("GPU facts: {why}")),
            Gpus::Found(gpu) => gpu.untold.as_ref().map(|why| format!("GPU facts: {why}")),
            Gpus::None => None,
        };
        let identity = || {
            let pools = reads.pools.then(|| self.pools())?;
            let names: Vec<&str> = pools.unknown.iter().copied().collect();
            if let Some(why) = pools.others() {
                return Some(format!("identity: {why}"));
            }
            (!names.is_empty())
                .then(|| format!("identity: it is not known whether the node belongs to {}", names.join(", ")))
        };
        let contradictions = || {
            let is_known = !reads.contradictions
                || !self.contradictions().is_empty()
                || self.set.knows_contradictions(self.facts, self.evidence);
            (!is_known).then(|| format!("identity.contradictions: {CONTRADICTIONS_UNKNOWN}"))
        };
        let instance = || {
            let is_known = !reads.instance || self.set.knows_instance(self.evidence);
            (!is_known).then(|| format!("identity.instance: {KUBELET_UNKNOWN}"))
        };
        let devices = || {
            let is_known = !reads.devices || self.devices.is_some();
            (!is_known).then(|| format!("devices: {DEVICES_UNKNOWN}"))
        };
        labels.next().or_else(gpu).or_else(devices).or_else(identity).or_else(contradictions).or_else(instance)
    }
}
