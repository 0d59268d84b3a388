//! Which inventories do not answer, and who is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use nodegate_base::metrics::InventoryMetrics;
use nodegate_policy::Inventory;

/// Why an inventory does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Its policy.
    pub policy: String,
    /// Its name.
    pub name: String,
    /// The reason, as a sentence.
    pub why: String,
}

/// The inventories that do not answer, by `policy/name`.
pub type AllFailing = Arc<BTreeMap<Arc<str>, Failing>>;

/// Reports whether inventories answer: to the log once for each change, in metrics, and to whoever follows.
#[derive(Debug, Default)]
pub(super) struct Report(watch::Sender<AllFailing>);

impl Report {
    /// The inventories that do not answer.
    pub(super) fn failing(&self) -> watch::Receiver<AllFailing> {
        self.0.subscribe()
    }

    /// Records that an inventory answers.
    pub(super) fn answers(&self, inventory: &Inventory, metrics: &InventoryMetrics) {
        let Inventory { id, policy, name, .. } = inventory;
        metrics.set_failing(policy, name, false);
        let was_failing = self.0.send_if_modified(|failing| {
            failing.contains_key(id) && {
                Arc::make_mut(failing).remove(id);
                true
            }
        });
        if was_failing {
            tracing::info!(policy = &**policy, inventory = &**name, "the inventory answers again");
        }
    }

    /// Records that an inventory does not answer.
    pub(super) fn fails(&self, inventory: &Inventory, why: String, metrics: &InventoryMetrics) {
        let Inventory { id, policy, name, .. } = inventory;
        metrics.set_failing(policy, name, true);
        self.0.send_if_modified(|failing| {
            let known = failing.get(id).is_some_and(|known| known.why == why);
            if !known {
                tracing::warn!(
                    policy = &**policy,
                    inventory = &**name,
                    why,
                    "the inventory does not answer; its last answers stay in force"
                );
                let (policy, name) = (policy.to_string(), name.to_string());
                Arc::make_mut(failing).insert(id.clone(), Failing { policy, name, why });
            }
            !known
        });
    }

    /// Sets the metric again after it was cleared.
    pub(super) fn repeat(&self, metrics: &InventoryMetrics) {
        self.0.borrow().values().for_each(|Failing { policy, name, .. }| metrics.set_failing(policy, name, true));
    }

    /// Forgets inventories that `known` does not accept.
    pub(super) fn retain(&self, known: impl Fn(&str) -> bool) {
        self.0.send_if_modified(|failing| {
            let gone = failing.keys().any(|id| !known(id));
            if gone {
                Arc::make_mut(failing).retain(|id, _| known(id));
            }
            gone
        });
    }
}
