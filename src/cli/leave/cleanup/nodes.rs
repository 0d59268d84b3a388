//! Cleans up nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;

use crate::cli::leave::cleanup::{Cleaner, Fleet, MANAGER};
use nodegate_base::kube_error::in_words;
use nodegate_controller::{Made, NodeObject, Read, Unreadable, Urgency, machine, not_taken, write_change};
use nodegate_policy::cleanup::{
    CleanupPlan, CleanupResult, Extent, KeptBecause, KeyCleanup, NodeCleanup, plan_cleanup, record_without,
};
use nodegate_policy::{Evidence, NodeChange, NodeFacts, StoredNode};
use nodegate_stores::state::StoredMap;

/// Number of nodes that are processed concurrently.
const CONCURRENCY: usize = 16;
/// Number of attempts for a node that changes concurrently.
const TRIES: u32 = 5;

/// A node after it was cleaned up.
struct Cleaned {
    node: NodeCleanup,
    /// The identity of its record.
    identity: Option<String>,
}

/// The pause before the first further attempt for a node on which something was set again; it doubles each time. The API
/// server goes on calling webhooks and applying policies for a moment after they were deleted.
const SET_AGAIN: Duration = Duration::from_millis(250);

/// One attempt.
enum Attempt {
    Done(NodeCleanup),
    /// Something was set again after it had been removed.
    SetAgain(NodeCleanup),
    /// The node has changed since it was read.
    Stale,
    /// The node does not exist anymore.
    Gone,
}

