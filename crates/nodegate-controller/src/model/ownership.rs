//! The record of what nodegate owns on a node: two replicas that do not know of each other, one label, one rule.

mod world;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use stateright::{Model, Property};

use super::check;
use crate::node::NodeObject;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{FIELD_MANAGER, PendingTaints, PolicyDocument, PolicySet, StoredNode, plan_reconcile};

use world::{Budget, Event, Job, Node, Stage, Without, World, Writer};

const KEY: &str = "tier";
/// The values of the label: rules give the first two, others set the first and the last.
const VALUES: [&str; 3] = ["a", "b", "x"];

type Known = HashMap<(Node, Arc<str>, Option<usize>), Job>;

struct Ownership {
    rules: Vec<PolicySet>,
    without: Without,
    budget: Budget,
    known: Mutex<Known>,
}

impl Ownership {
    fn new(without: Without, budget: Budget) -> Self {
        let rule = |value: Option<usize>| {
            let rules = value.map(|value| json!({"name": "r", "labels": {KEY: VALUES[value]}, "removeAfter": "0s"}));
            let spec = json!({"rules": rules.into_iter().collect::<Vec<_>>()});
            PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap()
        };
        let rules = [None, Some(0), Some(1)].map(rule).into();
        Self { rules, without, budget, known: Mutex::default() }
    }

    /// What a run of the controller writes. The decision and the records are the product's own.
    fn job(&self, node: &Node, record: &Arc<str>, rule: Option<usize>) -> Job {
        let asked = (node.clone(), record.clone(), rule);
        if let Some(job) = self.known.lock().unwrap().get(&asked) {
            return job.clone();
        }
        let labels = node.label.map(|(value, _)| json!({KEY: VALUES[value]})).unwrap_or_else(|| json!({}));
        let claim = node.label.map(|(_, writer)| {
            let manager = if writer == Writer::Nodegate { FIELD_MANAGER } else { "other" };
            json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-11-21T10:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {format!("f:{KEY}"): {}}}}})
        });
        let version = node.version.to_string();
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": format!("u{}", node.life),
            "resourceVersion": version, "labels": labels, "managedFields": claim.into_iter().collect::<Vec<_>>()}});
        let object = NodeObject::read(&object.to_string()).unwrap();
        let saved: SavedState = serde_json::from_str(record).unwrap();
        let text = object.text();
        let stored = StoredNode {
            pools: None,
            node: &text.facts().unwrap(),
            version: Some(&version),
            claims: text.claims(),
            saved: &saved,
            inventory: None,
            devices: None,
            registered: false,
            identified: true,
            pending: <&PendingTaints>::default(),
            adopt: false,
            patched_taints: &std::collections::BTreeSet::new(),
            elsewhere: Default::default(),
            evidence: None,
        };
        let plan = plan_reconcile(&self.rules[rule.map_or(0, |value| value + 1)], &stored);
        let change = plan.change(|_| true, |_, _| false);
        // As the controller compares records, and counts them where it writes them.
        let text = |record: SavedState, base: &str| -> Option<Arc<str>> {
            let base: SavedState = serde_json::from_str(base).unwrap();
            let mut record = SavedState { revision: base.revision, ..record };
            if let Some(owned) = record.owned.as_mut().filter(|_| self.without == Without::Unsettled) {
                owned.unsettled = None;
            }
            let counted = u64::from(self.without != Without::Revisions);
            let written = SavedState { revision: base.revision + counted, ..record.clone() };
            let nothing_new = record == base || record.says_nothing();
            (!nothing_new).then(|| serde_json::to_string(&written).unwrap().into())
        };
        let before = change.as_ref().and_then(|change| text(plan.record_before(Some(change)), record));
        let base = before.clone().unwrap_or_else(|| record.clone());
        let after = text(plan.record(change.as_ref()), &base);
        let value =
            |value: &Option<String>| value.as_ref().map(|text| VALUES.iter().position(|one| one == text).unwrap());
        let change = change.map(|change| value(&change.labels()[KEY]));
        let job = Job { version: node.version, base: record.clone(), before, change, after };
        self.known.lock().unwrap().insert(asked, job.clone());
        job
    }

    /// The first write of a run; `None` if there is nothing to write.
    fn begin(&self, world: &World) -> Option<(Stage, Job)> {
        let job = self.job(&world.node, &world.record, world.rule);
        self.stage(Stage::Before, &job).map(|stage| (stage, job))
    }

    /// The next write of a run, beginning with this one.
    fn stage(&self, stage: Stage, job: &Job) -> Option<Stage> {
        match stage {
            Stage::Before if job.before.is_some() && self.without != Without::RecordBefore => Some(Stage::Before),
            Stage::Before | Stage::Change if job.change.is_some() => Some(Stage::Change),
            Stage::Before | Stage::Change | Stage::After => job.after.is_some().then_some(Stage::After),
        }
    }

    /// Applies a write at the API server. Returns the rest of the run; `None` if it was refused or was the last one.
    fn write(&self, world: &mut World, stage: Stage, mut job: Job) -> Option<(Stage, Job)> {
        let next = match stage {
            Stage::Before | Stage::After => {
                let record = if stage == Stage::Before { job.before.clone() } else { job.after.clone() }?;
                if world.record != job.base && self.without != Without::Base {
                    return None;
                }
                world.record = record.clone();
                job.base = record;
                if stage == Stage::Before { Stage::Change } else { return None }
            }
            Stage::Change => {
                if job.version != world.node.version && self.without != Without::Versions {
                    return None;
                }
                let value = job.change?;
                world.removed_anothers |=
                    value.is_none() && world.node.label.is_some_and(|(_, writer)| writer == Writer::Other);
                world.set(value.map(|value| (value, Writer::Nodegate)));
                if let Some(value) = value {
                    world.given[value] = true;
                }
                Stage::After
            }
        };
        self.stage(next, &job).map(|stage| (stage, job))
    }

    /// What becomes of a world in which one replica runs undisturbed; `None` if it never comes to rest.
    fn settled(&self, world: &World) -> Option<World> {
        let mut world = World { replicas: [None, None], late: None, ..world.clone() };
        for _ in 0..8 {
            let Some((stage, job)) = self.begin(&world) else { return Some(world) };
            let mut run = Some((stage, job));
            while let Some((stage, job)) = run {
                run = self.write(&mut world, stage, job);
            }
        }
        None
    }
}

