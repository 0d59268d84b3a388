//! Asks all inventories of the policies in force.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use tokio::sync::watch;

use super::cache::{AsSource, InventoryCache};
use super::report::{AllFailing, Report};
use super::source::{Living, Source, Surroundings};
use super::stored;
use nodegate_base::metrics::{InventoryMetrics, Metrics};
use nodegate_policy::{Inventory, PolicySet};

/// How inventories are asked.
#[derive(Clone, Debug, Default)]
pub struct RefresherConfig {
    /// A directory with the credentials of each inventory.
    pub credentials: Option<PathBuf>,
    /// Maximum number of requests per second to one inventory.
    pub requests_per_second: u32,
}

/// While it exists, this replica asks. Its metrics about inventories end with it.
struct Asking<'a> {
    _source: AsSource<'a>,
    metrics: &'a InventoryMetrics,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.metrics.clear_state();
    }
}

/// Asks inventories, and keeps their answers.
pub struct Refresher {
    cache: Arc<InventoryCache>,
    policies: Arc<ArcSwap<PolicySet>>,
    /// Counts the sets of policies that were put in force.
    generation: watch::Receiver<u64>,
    config: RefresherConfig,
    metrics: Arc<Metrics>,
    report: Report,
    joined: watch::Sender<u64>,
}

impl Refresher {
    /// A refresher that has asked nothing.
    pub fn new(
        cache: Arc<InventoryCache>,
        policies: Arc<ArcSwap<PolicySet>>,
        generation: watch::Receiver<u64>,
        config: RefresherConfig,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let (report, joined) = (Report::default(), watch::Sender::default());
        Arc::new(Self { cache, policies, generation, config, metrics, report, joined })
    }

    /// The inventories that do not answer.
    pub fn failing(&self) -> watch::Receiver<AllFailing> {
        self.report.failing()
    }

    /// The answers.
    pub fn cache(&self) -> &Arc<InventoryCache> {
        &self.cache
    }

    /// A node was seen: inventories that have not answered about it yet are asked at once.
    pub fn saw(&self, node: &str) {
        let answers = self.cache.of(node);
        if self
            .policies
            .load()
            .inventories()
            .any(|inventory| !answers.of(&inventory.id).is_some_and(|answer| inventory.is_answered_by(answer)))
        {
            self.joined.send_modify(|count| *count += 1);
        }
    }

    /// Asks all inventories about the nodes that `living` returns, and keeps the answers in ConfigMaps; runs until dropped.
    pub async fn run(&self, client: kube::Client, namespace: &str, living: Living<'_>) {
        let _asking = self.asking();
        stored::read_at_last(&client, namespace, &self.cache).await;
        tokio::select! {
            () = Box::pin(self.ask(living, |_| true)) => {}
            () = Box::pin(stored::keep(client, namespace, &self.cache, living, &self.metrics.inventory)) => {}
        }
    }

    /// Asks the inventories that answer about all nodes at once, without a cluster; runs until dropped.
    pub async fn run_alone(&self) {
        let _asking = self.asking();
        self.ask(&Vec::new, |inventory| inventory.url.is_batch()).await;
    }

    fn asking(&self) -> Asking<'_> {
        Asking { _source: self.cache.as_source(), metrics: &self.metrics.inventory }
    }

    async fn ask(&self, living: Living<'_>, asked: impl Fn(&Inventory) -> bool) {
        let mut generation = self.generation.clone();
        let mut sources: Option<Vec<Source>> = None;
        let spacing = Duration::from_secs(1) / self.config.requests_per_second.max(1);
        let metrics = &self.metrics.inventory;
        loop {
            generation.borrow_and_update();
            let set = self.policies.load_full();
            let is_known = |id: &str| set.inventories().any(|inventory| *inventory.id == *id);
            metrics.clear_state();
            self.report.retain(is_known);
            self.report.repeat(metrics);
            self.cache.retain(is_known);
            let asked_now = self.sources(&set, sources.take(), &asked);
            let sources = sources.insert(asked_now);
            let around = Surroundings { cache: &self.cache, metrics, report: &self.report, living, spacing };
            let work = join_all(sources.iter().map(|source| Box::pin(source.follow(around, self.joined.subscribe()))));
            tokio::select! {
                changed = generation.changed() => if changed.is_err() { return },
                _ = work, if !sources.is_empty() => {}
            }
        }
    }

    /// The inventories of the policies. One that is asked as before keeps its schedule.
    /// If a change of the policies changes what an inventory is asked, the requests for all nodes are due at once.
    fn sources(
        &self,
        set: &PolicySet,
        before: Option<Vec<Source>>,
        asked: &impl Fn(&Inventory) -> bool,
    ) -> Vec<Source> {
        let asks_anew = before.is_some();
        let (mut before, mut sources) = (before.unwrap_or_default(), Vec::new());
        for inventory in set.inventories() {
            if !asked(inventory) {
                let why = "its URL names one node, which needs a cluster; without one, use a URL without {node}";
                self.report.fails(inventory, why.to_owned(), &self.metrics.inventory);
                continue;
            }
            let same = |known: &Source| known.inventory.id == inventory.id && known.inventory.asks_like(inventory);
            let known = before.iter().position(same).map(|at| before.swap_remove(at));
            sources.push(
                known.unwrap_or_else(|| Source::new(inventory.clone(), self.config.credentials.as_deref(), asks_anew)),
            );
        }
        sources
    }
}
