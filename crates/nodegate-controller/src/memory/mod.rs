//! What a term remembers about nodes. It is only an optimization: losing it costs a check or a write, never a label.

pub(crate) mod departures;
pub(crate) mod fleet;
pub(crate) mod hardware;
pub(crate) mod history;
pub(crate) mod node;
pub(crate) mod patched_taints;
pub(crate) mod refusals;
pub(crate) mod removals;
pub(crate) mod reverts;
pub(crate) mod shares;
pub(crate) mod unrecorded;
mod version;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::memory::departures::Departures;
use crate::memory::history::Sight;
use crate::memory::node::{NodeMemory, Shared};
use crate::memory::removals::{MaxRemovals, Removals};
use crate::memory::reverts::{CountedKeys, GivenUp};
use crate::node::NodeObject;
use nodegate_base::log_limit::LogLimit;
use nodegate_base::metrics::Count;
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::gpu::probed::Fact;
use nodegate_policy::{PolicySet, PoolShare, Removal};
use prometheus_client::metrics::gauge::Gauge;

/// Minimum time between two searches of all nodes for reverts that can be forgotten.
const SWEEP: Duration = Duration::from_secs(30);

/// What a term remembers about nodes.
///
/// Each node that exists has one [`NodeMemory`]. It begins when the watch shows the node, and ends when the watch shows that it is
/// gone and that is recorded. What is noted afterwards is lost.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The nodes that exist, by name. Boxed, because half of a map is empty when it has just grown.
    nodes: HashMap<String, Box<NodeMemory>>,
    pub(crate) departures: Departures,
    pub(crate) removals: Removals,
    /// The rejected claims that were logged lately. Any number of nodes can join at once.
    pub(crate) rejections: LogLimit,
    shared: Shared,
    /// When all nodes were last searched for reverts that can be forgotten.
    swept: Option<Instant>,
    /// The policies by which all nodes were asked about their pools.
    asked: Weak<PolicySet>,
}

impl Memory {
    /// An empty memory. `records_last_change`: whether the webhook maintains stamps; `unrecorded_nodes`: the number of nodes whose
    /// record could not be written.
    pub(crate) fn new(max_removals: MaxRemovals, records_last_change: bool, unrecorded_nodes: Gauge) -> Self {
        Self {
            nodes: HashMap::new(),
            departures: Departures::default(),
            removals: Removals::new(max_removals),
            rejections: LogLimit::default(),
            shared: Shared { records_last_change, unrecorded_nodes, counted_keys: CountedKeys::default() },
            swept: None,
            asked: Weak::new(),
        }
    }

    /// Takes up a version of a node, as the watch shows it. Only the watch may call this, and who reads nodes without one.
    pub(crate) fn sees(&mut self, node: &NodeObject, now: Timestamp, sight: Sight) -> &mut NodeMemory {
        let known = self.nodes.entry(node.name().to_owned());
        let known = known.or_insert_with(|| Box::new(NodeMemory::new(node.uid(), &self.shared)));
        if !known.is_of(node) {
            **known = NodeMemory::new(node.uid(), &self.shared);
        }
        known.sees(node, now, sight);
        known
    }

    /// Records that a node was deleted, as the watch shows: `last` is what was last seen of it. Only the watch may call this.
    pub(crate) fn left(&mut self, last: NodeObject, at: Timestamp) {
        let known = if self.living(&last).is_some() { self.nodes.remove(last.name()) } else { None };
        let known = known.map_or_else(|| NodeMemory::new(last.uid(), &self.shared), |known| *known);
        self.departures.note(last, at, known);
    }

