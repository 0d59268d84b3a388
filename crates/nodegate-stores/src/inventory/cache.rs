//! The answers of inventories in memory: many readers, and one writer for each shard.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::touched::Touched;
use nodegate_policy::api::stable_hash::stable_hash;
use nodegate_policy::{InventoryAnswers, InventoryLabels};

/// Number of shards; each is one ConfigMap. With 15,000 nodes, a shard has about 470 of them.
pub(super) const SHARDS: usize = 32;

/// The answers about the nodes of one shard.
pub(super) type Shard = HashMap<Arc<str>, Arc<InventoryAnswers>>;

/// Shards, and names of nodes in them.
type Changed = HashMap<usize, HashSet<Arc<str>>>;

/// The last answers of all inventories, by node. Reading takes no lock.
#[derive(Debug)]
pub struct InventoryCache {
    shards: Vec<ArcSwap<Shard>>,
    /// Shards that may differ from what is stored, and the nodes whose answers changed since they were. Complete after every update,
    /// so a panic elsewhere leaves it usable.
    changed: Mutex<Changed>,
    change_noted: Notify,
    touched: Touched,
    /// Whether this replica asks inventories itself, so that what is stored is not newer than what it has.
    is_source: AtomicBool,
    nothing: Arc<InventoryAnswers>,
}

impl Default for InventoryCache {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| ArcSwap::default()).collect(),
            changed: Mutex::default(),
            change_noted: Notify::new(),
            touched: Touched::default(),
            is_source: AtomicBool::new(false),
            nothing: Arc::default(),
        }
    }
}

/// While it exists, the replica that holds it asks inventories, and ignores what is stored.
pub(super) struct AsSource<'a>(&'a InventoryCache);

impl Drop for AsSource<'_> {
    fn drop(&mut self) {
        self.0.is_source.store(false, Ordering::Relaxed);
    }
}

impl InventoryCache {
    /// The answers of inventories about a node.
    pub fn of(&self, node: &str) -> Arc<InventoryAnswers> {
        self.shards[shard_of(node)].load().get(node).unwrap_or(&self.nothing).clone()
    }

