//! A change becomes a write to the very version of the node that was looked at, and what the API server refuses of it
//! does not keep back the rest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use json_patch::{PatchOperation, ReplaceOperation};
use jsonptr::PointerBuf;
use kube::api::PatchParams;

use super::change::describe;
use super::history::FIELD_MANAGER;
use super::node::NodeObject;
use super::queue::Urgency;
use super::reconcile::{Failure, Reconciler};
use crate::policy::{NodeChange, NodeFacts, fit, patch};

/// For so long annotations that were refused are not tried again on that node.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Nodes that annotations of rules were refused for, by uid.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<String, (Instant, Vec<String>)>);

impl Refusals {
    /// Whether this annotation is not tried for now.
    pub(super) fn holds(&self, uid: &str, key: &str, now: Instant) -> bool {
        let refused = self.0.get(uid);
        refused.is_some_and(|(until, keys)| *until > now && keys.iter().any(|known| known == key))
    }

    fn note(&mut self, uid: &str, keys: Vec<String>, now: Instant) {
        let (until, refused) = self.0.entry(uid.to_owned()).or_insert((now, Vec::new()));
        if *until <= now {
            refused.clear();
        }
        *until = now + REFUSED_FOR;
        refused.extend(keys);
        refused.sort_unstable();
        refused.dedup();
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

impl Reconciler {
    /// Makes a change to the version of the node that was looked at, without what the API server would refuse. Where it
    /// refuses the rest as invalid, the change is made without its annotations: labels and taints never wait for those.
    pub(super) async fn make(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        change: &NodeChange,
        urgency: Urgency,
    ) -> Result<(), Failure> {
        let (fitting, left_out) = fit(facts, change.clone());
        if let Some(first) = left_out.first() {
            let reason = format!("{} {}: {}", first.field, first.key, first.reason);
            self.leave_out(node, left_out.iter().map(|left_out| left_out.key.clone()).collect(), &reason);
        }
        let Some(change) = &fitting else { return Ok(()) };
        let Err(refused) = self.write(node, facts, change, urgency).await else { return Ok(()) };
        let set: Vec<String> =
            change.annotations().iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key.clone()).collect();
        if set.is_empty() || !is_invalid(&refused) {
            return Err(refused);
        }
        if let Some(rest) = change.clone().without_set_annotations() {
            self.write(node, facts, &rest, urgency).await?;
        }
        self.leave_out(node, set, &refused.to_string());
        Ok(())
    }

    /// Does not try these keys for a while, and tells that.
    fn leave_out(&self, node: &NodeObject, keys: Vec<String>, reason: &str) {
        let text = keys.join(", ");
        self.metrics().controller.keeping.annotations_left_out.inc_by(u64::try_from(keys.len()).unwrap_or(u64::MAX));
        self.memory().refusals.note(node.uid(), keys, Instant::now());
        tracing::warn!(node = node.name(), keys = text, reason, "keys that rules give are left out");
        let note =
            format!("left out keys that rules give: {reason}. They are tried again in ten minutes. Keys: {text}");
        self.events().later(node, "AnnotationsLeftOut", note);
    }

    async fn write(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        change: &NodeChange,
        urgency: Urgency,
    ) -> Result<(), Failure> {
        let version = PatchOperation::Replace(ReplaceOperation {
            path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
            value: node.resource_version().into(),
        });
        let mut guarded = patch(facts, change);
        guarded.0.insert(0, version);
        self.turn(urgency).await;
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let made = self.nodes().patch(node.name(), &parameters, guarded).await;
        self.metrics().controller.wrote("node", made.is_ok());
        match made {
            Ok(()) => {
                tracing::info!(node = node.name(), change = %describe(change), "changed");
                self.memory().wrote(node, Instant::now());
                Ok(())
            }
            Err(kube::Error::Api(status)) if is_stale(&status) => Err(Failure::Conflict(node.name().to_owned())),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Failure::Patch { node: node.name().to_owned(), error: Box::new(error) }),
        }
    }

    /// Lifts pending taints and nothing else, from a node that has waited too long.
    pub(super) async fn release(&self, node: &NodeObject) -> Result<(), Failure> {
        let facts = node.facts()?;
        let lifted = self.pending().iter().filter(|id| facts.taint(id.key.as_str(), id.effect).is_some());
        let Some(change) = NodeChange::without_taints(lifted.cloned()) else { return Ok(()) };
        if self.afford(node, 1).is_err() {
            return Ok(());
        }
        self.make(node, &facts, &change, Urgency::Joining).await
    }
}

/// Whether the API server refused the node as it would be.
fn is_invalid(failure: &Failure) -> bool {
    let Failure::Patch { error, .. } = failure else { return false };
    matches!(&**error, kube::Error::Api(status) if status.code == 422)
}

/// Whether a patch was refused because the node is not as it was when it was looked at. A `resourceVersion` that is not the
/// present one is answered by 409; a `test` or `remove` that finds something else comes before that, and is answered by a
/// 422 that names no field.
fn is_stale(status: &kube::core::Status) -> bool {
    let names_fields = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
    status.code == 409 || (status.code == 422 && !names_fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_for_two_reasons_is_held_back_for_both_until_its_time_is_over() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.note("u", vec!["a".to_owned()], now);
        refusals.note("u", vec!["b".to_owned(), "a".to_owned()], now + Duration::from_secs(1));
        assert!(refusals.holds("u", "a", now) && refusals.holds("u", "b", now));
        let later = now + Duration::from_secs(1) + REFUSED_FOR;
        assert!(!refusals.holds("u", "a", later) && !refusals.holds("v", "a", now));
        refusals.note("u", vec!["c".to_owned()], later);
        assert!(!refusals.holds("u", "a", later) && refusals.holds("u", "c", later));
    }
}