impl Cleaner<'_> {
    /// Cleans up the nodes that are meant.
    ///
    /// # Errors
    /// Returns an error if the API server cannot be reached. An error of one node is in its result.
    pub(super) async fn fleet(&self, stored: &[StoredMap]) -> anyhow::Result<Fleet> {
        let named = &self.args.node;
        let mut fleet = Fleet::default();
        if named.is_empty() || self.args.decommissioned {
            self.pages(&mut fleet).await?;
            self.known(named, &fleet, stored)?;
        } else {
            let mut nodes = Vec::new();
            for name in named {
                nodes.extend(self.nodes.get(name).await.context("could not read the node")?);
            }
            fleet.names.extend(nodes.iter().map(name_of));
            self.known(named, &fleet, stored)?;
            self.bar.set_length(nodes.len() as u64);
            self.each(nodes, &mut fleet).await?;
        }
        fleet.nodes.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(fleet)
    }

    async fn pages(&self, fleet: &mut Fleet) -> anyhow::Result<()> {
        let named = &self.args.node;
        let mut next = None;
        loop {
            let mut nodes = Vec::new();
            let read = self.nodes.page(next.as_deref(), |node| nodes.push(node)).await;
            let page = read.with_context(|| interrupted(fleet, "could not list nodes"))?;
            self.bar.set_length((fleet.names.len() + nodes.len() + page.remaining) as u64);
            fleet.names.extend(nodes.iter().map(name_of));
            fleet.identities.extend(nodes.iter().filter_map(|node| self.identity(node.as_ref().ok()?)));
            nodes.retain(|node| named.is_empty() || named.contains(&name_of(node)));
            self.each(nodes, fleet).await?;
            next = page.next;
            if next.is_none() {
                return Ok(());
            }
        }
    }

    /// Checks the names of nodes.
    ///
    /// # Errors
    /// Returns an error if a node that was named does not exist, and has no saved state either.
    fn known(&self, named: &[String], fleet: &Fleet, stored: &[StoredMap]) -> anyhow::Result<()> {
        let has_record = |name: &String| stored.iter().any(|map| map.nodes.contains(name));
        match named.iter().find(|name| !fleet.names.contains(*name) && !has_record(name)) {
            Some(name) => bail!(
                "no node {name} in the cluster, and no saved state of it in namespace {}; `kubectl get nodes` lists the nodes",
                self.place.namespace
            ),
            None => Ok(()),
        }
    }

    fn identity(&self, node: &NodeObject) -> Option<String> {
        self.maps.identity_of(machine(&node.text().facts().ok()?))
    }

    async fn each(&self, nodes: Vec<Read>, fleet: &mut Fleet) -> anyhow::Result<()> {
        let work = futures_util::stream::iter(nodes).map(|node| self.one(node));
        let mut done = work.buffer_unordered(CONCURRENCY);
        while let Some(cleaned) = done.next().await {
            let Cleaned { node, identity } = cleaned.with_context(|| interrupted(fleet, "stopped"))?;
            self.bar.inc(1);
            fleet.identities.extend(identity);
            let failed = node.keys.iter().any(|key| key.result == CleanupResult::Failed) || node.error.is_some();
            fleet.failed.extend(failed.then(|| node.node.clone()));
            fleet.nodes.push(node);
        }
        Ok(())
    }

    async fn one(&self, node: Read) -> anyhow::Result<Cleaned> {
        let unreadable = |node: Unreadable| {
            let error = Some(node.to_string());
            Cleaned { node: NodeCleanup { node: node.name, error, ..NodeCleanup::default() }, identity: None }
        };
        let mut node = match node {
            Ok(node) => node,
            Err(node) => return Ok(unreadable(node)),
        };
        let identity = self.identity(&node);
        let name = node.name().to_owned();
        let cleaned = |node: NodeCleanup| Ok(Cleaned { node, identity: identity.clone() });
        let mut removed = Vec::new();
        let mut last = None;
        for attempt in 0..TRIES {
            match self.attempt(&node).await? {
                Attempt::Done(done) => return cleaned(with(done, removed)),
                Attempt::SetAgain(again) => {
                    let (done, failed) = again.keys.into_iter().partition(|key| key.result == CleanupResult::Removed);
                    removed.extend::<Vec<_>>(done);
                    last = Some(NodeCleanup { keys: failed, ..again });
                    tokio::time::sleep(SET_AGAIN * 2_u32.pow(attempt)).await;
                }
                Attempt::Gone => return cleaned(NodeCleanup { node: name, ..NodeCleanup::default() }),
                Attempt::Stale => {}
            }
            match self.nodes.get(&name).await? {
                Some(Ok(fresh)) => node = fresh,
                Some(Err(node)) => return Ok(unreadable(node)),
                None => return cleaned(NodeCleanup { node: name, ..NodeCleanup::default() }),
            }
        }
        let stale = || {
            let error = Some("the node kept changing concurrently".to_owned());
            NodeCleanup { node: name, error, ..NodeCleanup::default() }
        };
        cleaned(with(last.unwrap_or_else(stale), removed))
    }

    async fn attempt(&self, node: &NodeObject) -> anyhow::Result<Attempt> {
        let name = node.name().to_owned();
        let text = node.text();
        let facts = match text.facts() {
            Ok(facts) => facts,
            Err(error) => {
                let error = Some(error.to_string());
                return Ok(Attempt::Done(NodeCleanup { node: name, error, ..NodeCleanup::default() }));
            }
        };
        let saved = self.maps.states().get(machine(&facts)).unwrap_or_default();
        let evidence = Evidence::of_stored(&facts, &saved, false);
        let scope = self.scope();
        let known = |name: &str| self.inventory.of(name);
        let answers = match scope.running {
            Some(set) => set.answers_about(&facts, evidence.as_ref(), known),
            None => known(node.name()),
        };
        let stored = StoredNode {
            pools: None,
            node: &facts,
            version: None,
            claims: text.claims(),
            saved: &saved,
            inventory: Some(&answers),
            devices: None,
            registered: true,
            identified: true,
            pending: &self.pending,
            adopt: false,
            patched_taints: &BTreeSet::new(),
            elsewhere: self.maps.states().publishers(),
            evidence: evidence.as_ref(),
        };
        let CleanupPlan { mut keys, change } = plan_cleanup(&scope, &stored);
        let Some(change) = change.filter(|_| self.args.confirm) else {
            return Ok(Attempt::Done(NodeCleanup { node: name, keys, error: None }));
        };
        self.budget.turn(Urgency::Routine).await;
        let error = match write_change(&self.nodes, node, &facts, &change, MANAGER).await {
            Ok(Made::Stale) => return Ok(Attempt::Stale),
            Ok(Made::Gone) => return Ok(Attempt::Gone),
            Ok(Made::Written) => {
                if self.read_back(&name, &change, &mut keys).await? {
                    return Ok(Attempt::SetAgain(NodeCleanup { node: name, keys, error: None }));
                }
                self.record(&saved, &change).await
            }
            Err(error @ kube::Error::Api(_)) => {
                meant(&mut keys).for_each(|key| key.result = CleanupResult::Failed);
                Some(in_words(&error))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Attempt::Done(NodeCleanup { node: name, keys, error }))
    }

    /// Compares the stored node with what was written. Returns whether something was set again.
    async fn read_back(&self, node: &str, change: &NodeChange, keys: &mut [KeyCleanup]) -> anyhow::Result<bool> {
        let there = match self.nodes.get(node).await? {
            Some(Ok(stored)) => {
                stored.text().facts().map_or_else(|_| Vec::new(), |facts: NodeFacts<'_>| not_taken(&facts, change))
            }
            Some(Err(_)) | None => Vec::new(),
        };
        for key in meant(keys) {
            let id = key.effect.as_ref().map_or_else(|| key.key.clone(), |effect| format!("{}:{effect}", key.key));
            let set_again = there.iter().any(|one| one.field == key.field.as_str() && one.key == id);
            key.result = if set_again { CleanupResult::Failed } else { CleanupResult::Removed };
            key.why = set_again.then_some(KeptBecause::SetAgain);
        }
        Ok(!there.is_empty())
    }

    /// Records what nodegate does not own anymore. A leader does this itself, and with the whole record to be deleted it is
    /// not needed. Returns the error of a write that was refused.
    async fn record(&self, saved: &nodegate_policy::api::state::SavedState, change: &NodeChange) -> Option<String> {
        if self.is_running || matches!(self.scope().extent, Extent::Everything) {
            return None;
        }
        self.budget.turn(Urgency::Routine).await;
        let written = self.writer.write(saved, &record_without(saved, change), &[]).await;
        written.err().map(|error| format!("could not write saved state: {error}"))
    }
}

/// The result of the last attempt, with what earlier ones removed for good.
fn with(mut last: NodeCleanup, removed: Vec<KeyCleanup>) -> NodeCleanup {
    let id = |key: &KeyCleanup| (key.field, key.key.clone(), key.effect.clone());
    let there: BTreeSet<_> = last.keys.iter().map(id).collect();
    last.keys.extend(removed.into_iter().filter(|key| !there.contains(&id(key))));
    last.keys.sort();
    last
}

/// The keys that were to be removed.
fn meant(keys: &mut [KeyCleanup]) -> impl Iterator<Item = &mut KeyCleanup> {
    keys.iter_mut().filter(|key| key.result == CleanupResult::WouldRemove)
}

fn name_of(node: &Read) -> String {
    node.as_ref().map_or_else(|unreadable| unreadable.name.clone(), |node| node.name().to_owned())
}

/// The context of an error in the middle of the work.
fn interrupted(fleet: &Fleet, what: &str) -> String {
    match fleet.nodes.len() {
        0 => what.to_owned(),
        count => format!("{what} after {count} nodes; run the command again to continue"),
    }
}
