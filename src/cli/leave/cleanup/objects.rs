//! Deletes saved state and nodegate's other objects.

use anyhow::Context as _;

use crate::cli::leave::cleanup::{Cleaner, Fleet, MANAGER};
use nodegate_base::kube_error::in_words;
use nodegate_controller::Urgency;
use nodegate_controller::kept_objects::KeptObject;
use nodegate_policy::cleanup::{CleanupResult, KeptBecause, ObjectCleanup};
use nodegate_stores::state::{Deletion, StoredMap};

/// How often the deletion of a record is tried that others write at the same time.
const ATTEMPTS: usize = 5;

impl Cleaner<'_> {
    /// Deletes these objects, in this order.
    ///
    /// # Errors
    /// Returns an error if the API server cannot be reached. A refusal is in the result of its object.
    pub(super) async fn own_objects(&self, objects: &[KeptObject]) -> anyhow::Result<Vec<ObjectCleanup>> {
        let mut done = Vec::new();
        for object in objects {
            let mut line = ObjectCleanup {
                kind: object.kind.clone(),
                name: object.name.clone(),
                namespace: object.namespace.clone(),
                result: CleanupResult::WouldRemove,
                why: None,
                error: None,
            };
            if self.args.confirm {
                self.budget.turn(Urgency::Routine).await;
                conclude(&mut line, object.delete().await)?;
            }
            done.push(line);
        }
        Ok(done)
    }

    /// Deletes saved state, after the nodes.
    ///
    /// # Errors
    /// Returns an error if the API server cannot be reached. A refusal is in the result of its object.
    pub(super) async fn records(&self, stored: &[StoredMap], fleet: &Fleet) -> anyhow::Result<Vec<ObjectCleanup>> {
        let meant: Vec<&StoredMap> = stored.iter().filter(|map| self.is_meant(map, fleet)).collect();
        self.bar.inc_length(meant.len() as u64);
        let mut done = Vec::new();
        for map in meant {
            let why = stays_because(map, fleet);
            let mut line = ObjectCleanup {
                kind: "ConfigMap".to_owned(),
                name: map.name.clone(),
                namespace: Some(self.place.namespace.clone()),
                result: if why.is_some() { CleanupResult::Kept } else { CleanupResult::WouldRemove },
                why,
                error: None,
            };
            if self.args.confirm && why.is_none() {
                self.budget.turn(Urgency::Routine).await;
                conclude(&mut line, self.delete_record(map, fleet).await)?;
            }
            self.bar.inc(1);
            done.push(line);
        }
        Ok(done)
    }

    /// Deletes a record. A leader that runs may write the record of a node that is gone at the same time; then it is read
    /// again, and deleted if there still is no such node.
    async fn delete_record(&self, map: &StoredMap, fleet: &Fleet) -> Result<Deletion, kube::Error> {
        let mut outcome = self.maps.delete(map, MANAGER).await?;
        for _ in 1..ATTEMPTS {
            if outcome == Deletion::Done {
                break;
            }
            // Read before the nodes, as the first time.
            let Some(now) = self.maps.stored_as(&map.name).await? else { return Ok(Deletion::Done) };
            let is_the_same =
                now.nodes == map.nodes && self.is_meant(&now, fleet) && stays_because(&now, fleet).is_none();
            if !is_the_same || self.may_exist(&now.nodes).await {
                break;
            }
            outcome = self.maps.delete(&now, MANAGER).await?;
        }
        Ok(outcome)
    }

    /// Whether the cluster has one of these nodes by now, or cannot be asked.
    async fn may_exist(&self, nodes: &[String]) -> bool {
        for node in nodes {
            if !matches!(self.nodes.get(node).await, Ok(None)) {
                return true;
            }
        }
        false
    }

    fn is_meant(&self, map: &StoredMap, fleet: &Fleet) -> bool {
        let args = self.args;
        if !args.is_narrowed() {
            return true;
        }
        let of_named = args.node.is_empty() || map.nodes.iter().all(|node| args.node.contains(node));
        if map.nodes.is_empty() || !of_named || !args.policy.is_empty() {
            return false;
        }
        if args.decommissioned {
            let exists = map.nodes.iter().any(|node| fleet.names.contains(node));
            return !exists && !map.is_of(|identity| fleet.identities.contains(identity));
        }
        // A leader would write the record of a living node again.
        !self.is_running || !map.nodes.iter().any(|node| fleet.names.contains(node))
    }
}

/// Why a record stays: without it, nothing tells what nodegate owns on its node.
fn stays_because(map: &StoredMap, fleet: &Fleet) -> Option<KeptBecause> {
    let is_unmatched = || {
        let exists = map.nodes.iter().any(|node| fleet.names.contains(node));
        exists && !map.is_of(|identity| fleet.identities.contains(identity))
    };
    if map.is_unreadable {
        Some(KeptBecause::Unreadable)
    } else if map.nodes.iter().any(|node| fleet.failed.contains(node)) {
        Some(KeptBecause::NodeFailed)
    } else {
        is_unmatched().then_some(KeptBecause::OtherMachine)
    }
}

/// Notes the result of a deletion.
fn conclude(line: &mut ObjectCleanup, outcome: Result<Deletion, kube::Error>) -> anyhow::Result<()> {
    line.error = match outcome {
        Ok(Deletion::Done) => None,
        Ok(Deletion::Changed) => Some("it was changed at the same time; run the command again".to_owned()),
        Err(error @ kube::Error::Api(_)) => Some(in_words(&error)),
        Err(error) => {
            let what = format!("could not delete {} {}; run the command again to continue", line.kind, line.name);
            return Err(error).context(what);
        }
    };
    line.result = if line.error.is_some() { CleanupResult::Failed } else { CleanupResult::Removed };
    Ok(())
}
