//! The objects, their generations that were in force, and which of them can be in force together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::json;

use super::combination::{Candidate, Chosen, Combination};
use super::revisions::Revision;
use super::{Combined, Good, Report};
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::{ObjectFault, PolicyDocument, PolicyError, name_is_taken};

/// One object as it was read.
#[derive(Clone, Debug)]
struct Object {
    generation: i64,
    uid: String,
    created: Option<Timestamp>,
    parsed: Result<PolicyDocument, Vec<String>>,
}

/// A generation that was in force. It is parsed when it is needed, which is rare.
#[derive(Clone, Debug)]
struct Recorded {
    policy: String,
    generation: i64,
    /// The spec as JSON.
    spec: Box<str>,
    /// `None` if it no longer compiles.
    document: OnceLock<Option<PolicyDocument>>,
}

impl Recorded {
    fn document(&self) -> Option<&PolicyDocument> {
        let read = || {
            let spec = serde_json::from_str(&self.spec).unwrap_or_default();
            let document = PolicyDocument::of_object(&self.policy, &spec);
            let messages = |errors: Vec<PolicyError>| {
                let faults: Vec<String> = errors.iter().map(|error| ObjectFault::of(error).to_string()).collect();
                let (policy, generation, faults) = (&self.policy, self.generation, faults.join("; "));
                tracing::warn!(policy, generation, faults, "a generation that was in force no longer compiles");
            };
            document.map_err(messages).ok()
        };
        self.document.get_or_init(read).as_ref()
    }
}

/// Generations of one object that were in force.
type Generations = BTreeMap<i64, Recorded>;

/// All objects by name, and the generations that were in force, by the objects' uids.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    objects: BTreeMap<String, Object>,
    recorded: BTreeMap<String, Generations>,
    /// What this process last put in force, which the leader may not have recorded yet.
    remembered: BTreeMap<String, (i64, PolicyDocument)>,
}

/// Parses one object like a file: all errors are found, and a document with errors is not used.
fn parse(object: &DynamicObject) -> Result<PolicyDocument, Vec<String>> {
    let spec = object.data.get("spec").cloned().unwrap_or_else(|| json!({}));
    PolicyDocument::of_object(&object.name_any(), &spec)
        .map_err(|errors| errors.iter().map(|error| ObjectFault::of(error).to_string()).collect())
}

impl Objects {
    /// Adds or updates an object. Returns false if nothing relevant changed, for example only its status.
    pub(super) fn apply(&mut self, object: &DynamicObject) -> bool {
        let generation = object.metadata.generation.unwrap_or_default();
        let uid = object.uid().unwrap_or_default();
        let known = self.objects.get(&object.name_any());
        if known.is_some_and(|known| known.generation == generation && known.uid == uid) {
            return false;
        }
        let created = object.creation_timestamp().map(|time| time.0);
        self.objects.insert(object.name_any(), Object { generation, uid, created, parsed: parse(object) });
        true
    }

