//! The survey of all nodes.

use std::time::Instant;

use jiff::Timestamp;
use kube::runtime::reflector::Store;

use super::LeaderSession;
use crate::memory::reverts::{GivenUp, quoted};
use crate::node::NodeObject;
use crate::tell::reports;
use crate::tell::status::Findings;
use nodegate_policy::explain::identity;
use nodegate_policy::violations;

impl LeaderSession {
    /// Looks at every node: what it violates, what it lacks, what would be removed from it.
    pub(crate) async fn look_at_fleet(&self, store: &Store<NodeObject>) -> Findings {
        let set = self.reconciler.policies();
        let nodes = store.state();
        let mut findings = Findings::default();
        let mut losing = 0;
        for (count, node) in nodes.iter().enumerate() {
            if let Ok(facts) = node.text().facts() {
                let (_, saved) = self.reconciler.stored_and_saved(node, &facts);
                let evidence = self.reconciler.evidence(node, &facts, &set, &saved).0;
                let verdict = violations(&set, &facts, evidence.as_ref());
                findings.note_violations(&verdict);
                if let Some(identity) = identity(&set, &facts, evidence.as_ref()) {
                    findings.note_pools(identity);
                }
                if self.config.reports {
                    findings.violations.extend(reports::of_node(node, &verdict));
                }
                let keep = self.reconciler.look(node, &facts, &set, &saved, evidence.as_ref());
                losing += usize::from(!keep.removals.is_empty());
                findings.note(node.name(), &keep);
                self.reconciler.note_share(node, &set, keep.share);
            } else {
                self.reconciler.note_share(node, &set, None);
            }
            if count % 64 == 63 {
                tokio::task::yield_now().await;
            }
        }
        let mut memory = self.reconciler.memory();
        memory.asked_all(&set);
        let before = memory.removals.brake().cloned();
        let brake = memory.removals.surveyed(nodes.len(), losing, set.rule_count() > 0, Instant::now()).cloned();
        findings.brake = brake.as_ref().map(ToString::to_string);
        let mut left_alone = 0;
        for (_, GivenUp { key: (field, key), writers, policy }) in memory.given_up() {
            let text = format!("{field} {key} is no longer repaired; last changed by {}", quoted(writers));
            findings.contested.entry(policy.to_owned()).or_default().insert(text);
            left_alone += 1;
        }
        let metrics = &self.reconciler.metrics().fleet;
        metrics.surveyed(findings.survey(brake.as_ref().map_or(0, |_| losing), left_alone));
        drop(memory);
        if let Some(brake) = brake.filter(|brake| before.as_ref() != Some(brake)) {
            tracing::error!(nodes = losing, "{brake}");
        }
        // A node may have become one that waits for too long meanwhile.
        self.reconciler.count_fleet(store, Timestamp::now());
        self.reconciler.news().notify_one();
        self.reconciler.shared().notify_one();
        findings
    }
}
