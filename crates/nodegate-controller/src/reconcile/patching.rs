//! Writes a change to the exact version of the node that was read. If the API server refuses a part of the change,
//! the rest is still written.

use std::time::{Duration, Instant};

use json_patch::{Patch, PatchOperation, ReplaceOperation};
use jsonptr::PointerBuf;
use kube::api::PatchParams;

use crate::node::queue::Urgency;
use crate::node::{NodeApi, NodeObject};
use crate::reconcile::Reconciler;
use crate::reconcile::change::describe;
use crate::reconcile::outcome::Failure;
use nodegate_base::traces::Step;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::{NodeChange, NodeFacts, ReconcilePlan, fit, patch};

impl Reconciler {
    /// Writes a change to the version of the node that was read, without the parts that the API server would refuse.
    /// If it refuses the rest as invalid, writes the change without its annotations: labels and taints never wait for
    /// annotations. The log names the rules of `plan`. Returns whether the node is still there.
    pub(crate) async fn make(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        change: &NodeChange,
        plan: Option<&ReconcilePlan>,
        urgency: Urgency,
    ) -> Result<Presence, Failure> {
        let (fitting, left_out) = fit(facts, change.clone());
        if let Some(first) = left_out.first() {
            let reason = format!("{} {}: {}", first.field, first.key, first.reason);
            self.leave_out(node, left_out.iter().map(|left_out| left_out.key.clone()).collect(), &reason);
        }
        let Some(change) = &fitting else { return Ok(Presence::There) };
        let refused = match self.write(node, facts, change, plan, urgency).await {
            Ok(presence) => return Ok(presence),
            Err(refused) => refused,
        };
        let set: Vec<String> =
            change.annotations().iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key.clone()).collect();
        if set.is_empty() || !is_invalid(&refused) {
            return Err(refused);
        }
        let presence = match change.clone().without_set_annotations() {
            Some(rest) => self.write(node, facts, &rest, plan, urgency).await?,
            None => Presence::There,
        };
        self.leave_out(node, set, &refused.to_string());
        Ok(presence)
    }

    /// Stops setting these keys for a while, and reports it.
    fn leave_out(&self, node: &NodeObject, keys: Vec<String>, reason: &str) {
        let text = keys.join(", ");
        self.metrics().controller.keeping.annotations_left_out.inc_by(u64::try_from(keys.len()).unwrap_or(u64::MAX));
        self.with_memory(node, |known| known.refusals.note(keys, Instant::now()));
        tracing::warn!(node = node.name(), keys = text, reason, "not setting keys that rules want to set");
        let note = format!(
            "could not set keys that rules want to set: {reason}. nodegate retries in ten minutes. Keys: {text}"
        );
        self.events().later(node, "AnnotationsLeftOut", note);
    }

    async fn write(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        change: &NodeChange,
        plan: Option<&ReconcilePlan>,
        urgency: Urgency,
    ) -> Result<Presence, Failure> {
        self.turn(urgency).await;
        let writing = write_change(self.nodes(), node, facts, change, FIELD_MANAGER);
        let made = self.traces().step(Step::WriteNode, writing).await;
        self.metrics().controller.wrote("node", made.is_ok());
        match made {
            Ok(Made::Written) => {
                tracing::info!(node = node.name(), change = %describe(change, plan), "changed");
                self.with_memory(node, |known| known.wrote(node, Instant::now()));
                Ok(Presence::There)
            }
            Ok(Made::Stale) => Err(Failure::Conflict(node.name().to_owned())),
            Ok(Made::Gone) => Ok(Presence::Gone),
            Err(error) => Err(Failure::Patch { node: node.name().to_owned(), error: Box::new(error) }),
        }
    }

    /// Removes only the pending taints from a node that has been pending for too long. Returns how long to wait for the node's
    /// write budget, if that does not permit it now.
    pub(crate) async fn release(&self, node: &NodeObject) -> Result<Option<Duration>, Failure> {
        let text = node.text();
        let facts = text.facts()?;
        let Some(change) = NodeChange::without_taints(self.pending().on(&facts).cloned()) else { return Ok(None) };
        if let Err(wait) = self.afford(node, 1) {
            return Ok(Some(wait));
        }
        self.make(node, &facts, &change, None, Urgency::Joining).await.map(|_| None)
    }
}

/// Whether a node is still there after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    There,
    /// It was deleted before the change.
    Gone,
}

/// The result of writing a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The API server accepted it.
    Written,
    /// The node has changed since it was read, so nothing was written.
    Stale,
    /// The node does not exist anymore.
    Gone,
}

/// Writes a change to the version of the node that was read, or not at all.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn write_change(
    nodes: &NodeApi,
    node: &NodeObject,
    facts: &NodeFacts<'_>,
    change: &NodeChange,
    manager: &str,
) -> Result<Made, kube::Error> {
    let patch = patch(facts, change).and_then(|patch| patch.parse()).map_err(kube::Error::SerdeError)?;
    let guarded = of_version(node.resource_version(), patch);
    let parameters = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    match nodes.patch(node.name(), &parameters, guarded).await {
        Ok(()) => Ok(Made::Written),
        Err(kube::Error::Api(status)) if is_stale(&status) => Ok(Made::Stale),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Made::Gone),
        Err(error) => Err(error),
    }
}

/// The patch for this version of a node only: the API server refuses it with 409 if the node has changed since.
fn of_version(version: &str, mut patch: Patch) -> Patch {
    let version = PatchOperation::Replace(ReplaceOperation {
        path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
        value: version.into(),
    });
    patch.0.insert(0, version);
    patch
}

/// Whether the API server refused the resulting node as invalid.
fn is_invalid(failure: &Failure) -> bool {
    let Failure::Patch { error, .. } = failure else { return false };
    matches!(&**error, kube::Error::Api(status) if status.code == 422)
}

/// Whether a patch was refused because the node has changed since it was read. If `resourceVersion` differs, the API
/// server answers 409. If a `test` or `remove` operation fails first, it answers 422 without a field.
fn is_stale(status: &kube::core::Status) -> bool {
    let names_fields = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
    status.code == 409 || (status.code == 422 && !names_fields)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_for_the_version_of_the_node_that_was_read() {
        let change =
            serde_json::from_value(json!([{"op": "add", "path": "/metadata/labels/a", "value": "b"}])).unwrap();
        let expected = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/metadata/labels/a", "value": "b"},
        ]);
        assert_eq!(serde_json::to_value(of_version("7", change)).unwrap(), expected);
    }

    #[test]
    fn a_conflict_and_a_failed_operation_are_stale_and_an_invalid_node_is_not() {
        let status = |code: u16, causes: serde_json::Value| -> kube::core::Status {
            serde_json::from_value(json!({"code": code, "details": {"causes": causes}})).unwrap()
        };
        let field = json!([{"field": "metadata.annotations", "message": "too long"}]);
        assert!(is_stale(&status(409, json!([]))) && is_stale(&status(422, json!([]))));
        assert!(!is_stale(&status(422, field)) && !is_stale(&status(403, json!([]))));
    }
}