    /// Forgets a deleted object.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(object) = self.objects.remove(name) {
            self.remembered.remove(&object.uid);
        }
    }

    /// Replaces the objects by those of a new listing; known generations stay.
    pub(super) fn relist(&mut self, listing: Self) {
        self.objects = listing.objects;
        let living: BTreeSet<&str> = self.objects.values().map(|object| object.uid.as_str()).collect();
        self.remembered.retain(|uid, _| living.contains(uid.as_str()));
    }

    /// Adds a recorded generation. Returns whether it may matter.
    pub(super) fn recorded(&mut self, revision: Revision) -> bool {
        let Revision { uid, policy, generation, spec } = revision;
        let generations = self.recorded.entry(uid.clone()).or_default();
        if generations.contains_key(&generation) {
            return false;
        }
        let spec = spec.to_string().into_boxed_str();
        generations.insert(generation, Recorded { policy, generation, spec, document: OnceLock::new() });
        self.objects.values().any(|object| object.uid == uid)
    }

    /// Forgets a recorded generation.
    pub(super) fn unrecorded(&mut self, uid: &str, generation: i64) {
        if let Some(generations) = self.recorded.get_mut(uid) {
            generations.remove(&generation);
            if generations.is_empty() {
                self.recorded.remove(uid);
            }
        }
    }

    /// Replaces the recorded generations by those of a new listing.
    pub(super) fn rerecord(&mut self, listing: Self) {
        self.recorded = listing.recorded;
    }

    /// Generations of an object that were in force, newest first, and none newer than the object itself.
    fn good<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = Candidate<'a>> {
        let recorded = self.recorded.get(&object.uid).into_iter().flat_map(|all| all.range(..=object.generation).rev());
        let remembered = self.remembered.get(&object.uid).filter(|(generation, _)| *generation <= object.generation);
        // Includes what this process remembers, unless something newer is recorded.
        let newest = recorded.clone().next().map_or(i64::MIN, |(generation, _)| *generation);
        let remembered = remembered.filter(|(generation, _)| *generation >= newest);
        let first = remembered.map(|(generation, document)| (*generation, document));
        first.into_iter().chain(recorded.filter_map(|(generation, recorded)| Some((*generation, recorded.document()?))))
    }

    /// Combines everything that can be in force.
    ///
    /// An object with the name of a policy in a file is left out. For an object with errors, its last good generation
    /// is used. If objects do not compile together (a cycle between their rules), those that were in force stay, and
    /// of new objects the older ones are preferred. Without any object, the preset `baseline` is in force with the mode
    /// `stands_in`, if there are no files either.
    pub fn combine(&mut self, files: &[PolicyDocument], stands_in: Option<EntryMode>) -> Combined {
        let (Combination { set, chosen, .. }, refused) = self.choose(files, stands_in);
        let mut combined = Combined { set, ..Combined::default() };
        for (name, object) in &self.objects {
            let in_force = chosen.get(name.as_str()).map(|(generation, _)| *generation);
            let faults = refused.get(name.as_str()).or(object.parsed.as_ref().err());
            let errors = faults.filter(|_| in_force != Some(object.generation)).cloned().unwrap_or_default();
            let (uid, generation) = (object.uid.clone(), object.generation);
            combined.reports.insert(name.clone(), Report { uid, generation, errors, in_force });
        }
        for (name, (generation, document)) in chosen {
            let Some(object) = self.objects.get(name) else { continue };
            let recorded = self.recorded.get(&object.uid).into_iter().flat_map(BTreeMap::keys).copied().collect();
            let (name, uid, document) = (name.to_owned(), object.uid.clone(), document.clone());
            combined.good.push(Good { name, uid, generation, document, recorded });
        }
        for good in &combined.good {
            self.remembered.insert(good.uid.clone(), (good.generation, good.document.clone()));
        }
        combined
    }

    /// The objects that compile together, and why the current generations of others do not.
    fn choose<'a>(
        &'a self,
        files: &'a [PolicyDocument],
        stands_in: Option<EntryMode>,
    ) -> (Combination<'a>, Refused<'a>) {
        let mut refused = Refused::new();
        let mut free: Vec<(&str, &Object)> = Vec::new();
        for (name, object) in &self.objects {
            match name_is_taken(name, files) {
                Some(fault) => drop(refused.insert(name, vec![fault.to_string()])),
                None => free.push((name, object)),
            }
        }
        let mut together = Combination::new(files, stands_in);
        let newest = |object: &'a Object| object.present().or_else(|| self.good(object).next());
        if together.take_all(free.iter().filter_map(|(name, object)| Some((*name, newest(object)?))).collect()) {
            return (together, refused);
        }
        free.sort_by_key(|(name, object)| (object.created, *name));
        // What was in force compiles together, unless files or nodegate itself have changed.
        if !together
            .take_all(free.iter().filter_map(|(name, object)| Some((*name, self.good(object).next()?))).collect())
        {
            // Files alone compile: they were compiled before.
            together.take_all(Chosen::new());
            for (name, object) in &free {
                self.good(object).any(|good| together.take(name, good).is_ok());
            }
        }
        // Adding one object may make another compile. Older objects are tried first.
        while free.iter().any(|(name, object)| {
            let there = together.chosen.get(name).map(|(generation, _)| *generation);
            let Some(present) = object.present().filter(|(generation, _)| there != Some(*generation)) else {
                return false;
            };
            let refusal = together.take(name, present).err();
            if let Some(errors) = &refusal {
                let messages = errors.iter().map(|error| ObjectFault::together(error).to_string()).collect();
                refused.insert(name, messages);
            }
            refusal.is_none()
        }) {}
        (together, refused)
    }
}

