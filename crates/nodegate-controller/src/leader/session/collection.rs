//! Saved state of deleted nodes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::reflector::Store;

use super::LeaderSession;
use crate::memory::history::deletion;
use crate::node::queue::Urgency;
use crate::node::{NodeObject, machine};
use nodegate_base::api_server;
use nodegate_policy::api::state::SavedState;
use nodegate_stores::state::{Identity, WriteError};

/// How often saved state of deleted nodes is collected.
const COLLECT: Duration = Duration::from_secs(60);
/// How long state without labels and taints is kept after its node was deleted. Only its history is of use.
const EMPTY_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How many such states are kept. Each takes about 3 KiB in every replica, and a fleet with an autoscaler makes hundreds a day.
const EMPTY_MAX: usize = 1000;

impl LeaderSession {
    /// Saved state of deleted nodes: records when they were deleted, and deletes the state after the retention.
    pub(crate) async fn collect(&self, store: Store<NodeObject>) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        loop {
            tokio::time::sleep(COLLECT.min(self.config.resync)).await;
            let retention = self.reconciler.policies().retention();
            let states = self.reconciler.maps().states();
            let living: HashSet<String> = store
                .state()
                .iter()
                .filter_map(|node| {
                    let text = node.text();
                    let facts = text.facts().ok()?;
                    states.get(machine(&facts)).map(|state| Identity::key(&state))
                })
                .collect();
            // Nothing is deleted by a clock that only this replica vouches for.
            let Some(now) = api_server::time_at_most(Timestamp::now()) else { continue };
            let gone = |state: &SavedState| {
                !living.contains(&Identity::key(state)) && !self.watch_health.is_unreadable(&state.node_name)
            };
            let gone: Vec<Arc<SavedState>> = states.all().into_iter().filter(|state| gone(state)).collect();
            let surplus = surplus(&gone);
            for state in &gone {
                let retention = if surplus.contains(&Identity::key(state)) { Some(Duration::ZERO) } else { retention };
                match self.end_of(state, now, retention).await {
                    Ok(()) => {}
                    // Usually because its deletion was recorded meanwhile.
                    Err(WriteError::Changed(_)) => {
                        tracing::debug!(node = state.node_name, "its saved state changed concurrently");
                    }
                    Err(error) => tracing::warn!(%error, "could not update the saved state of a deleted node"),
                }
            }
        }
    }

    /// Records the deletion of nodes as soon as the watch reports it.
    pub(crate) async fn record_departures(&self) {
        loop {
            let told = self.reconciler.departed().notified();
            self.reconciler.record_departures().await;
            told.await;
        }
    }

    async fn end_of(&self, state: &SavedState, now: Timestamp, retention: Option<Duration>) -> Result<(), WriteError> {
        let Some(deleted) = state.deleted_at.as_deref().and_then(|at| at.parse::<Timestamp>().ok()) else {
            self.reconciler.turn(Urgency::Routine).await;
            let at = api_server::time_at_least(Timestamp::now());
            let ended = SavedState { deleted_at: Some(at.to_string()), ..state.clone() };
            return self.reconciler.writer().write(state, &ended, &[deletion(at)]).await.map(drop);
        };
        if is_over(state, deleted, now, retention) {
            self.reconciler.turn(Urgency::Routine).await;
            tracing::info!(
                node = state.node_name,
                "deleted saved state, because its node was deleted longer ago than the retention, or many others have been since"
            );
            self.reconciler.writer().delete(state).await?;
        }
        Ok(())
    }
}

/// Whether the time is over for which the state of a node is kept that was `deleted`. Without a `retention`, state with labels or
/// taints is kept for ever.
fn is_over(state: &SavedState, deleted: Timestamp, now: Timestamp, retention: Option<Duration>) -> bool {
    let kept = if keeps_nothing(state) {
        Some(retention.map_or(EMPTY_RETENTION, |retention| retention.min(EMPTY_RETENTION)))
    } else {
        retention
    };
    let gone_for = u64::try_from(now.as_second() - deleted.as_second()).unwrap_or_default();
    kept.is_some_and(|kept| gone_for >= kept.as_secs())
}

fn keeps_nothing(state: &SavedState) -> bool {
    state.labels.is_empty() && state.taints.is_empty()
}

/// Of the states of deleted nodes that keep nothing, the keys of those beyond the limit: the nodes that were deleted first.
fn surplus(gone: &[Arc<SavedState>]) -> HashSet<String> {
    let mut empty: Vec<_> = gone.iter().filter(|state| keeps_nothing(state) && state.deleted_at.is_some()).collect();
    // Times are in RFC 3339 and UTC, so their order is that of the text, to the second.
    empty.sort_unstable_by(|a, b| b.deleted_at.cmp(&a.deleted_at));
    empty.into_iter().skip(EMPTY_MAX).map(|state| Identity::key(state)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_that_keeps_nothing_goes_after_a_week_and_other_state_after_the_retention() {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        let with = |labels: &[(&str, &str)]| SavedState {
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..SavedState::default()
        };
        let (empty, full) = (with(&[]), with(&[("team", "ml")]));
        let deleted = Timestamp::UNIX_EPOCH;
        for (state, retention, gone_for, expected) in [
            (&empty, None, 6, false),
            (&empty, None, 8, true),
            (&empty, Some(days(90)), 6, false),
            (&empty, Some(days(90)), 8, true),
            (&empty, Some(days(2)), 3, true),
            (&full, None, 8, false),
            (&full, Some(days(90)), 89, false),
            (&full, Some(days(90)), 90, true),
        ] {
            let now = deleted + days(gone_for);
            assert_eq!(is_over(state, deleted, now, retention), expected, "{state:?} {retention:?} {gone_for}");
        }
        assert!(!is_over(&empty, deleted + days(9), deleted, Some(days(1))), "the clock was set back");
    }

    #[test]
    fn of_states_that_keep_nothing_the_oldest_beyond_the_limit_go() {
        let state = |n: usize, labels: &[(&str, &str)]| SavedState {
            node_name: format!("n{n}"),
            deleted_at: Some(format!("2026-01-01T{:02}:{:02}:{:02}Z", n / 3600, n / 60 % 60, n % 60)),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..SavedState::default()
        };
        let mut gone: Vec<_> = (0..EMPTY_MAX + 2).map(|n| Arc::new(state(n, &[]))).collect();
        gone.insert(1, Arc::new(state(0, &[("team", "ml")])));
        gone.push(Arc::new(SavedState { deleted_at: None, ..state(0, &[]) }));
        let oldest = [&gone[0], &gone[2]].map(|state| Identity::key(state));
        assert_eq!(surplus(&gone), HashSet::from(oldest));
        assert!(surplus(&gone[..EMPTY_MAX]).is_empty());
    }
}