impl Model for Ownership {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let record = serde_json::to_string(&SavedState { node_name: "n".to_owned(), ..SavedState::default() }).unwrap();
        let (node, budget) = (Node { label: None, version: 0, life: 0 }, self.budget.clone());
        let (record, replicas) = (record.into(), [None, None]);
        vec![World {
            node,
            record,
            rule: Some(0),
            replicas,
            late: None,
            budget,
            given: [false; 3],
            removed_anothers: false,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        for (at, replica) in world.replicas.iter().enumerate() {
            match replica {
                None => events.push(Event::Read(at)),
                Some(_) => {
                    events.push(Event::Write(at));
                    if world.budget.ends > 0 && world.late.is_none() {
                        events.push(Event::End(at));
                    }
                }
            }
        }
        if world.late.is_some() {
            events.push(Event::Late);
        }
        if world.budget.others > 0 {
            events.extend([None, Some(0), Some(2)].map(Event::Other));
        }
        if world.budget.policies > 0 {
            events.extend([None, Some(0), Some(1)].map(Event::Rule));
        }
        if world.budget.lives > 0 {
            events.push(Event::Anew);
        }
    }

    fn next_state(&self, before: &World, event: Event) -> Option<World> {
        let mut world = before.clone();
        match event {
            Event::Read(at) => world.replicas[at] = Some(self.begin(&world)?),
            Event::Write(at) => {
                let (stage, job) = world.replicas[at].take()?;
                let rest = self.write(&mut world, stage, job);
                world.replicas[at] = rest;
            }
            Event::End(at) => {
                world.budget.ends -= 1;
                world.late = world.replicas[at].take();
            }
            Event::Late => {
                let (stage, job) = world.late.take()?;
                // Nobody reads the answer, so nothing follows.
                drop(self.write(&mut world, stage, job));
            }
            Event::Other(value) => {
                // Who writes the value that is there already changes nothing.
                if world.node.label.map(|(there, _)| there) == value {
                    return None;
                }
                world.budget.others -= 1;
                let writer = |value: usize| if world.given[value] { Writer::Same } else { Writer::Other };
                let label = value.map(|value| (value, writer(value)));
                world.set(label);
            }
            Event::Rule(value) => {
                if world.rule == value {
                    return None;
                }
                world.budget.policies -= 1;
                world.rule = value;
            }
            Event::Anew => {
                world.budget.lives -= 1;
                world.node.life += 1;
                world.given = [false; 3];
                world.set(None);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what others set is never removed", |_, world: &World| !world.removed_anothers),
            Property::always("what nodegate set is recorded", |_, world: &World| match world.node.label {
                Some((value, Writer::Nodegate)) => world.owned().iter().any(|owned| owned == VALUES[value]),
                Some((_, Writer::Other | Writer::Same)) | None => true,
            }),
            Property::always("an undisturbed replica brings the node to rest", |model: &Self, world: &World| {
                let Some(settled) = model.settled(world) else { return false };
                match (settled.rule, settled.node.label) {
                    (Some(rule), Some((value, _))) => rule == value,
                    (Some(_), None) | (None, Some((_, Writer::Nodegate))) => false,
                    (None, Some((_, Writer::Other | Writer::Same)) | None) => true,
                }
            }),
        ]
    }
}

/// Few events of every kind, in several mixtures: all of them together have too many interleavings.
const BUDGETS: [Budget; 4] = [
    Budget { others: 1, policies: 1, ends: 1, lives: 0 },
    Budget { others: 0, policies: 2, ends: 1, lives: 0 },
    Budget { others: 2, policies: 1, ends: 0, lives: 0 },
    Budget { others: 0, policies: 1, ends: 1, lives: 1 },
];

#[test]
fn what_nodegate_sets_is_recorded_and_what_others_set_stays() {
    for budget in BUDGETS {
        let (states, failed) = check(Ownership::new(Without::Nothing, budget.clone()));
        assert_eq!(failed, [], "{budget:?}");
        assert!(states > 1_000, "{budget:?}: only {states} states");
    }
}

#[test]
fn each_safeguard_of_the_record_is_needed() {
    for (without, expected) in [
        (Without::RecordBefore, "what nodegate set is recorded"),
        (Without::Versions, "what others set is never removed"),
        (Without::Base, "what nodegate set is recorded"),
        (Without::Revisions, "what nodegate set is recorded"),
        (Without::Unsettled, "an undisturbed replica brings the node to rest"),
    ] {
        let fails = |budget| check(Ownership::new(without, budget)).1.iter().any(|(property, _)| *property == expected);
        assert!(BUDGETS.into_iter().any(fails), "nothing fails without {without:?}");
    }
}