impl Object {
    /// The current generation, if it compiles by itself.
    fn present(&self) -> Option<Candidate<'_>> {
        self.parsed.as_ref().ok().map(|document| (self.generation, document))
    }
}

/// Why the current generation of an object is not in force.
type Refused<'a> = BTreeMap<&'a str, Vec<String>>;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The mode of the preset without policies.
    const STANDS_IN: Option<EntryMode> = Some(EntryMode::Enforce);

    fn object(name: &str, generation: i64, created: &str, spec: serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "spec": spec,
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": generation, "creationTimestamp": created},
        }))
        .unwrap()
    }

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-01-02T00:00:00Z";
    const NEWEST: &str = "2026-01-03T00:00:00Z";

    fn gives(label: &str, when: &str) -> serde_json::Value {
        json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions": [{"key": when, "operator": "DoesNotExist"}]}},
                          "labels": {label: "x"}}]})
    }

    fn faulty() -> serde_json::Value {
        json!({"rules": [{"name": "r", "match": {"expression": "1 +"}, "labels": {"a": "b"}}], "unknown": 1})
    }

    fn all(objects: &[DynamicObject]) -> Objects {
        let mut all = Objects::default();
        for object in objects {
            all.apply(object);
        }
        all
    }

    /// Another replica, which has only seen what the first one recorded.
    fn restarted(objects: &[DynamicObject], recorded: &Combined) -> Objects {
        let mut all = all(objects);
        for good in &recorded.good {
            all.recorded(Revision {
                uid: good.uid.clone(),
                policy: good.name.clone(),
                generation: good.generation,
                spec: serde_json::to_value(&*good.document.spec).unwrap(),
            });
        }
        all
    }

    fn names(combined: &Combined) -> Vec<&str> {
        combined.set.policies().collect()
    }

    fn rules(combined: &Combined) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for document in combined.set.documents() {
            labels.extend(document.spec.rules.iter().flat_map(|rule| rule.labels.keys().cloned()));
        }
        labels
    }

    #[test]
    fn an_invalid_object_does_not_affect_others() {
        let combined =
            all(&[object("bad", 3, OLD, faulty()), object("good", 3, NEW, gives("a", "b"))]).combine(&[], STANDS_IN);
        assert_eq!(names(&combined), ["good"]);
        let report = &combined.reports["good"];
        assert_eq!((report.generation, report.in_force, report.complaint()), (3, Some(3), None));
        let report = &combined.reports["bad"];
        let complaint = report.complaint().unwrap();
        assert_eq!(report.in_force, None);
        assert!(complaint.starts_with("generation 3 has 2 errors; no generation of it is in force: "), "{complaint}");
        assert!(
            complaint.contains("spec.unknown") && complaint.contains("spec.rules[0].match.expression"),
            "{complaint}"
        );
    }

    #[test]
    fn of_objects_that_do_not_compile_together_the_newest_is_left_out() {
        let combined = all(&[
            object("old", 1, OLD, gives("a", "b")),
            object("new", 1, NEW, gives("b", "a")),
            object("other", 1, NEWEST, gives("c", "d")),
        ])
        .combine(&[], STANDS_IN);
        assert_eq!(names(&combined), ["old", "other"]);
        assert!(combined.reports["new"].errors[0].contains("together"), "{:?}", combined.reports);
    }

    #[test]
    fn without_any_policy_the_baseline_is_in_force_and_with_one_it_is_not() {
        assert_eq!(names(&all(&[]).combine(&[], STANDS_IN)), ["default", "preset:baseline"]);
        assert_eq!(names(&all(&[object("one", 1, OLD, gives("a", "b"))]).combine(&[], STANDS_IN)), ["one"]);
    }

    #[test]
    fn an_update_that_does_not_compile_keeps_the_previous_generation_in_force_even_in_a_new_replica() {
        let good = [object("one", 1, OLD, gives("a", "b"))];
        let mut running = all(&good);
        let before = running.combine(&[], STANDS_IN);
        let bad = [object("one", 2, OLD, faulty())];
        running.apply(&bad[0]);
        for combined in [running.combine(&[], STANDS_IN), restarted(&bad, &before).combine(&[], STANDS_IN)] {
            assert_eq!(rules(&combined), ["a"]);
            let report = &combined.reports["one"];
            assert_eq!((report.generation, report.in_force), (2, Some(1)));
            assert!(report.complaint().unwrap().contains("generation 1 stays in force"), "{report:?}");
        }
        let nothing_recorded = all(&bad).combine(&[], STANDS_IN);
        assert_eq!(nothing_recorded.reports["one"].in_force, None);
        let mut mended = restarted(&[object("one", 3, OLD, gives("c", "b"))], &before);
        assert_eq!(rules(&mended.combine(&[], STANDS_IN)), ["c"]);
    }

    #[test]
    fn an_update_that_does_not_compile_with_others_keeps_its_own_previous_generation_in_force() {
        let objects = [object("old", 1, OLD, gives("a", "x")), object("new", 1, NEW, gives("b", "y"))];
        let before = all(&objects).combine(&[], STANDS_IN);
        // The older object is updated to a cycle with the newer one: the update does not take effect.
        let updated = [object("old", 2, OLD, gives("a", "b")), object("new", 2, NEW, gives("b", "a"))];
        let half = restarted(&[updated[0].clone(), objects[1].clone()], &before).combine(&[], STANDS_IN);
        assert_eq!(half.reports["old"].in_force, Some(2), "this one alone compiles: {:?}", half.reports["old"]);
        let combined = restarted(&updated, &half).combine(&[], STANDS_IN);
        assert_eq!((combined.reports["old"].in_force, combined.reports["new"].in_force), (Some(2), Some(1)));
        assert!(combined.reports["new"].complaint().unwrap().contains("together with other policies"));
    }

    #[test]
    fn two_updates_that_compile_only_together_take_effect_together() {
        let objects = [object("one", 1, OLD, gives("a", "x")), object("two", 1, NEW, gives("b", "a"))];
        let before = all(&objects).combine(&[], STANDS_IN);
        let updated = [
            object("one", 2, OLD, gives("a", "b")),
            object("two", 2, NEW, gives("b", "z")),
            object("three", 1, NEWEST, gives("b", "a")),
        ];
        let combined = restarted(&updated, &before).combine(&[], STANDS_IN);
        let in_force = ["one", "two", "three"].map(|name| combined.reports[name].in_force);
        assert_eq!(in_force, [Some(2), Some(2), None]);
    }

    #[test]
    fn a_recreated_policy_or_one_with_the_name_of_a_file_does_not_use_recorded_generations() {
        let before = all(&[object("one", 1, OLD, gives("a", "b"))]).combine(&[], STANDS_IN);
        let mut again = object("one", 1, NEW, faulty());
        again.metadata.uid = Some("another".to_owned());
        assert_eq!(restarted(&[again], &before).combine(&[], STANDS_IN).reports["one"].in_force, None);
        let file = PolicyDocument::of_object("one", &json!({})).unwrap();
        let taken = restarted(&[object("one", 2, OLD, faulty())], &before).combine(&[file], None);
        assert_eq!(taken.reports["one"].in_force, None);
        assert!(taken.reports["one"].errors[0].contains("a policy file already uses this name"));
    }

    #[test]
    fn a_recorded_generation_that_no_longer_compiles_is_replaced_by_the_previous_one() {
        let mut objects = all(&[object("one", 3, OLD, faulty())]);
        let revision =
            |generation, spec| Revision { uid: "uid-one".to_owned(), policy: "one".to_owned(), generation, spec };
        objects.recorded(revision(1, gives("a", "b")));
        objects
            .recorded(revision(2, json!({"rules": [{"name": "r", "labels": {"written by a newer nodegate": "x"}}]})));
        // Recorded by a writer that has not seen the object.
        objects.recorded(revision(9, gives("forged", "b")));
        let combined = objects.combine(&[], STANDS_IN);
        assert_eq!((combined.reports["one"].in_force, rules(&combined)), (Some(1), vec!["a".to_owned()]));
        objects.remove("one");
        assert_eq!(
            names(&objects.combine(&[], STANDS_IN)),
            ["default", "preset:baseline"],
            "a deleted object is not in force"
        );
    }
}
