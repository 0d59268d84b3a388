//! The objects as they are, the generations of them that were in force, and what of it can be in force together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::json;

use super::revisions::Revision;
use super::{Combined, Good, Report};
use crate::policy::{ObjectFault, PolicyDocument, PolicyError, PolicySet, baseline, name_is_taken};

/// One object as it was read.
#[derive(Clone, Debug)]
struct Object {
    generation: i64,
    uid: String,
    created: Option<Timestamp>,
    parsed: Result<PolicyDocument, Vec<String>>,
}

/// A generation that was in force, read when it is needed: most never are.
#[derive(Clone, Debug)]
struct Recorded {
    policy: String,
    generation: i64,
    /// The spec as JSON.
    spec: Box<str>,
    /// `None` when it does not compile any more.
    document: OnceLock<Option<PolicyDocument>>,
}

impl Recorded {
    fn document(&self) -> Option<&PolicyDocument> {
        let read = || {
            let spec = serde_json::from_str(&self.spec).unwrap_or_default();
            let document = PolicyDocument::of_object(&self.policy, &spec);
            let told = |errors: Vec<PolicyError>| {
                let faults: Vec<String> = errors.iter().map(|error| ObjectFault::of(error).to_string()).collect();
                let (policy, generation, faults) = (&self.policy, self.generation, faults.join("; "));
                tracing::warn!(policy, generation, faults, "a generation that was in force does not compile any more");
            };
            document.map_err(told).ok()
        };
        self.document.get_or_init(read).as_ref()
    }
}

/// Generations of one object that were in force.
type Generations = BTreeMap<i64, Recorded>;

/// All objects by name, and the generations that were in force by the objects' uids.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    objects: BTreeMap<String, Object>,
    recorded: BTreeMap<String, Generations>,
    /// What this process has put in force last: the leader may not have recorded it yet.
    remembered: BTreeMap<String, (i64, PolicyDocument)>,
}

/// One generation of an object.
type Candidate<'a> = (i64, &'a PolicyDocument);

/// Reads one object as a file with it would be read: every fault is found, and a document with faults is not used.
fn parse(object: &DynamicObject) -> Result<PolicyDocument, Vec<String>> {
    let spec = object.data.get("spec").cloned().unwrap_or_else(|| json!({}));
    PolicyDocument::of_object(&object.name_any(), &spec)
        .map_err(|errors| errors.iter().map(|error| ObjectFault::of(error).to_string()).collect())
}

impl Objects {
    /// Takes up an object; false when it is as it was: a status was written, say.
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

    /// Forgets an object: deleting is deleting.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(object) = self.objects.remove(name) {
            self.remembered.remove(&object.uid);
        }
    }

    /// Takes over the objects of another listing; what is known of their generations stays.
    pub(super) fn relist(&mut self, listing: Self) {
        self.objects = listing.objects;
        let living: BTreeSet<&str> = self.objects.values().map(|object| object.uid.as_str()).collect();
        self.remembered.retain(|uid, _| living.contains(uid.as_str()));
    }

    /// Takes up a recorded generation; whether that may matter.
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

    /// Takes over the recorded generations of another listing.
    pub(super) fn rerecord(&mut self, listing: Self) {
        self.recorded = listing.recorded;
    }

    /// Generations of an object that were in force, newest first, none of them newer than the object itself.
    fn good<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = Candidate<'a>> {
        let recorded = self.recorded.get(&object.uid).into_iter().flat_map(|all| all.range(..=object.generation).rev());
        let remembered = self.remembered.get(&object.uid).filter(|(generation, _)| *generation <= object.generation);
        // What this process remembers, unless something newer is recorded.
        let newest = recorded.clone().next().map_or(i64::MIN, |(generation, _)| *generation);
        let remembered = remembered.filter(|(generation, _)| *generation >= newest);
        let first = remembered.map(|(generation, document)| (*generation, document));
        first.into_iter().chain(recorded.filter_map(|(generation, recorded)| Some((*generation, recorded.document()?))))
    }

    /// Puts everything together that can be.
    ///
    /// An object whose name a file has is left out. One with a fault of its own stands as its last good generation.
    /// Where objects do not go together (a cycle between their rules), those stay as they were in force, and of new ones
    /// those that were there first. Without any object the preset `baseline` is in force where it `stands_in` for files.
    pub fn combine(&mut self, files: &[PolicyDocument], stands_in: bool) -> Combined {
        let (Together { set, chosen, .. }, refused) = self.choose(files, stands_in);
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

    /// What goes together of the objects, and why the present generations of others do not.
    fn choose<'a>(&'a self, files: &'a [PolicyDocument], stands_in: bool) -> (Together<'a>, Refused<'a>) {
        let mut refused = Refused::new();
        let mut free: Vec<(&str, &Object)> = Vec::new();
        for (name, object) in &self.objects {
            match name_is_taken(name, files) {
                Some(fault) => drop(refused.insert(name, vec![fault.to_string()])),
                None => free.push((name, object)),
            }
        }
        let mut together = Together { files, stands_in, set: PolicySet::default(), chosen: Chosen::new() };
        let newest = |object: &'a Object| object.present().or_else(|| self.good(object).next());
        if together.take_all(free.iter().filter_map(|(name, object)| Some((*name, newest(object)?))).collect()) {
            return (together, refused);
        }
        free.sort_by_key(|(name, object)| (object.created, *name));
        // What was in force goes together, unless files or nodegate itself have changed.
        if !together
            .take_all(free.iter().filter_map(|(name, object)| Some((*name, self.good(object).next()?))).collect())
        {
            // Files alone compile: they were compiled before they came here.
            together.take_all(Chosen::new());
            for (name, object) in &free {
                self.good(object).any(|good| together.take(name, good).is_ok());
            }
        }
        // One that goes in may let in another: those that were there first are asked again first.
        while free.iter().any(|(name, object)| {
            let there = together.chosen.get(name).map(|(generation, _)| *generation);
            let Some(present) = object.present().filter(|(generation, _)| there != Some(*generation)) else {
                return false;
            };
            let refusal = together.take(name, present).err();
            if let Some(errors) = &refusal {
                let told = errors.iter().map(|error| ObjectFault::together(error).to_string()).collect();
                refused.insert(name, told);
            }
            refusal.is_none()
        }) {}
        (together, refused)
    }
}

