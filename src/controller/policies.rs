//! Policies from `NodePolicy` objects, together with those from files. Every replica runs this.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use crate::api::policy::NodePolicy;
use crate::files::Loaded;
use crate::policy::{Origin, PolicyDocument, PolicyError, PolicySet, baseline};
use crate::telemetry::brief;

/// Changes within this time are compiled together.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// What became of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The generation this is about.
    pub generation: i64,
    /// Why it is not in force; empty when it is.
    pub errors: Vec<String>,
}

/// What became of every object, by name.
pub type Reports = Arc<BTreeMap<String, Report>>;

/// All policies, and what became of the objects among them.
#[derive(Clone, Debug, Default)]
pub struct Combined {
    /// What is in force.
    pub set: PolicySet,
    /// What became of every object.
    pub reports: BTreeMap<String, Report>,
}

/// One object as it was read.
#[derive(Clone, Debug)]
struct Object {
    generation: i64,
    uid: String,
    created: Option<Timestamp>,
    parsed: Result<PolicyDocument, Vec<String>>,
}

/// All objects by name.
#[derive(Clone, Debug, Default)]
pub struct Objects(BTreeMap<String, Object>);

fn texts(errors: Vec<PolicyError>) -> Vec<String> {
    errors
        .into_iter()
        .map(|error| PolicyError { file: None, policy: None, ..error }.to_string().trim().to_owned())
        .collect()
}

/// Reads one object as a file with it would be read: every fault is found, and a document with faults is not used.
fn parse(object: &DynamicObject) -> Result<PolicyDocument, Vec<String>> {
    let document = json!({
        "apiVersion": "nodegate.dev/v1alpha1",
        "kind": "NodePolicy",
        "metadata": {"name": object.name_any()},
        "spec": object.data.get("spec").cloned().unwrap_or_else(|| json!({})),
    });
    let mut errors = Vec::new();
    let mut parsed = PolicyDocument::parse_all(&Origin::Object, &document.to_string(), &mut errors);
    match parsed.pop() {
        Some(parsed) if errors.is_empty() => {
            PolicySet::compile(std::slice::from_ref(&parsed)).map(|_| parsed).map_err(texts)
        }
        _ => Err(texts(errors)),
    }
}

impl Objects {
    /// Takes up an object; false when it is as it was: a status was written, say.
    fn apply(&mut self, object: &DynamicObject) -> bool {
        let generation = object.metadata.generation.unwrap_or_default();
        let uid = object.uid().unwrap_or_default();
        let known = self.0.get(&object.name_any());
        if known.is_some_and(|known| known.generation == generation && known.uid == uid) {
            return false;
        }
        let created = object.creation_timestamp().map(|time| time.0);
        self.0.insert(object.name_any(), Object { generation, uid, created, parsed: parse(object) });
        true
    }

    fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Puts everything together that can be.
    ///
    /// An object with a fault of its own is left out, so is one whose name a file has taken. Where objects do not go
    /// together (a cycle between their rules) those stay that were there first. Without any object the preset
    /// `baseline` is in force where it `stands_in` for files.
    pub fn combine(&self, files: &[PolicyDocument], stands_in: bool) -> Combined {
        let mut reports = BTreeMap::new();
        let mut sound: Vec<(&str, &Object, &PolicyDocument)> = Vec::new();
        for (name, object) in &self.0 {
            let mut report = Report { generation: object.generation, errors: Vec::new() };
            match &object.parsed {
                Err(errors) => report.errors.clone_from(errors),
                Ok(_) if files.iter().any(|file| file.name == *name) => {
                    report.errors.push("a policy file has this name; give each policy a name of its own".to_owned());
                }
                Ok(document) => sound.push((name, object, document)),
            }
            reports.insert(name.clone(), report);
        }
        let mut documents = files.to_vec();
        documents.extend((stands_in && sound.is_empty()).then(baseline));
        let all: Vec<_> = documents.iter().chain(sound.iter().map(|(_, _, document)| *document)).cloned().collect();
        if let Ok(set) = PolicySet::compile(&all) {
            return Combined { set, reports };
        }
        // Files alone compile: they were compiled before they came here.
        let mut set = PolicySet::compile(&documents).unwrap_or_default();
        sound.sort_by_key(|(name, object, _)| (object.created, *name));
        for (name, _, document) in sound {
            documents.push(document.clone());
            match PolicySet::compile(&documents) {
                Ok(compiled) => set = compiled,
                Err(errors) => {
                    documents.pop();
                    if let Some(report) = reports.get_mut(name) {
                        let together = |error| format!("together with other policies: {error}");
                        report.errors = texts(errors).into_iter().map(together).collect();
                    }
                }
            }
        }
        Combined { set, reports }
    }
}

