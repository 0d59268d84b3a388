//! Kubernetes events about nodes and policies. They are informational: what nodegate does never depends on one. A warning is lost only if
//! the API server fails for half a minute, or too many wait.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::Lookup as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::node::NodeObject;
use nodegate_base::text::{cut, on_a_line};

/// Maximum length of an event's note, in bytes (`k8s.io/api/events/v1`).
const NOTE_MAX: usize = 1024;
/// How many warnings may wait, and how many other events; further ones are dropped.
const WAITING_MAX: usize = 1024;

/// After how long a warning is tried again that could not be published.
const AGAIN: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(9), Duration::from_secs(20)];

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    /// A thousand nodes that join at once tell so much that a warning about one of them would be lost.
    warnings: mpsc::Sender<Waiting>,
    others: mpsc::Sender<Waiting>,
}

/// An event, and what it is about.
type Waiting = (Event, ObjectReference);

impl Events {
    /// Creates the events of this replica. The future publishes them in the background; it runs until dropped.
    pub fn new(client: Client, instance: &str) -> (Self, impl Future<Output = ()> + use<>) {
        let reporter = Reporter { controller: "nodegate".to_owned(), instance: Some(instance.to_owned()) };
        let recorder = Recorder::new(client, reporter);
        let (events, mut queue) = Self::queued();
        let run = async move {
            let mut sending = JoinSet::new();
            loop {
                while sending.len() >= 8 {
                    sending.join_next().await;
                }
                let Some((event, about)) = queue.next().await else { break };
                let publisher = recorder.clone();
                sending.spawn(async move { publish(&publisher, &event, &about).await });
            }
        };
        (events, run)
    }

    fn queued() -> (Self, Queue) {
        let (warnings, waiting_warnings) = mpsc::channel(WAITING_MAX);
        let (others, waiting_others) = mpsc::channel(WAITING_MAX);
        (Self { warnings, others }, Queue { warnings: waiting_warnings, others: waiting_others })
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
        let queue = match event.type_ {
            EventType::Warning => &self.warnings,
            EventType::Normal => &self.others,
        };
        if let Err(error) = queue.try_send((event, about)) {
            tracing::debug!(%error, "could not publish the event");
        }
    }
}

/// The events that wait.
struct Queue {
    warnings: mpsc::Receiver<Waiting>,
    others: mpsc::Receiver<Waiting>,
}

impl Queue {
    /// The next event, a warning if one waits; `None` at the end.
    async fn next(&mut self) -> Option<Waiting> {
        tokio::select! {
            biased;
            Some(warning) = self.warnings.recv() => Some(warning),
            Some(other) = self.others.recv() => Some(other),
            else => None,
        }
    }
}

/// Publishes an event. A warning that the API server does not take now is tried again.
async fn publish(recorder: &Recorder, event: &Event, about: &ObjectReference) {
    let delays = match event.type_ {
        EventType::Warning => &AGAIN[..],
        EventType::Normal => &[],
    };
    let mut delays = delays.iter();
    while let Err(error) = recorder.publish(event, about).await {
        let Some(delay) = delays.next().filter(|_| is_passing(&error)) else {
            tracing::debug!(%error, reason = event.reason, "could not publish the event");
            return;
        };
        tokio::time::sleep(*delay).await;
    }
}

/// Whether the same event may be taken later: the API server cannot be reached, fails, or has too much to do.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

fn reference(node: &NodeObject) -> ObjectReference {
    ObjectReference { uid: Some(node.uid().to_owned()), ..node.to_object_ref(()).into() }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// How often an event is sent to an API server that answers so.
    async fn sent(type_: EventType, answers: &'static [u16]) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        let asked = count.clone();
        let service = tower::service_fn(move |_: hyper::Request<Body>| {
            let at = asked.fetch_add(1, Ordering::Relaxed);
            let code = answers.get(at).copied().unwrap_or(201);
            let answer = match code {
                201 => json!({"metadata": {}, "eventTime": null}),
                _ => json!({"kind": "Status", "status": "Failure", "message": "", "reason": "", "code": code}),
            };
            let answer = hyper::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, std::io::Error>(answer.unwrap()) }
        });
        let recorder = Recorder::new(Client::new(service, "default"), Reporter::from("nodegate"));
        let about = ObjectReference { name: Some("n".to_owned()), ..ObjectReference::default() };
        publish(&recorder, &Event { type_, ..warning("ClaimRejected", "it".to_owned()) }, &about).await;
        count.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_warning_that_the_api_server_does_not_take_now_is_sent_again() {
        assert_eq!(sent(EventType::Warning, &[500, 429, 503]).await, 4);
        assert_eq!(sent(EventType::Warning, &[500; 9]).await, 1 + AGAIN.len());
        assert_eq!(sent(EventType::Warning, &[403]).await, 1, "it would not be taken later either");
        assert_eq!(sent(EventType::Normal, &[500]).await, 1);
    }

    #[tokio::test]
    async fn a_warning_is_published_before_a_thousand_other_events_and_lost_for_none_of_them() {
        let (events, mut queue) = Events::queued();
        let normal = |at: usize| Event { type_: EventType::Normal, ..warning("Joined", at.to_string()) };
        (0..2 * WAITING_MAX).for_each(|at| events.send(normal(at), ObjectReference::default()));
        events.later_about("n", "ClaimRejected", "it".to_owned());
        let first = queue.next().await;
        assert_eq!(first.map(|(event, _)| event.reason).as_deref(), Some("ClaimRejected"));
        drop(events);
        let mut rest = 0;
        while let Some((event, _)) = queue.next().await {
            rest += usize::from(event.reason == "Joined");
        }
        assert_eq!(rest, WAITING_MAX, "the others have a limit of their own");
    }
}
