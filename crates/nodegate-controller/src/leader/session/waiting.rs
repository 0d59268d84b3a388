//! The end of waiting: what becomes of a node that is pending for too long.

use std::time::Duration;

use jiff::Timestamp;

use crate::memory::fleet::patience;
use crate::node::NodeObject;
use crate::reconcile::Reconciler;
use crate::reconcile::outcome::Awaited;
use nodegate_policy::api::policy::OnTimeout;
use nodegate_policy::{ClosedGate, Field, programs};

/// Delay before another attempt to release a node.
const RETRY: Duration = Duration::from_secs(15);

/// Reports a node that has been pending for too long, and releases it unless it is to stay so. Returns when it must be looked at
/// again because it waits. `now` is a time that the API server vouches for, or a machine whose clock is ahead would release
/// every node as it joins; `None` if none is known yet. `awaited`: what the node waits for; `None` if it could not be
/// reconciled.
pub(super) async fn end_in_time(
    node: &NodeObject,
    reconciler: &Reconciler,
    now: Option<Timestamp>,
    awaited: Option<&Awaited>,
) -> Option<Duration> {
    let created = reconciler.pending_since(node)?;
    let Some(now) = now else { return Some(RETRY) };
    let Awaited { inventory, gates } = &awaited.map_or_else(|| reconciler.awaited_by(node), Awaited::clone);
    let left = |timeout| Some(patience(created, now, timeout)).filter(|left| !left.is_zero());
    let is_stuck = awaited.is_none() || *inventory;
    let stuck_for = is_stuck.then(|| left(reconciler.pending_timeout()));
    let next = gates.iter().filter_map(|gate| left(gate.timeout)).chain(stuck_for.flatten()).min();
    let over: Vec<&ClosedGate> = gates.iter().filter(|gate| left(gate.timeout).is_none()).collect();
    let is_too_long = stuck_for == Some(None);
    if over.is_empty() && !is_too_long {
        return next;
    }
    let stays =
        over.iter().any(|gate| gate.on_timeout == OnTimeout::Keep) || (is_too_long && !reconciler.releases_stuck());
    let (end, again) = match next {
        Some(next) => ("the node still waits for something else", Some(next)),
        None if stays => ("the node stays unschedulable", None),
        None => release(node, reconciler).await,
    };
    if is_too_long {
        let note = format!(
            "the node has been pending for too long because labels or taints could not be set, or an inventory has not answered; {end}"
        );
        reconciler.events().later(node, "PendingTooLong", note);
    }
    for gate in over {
        reconciler.events().later(node, "GateTimedOut", format!("{}; {end}", missing_at(gate)));
    }
    again
}

/// Removes the pending taint. Returns what became of the node, in words, and when it must be looked at again.
async fn release(node: &NodeObject, reconciler: &Reconciler) -> (&'static str, Option<Duration>) {
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
}

/// What a node lacks at a gate, and who usually sets it.
fn missing_at(gate: &ClosedGate) -> String {
    let one = |key: &String| match programs::of(Field::Label, key, None) {
        Some(program) => format!("{key} (usually set by {})", program.name),
        None => key.clone(),
    };
    let missing: Vec<String> = gate.missing.iter().map(one).collect();
    let noun = if missing.len() == 1 { "label is" } else { "labels are" };
    format!(
        "gate {}: {} s after the node was created, {noun} missing: {}",
        gate.id,
        gate.timeout.as_secs(),
        missing.join(", ")
    )
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
    use crate::reconcile::{KeepConfig, SEEN, fixture};
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
        with(&spec, pending_timeout, release_pending)
    }

    fn with(spec: &Value, pending_timeout: Duration, release_pending: bool) -> (Reconciler, Patches) {
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", spec).unwrap()]).unwrap();
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
    async fn a_gate_ends_in_its_own_time_and_as_it_says() {
        let gate = |name: &str, timeout: &str, on_timeout: &str| json!({"name": name, "labels": [name], "timeout": timeout, "onTimeout": on_timeout});
        let of = |gates: &[Value]| with(&json!({"gates": gates}), Duration::from_secs(60), true);
        // Before its time, also beyond the time of what is merely stuck.
        let (reconciler, patches) = of(&[gate("rack", "10m", "release")]);
        let again = reconcile(&node(590), &reconciler, Urgency::Joining).await;
        assert!((Duration::from_secs(8)..=Duration::from_secs(11)).contains(&again.after), "{:?}", again.after);
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
        let created = node(590).created().unwrap().as_second();
        assert!(
            reconciler.awaited_by(&node(590)).has_time(created, Timestamp::now()),
            "it is not counted as pending for too long"
        );
        let again = reconcile(&node(602), &reconciler, Urgency::Routine).await;
        assert_eq!((again.after, patches.lock().len(), released(&reconciler)), (RESYNC, 1, 1));
        // The one that keeps decides, and so does one that has time left.
        let (reconciler, patches) = of(&[gate("rack", "10m", "release"), gate("row", "5m", "keep")]);
        reconcile(&node(602), &reconciler, Urgency::Routine).await;
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
        let created = node(602).created().unwrap().as_second();
        assert!(!reconciler.awaited_by(&node(602)).has_time(created, Timestamp::now()));
        let (reconciler, patches) = of(&[gate("rack", "1m", "release"), gate("row", "10m", "release")]);
        let again = reconcile(&node(590), &reconciler, Urgency::Routine).await;
        assert!(again.after <= Duration::from_secs(11), "{:?}", again.after);
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
        // What was just written replaces the version that it would be released with.
        let spec = json!({"gates": [gate("rack", "1s", "release")], "rules": [{"name": "r", "labels": {"a": "b"}}]});
        let (reconciler, patches) = with(&spec, Duration::from_secs(60), true);
        let again = reconcile(&node(602), &reconciler, Urgency::Joining).await;
        assert_eq!((patches.lock().len(), released(&reconciler)), (1, 0));
        assert!(again.after <= SEEN, "{:?}", again.after);
        // A failure does not open it.
        let (reconciler, patches) = of(&[gate("rack", "1s", "keep")]);
        reconciler.memory().sees(&node(602), Timestamp::now(), Sight::Next);
        assert_eq!(end_in_time(&node(602), &reconciler, Some(Timestamp::now()), None).await, None);
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
    }

    #[test]
    fn a_gate_says_who_usually_sets_what_is_missing() {
        let gate = ClosedGate {
            id: nodegate_policy::RuleId { policy: "p".into(), rule: "gate:gpu".into() },
            missing: vec!["nvidia.com/gpu.product".to_owned(), "rack".to_owned()],
            timeout: Duration::from_secs(90),
            on_timeout: OnTimeout::Release,
        };
        assert_eq!(
            missing_at(&gate),
            "gate p/gate:gpu: 90 s after the node was created, labels are missing: nvidia.com/gpu.product (usually set by NVIDIA's GPU feature discovery or operator), rack"
        );
    }

    #[tokio::test]
    async fn a_clock_that_nobody_vouches_for_releases_no_node() {
        let (reconciler, patches) = reconciler(Duration::from_secs(600), true);
        let awaited = reconciler.awaited_by(&node(602));
        assert_eq!(end_in_time(&node(602), &reconciler, None, Some(&awaited)).await, Some(RETRY));
        assert_eq!((patches.lock().len(), released(&reconciler)), (0, 0));
        // The API server's clock is behind that of this machine.
        let its = Timestamp::from_second(Timestamp::now().as_second() - 300).unwrap();
        let again = end_in_time(&node(602), &reconciler, Some(its), Some(&awaited)).await.unwrap();
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
