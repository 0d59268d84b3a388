//! What a term remembers about one node.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::memory::are;
use crate::memory::fleet::Member;
use crate::memory::hardware::Hardware;
use crate::memory::history::{History, Sight};
use crate::memory::patched_taints::PatchedTaints;
use crate::memory::refusals::Refusals;
use crate::memory::removals::GracePeriods;
use crate::memory::reverts::{CountedKeys, Reverts};
use crate::memory::shares::Share;
use crate::memory::unrecorded::Unrecorded;
use crate::memory::version::Version;
use crate::node::NodeObject;
use crate::node::limit::NodeBudget;
use jiff::Timestamp;
use nodegate_policy::PolicySet;
use prometheus_client::metrics::gauge::Gauge;

/// The watch reports nodegate's own write within this time, unless the write changed nothing.
const SHOWN: Duration = Duration::from_secs(10);

/// What the memories of all nodes have in common.
#[derive(Debug)]
pub(super) struct Shared {
    /// Whether the webhook maintains stamps.
    pub(super) records_last_change: bool,
    /// The number of nodes whose record could not be written.
    pub(super) unrecorded_nodes: Gauge,
    /// The keys whose reverts are counted.
    pub(super) counted_keys: CountedKeys,
}

/// What a term remembers about one node object.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    uid: Box<str>,
    /// Its last version that could be read.
    seen: Option<NodeObject>,
    /// Whether the node was processed in this term.
    is_known: bool,
    /// Whether its join was reported in this term.
    is_join_told: bool,
    /// How often it could not be reconciled, one time after the other.
    pub(crate) failures: u32,
    /// Its version that nodegate's own write replaced, and when.
    replaced: Option<(String, Instant)>,
    /// The policies in force when it was last told what the node got and what it lost.
    told: [Weak<PolicySet>; 2],
    /// How it is counted; nothing if it cannot be read.
    pub(crate) member: Option<Member>,
    pub(crate) history: History,
    pub(crate) patched_taints: PatchedTaints,
    pub(crate) grace_periods: GracePeriods,
    pub(crate) reverts: Reverts,
    pub(crate) refusals: Refusals,
    pub(crate) budget: NodeBudget,
    pub(crate) unrecorded: Unrecorded,
    pub(crate) hardware: Hardware,
    /// The contradictions about its pools that were told: certificates of other pools for its name, by fingerprint, and provider IDs.
    pub(crate) contradictions: BTreeSet<Box<str>>,
    /// What it says about its pools; nothing before it was processed.
    pub(crate) share: Option<Share>,
}

impl NodeMemory {
    pub(super) fn new(uid: &str, shared: &Shared) -> Self {
        Self {
            uid: uid.into(),
            seen: None,
            is_known: false,
            is_join_told: false,
            failures: 0,
            replaced: None,
            told: Default::default(),
            member: None,
            history: History::new(shared.records_last_change),
            patched_taints: PatchedTaints::default(),
            grace_periods: GracePeriods::default(),
            reverts: Reverts::new(shared.counted_keys.clone()),
            refusals: Refusals::default(),
            budget: NodeBudget::default(),
            unrecorded: Unrecorded::new(shared.unrecorded_nodes.clone()),
            hardware: Hardware::default(),
            contradictions: BTreeSet::new(),
            share: None,
        }
    }

    /// Whether this is about the node object, and not about another one of its name.
    pub(super) fn is_of(&self, node: &NodeObject) -> bool {
        *self.uid == *node.uid()
    }

    /// Takes up the next version of the node, as the watch shows it.
    pub(super) fn sees(&mut self, node: &NodeObject, now: Timestamp, sight: Sight) {
        let text = node.text();
        let Some(after) = Version::of(&text) else { return };
        let before = self.seen.replace(node.clone()).map(|before| before.text());
        let before = before.as_ref().and_then(Version::of);
        if let Some(before) = &before {
            self.history.note(before, &after, now, sight);
        }
        self.patched_taints.note(before.as_ref(), &after);
    }

    /// Records that a version of the node is recorded, if it is the last one.
    pub(crate) fn recorded(&mut self, node: &NodeObject) {
        if self.seen.as_ref().is_some_and(|seen| seen.resource_version() == node.resource_version()) {
            self.patched_taints.recorded();
        }
    }

    /// Whether the node was processed in this term.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Records that the node is processed. Returns true for the first time in this term.
    pub(crate) fn is_first_look(&mut self) -> bool {
        !std::mem::replace(&mut self.is_known, true)
    }

    /// Records that its join is reported. Returns true for the first time in this term.
    pub(crate) fn is_news_of_join(&mut self) -> bool {
        !std::mem::replace(&mut self.is_join_told, true)
    }

    /// Whether it was not told yet what the node got, or lost, by these policies; it is now.
    pub(crate) fn is_new_policy(&mut self, policies: &Arc<PolicySet>, lost: bool) -> bool {
        let told = &mut self.told[usize::from(lost)];
        let is_new = !are(told, policies);
        *told = Arc::downgrade(policies);
        is_new
    }

    /// Records that nodegate has written to this version of the node.
    pub(crate) fn wrote(&mut self, node: &NodeObject, now: Instant) {
        self.replaced = Some((node.resource_version().to_owned(), now));
    }

    /// Whether nodegate's last write replaced this version of the node.
    pub(crate) fn is_replaced(&self, node: &NodeObject) -> bool {
        self.replaced.as_ref().is_some_and(|(version, _)| version == node.resource_version())
    }

    /// Whether this is the version of the node before nodegate's last write, so that the work is already done.
    pub(crate) fn is_behind(&mut self, node: &NodeObject, now: Instant) -> bool {
        self.replaced.take_if(|(version, _)| version != node.resource_version());
        // A write that changed nothing creates no new version.
        self.replaced.as_ref().is_some_and(|(_, at)| now.saturating_duration_since(*at) < SHOWN)
    }
}
