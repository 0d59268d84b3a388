//! Records what leaves: nodes that are being deleted, and those that were.

use std::sync::Arc;
use std::time::Duration;

use super::outcome::{Done, Failure};
use super::records::dated;
use super::{Reconciler, SEEN};
use crate::memory::departures::Departure;
use crate::memory::history::deletion;
use crate::node::NodeObject;
use crate::node::queue::Urgency;
use nodegate_policy::api::state::{Change, SavedState};
use nodegate_stores::state::WriteError;

/// How often a record that was written concurrently is read again.
const TRIES: usize = 3;
/// How often a deletion that could not be recorded for another reason is tried again…
const RETRIES: usize = 5;
/// …and the pause before that.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// A node whose deletion could not be recorded, and how often that was so.
struct NotRecorded {
    node: Arc<NodeObject>,
    failures: usize,
}

impl Reconciler {
    /// Records the deletion of all nodes that wait for that, and pauses after a failure.
    pub(crate) async fn record_departures(&self) {
        while let Some(name) = { self.memory().departures.next() } {
            let Some(NotRecorded { node, failures }) = self.record_departure(&name).await else { continue };
            tokio::time::sleep(RETRY_AFTER).await;
            let mut memory = self.memory();
            // A node that has its name now was processed meanwhile, and its record is no longer about the deleted one.
            if failures >= RETRIES || memory.is_living(&name) {
                memory.departures.end(&node);
            }
        }
    }

    /// Records the deletion of the node of this name, if it waits for that: before a node that has its name now is processed.
    pub(crate) async fn record_departure_now(&self, name: &str) {
        if let Some(NotRecorded { node, failures: _ }) = self.record_departure(name).await {
            self.memory().departures.end(&node);
        }
    }

    async fn record_departure(&self, name: &str) -> Option<NotRecorded> {
        let departure = self.memory().departures.begin(name)?;
        for _ in 0..TRIES {
            match self.try_record_departure(&departure).await {
                Ok(()) => break,
                Err(Failure::Conflict(_)) => {}
                Err(error) => {
                    tracing::warn!(node = name, %error, "could not record the deletion of the node");
                    let failures = self.memory().departures.failed(&departure.last);
                    return Some(NotRecorded { node: departure.last, failures });
                }
            }
        }
        self.memory().departures.end(&departure.last);
        None
    }

    async fn try_record_departure(&self, departure: &Departure) -> Result<(), Failure> {
        let Departure { last: node, at, changes } = departure;
        let text = node.text();
        let facts = text.facts()?;
        let (stored, saved) = self.stored_and_saved(node, &facts);
        if *stored == SavedState::default() {
            return Ok(());
        }
        let set = self.policies();
        let (evidence, _) = self.evidence(node, &facts, &set, &saved);
        let plan = self.look(node, &facts, &set, &saved, evidence.as_ref());
        // Of a node that no leader has looked at, the saved state is still to be restored. A version from before nodegate's last
        // write lacks what that write restored, which the record has.
        // The answer to that write may have come after the node was seen to be gone.
        let is_behind = self.with_memory(node, |known| known.is_replaced(node)) == Some(true);
        // A node that is gone is not read again for new policies.
        let last = if plan.first_sight || is_behind || !node.is_read_for(&set) {
            SavedState::clone(&stored)
        } else {
            plan.record(None)
        };
        let record = SavedState { deleted_at: Some(at.to_string()), ..last };
        let history: Vec<Change> = changes.iter().cloned().chain([deletion(*at)]).collect();
        let Some(record) = self.to_store(&facts, &stored, record, &history) else { return Ok(()) };
        self.turn(Urgency::Routine).await;
        match self.writer().write(&stored, &dated(&record), &history).await {
            Ok(_) => Ok(()),
            Err(WriteError::Changed(what)) => Err(Failure::Conflict(what)),
            Err(error) => Err(error.into()),
        }
    }

