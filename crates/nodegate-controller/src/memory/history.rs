//! Records changes of labels and taints on nodes, with who wrote them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::memory::version::Version;
use crate::node::NodeObject;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::api::state::{Change, How};
use nodegate_policy::{
    Claim, Decision, Desired, Field, LAST_CHANGE, NodeChange, NodeFacts, RejectedClaim, Strength, Writes,
};

/// Maximum number of changes of one node that are remembered between two records.
const PENDING_MAX: usize = 50;
/// Changes within this time are recorded together.
const TOGETHER: Duration = Duration::from_secs(2);

type Values = BTreeMap<String, String>;

/// What the history tells of a version of a node.
#[derive(Debug)]
struct Told {
    labels: Values,
    taints: Values,
    stamp: Option<String>,
    /// Who had written the node, and when.
    writes: Option<Writes>,
}

/// What the controller is about to write: a key, with its new value.
type Made = (&'static str, String, Option<String>);

/// How the history tells a write of the controller.
#[derive(Debug)]
struct Making {
    how: How,
    /// The rule, as `policy/rule`; empty if no rule assigns the key anymore.
    rule: String,
}

/// How the watch came to report a version of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// It is the next version after the one before.
    Next,
    /// It was listed: there may have been versions in between.
    Listed,
}

/// The changes of a node that are not recorded yet.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Whether the webhook guards [`LAST_CHANGE`]; otherwise anybody could have written it.
    records_last_change: bool,
    pending: Option<Pending>,
    /// Whether its arrival is recorded or pending.
    arrived: bool,
    /// What the controller is about to write.
    making: BTreeMap<Made, Making>,
}

/// Changes that are not recorded yet.
#[derive(Debug)]
struct Pending {
    since: Instant,
    changes: Vec<Change>,
}

impl History {
    /// An empty history. `records_last_change`: whether the webhook guards [`LAST_CHANGE`].
    pub(crate) fn new(records_last_change: bool) -> Self {
        Self { records_last_change, ..Self::default() }
    }

    /// Records the differences between two versions of the node. Seeing it for the first time is not a change.
    pub(crate) fn note(&mut self, before: &Version<'_>, after: &Version<'_>, now: Timestamp, sight: Sight) {
        let (old, new, claims) = (told(before), told(after), after.claims);
        // No field manager claims what the webhook's patch wrote.
        let guarded = self.records_last_change && !claims.has_annotation(LAST_CHANGE);
        let stamp = new.stamp.as_ref().filter(|_| guarded && new.stamp != old.stamp);
        // The API server tracks no fields of a node that was created without any.
        let tracked = claims.are_tracked();
        let mut changes = Vec::new();
        let making = &mut self.making;
        let mut differences =
            |field: &'static str, old: &Values, new: &Values, writer: &dyn Fn(&str) -> Option<Claim>| {
                for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
                    if old.get(key) != new.get(key) {
                        let made = (field, key.clone(), new.get(key).cloned());
                        let made = making.remove(&made);
                        let found = who(writer(key), stamp, tracked, new.contains_key(key));
                        // Another may have set the same value meanwhile; a removal leaves no claim.
                        let made = made.filter(|_| matches!(found.how, How::Controller | How::Unknown));
                        let (Writer { by, by_requester, how }, rule) = match made {
                            Some(Making { how, rule }) => (Writer::controller(how), rule),
                            None => (found, String::new()),
                        };
                        changes.push(Change {
                            time: now.to_string(),
                            by,
                            by_requester,
                            how: how.as_str().to_owned(),
                            rule,
                            field: field.to_owned(),
                            key: key.clone(),
                            old: old.get(key).cloned(),
                            new: new.get(key).cloned(),
                            ..Change::default()
                        });
                    }
                }
            };
        let before = old.writes.as_ref().filter(|_| sight == Sight::Next);
        let only = || before.and_then(|before| claims.only_writer_since(before)).cloned();
        differences("label", &old.labels, &new.labels, &|key| match before {
            _ if !new.labels.contains_key(key) => only(),
            Some(before) => claims.label_writer_since(key, before).cloned(),
            None => claims.label_writer(key).cloned(),
        });
        differences("taint", &old.taints, &new.taints, &|_| claims.taint_writer().cloned().or_else(only));
        self.add(changes);
    }

    fn add(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let new = || Pending { since: Instant::now(), changes: Vec::new() };
        let pending = &mut self.pending.get_or_insert_with(new).changes;
        pending.extend(changes);
        let surplus = pending.len().saturating_sub(PENDING_MAX);
        pending.drain(..surplus);
    }

    /// Records, when a node object is seen for the first time, that the node has returned and what admission gave it. Only
    /// the first call for a node object counts.
    pub(crate) fn arrived(
        &mut self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        arrival: &Arrival<'_>,
        rejected: impl IntoIterator<Item = RejectedClaim>,
    ) {
        if std::mem::replace(&mut self.arrived, true) {
            return;
        }
        let time = node.created().map(|time| time.to_string()).unwrap_or_default();
        let entry = |how: How, rule: String, field: &str, key: String, new: Option<String>| Change {
            time: time.clone(),
            how: how.as_str().to_owned(),
            rule,
            field: field.to_owned(),
            key,
            new,
            ..Change::default()
        };
        let mut changes = Vec::new();
        if arrival.returned {
            changes.push(entry(How::Returned, String::new(), "node", String::new(), None));
        }
        let mut claimed = BTreeSet::new();
        for RejectedClaim { field, key, asserted, by } in rejected {
            claimed.extend((field == Some(Field::Label)).then(|| key.clone()));
            let value = field.is_some().then_some(asserted);
            let field = field.map_or_else(|| "node".to_owned(), |field| field.to_string());
            changes.push(entry(How::Rejected, by.to_string(), &field, key, value));
        }
        let claims = node.claims();
        let how = |desired: &Desired| if desired.strength == Strength::Saved { How::Restored } else { How::Admission };
        for (key, desired) in &arrival.decision.labels {
            // No field manager claims what a webhook's patch wrote, unless the kubelet claimed the key with another value.
            let is_given = !claims.has_label(key) || claimed.contains(key);
            if arrival.admitted && facts.label(key) == Some(&desired.value) && is_given {
                changes.push(entry(
                    how(desired),
                    desired.by.to_string(),
                    "label",
                    key.clone(),
                    Some(desired.value.clone()),
                ));
            }
        }
        for (id, desired) in &arrival.decision.taints {
            if arrival.admitted && facts.taint(id.key.as_str(), id.effect) == Some(&desired.value) {
                changes.push(entry(
                    how(desired),
                    desired.by.to_string(),
                    "taint",
                    id.to_string(),
                    Some(desired.value.clone()),
                ));
            }
        }
        self.add(changes);
    }

    /// Records what the controller is about to write.
    pub(crate) fn makes(&mut self, decision: &Decision, change: &NodeChange) {
        let making = |desired: Option<&Desired>| {
            let saved = desired.is_some_and(|desired| desired.strength == Strength::Saved);
            let how = if saved { How::Restored } else { How::Controller };
            Making { how, rule: desired.map(|desired| desired.by.to_string()).unwrap_or_default() }
        };
        let labels = change
            .labels()
            .iter()
            .map(|(key, value)| (("label", key.clone(), value.clone()), making(decision.labels.get(key))));
        let taints = change
            .taints()
            .iter()
            .map(|(id, value)| (("taint", id.to_string(), value.clone()), making(decision.taints.get(id))));
        self.making = labels.chain(taints).collect();
    }

    /// Records that it has not written it.
    pub(crate) fn made_nothing(&mut self) {
        self.making.clear();
    }

    /// The changes to record now; if further changes may follow soon, none, and how long to wait.
    pub(crate) fn due(&self, now: Instant) -> (Vec<Change>, Option<Duration>) {
        let Some(pending) = &self.pending else { return (Vec::new(), None) };
        let wait = TOGETHER.saturating_sub(now.saturating_duration_since(pending.since));
        if wait.is_zero() { (pending.changes.clone(), None) } else { (Vec::new(), Some(wait)) }
    }

    /// Removes the first `count` changes, which have been recorded.
    pub(crate) fn recorded(&mut self, count: usize) {
        if let Some(pending) = &mut self.pending {
            pending.changes.drain(..count.min(pending.changes.len()));
            self.pending.take_if(|pending| pending.changes.is_empty());
        }
    }

    /// The changes that are not recorded yet.
    pub(crate) fn unrecorded(&self) -> Vec<Change> {
        self.pending.as_ref().map(|pending| pending.changes.clone()).unwrap_or_default()
    }
}