    /// Forgets a node that cannot be read anymore, or that was deleted and is not known otherwise. Only the watch may call
    /// this.
    pub(crate) fn lost(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Whether there is a node of this name.
    pub(crate) fn is_living(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// What is known of a node that exists.
    pub(crate) fn living(&mut self, node: &NodeObject) -> Option<&mut NodeMemory> {
        about(&mut self.nodes, node)
    }

    /// What is known of a node that exists, or whose end is not recorded yet.
    pub(crate) fn of(&mut self, node: &NodeObject) -> Option<&mut NodeMemory> {
        let Self { nodes, departures, removals: _, rejections: _, shared: _, swept: _, asked: _ } = self;
        about(nodes, node).or_else(|| departures.of(node))
    }

    /// Which of a node's `wanted` removals are due now, and how long until the next one is.
    pub(crate) fn due(
        &mut self,
        node: &NodeObject,
        wanted: &[Removal],
        now: Instant,
    ) -> (HashSet<Removal>, Option<Duration>) {
        let Some(known) = about(&mut self.nodes, node) else { return (HashSet::new(), None) };
        self.removals.due(node.uid(), &mut known.grace_periods, wanted, now)
    }

    /// Records that the policies have changed. `refresh`: the longest one of their inventories.
    pub(crate) fn policies_changed(&mut self, refresh: Option<Duration>) {
        self.removals.policies_changed(refresh);
        self.nodes.values_mut().for_each(|known| known.reverts.policies_changed());
    }

    /// Forgets old reverts if the limit of counted keys is reached. Call this before checking a node.
    pub(crate) fn make_room(&mut self, node: &NodeObject, now: Instant) {
        if let Some(known) = self.living(node) {
            known.reverts.make_room(now);
        }
        let swept = self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP);
        if self.shared.counted_keys.is_full() && !swept {
            self.swept = Some(now);
            self.nodes.values_mut().for_each(|known| known.reverts.forget_old(now));
        }
    }

    /// Every key that is not repaired, with the name of its node.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = (&str, GivenUp<'_>)> {
        self.nodes.iter().flat_map(|(name, known)| known.reverts.given_up().map(move |key| (&**name, key)))
    }

    /// Records that all nodes were asked about their pools by these policies.
    pub(crate) fn asked_all(&mut self, policies: &Arc<PolicySet>) {
        self.asked = Arc::downgrade(policies);
    }

    /// What all nodes say about their pools; `None` if they have not been asked by these policies.
    pub(crate) fn shares(&self, policies: &Arc<PolicySet>) -> Option<Vec<Arc<PoolShare>>> {
        let shares = || shares::of_all(self.nodes.values().map(|known| &known.share), policies);
        are(&self.asked, policies).then(shares).flatten()
    }

    /// Counts all nodes that can be read, but not those that are pending for too long.
    pub(crate) fn count(&self, labels: &[LabelKey]) -> Count {
        fleet::count(self.nodes.values().filter_map(|known| known.member.as_ref()), labels)
    }

    /// The names of the nodes that are pending longer than this.
    pub(crate) fn overdue(&self, now: Timestamp, timeout: Duration) -> Vec<String> {
        let is_overdue = |known: &NodeMemory| known.member.as_ref().is_some_and(|node| node.is_overdue(now, timeout));
        self.nodes.iter().filter(|(_, known)| is_overdue(known)).map(|(name, _)| name.clone()).collect()
    }

    /// On how many nodes the hardware differs from what was probed, by fact.
    pub(crate) fn hardware_differs(&self) -> impl Iterator<Item = (Fact, usize)> {
        let differences = || self.nodes.values().flat_map(|known| known.hardware.differences());
        Fact::ALL.map(|fact| (fact, differences().filter(|known| known.fact == fact).count())).into_iter()
    }
}

/// Whether these are the policies.
fn are(known: &Weak<PolicySet>, policies: &Arc<PolicySet>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(policies))
}