    /// The names of nodes whose answers change.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Makes this replica the one that asks inventories.
    pub(super) fn as_source(&self) -> AsSource<'_> {
        self.is_source.store(true, Ordering::Relaxed);
        AsSource(self)
    }

    /// Replaces the answer of one inventory about one node, or forgets it.
    pub(super) fn put(&self, node: &str, id: &Arc<str>, answer: Option<InventoryLabels>) {
        self.edit(shard_of(node), |shard| {
            edit_node(shard, node, id, answer.clone().map(Arc::new)).into_iter().collect()
        });
    }

    /// Replaces the answers of one inventory about many nodes. Nodes that are neither in `answers` nor in `kept` are
    /// forgotten.
    pub(super) fn put_all(&self, id: &Arc<str>, answers: Vec<(String, InventoryLabels)>, kept: impl Fn(&str) -> bool) {
        let mut by_shard: Vec<HashMap<String, Arc<InventoryLabels>>> = vec![HashMap::new(); SHARDS];
        for (node, labels) in answers {
            by_shard[shard_of(&node)].insert(node, Arc::new(labels));
        }
        for (at, answers) in by_shard.iter().enumerate() {
            self.edit(at, |shard| {
                let known = shard.iter().filter(|(_, known)| known.of(id).is_some()).map(|(node, _)| node.clone());
                let gone: Vec<Arc<str>> = known.filter(|node| !answers.contains_key(&**node) && !kept(node)).collect();
                let mut touched: Vec<Arc<str>> =
                    gone.iter().filter_map(|node| edit_node(shard, node, id, None)).collect();
                let given =
                    answers.iter().filter_map(|(node, labels)| edit_node(shard, node, id, Some(labels.clone())));
                touched.extend(given.collect::<Vec<_>>());
                touched
            });
        }
    }

    /// Forgets the answers of inventories that `known` does not accept.
    pub(super) fn retain(&self, known: impl Fn(&str) -> bool) {
        for at in 0..SHARDS {
            self.edit(at, |shard| {
                let unknown = |answers: &InventoryAnswers| -> Vec<Arc<str>> {
                    answers.iter().map(|(id, _)| id.clone()).filter(|id| !known(id)).collect()
                };
                let found: Vec<(Arc<str>, Vec<Arc<str>>)> = shard
                    .iter()
                    .map(|(node, answers)| (node.clone(), unknown(answers)))
                    .filter(|(_, unknown)| !unknown.is_empty())
                    .collect();
                for (node, ids) in &found {
                    ids.iter().for_each(|id| drop(edit_node(shard, node, id, None)));
                }
                found.into_iter().map(|(node, _)| node).collect()
            });
        }
    }

    /// The number of nodes about which an inventory has answered.
    pub(super) fn count(&self, id: &str) -> usize {
        let of = |shard: &ArcSwap<Shard>| shard.load().values().filter(|answers| answers.of(id).is_some()).count();
        self.shards.iter().map(of).sum()
    }

    /// The nodes about which an inventory has answered.
    pub(super) fn nodes_of(&self, id: &str) -> Vec<Arc<str>> {
        let shards = self.shards.iter().map(ArcSwap::load_full);
        let of = |shard: Arc<Shard>| -> Vec<Arc<str>> {
            let known = shard.iter().filter(|(_, answers)| answers.of(id).is_some());
            known.map(|(node, _)| node.clone()).collect()
        };
        shards.flat_map(of).collect()
    }

    /// Takes over what is stored, unless this replica asks inventories itself.
    pub(super) fn take_stored(&self, at: usize, stored: Shard) {
        if self.is_source.load(Ordering::Relaxed) {
            self.mark(at);
        } else {
            self.replace(at, stored);
        }
    }

    /// Notes that what is stored cannot be read. Who asks inventories itself stores it again.
    pub(super) fn refuse_stored(&self, at: usize) {
        if self.is_source.load(Ordering::Relaxed) {
            self.mark(at);
        }
    }

    /// Takes over what is stored.
    pub(super) fn replace(&self, at: usize, stored: Shard) {
        let before = self.shards[at].swap(Arc::new(stored));
        let now = self.shards[at].load();
        let differs = |node: &Arc<str>| before.get(node) != now.get(node);
        let changed: HashSet<&Arc<str>> = before.keys().chain(now.keys()).filter(|node| differs(node)).collect();
        self.tell(changed.into_iter().cloned());
    }

    /// The content of a shard.
    pub(super) fn shard(&self, at: usize) -> Arc<Shard> {
        self.shards[at].load_full()
    }

    /// Waits until a shard may differ from what is stored, and returns all of them, with the nodes to [`Self::tell`] of.
    pub(super) async fn changed(&self) -> Changed {
        loop {
            let change_noted = self.change_noted.notified();
            let changed = std::mem::take(&mut *self.changed.lock());
            if !changed.is_empty() {
                return changed;
            }
            change_noted.await;
        }
    }

    /// Records that a shard may differ from what is stored.
    pub(super) fn mark(&self, at: usize) {
        self.changed.lock().entry(at).or_default();
        self.change_noted.notify_one();
    }

    fn edit(&self, at: usize, change: impl Fn(&mut Shard) -> Vec<Arc<str>>) {
        let before = self.shards[at].load_full();
        let mut shard = Shard::clone(&before);
        let touched = change(&mut shard);
        if touched.is_empty() {
            return;
        }
        self.shards[at].store(Arc::new(shard));
        self.changed.lock().entry(at).or_default().extend(touched);
        self.change_noted.notify_one();
    }

    /// Tells that the answers about these nodes changed. An answer is stored first, or another replica could undo what follows
    /// from it.
    pub(super) fn tell(&self, nodes: impl IntoIterator<Item = Arc<str>>) {
        self.touched.tell(nodes);
    }
}

