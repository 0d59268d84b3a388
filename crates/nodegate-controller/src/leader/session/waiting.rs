//! The end of waiting: what becomes of a node that is pending for too long.

use std::time::Duration;

use jiff::Timestamp;

use crate::node::NodeObject;
use crate::reconcile::Reconciler;

/// Delay before another attempt to release a node.
const RETRY: Duration = Duration::from_secs(15);

/// Reports a node that has been pending for too long, and releases it unless it is to stay so. Returns when it must be looked at
/// again because it waits. `now` is a time that the API server vouches for, or a machine whose clock is ahead would release
/// every node as it joins; `None` if none is known yet.
pub(super) async fn end_in_time(
    node: &NodeObject,
    reconciler: &Reconciler,
    now: Option<Timestamp>,
) -> Option<Duration> {
    let patience = reconciler.patience(node, now.unwrap_or(Timestamp::UNIX_EPOCH))?;
    if now.is_none() {
        return Some(RETRY);
    }
    if !patience.is_zero() {
        return Some(patience);
    }
    let (end, again) = if reconciler.releases_stuck() {
        match reconciler.release(node).await {
            Ok(None) => {
                reconciler.metrics().controller.keeping.released_incomplete.inc();
                tracing::warn!(
                    node = node.name(),
                    "released a node that still lacks labels or taints, because it was pending for too long"
                );
                ("the node was released without them", None)
            }
            Ok(Some(wait)) => ("the node is released as soon as its write budget permits it", Some(wait)),
            Err(error) => {
                tracing::warn!(node = node.name(), %error, "could not remove the pending taint");
                ("it could not be released yet", Some(RETRY))
            }
        }
    } else {
        ("the node stays unschedulable", None)
    };
    let note = format!(
        "the node has been pending for too long because labels or taints could not be set, or an inventory has not answered; {end}"
    );
    reconciler.events().later(node, "PendingTooLong", note);
    again
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::super::reconcile_node;
    use super::*;
    use crate::memory::history::Sight;
    use crate::node::queue::{self, Again, Queue, Urgency};
    use crate::reconcile::{KeepConfig, fixture};
    use nodegate_policy::{PendingTaints, PolicyDocument, PolicySet};

    const RESYNC: Duration = Duration::from_secs(300);

    /// The patches of nodes that an API server got.
    type Patches = Arc<Mutex<Vec<Value>>>;

    /// An API server that answers each write with what was written.
    fn api_server(patches: Patches) -> Client {
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let patches = patches.clone();
            async move {
                let of_node = request.uri().path().starts_with("/api/v1/nodes/");
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut object: Value = serde_json::from_slice(&body).unwrap();
                if of_node {
                    patches.lock().push(object);
                    object = json!({});
                }
                object["metadata"]["resourceVersion"] = json!("2");
                Ok::<_, std::io::Error>(hyper::Response::new(Body::from(object.to_string().into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    /// A reconciler whose nodes wait for an inventory that never answers.
    fn reconciler(pending_timeout: Duration, release_pending: bool) -> (Reconciler, Patches) {
        let spec = json!({"inventory": [
            {"name": "cmdb", "url": "https://cmdb.example.com/{node}", "allow": ["rack"], "require": true},
        ]});
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        let patches = Patches::default();
        let config = KeepConfig { pending_timeout, release_pending, ..fixture::config() };
        nodegate_base::api_server::dated(
            &jiff::fmt::rfc2822::to_string(&Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC)).unwrap(),
        );
        (fixture::reconciler(api_server(patches.clone()), set, config), patches)
    }

    /// A node that was created so many seconds ago, with all pending taints that there are.
    fn node(age: i64) -> NodeObject {
        let created = Timestamp::from_second(Timestamp::now().as_second() - age).unwrap();
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let taints: Vec<Value> = PendingTaints::default().all().iter().map(|id| taint(id.key.as_str())).collect();
        let text = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "creationTimestamp": created.to_string()},
            "spec": {"taints": taints}});
        NodeObject::read(&text.to_string()).unwrap()
    }

    /// Reconciles the node as the watch has just shown it.
    async fn reconcile(node: &NodeObject, reconciler: &Reconciler, urgency: Urgency) -> Again {
        reconciler.memory().sees(node, Timestamp::now(), Sight::Next);
        reconcile_node(node, reconciler, urgency, RESYNC).await.unwrap()
    }

    fn released(reconciler: &Reconciler) -> u64 {
        reconciler.metrics().controller.keeping.released_incomplete.get()
    }

    #[tokio::test]
    async fn a_node_that_waits_is_looked_at_again_when_its_time_is_due() {
        let (reconciler, patches) = reconciler(Duration::from_secs(600), true);
        let again = reconcile(&node(590), &reconciler, Urgency::Joining).await;
        assert!((Duration::from_secs(8)..=Duration::from_secs(11)).contains(&again.after), "{:?}", again.after);
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
        let again = reconcile(&node(5), &reconciler, Urgency::Joining).await;
        assert_eq!(again.after, RESYNC, "the resync comes before");
    }

    #[tokio::test]
    async fn a_node_that_has_waited_for_too_long_loses_all_pending_taints_at_once_or_keeps_them_if_it_is_to() {
        let (reconciler_of_release, patches) = reconciler(Duration::from_secs(600), true);
        let again = reconcile(&node(602), &reconciler_of_release, Urgency::Routine).await;
        assert_eq!((again.after, released(&reconciler_of_release)), (RESYNC, 1));
        let patch = patches.lock().pop().unwrap();
        let removed: Vec<&Value> =
            patch.as_array().unwrap().iter().filter(|operation| operation["op"] == "remove").collect();
        assert!(!removed.is_empty() && !patch.to_string().contains("\"add\""), "{patch:#}");
        assert!(patches.lock().is_empty(), "one write removes them");

        let (reconciler, patches) = reconciler(Duration::from_secs(600), false);
        let again = reconcile(&node(602), &reconciler, Urgency::Routine).await;
        assert_eq!((again.after, released(&reconciler), patches.lock().len()), (RESYNC, 0, 0));
    }

    #[tokio::test]
    async fn a_clock_that_nobody_vouches_for_releases_no_node() {
        let (reconciler, patches) = reconciler(Duration::from_secs(600), true);
        assert_eq!(end_in_time(&node(602), &reconciler, None).await, Some(RETRY));
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
        // The API server's clock is behind that of this machine.
        let its = Timestamp::from_second(Timestamp::now().as_second() - 300).unwrap();
        let again = end_in_time(&node(602), &reconciler, Some(its)).await.unwrap();
        assert!((Duration::from_secs(290)..=Duration::from_secs(301)).contains(&again), "{again:?}");
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
    }

    #[tokio::test]
    async fn nobody_has_to_touch_a_node_for_its_waiting_to_end() {
        let (reconciler, patches) = reconciler(Duration::ZERO, true);
        let (node, (queue, wakes)) = (node(0), Queue::new());
        reconciler.memory().sees(&node, Timestamp::now(), Sight::Next);
        queue.wake("n", Urgency::Joining);
        let run = |_: Arc<str>, urgency: Urgency| reconcile_node(&node, &reconciler, urgency, RESYNC);
        let work = queue::work(wakes, run, |_| {});
        // The second in which it was created ends within one.
        let _ = tokio::time::timeout(Duration::from_millis(1500), work).await;
        assert_eq!(patches.lock().len(), 1);
    }
}