/// Follows `NodePolicy` objects and `files`, and gives `observer` everything that is in force whenever it changes;
/// runs until dropped.
///
/// The definition may be absent: then there are no objects, until it is there. `observer` is first called when all
/// objects have been read.
pub async fn follow(client: Client, mut files: watch::Receiver<Arc<Loaded>>, mut observer: impl FnMut(Combined)) {
    let resource = ApiResource::erase::<NodePolicy>(&());
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    let mut objects = Objects::default();
    let mut listing = Objects::default();
    let mut read = false;
    let mut absent = false;
    // When what is in force must be made anew.
    let mut due: Option<tokio::time::Instant> = None;
    loop {
        let soon = || Some(tokio::time::Instant::now() + DEBOUNCE);
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(Ok(Event::Init)) => listing = Objects::default(),
                Some(Ok(Event::InitApply(object))) => {
                    listing.apply(&object);
                }
                Some(Ok(Event::InitDone)) => {
                    objects = std::mem::take(&mut listing);
                    (read, absent, due) = (true, false, due.or_else(soon));
                }
                Some(Ok(Event::Apply(object))) => {
                    if objects.apply(&object) {
                        due = due.or_else(soon);
                    }
                }
                Some(Ok(Event::Delete(object))) => {
                    objects.remove(&object.name_any());
                    due = due.or_else(soon);
                }
                Some(Err(error)) if is_absent(&error) => {
                    if !absent {
                        tracing::info!("there is no NodePolicy definition in the cluster (`nodegate render crd` makes it): policies come from files");
                        objects = Objects::default();
                        (read, absent, due) = (true, true, due.or_else(soon));
                    }
                }
                Some(Err(error)) => tracing::warn!(error = brief(error), "the watch of NodePolicy objects failed; trying again"),
            },
            changed = files.changed() => {
                if changed.is_err() {
                    return;
                }
                due = due.or_else(soon);
            }
            () = async { tokio::time::sleep_until(due.unwrap_or_else(tokio::time::Instant::now)).await }, if due.is_some() && read => {
                due = None;
                let files = files.borrow_and_update().clone();
                observer(objects.combine(&files.documents, files.stands_in));
            }
        }
    }
}

/// Reads all objects once; none where there is no definition.
///
/// # Errors
/// If the API server cannot be asked.
pub async fn read(client: Client) -> Result<Objects, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<NodePolicy>(&()));
    let mut objects = Objects::default();
    match api.list(&ListParams::default()).await {
        Ok(list) => {
            for object in &list.items {
                objects.apply(object);
            }
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn object(name: &str, created: &str, spec: serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy",
            "metadata": {"name": name, "generation": 3, "creationTimestamp": created}, "spec": spec,
        }))
        .unwrap()
    }

    fn gives(label: &str, when: &str) -> serde_json::Value {
        json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions": [{"key": when, "operator": "DoesNotExist"}]}},
                          "labels": {label: "x"}}]})
    }

    fn combine(objects: &[DynamicObject]) -> Combined {
        let mut all = Objects::default();
        for object in objects {
            all.apply(object);
        }
        all.combine(&[], true)
    }

    #[test]
    fn one_bad_object_stops_no_other() {
        let combined = combine(&[
            object(
                "bad",
                "2026-01-01T00:00:00Z",
                json!({"rules": [{"name": "r", "match": {"expression": "1 +"}, "labels": {"a": "b"}}], "unknown": 1}),
            ),
            object("good", "2026-01-02T00:00:00Z", gives("a", "b")),
        ]);
        assert_eq!(combined.set.policies().collect::<Vec<_>>(), ["good"]);
        assert_eq!(combined.reports["good"], Report { generation: 3, errors: Vec::new() });
        let errors = combined.reports["bad"].errors.join("\n");
        assert!(errors.contains("unknown") && errors.contains("spec"), "{errors}");
    }

    #[test]
    fn of_objects_that_do_not_go_together_the_newest_is_left_out() {
        let combined = combine(&[
            object("old", "2026-01-01T00:00:00Z", gives("a", "b")),
            object("new", "2026-01-02T00:00:00Z", gives("b", "a")),
            object("other", "2026-01-03T00:00:00Z", gives("c", "d")),
        ]);
        assert_eq!(combined.set.policies().collect::<Vec<_>>(), ["old", "other"]);
        assert!(combined.reports["new"].errors[0].contains("together"), "{:?}", combined.reports);
    }

    #[test]
    fn without_any_policy_the_baseline_is_in_force_and_with_one_it_is_not() {
        assert_eq!(combine(&[]).set.policies().collect::<Vec<_>>(), ["default", "preset:baseline"]);
        let one = combine(&[object("one", "2026-01-01T00:00:00Z", gives("a", "b"))]);
        assert_eq!(one.set.policies().collect::<Vec<_>>(), ["one"]);
    }
}