    /// Records a node that is being deleted: what people change until it is gone is saved, and nothing is set anymore.
    pub(crate) async fn record_leaving(&self, node: &NodeObject) -> Result<Done, Failure> {
        let set = self.policies();
        if !node.is_read_for(&set) {
            return Ok(Done { again: Some(SEEN), ..Done::default() });
        }
        let text = node.text();
        let facts = text.facts()?;
        let (stored, saved) = self.stored_and_saved(node, &facts);
        let (evidence, _) = self.evidence(node, &facts, &set, &saved);
        let plan = self.look(node, &facts, &set, &saved, evidence.as_ref());
        let mut done = Done::default();
        if !plan.first_sight {
            self.record_rest(node, &facts, &stored, &plan, None, &mut done).await?;
        }
        Ok(done)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt as _;
    use jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::memory::history::Sight;
    use crate::reconcile::fixture;
    use nodegate_policy::{PolicyDocument, PolicySet};

    const OWN: &str = "example.com/own";

    /// An API server with the record of one node, which it says is gone: at once, or after it has refused a change as invalid.
    fn api_server(record: &SavedState, refused: bool) -> Client {
        let text = serde_json::to_string(record).unwrap();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"state.json": text},
            "metadata": {"name": "node-labels-n", "namespace": "nodegate", "resourceVersion": "1", "uid": "c"}});
        let (map, refused) = (Arc::new(Mutex::new(map)), Arc::new(Mutex::new(refused)));
        Client::new(
            tower::service_fn(move |request: hyper::Request<Body>| {
                let (map, refused) = (map.clone(), refused.clone());
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let (code, answer) = match head.uri.path() {
                        path if path.starts_with("/api/v1/nodes/") => match std::mem::take(&mut *refused.lock()) {
                            true => {
                                (422, json!({"code": 422, "details": {"causes": [{"field": "metadata.annotations"}]}}))
                            }
                            false => (404, json!({"code": 404, "reason": "NotFound"})),
                        },
                        path if path.ends_with("/configmaps") => (200, json!({"metadata": {}, "items": [*map.lock()]})),
                        _ => {
                            let mut map = map.lock();
                            if head.method == hyper::Method::PUT {
                                let version = map["metadata"]["resourceVersion"].as_str().unwrap().len();
                                *map = serde_json::from_slice(&body).unwrap();
                                map["metadata"]["resourceVersion"] = json!("1".repeat(version + 1));
                            }
                            (200, map.clone())
                        }
                    };
                    let body = Body::from(answer.to_string().into_bytes());
                    Ok::<_, std::io::Error>(hyper::Response::builder().status(code).body(body).unwrap())
                }
            }),
            "default",
        )
    }

    fn reconciler(record: &SavedState, refused: bool) -> Reconciler {
        let rule = json!({"name": "tier", "labels": {"tier": "gold"}, "annotations": {"tier": "gold"}});
        let spec = json!({"rules": [rule], "persist": {"labels": [OWN]}});
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        fixture::reconciler(api_server(record, refused), set, fixture::config())
    }

    fn node(version: &str) -> NodeObject {
        let text = json!({"metadata": {"name": "n", "uid": "new", "resourceVersion": version}}).to_string();
        NodeObject::read(&text).unwrap()
    }

    #[tokio::test]
    async fn nothing_is_decided_about_a_node_that_was_not_read_for_the_policies_in_force() {
        let record: SavedState =
            serde_json::from_value(json!({"nodeName": "n", "nodeUID": "new", "labels": {OWN: "a"}})).unwrap();
        let rule = json!({"name": "r", "match": {"expression": "has(node.status.phase)"}, "labels": {"tier": "gold"}});
        let spec = json!({"rules": [rule], "persist": {"labels": [OWN]}});
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        let reconciler = fixture::reconciler(api_server(&record, false), set, fixture::config());
        reconciler.maps().read(|_| {}).await.unwrap();
        let text = json!({"metadata": {"name": "n", "uid": "new", "resourceVersion": "10", "labels": {OWN: "b"}}});
        let node = NodeObject::read_for_nobody(&text.to_string()).unwrap();
        reconciler.memory().sees(&node, Timestamp::now(), Sight::Listed);
        for done in [reconciler.reconcile(&node, Urgency::Routine).await, reconciler.record_leaving(&node).await] {
            assert_eq!(done.unwrap().again, Some(SEEN));
        }
        let stored = || {
            let [stored] = reconciler.maps().states().all().try_into().unwrap();
            stored
        };
        assert_eq!(*stored(), record);
        reconciler.memory().left(node, Timestamp::now());
        reconciler.record_departures().await;
        assert!(stored().deleted_at.is_some() && stored().labels == record.labels, "{:?}", stored());
    }

    #[tokio::test]
    async fn a_node_that_is_gone_before_it_is_restored_leaves_what_is_saved() {
        let record: SavedState =
            serde_json::from_value(json!({"nodeName": "n", "nodeUID": "old", "labels": {OWN: "a"}})).unwrap();
        for refused in [false, true] {
            let reconciler = reconciler(&record, refused);
            reconciler.maps().read(|_| {}).await.unwrap();
            reconciler.memory().sees(&node("10"), Timestamp::now(), Sight::Listed);
            reconciler.reconcile(&node("10"), Urgency::Routine).await.unwrap();
            // Deletion is a version of its own.
            reconciler.memory().left(node("12"), Timestamp::now());
            reconciler.record_departures().await;
            let [stored] = reconciler.maps().states().all().try_into().unwrap();
            assert_eq!(stored.labels.get(OWN), Some("a"), "{stored:?}");
            assert!(stored.deleted_at.is_some(), "its end is recorded: {stored:?}");
        }
    }
}
