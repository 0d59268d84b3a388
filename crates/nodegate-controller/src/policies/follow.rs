//! Follows `NodePolicy` objects and their recorded generations.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;

use super::revisions::{Revision, selector};
use super::{Combined, Objects};
use nodegate_base::kube_error::{in_words, is_expired};
use nodegate_base::object_watch::watch_objects;
use nodegate_base::telemetry::brief;
use nodegate_policy::api::policy::NodePolicy;
use nodegate_stores::files::Loaded;

/// Changes within this time are compiled together.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// The known objects of the cluster.
#[derive(Default)]
struct KnownObjects {
    objects: Objects,
    /// Objects and revisions of a listing that is not complete yet.
    listing: Objects,
    recording: Objects,
    objects_read: bool,
    revisions_read: bool,
    absent: bool,
}

impl KnownObjects {
    /// Processes an event about an object. Returns whether the policies must be combined again.
    fn object(&mut self, event: Result<Event<DynamicObject>, watcher::Error>) -> bool {
        match event {
            Ok(Event::Init) => self.listing = Objects::default(),
            Ok(Event::InitApply(object)) => {
                self.listing.apply(&object);
            }
            Ok(Event::InitDone) => {
                self.objects.relist(std::mem::take(&mut self.listing));
                (self.objects_read, self.absent) = (true, false);
                return true;
            }
            Ok(Event::Apply(object)) => return self.objects.apply(&object),
            Ok(Event::Delete(object)) => {
                self.objects.remove(&object.name_any());
                return true;
            }
            Err(error) if is_absent(&error) => {
                if !self.absent {
                    tracing::info!(
                        "the cluster has no NodePolicy CustomResourceDefinition (create it with `nodegate render crd`); using policies from files only"
                    );
                    self.objects.relist(Objects::default());
                    (self.objects_read, self.absent) = (true, true);
                    return true;
                }
            }
            Err(error) if is_expired(&error) => {}
            Err(error) => {
                tracing::warn!(error = brief(in_words(&error)), "the watch of NodePolicy objects failed; retrying");
            }
        }
        false
    }

    /// Processes an event about a revision. Returns whether the policies must be combined again.
    fn revision(&mut self, event: Result<Event<ControllerRevision>, watcher::Error>) -> bool {
        match event {
            Ok(Event::Init) => self.recording = Objects::default(),
            Ok(Event::InitApply(object)) => {
                if let Some(revision) = Revision::read(&object) {
                    self.recording.recorded(revision);
                }
            }
            Ok(Event::InitDone) => {
                self.objects.rerecord(std::mem::take(&mut self.recording));
                self.revisions_read = true;
                return true;
            }
            Ok(Event::Apply(object)) => {
                return Revision::read(&object).is_some_and(|revision| self.objects.recorded(revision));
            }
            Ok(Event::Delete(object)) => {
                if let Some(revision) = Revision::read(&object) {
                    self.objects.unrecorded(&revision.uid, revision.generation);
                    return true;
                }
            }
            Err(error) if is_expired(&error) => {}
            Err(error) => tracing::warn!(
                error = brief(error),
                "cannot watch the ControllerRevisions with the last good generations of policies (the Role must allow get, list and watch); retrying"
            ),
        }
        false
    }
}

/// Follows `NodePolicy` objects, their recorded generations in `namespace`, and `files`. Calls `observer` with the
/// combined policies whenever they may have changed. Runs until dropped.
///
/// The CustomResourceDefinition may be missing: then there are no objects until it is created. `observer` is first
/// called when all objects and recorded generations have been read.
pub async fn follow(
    client: Client,
    namespace: &str,
    mut files: watch::Receiver<Arc<Loaded>>,
    mut observer: impl FnMut(Combined, &Arc<Loaded>),
) {
    let resource = ApiResource::erase::<NodePolicy>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut objects = std::pin::pin!(watch_objects(api, watcher::Config::default()));
    let revisions: Api<ControllerRevision> = Api::namespaced(client, namespace);
    let ours = watcher::Config::default().labels(&selector());
    let mut revisions = std::pin::pin!(watch_objects(revisions, ours));
    let mut seen = KnownObjects::default();
    // When the policies must be combined again.
    let mut due: Option<tokio::time::Instant> = None;
    loop {
        let ready = due.filter(|_| seen.objects_read && seen.revisions_read);
        let changed = tokio::select! {
            event = objects.next() => match event {
                Some(event) => seen.object(event),
                None => return,
            },
            event = revisions.next() => match event {
                Some(event) => seen.revision(event),
                None => return,
            },
            changed = files.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
            () = async { tokio::time::sleep_until(ready.unwrap_or_else(tokio::time::Instant::now)).await }, if ready.is_some() => {
                due = None;
                let files = files.borrow_and_update().clone();
                observer(seen.objects.combine(&files.documents, files.stands_in), &files);
                false
            }
        };
        if changed {
            due = due.or_else(|| Some(tokio::time::Instant::now() + DEBOUNCE));
        }
    }
}

/// Reads all objects once, and, with a `namespace`, the recorded generations there. Empty if there is no
/// CustomResourceDefinition.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn read(client: Client, namespace: Option<&str>) -> Result<Objects, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<NodePolicy>(&()));
    let mut objects = Objects::default();
    match api.list(&ListParams::default()).await {
        Ok(list) => {
            for object in &list.items {
                objects.apply(object);
            }
        }
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(objects),
        Err(error) => return Err(error),
    }
    if let Some(namespace) = namespace {
        let revisions: Api<ControllerRevision> = Api::namespaced(client, namespace);
        for revision in
            revisions.list(&ListParams::default().labels(&selector())).await?.iter().filter_map(Revision::read)
        {
            objects.recorded(revision);
        }
    }
    Ok(objects)
}

fn is_absent(error: &watcher::Error) -> bool {
    let status = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => status(error),
        watcher::Error::WatchError(status) => status.code == 404,
        watcher::Error::NoResourceVersion => false,
    }
}
