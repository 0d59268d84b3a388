//! Kubernetes events about nodes and policies. They are informational: losing an event does no harm.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tokio::task::JoinSet;

use crate::node::NodeObject;
use nodegate_base::text::{cut, on_a_line};

/// Maximum length of an event's note, in bytes (`k8s.io/api/events/v1`).
const NOTE_MAX: usize = 1024;
/// How many events may wait; further ones are dropped.
const WAITING_MAX: usize = 1024;

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    later: tokio::sync::mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// Creates the events of this replica. The future publishes them in the background; it runs until dropped.
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

    /// Publishes a warning about a node in the background.
    pub fn later(&self, node: &NodeObject, reason: &str, note: String) {
        self.send(warning(reason, note), reference(node));
    }

    /// Publishes an event about a node that needs nobody's attention, in the background.
    pub(crate) fn tell(&self, node: &NodeObject, reason: &str, note: String) {
        self.send(Event { type_: EventType::Normal, ..warning(reason, note) }, reference(node));
    }

    /// As [`Self::tell`], as an event of its own for each note. Events of one reason are counted otherwise, and only the first
    /// note is kept (`kube::runtime::events`).
    pub(crate) fn tell_each(&self, node: &NodeObject, reason: &str, note: String) {
        let mut hasher = DefaultHasher::new();
        note.hash(&mut hasher);
        let action = format!("Reconcile-{:016x}", hasher.finish());
        self.send(Event { type_: EventType::Normal, action, ..warning(reason, note) }, reference(node));
    }

    /// Publishes a warning about any object in the background.
    pub fn later_for(&self, about: ObjectReference, reason: &str, note: String) {
        self.send(warning(reason, note), about);
    }

    /// Publishes a warning in the background about a node that may not exist anymore.
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
            tracing::debug!(%error, "could not publish the event");
        }
    }
}

async fn publish(recorder: &Recorder, event: &Event, about: &ObjectReference) {
    if let Err(error) = recorder.publish(event, about).await {
        tracing::debug!(%error, reason = event.reason, "could not publish the event");
    }
}

fn reference(node: &NodeObject) -> ObjectReference {
    ObjectReference { uid: Some(node.uid().to_owned()), ..node.object_ref(&()) }
}

fn warning(reason: &str, note: String) -> Event {
    // `kubectl` prints events unescaped.
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