/// Replaces the answer of one inventory about one node. Returns the node if that changes something.
fn edit_node(shard: &mut Shard, node: &str, id: &Arc<str>, answer: Option<Arc<InventoryLabels>>) -> Option<Arc<str>> {
    let before = shard.get(node);
    let known = before.and_then(|answers| answers.of(id));
    if known == answer.as_deref() {
        return None;
    }
    let now = before.map(|answers| (**answers).clone()).unwrap_or_default().with(id, answer);
    let name: Arc<str> = shard.get_key_value(node).map_or_else(|| node.into(), |(name, _)| name.clone());
    if now.is_empty() {
        shard.remove(node);
    } else {
        shard.insert(name.clone(), Arc::new(now));
    }
    Some(name)
}

/// The shard of a node: the same in every version and process, because names of ConfigMaps depend on it.
fn shard_of(node: &str) -> usize {
    usize::try_from(stable_hash(node.bytes()) % SHARDS as u64).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn labels(value: &str) -> InventoryLabels {
        InventoryLabels::checked(BTreeMap::from([("rack".to_owned(), value.to_owned())])).0
    }

    #[test]
    fn only_what_changes_is_marked_and_told() {
        let (cache, id) = (InventoryCache::default(), Arc::from("p/cmdb"));
        let (at, node) = (shard_of("n1"), Arc::<str>::from("n1"));
        let changed = Changed::from([(at, HashSet::from([node]))]);
        cache.put("n1", &id, Some(labels("a")));
        assert_eq!(std::mem::take(&mut *cache.changed.lock()), changed);
        cache.put("n1", &id, Some(labels("a")));
        assert!(cache.changed.lock().is_empty());
        assert_eq!(cache.of("n1").of("p/cmdb"), Some(&labels("a")));
        assert!(cache.of("n2").is_empty());
        cache.retain(|id| id != "p/cmdb");
        assert!(cache.of("n1").is_empty());
        assert_eq!(*cache.changed.lock(), changed);
    }

    #[test]
    fn a_batch_replaces_what_it_lists_and_keeps_living_nodes() {
        let (cache, id) = (InventoryCache::default(), Arc::from("p/cmdb"));
        let all = ["living", "gone", "listed"].map(|node| (node.to_owned(), labels("a")));
        cache.put_all(&id, all.to_vec(), |_| false);
        assert_eq!(cache.count("p/cmdb"), 3);
        cache.put_all(&id, vec![("listed".to_owned(), labels("b"))], |node| node == "living");
        let value = |node: &str| cache.of(node).of("p/cmdb").map(|labels| labels.iter().next().unwrap().1.to_owned());
        assert_eq!(["living", "gone", "listed"].map(value), [Some("a".to_owned()), None, Some("b".to_owned())]);
    }

    #[test]
    fn who_asks_inventories_ignores_what_is_stored() {
        let (cache, id) = (InventoryCache::default(), Arc::<str>::from("p/cmdb"));
        let at = shard_of("n1");
        let stored = Shard::from([(
            "n1".into(),
            Arc::new(InventoryAnswers::default().with(&id, Some(Arc::new(labels("old"))))),
        )]);
        let source = cache.as_source();
        cache.put("n1", &id, Some(labels("new")));
        cache.take_stored(at, stored.clone());
        assert_eq!(cache.of("n1").of("p/cmdb"), Some(&labels("new")));
        cache.replace(at, stored.clone());
        assert_eq!(cache.of("n1").of("p/cmdb"), Some(&labels("old")), "what is read before it asks counts");
        cache.put("n1", &id, Some(labels("new")));
        drop(source);
        cache.refuse_stored(at);
        assert_eq!(cache.of("n1").of("p/cmdb"), Some(&labels("new")));
        cache.take_stored(at, stored);
        assert_eq!(cache.of("n1").of("p/cmdb"), Some(&labels("old")));
    }
}