/// What is known of this node object, and not of another one of its name.
fn about<'m>(nodes: &'m mut HashMap<String, Box<NodeMemory>>, node: &NodeObject) -> Option<&'m mut NodeMemory> {
    nodes.get_mut(node.name()).map(|known| &mut **known).filter(|known| known.is_of(node))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nodegate_policy::api::state::SavedState;
    use nodegate_policy::gpu::probed::Difference;
    use serde_json::json;

    use super::*;

    fn node(name: &str, uid: &str, version: &str) -> NodeObject {
        let text =
            json!({"metadata": {"name": name, "uid": uid, "resourceVersion": version, "labels": {"v": version}}});
        NodeObject::read(&text.to_string()).unwrap()
    }

    fn memory(unrecorded: &Gauge) -> Memory {
        let mut memory = Memory::new(MaxRemovals::Nodes(10), false, unrecorded.clone());
        memory.removals.surveyed(3, 0, true, Instant::now());
        memory
    }

    fn shows(memory: &mut Memory, node: &NodeObject) {
        memory.sees(node, Timestamp::UNIX_EPOCH, Sight::Next);
    }

    fn unwritten(memory: &mut Memory, node: &NodeObject, now: Instant) {
        let stored = SavedState::default();
        let known = memory.of(node);
        known.map(|known| known.unrecorded.failed(&stored, stored.clone(), String::new(), now));
    }

    /// A version that was not the last one.
    fn is_behind_at_its_end(memory: &mut Memory, last: &NodeObject) -> bool {
        memory.left(last.clone(), Timestamp::UNIX_EPOCH);
        let is_behind = memory.of(last).unwrap().is_replaced(last);
        memory.departures.end(last);
        is_behind
    }

    #[test]
    fn a_node_that_went_before_the_watch_showed_nodegates_write_is_known_to_be_behind() {
        let mut memory = memory(&Gauge::default());
        let (before, after) = (node("n1", "u1", "1"), node("n1", "u1", "2"));
        let long_ago = Instant::now();
        shows(&mut memory, &before);
        let known = memory.living(&before).unwrap();
        known.wrote(&before, long_ago);
        assert!(known.is_behind(&before, long_ago) && !known.is_behind(&before, long_ago + Duration::from_secs(10)));
        assert!(is_behind_at_its_end(&mut memory, &before), "however long ago the write was");
        shows(&mut memory, &before);
        memory.living(&before).unwrap().wrote(&before, long_ago);
        assert!(!is_behind_at_its_end(&mut memory, &after), "the deletion shows the write");

        // The answer to the write comes after the end was seen, while that is recorded.
        shows(&mut memory, &before);
        memory.left(before.clone(), Timestamp::UNIX_EPOCH);
        let departure = memory.departures.begin("n1").unwrap();
        memory.of(&before).unwrap().wrote(&before, long_ago);
        assert!(memory.of(&departure.last).unwrap().is_replaced(&departure.last));
    }

    #[test]
    fn nothing_of_a_deleted_node_stays_not_even_what_a_reconcile_notes_afterwards() {
        let (unrecorded, now) = (Gauge::default(), Instant::now());
        let mut memory = memory(&unrecorded);
        let (gone, after) = (node("n1", "u1", "1"), node("n1", "u2", "5"));
        shows(&mut memory, &gone);
        unwritten(&mut memory, &gone, now);
        assert_eq!(unrecorded.get(), 1);
        memory.left(gone.clone(), Timestamp::UNIX_EPOCH);
        assert!(!memory.is_living("n1") && memory.living(&gone).is_none());
        assert_eq!(unrecorded.get(), 0, "its stored record is written, not the one that could not be");
        unwritten(&mut memory, &gone, now);
        assert_eq!(memory.departures.next().as_deref(), Some("n1"));
        assert!(memory.departures.begin("n1").is_some() && memory.departures.begin("n1").is_none());
        assert_eq!(memory.departures.next(), None, "its end is being recorded");

        // It is there again before that ends.
        shows(&mut memory, &after);
        assert!(memory.living(&gone).is_none() && memory.of(&gone).is_some());
        assert_eq!((memory.departures.failed(&gone), memory.departures.failed(&after)), (1, 0));
        memory.departures.end(&after);
        assert!(memory.departures.begin("n1").is_some(), "the end of another node of its name says nothing");
        memory.departures.end(&gone);
        assert_eq!((memory.of(&gone).is_none(), unrecorded.get()), (true, 0));
        assert!(memory.living(&after).is_some());

        // Its end was not seen, or it cannot be read anymore.
        unwritten(&mut memory, &after, now);
        let third = node("n1", "u3", "9");
        shows(&mut memory, &third);
        assert_eq!((memory.of(&after).is_none(), unrecorded.get()), (true, 0));
        unwritten(&mut memory, &third, now);
        memory.lost("n1");
        assert_eq!((memory.of(&third).is_none(), unrecorded.get()), (true, 0));
    }

    #[test]
    fn a_node_that_is_gone_loses_nothing_and_a_new_one_of_its_name_waits_anew() {
        let mut memory = memory(&Gauge::default());
        let (first, second, start) = (node("n1", "u1", "1"), node("n1", "u2", "2"), Instant::now());
        let after = Duration::from_secs(60);
        let wanted = [Removal { field: nodegate_policy::Field::Label, key: "a".to_owned(), after }];
        assert_eq!(memory.due(&first, &wanted, start), (HashSet::new(), None));
        shows(&mut memory, &first);
        assert_eq!(memory.due(&first, &wanted, start).1, Some(after));
        shows(&mut memory, &second);
        assert_eq!(memory.due(&first, &wanted, start + after), (HashSet::new(), None));
        assert_eq!(memory.due(&second, &wanted, start + after).1, Some(after));
        assert_eq!(memory.due(&second, &wanted, start + 2 * after).0.len(), 1);
    }

    #[test]
    fn what_is_told_once_is_told_once_for_each_node_object() {
        let mut memory = memory(&Gauge::default());
        let (first, second) = (node("n1", "u1", "1"), node("n1", "u2", "2"));
        let (policies, others) = (Arc::default(), Arc::default());
        for node in [&first, &second] {
            shows(&mut memory, node);
            let known = memory.living(node).unwrap();
            assert!(!known.is_known() && known.is_first_look() && !known.is_first_look() && known.is_known());
            assert!(known.is_news_of_join() && !known.is_news_of_join());
            assert!(known.is_new_policy(&policies, false) && !known.is_new_policy(&policies, false));
            assert!(known.is_new_policy(&policies, true) && known.is_new_policy(&others, false));
        }
    }

    #[test]
    fn what_all_nodes_have_is_counted_until_they_are_gone() {
        let mut memory = memory(&Gauge::default());
        let (first, second, now) = (node("n1", "u1", "1"), node("n2", "u2", "1"), Instant::now());
        let difference = |fact| Difference { fact, probed: "8".to_owned(), reported: "7".to_owned() };
        for (node, facts) in [(&first, vec![Fact::Count]), (&second, vec![Fact::Count, Fact::Memory])] {
            shows(&mut memory, node);
            let known = memory.living(node).unwrap();
            known.hardware.note(&facts.into_iter().map(difference).collect::<Vec<_>>(), now);
            for _ in 0..5 {
                known.reverts.reverted((nodegate_policy::Field::Label, "a".to_owned()), "w", "p", now);
            }
        }
        let counts = |memory: &Memory| {
            let differ: Vec<usize> = memory.hardware_differs().map(|(_, nodes)| nodes).collect();
            let mut given_up: Vec<String> = memory.given_up().map(|(node, _)| node.to_owned()).collect();
            given_up.sort_unstable();
            (differ, given_up)
        };
        assert_eq!(counts(&memory), (vec![0, 2, 1], vec!["n1".to_owned(), "n2".to_owned()]));
        memory.left(second, Timestamp::UNIX_EPOCH);
        assert_eq!(counts(&memory), (vec![0, 1, 0], vec!["n1".to_owned()]));
        memory.policies_changed(None);
        assert_eq!(counts(&memory).1, Vec::<String>::new());
    }
}