/// What is known of a node object that is seen for the first time.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    /// What it should have.
    pub(crate) decision: &'a Decision,
    /// Whether there was a node of this name before.
    pub(crate) returned: bool,
    /// Whether the webhook was registered when it was created.
    pub(crate) admitted: bool,
}

/// The entry for a node that was deleted.
pub(crate) fn deletion(now: Timestamp) -> Change {
    let (time, how, field) = (now.to_string(), How::Deleted.as_str().to_owned(), "node".to_owned());
    Change { time, how, field, ..Change::default() }
}

fn told(Version { facts, claims }: &Version<'_>) -> Told {
    // Taints for node conditions come and go too often to be recorded.
    let lasting = facts.taints().iter().filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    Told {
        labels: facts.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        taints: lasting
            .map(|taint| (format!("{}:{}", &*taint.key, &*taint.effect), taint.value().to_owned()))
            .collect(),
        stamp: facts.annotation(LAST_CHANGE).map(str::to_owned),
        writes: claims.writes(),
    }
}

/// Who made a change, and how.
struct Writer {
    by: String,
    by_requester: bool,
    how: How,
}

impl Writer {
    /// The controller itself.
    fn controller(how: How) -> Self {
        Self { by: FIELD_MANAGER.to_owned(), by_requester: false, how }
    }
}

/// Who made a change. If the API server tracks fields, a key that no field manager claims was set by the webhook's patch,
/// and nothing tells who has removed a key.
fn who(writer: Option<Claim>, stamp: Option<&String>, tracked: bool, is_there: bool) -> Writer {
    let how = match &writer {
        Some(claim) if &*claim.manager == FIELD_MANAGER => How::Controller,
        Some(claim) if claim.is_kubelets() => How::Kubelet,
        Some(_) => How::User,
        None if tracked && is_there => How::Admission,
        None if stamp.is_none() && !is_there => How::Unknown,
        None => How::User,
    };
    let manager = writer.map(|claim| claim.manager.to_string()).unwrap_or_default();
    match stamp.filter(|_| how != How::Controller) {
        Some(requester) => Writer { by: requester.clone(), by_requester: true, how },
        None => Writer { by: manager, by_requester: false, how },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
