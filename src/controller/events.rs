//! Kubernetes events about nodes and policies. Losing one loses nothing: they are for people who look at a node.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tokio::task::JoinSet;

use super::node::NodeObject;
use crate::text::{cut, on_a_line};

/// Longest note of an event, in bytes (`k8s.io/api/events/v1`).
const NOTE_MAX: usize = 1024;
/// How many events may wait; what comes beyond that is lost.
const WAITING_MAX: usize = 1024;

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    later: tokio::sync::mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// Events by this replica. The future publishes those that nobody waits for; it runs until dropped.
    pub fn new(client: Client, instance: &str) -> (Self, impl Future<Output = ()> + use<>) {
        let reporter = Reporter { controller: "nodegate".to_owned(), instance: Some(instance.to_owned()) };
        let recorder = Recorder::new(client, reporter);
        let (later, mut queue) = tokio::sync::mpsc::channel::<(Event, ObjectReference)>(WAITING_MAX);
        let run = async move {
            let mut sending = JoinSet::new();
            while let Some((event, about)) = queue.recv().await {
                while sending.len() >= 8 {
                    sending.join_next().await;
                }
                let publisher = recorder.clone();
                sending.spawn(async move { publish(&publisher, &event, &about).await });
            }
        };
        (Self { later }, run)
    }

    /// Has a warning published soon.
    pub fn later(&self, node: &NodeObject, reason: &str, note: String) {
        self.send(warning(reason, note), reference(node));
    }

    /// Has a warning about any object published soon.
    pub fn later_for(&self, about: ObjectReference, reason: &str, note: String) {
        self.send(warning(reason, note), about);
    }

    /// Has a warning about a node published that may not be there any more.
    pub fn later_about(&self, node: &str, reason: &str, note: String) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        };
        self.send(warning(reason, note), about);
    }

    fn send(&self, event: Event, about: ObjectReference) {
        if let Err(error) = self.later.try_send((event, about)) {
            tracing::debug!(%error, "event not published");
        }
    }
}

async fn publish(recorder: &Recorder, event: &Event, about: &ObjectReference) {
    if let Err(error) = recorder.publish(event, about).await {
        tracing::debug!(%error, reason = event.reason, "event not published");
    }
}

fn reference(node: &NodeObject) -> ObjectReference {
    ObjectReference { uid: Some(node.uid().to_owned()), ..node.object_ref(&()) }
}

fn warning(reason: &str, note: String) -> Event {
    // `kubectl` shows events as they are.
    let mut note = on_a_line(&note).into_owned();
    cut(&mut note, NOTE_MAX);
    Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}
