use std::sync::Arc;

use kube::Client;
use kube::client::Body;
use kube::runtime::reflector;
use serde_json::json;

use super::*;
use crate::reconcile::{KeepConfig, fixture};
use nodegate_policy::PolicySet;

fn reconciler() -> Reconciler {
    let service = tower::service_fn(|_: hyper::Request<Body>| async {
        Err::<hyper::Response<Body>, _>(std::io::Error::other("no request was expected"))
    });
    let client = Client::new(service, "default");
    let config = KeepConfig { writes_per_second: 1, ..fixture::config() };
    fixture::reconciler(client, PolicySet::default(), config)
}

fn node(name: &str, uid: &str, created: &str) -> Read {
    let text = json!({"metadata": {"name": name, "uid": uid, "resourceVersion": "1", "creationTimestamp": created}});
    Ok(NodeObject::read(&text.to_string()).unwrap())
}

fn unreadable(name: &str) -> Read {
    Err(Unreadable { name: name.to_owned(), why: "labels: not an object".to_owned() })
}

const EARLY: &str = "2026-11-01T10:00:00Z";
const LATE: &str = "2026-11-02T10:00:00Z";

/// Has all events handled, then says which nodes live, and which left: their uids and when.
fn handled(events: Vec<WatchEvent>) -> (Reconciler, WatchHealth, Vec<String>, Vec<(String, Timestamp)>) {
    let (reconciler, health) = (reconciler(), WatchHealth::default());
    let (store, writer) = reflector::store();
    {
        let wake = |node: &NodeObject, sight| {
            reconciler.memory().sees(node, Timestamp::UNIX_EPOCH, sight);
        };
        let mut handler = WatchHandler::new(&health, &reconciler, writer, wake);
        events.into_iter().for_each(|event| handler.handle(event));
    }
    let mut stored: Vec<String> = store.state().iter().map(|node| node.uid().to_owned()).collect();
    stored.sort();
    let mut left = Vec::new();
    for name in ["a", "b", "c"] {
        let mut memory = reconciler.memory();
        assert_eq!(memory.is_living(name), store.get(&ObjectRef::new(name)).is_some(), "{name}");
        left.extend(memory.departures.begin(name).map(|departure| (departure.last.uid().to_owned(), departure.at)));
    }
    (reconciler, health, stored, left)
}

fn listing(nodes: Vec<Read>) -> Vec<WatchEvent> {
    let nodes = nodes.into_iter().map(WatchEvent::There);
    [WatchEvent::Begin]
        .into_iter()
        .chain(nodes)
        .chain([WatchEvent::All(Arc::default()), WatchEvent::Watching])
        .collect()
}

#[tokio::test]
async fn a_new_listing_says_which_nodes_left_meanwhile_also_if_their_names_are_in_use_again() {
    let first = listing(vec![node("a", "a1", EARLY), node("b", "b1", EARLY), node("c", "c1", EARLY)]);
    let second = listing(vec![node("a", "a1", EARLY), node("b", "b2", LATE)]);
    let (_, _, stored, left) = handled(first.into_iter().chain(second).collect());
    assert_eq!(stored, ["a1", "b2"]);
    let uids: Vec<&str> = left.iter().map(|(uid, _)| uid.as_str()).collect();
    assert_eq!(uids, ["b1", "c1"]);
    assert_eq!(left[0].1, LATE.parse().unwrap(), "it was gone when the next one was created");
    assert!(left[1].1 > LATE.parse().unwrap(), "nobody knows when it left");
}

#[tokio::test]
async fn a_node_that_cannot_be_read_is_forgotten_but_has_not_left() {
    let unreadable_later = [
        listing(vec![node("a", "a1", EARLY), unreadable("b")]),
        [
            WatchEvent::Begin,
            WatchEvent::There(node("a", "a1", EARLY)),
            WatchEvent::There(unreadable("b")),
            WatchEvent::All(Arc::default()),
        ]
        .into(),
        vec![WatchEvent::Changed(node("a", "a1", EARLY)), WatchEvent::Changed(unreadable("b"))],
    ];
    for second in unreadable_later {
        let first = listing(vec![node("a", "a1", EARLY), node("b", "b1", EARLY)]);
        let (reconciler, health, stored, left) = handled(first.into_iter().chain(second).collect());
        assert_eq!((stored, left.len()), (vec!["a1".to_owned()], 0));
        assert!(health.is_unreadable("b") && !health.is_unreadable("a"));
        assert_eq!(reconciler.metrics().controller.unreadable_nodes.get(), 1);
    }
}

#[tokio::test]
async fn a_node_that_can_be_read_again_or_has_gone_is_no_longer_unreadable() {
    let ends = [
        (vec![WatchEvent::Changed(node("b", "b1", EARLY))], vec!["b1"]),
        (listing(vec![node("b", "b1", EARLY)]), vec!["b1"]),
        (listing(Vec::new()), Vec::new()),
        (vec![WatchEvent::Gone(unreadable("b"))], Vec::new()),
    ];
    for (end, expected) in ends {
        let (reconciler, health, stored, left) =
            handled(listing(vec![unreadable("b")]).into_iter().chain(end).collect());
        assert_eq!(
            (stored, left.len(), health.is_unreadable("b")),
            (expected.iter().map(|uid| (*uid).to_owned()).collect(), 0, false)
        );
        assert_eq!(reconciler.metrics().controller.unreadable_nodes.get(), 0);
    }
}

#[tokio::test]
async fn the_last_state_of_a_deleted_node_is_that_of_its_event_or_else_what_was_known() {
    let gone = |last: Read| {
        let first = listing(vec![node("a", "a1", EARLY)]);
        let (_, health, stored, left) = handled(first.into_iter().chain([WatchEvent::Gone(last)]).collect());
        assert!(stored.is_empty() && !health.is_unreadable("a"));
        left.into_iter().map(|(uid, _)| uid).collect::<Vec<_>>()
    };
    assert_eq!(gone(node("a", "a1", EARLY)), ["a1"]);
    assert_eq!(gone(unreadable("a")), ["a1"]);
}