impl Object {
    /// The generation that is there now, if it compiles by itself.
    fn present(&self) -> Option<Candidate<'_>> {
        self.parsed.as_ref().ok().map(|document| (self.generation, document))
    }
}

/// Which generation of which object.
type Chosen<'a> = BTreeMap<&'a str, Candidate<'a>>;
/// Why the present generation of an object is not in force.
type Refused<'a> = BTreeMap<&'a str, Vec<String>>;

/// Objects that compile together, with the files.
struct Together<'a> {
    files: &'a [PolicyDocument],
    stands_in: bool,
    set: PolicySet,
    chosen: Chosen<'a>,
}

impl<'a> Together<'a> {
    fn compile(&self, chosen: &Chosen<'_>) -> Result<PolicySet, Vec<PolicyError>> {
        let stand_in = (self.stands_in && chosen.is_empty()).then(baseline);
        let objects = chosen.values().map(|(_, document)| (*document).clone());
        PolicySet::compile(&self.files.iter().cloned().chain(stand_in).chain(objects).collect::<Vec<_>>())
    }

    /// Takes these instead of what is there, if they go together.
    fn take_all(&mut self, chosen: Chosen<'a>) -> bool {
        let compiled = self.compile(&chosen).map(|set| (self.set, self.chosen) = (set, chosen));
        compiled.is_ok()
    }

    /// Takes one more, or another generation of one, if it goes together with the rest.
    fn take(&mut self, name: &'a str, candidate: Candidate<'a>) -> Result<(), Vec<PolicyError>> {
        let mut chosen = self.chosen.clone();
        chosen.insert(name, candidate);
        self.set = self.compile(&chosen)?;
        self.chosen = chosen;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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

    /// Another replica, which has seen what the first one recorded and nothing before.
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
    fn one_bad_object_stops_no_other() {
        let combined =
            all(&[object("bad", 3, OLD, faulty()), object("good", 3, NEW, gives("a", "b"))]).combine(&[], true);
        assert_eq!(names(&combined), ["good"]);
        let report = &combined.reports["good"];
        assert_eq!((report.generation, report.in_force, report.complaint()), (3, Some(3), None));
        let report = &combined.reports["bad"];
        let complaint = report.complaint().unwrap();
        assert_eq!(report.in_force, None);
        assert!(complaint.starts_with("generation 3 has 2 faults, no generation of it is in force: "), "{complaint}");
        assert!(
            complaint.contains("spec.unknown") && complaint.contains("spec.rules[0].match.expression"),
            "{complaint}"
        );
    }

    #[test]
    fn of_objects_that_do_not_go_together_the_newest_is_left_out() {
        let combined = all(&[
            object("old", 1, OLD, gives("a", "b")),
            object("new", 1, NEW, gives("b", "a")),
            object("other", 1, NEWEST, gives("c", "d")),
        ])
        .combine(&[], true);
        assert_eq!(names(&combined), ["old", "other"]);
        assert!(combined.reports["new"].errors[0].contains("together"), "{:?}", combined.reports);
    }

    #[test]
    fn without_any_policy_the_baseline_is_in_force_and_with_one_it_is_not() {
        assert_eq!(names(&all(&[]).combine(&[], true)), ["default", "preset:baseline"]);
        assert_eq!(names(&all(&[object("one", 1, OLD, gives("a", "b"))]).combine(&[], true)), ["one"]);
    }

    #[test]
    fn an_update_that_does_not_compile_leaves_the_generation_before_in_force_also_in_a_replica_that_starts() {
        let good = [object("one", 1, OLD, gives("a", "b"))];
        let mut running = all(&good);
        let before = running.combine(&[], true);
        let bad = [object("one", 2, OLD, faulty())];
        running.apply(&bad[0]);
        for combined in [running.combine(&[], true), restarted(&bad, &before).combine(&[], true)] {
            assert_eq!(rules(&combined), ["a"]);
            let report = &combined.reports["one"];
            assert_eq!((report.generation, report.in_force), (2, Some(1)));
            assert!(report.complaint().unwrap().contains("generation 1 stays in force"), "{report:?}");
        }
        let nothing_recorded = all(&bad).combine(&[], true);
        assert_eq!(nothing_recorded.reports["one"].in_force, None);
        let mut mended = restarted(&[object("one", 3, OLD, gives("c", "b"))], &before);
        assert_eq!(rules(&mended.combine(&[], true)), ["c"]);
    }

    #[test]
    fn an_update_that_does_not_go_together_with_others_leaves_its_own_generation_before_in_force() {
        let objects = [object("old", 1, OLD, gives("a", "x")), object("new", 1, NEW, gives("b", "y"))];
        let before = all(&objects).combine(&[], true);
        // The older one is updated to a cycle with the newer one: it is the update that does not come in force.
        let updated = [object("old", 2, OLD, gives("a", "b")), object("new", 2, NEW, gives("b", "a"))];
        let half = restarted(&[updated[0].clone(), objects[1].clone()], &before).combine(&[], true);
        assert_eq!(half.reports["old"].in_force, Some(2), "this one alone is fine: {:?}", half.reports["old"]);
        let combined = restarted(&updated, &half).combine(&[], true);
        assert_eq!((combined.reports["old"].in_force, combined.reports["new"].in_force), (Some(2), Some(1)));
        assert!(combined.reports["new"].complaint().unwrap().contains("together with other policies"));
    }

    #[test]
    fn two_updates_that_go_together_only_come_in_force_together() {
        let objects = [object("one", 1, OLD, gives("a", "x")), object("two", 1, NEW, gives("b", "a"))];
        let before = all(&objects).combine(&[], true);
        let updated = [
            object("one", 2, OLD, gives("a", "b")),
            object("two", 2, NEW, gives("b", "z")),
            object("three", 1, NEWEST, gives("b", "a")),
        ];
        let combined = restarted(&updated, &before).combine(&[], true);
        let in_force = ["one", "two", "three"].map(|name| combined.reports[name].in_force);
        assert_eq!(in_force, [Some(2), Some(2), None]);
    }

    #[test]
    fn a_policy_that_is_created_again_or_whose_name_a_file_has_does_not_get_what_was_recorded() {
        let before = all(&[object("one", 1, OLD, gives("a", "b"))]).combine(&[], true);
        let mut again = object("one", 1, NEW, faulty());
        again.metadata.uid = Some("another".to_owned());
        assert_eq!(restarted(&[again], &before).combine(&[], true).reports["one"].in_force, None);
        let file = PolicyDocument::of_object("one", &json!({})).unwrap();
        let taken = restarted(&[object("one", 2, OLD, faulty())], &before).combine(&[file], false);
        assert_eq!(taken.reports["one"].in_force, None);
        assert!(taken.reports["one"].errors[0].contains("a policy file has this name"));
    }

    #[test]
    fn a_recorded_generation_that_does_not_compile_any_more_gives_way_to_the_one_before() {
        let mut objects = all(&[object("one", 3, OLD, faulty())]);
        let revision =
            |generation, spec| Revision { uid: "uid-one".to_owned(), policy: "one".to_owned(), generation, spec };
        objects.recorded(revision(1, gives("a", "b")));
        objects
            .recorded(revision(2, json!({"rules": [{"name": "r", "labels": {"written by a newer nodegate": "x"}}]})));
        // Recorded by nobody who has seen the object.
        objects.recorded(revision(9, gives("forged", "b")));
        let combined = objects.combine(&[], true);
        assert_eq!((combined.reports["one"].in_force, rules(&combined)), (Some(1), vec!["a".to_owned()]));
        objects.remove("one");
        assert_eq!(names(&objects.combine(&[], true)), ["default", "preset:baseline"], "deleting is deleting");
    }
}
