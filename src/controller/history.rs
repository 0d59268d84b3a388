//! Records changes of labels and taints on nodes, with who wrote them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::node::NodeObject;
pub use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::api::state::{Change, How};
use nodegate_policy::{Claim, Decision, Desired, LAST_CHANGE, NodeChange, NodeFacts, Strength};

/// Maximum number of changes of one node that are remembered between two records.
const PENDING_MAX: usize = 50;
/// Changes within this time are recorded together.
const TOGETHER: Duration = Duration::from_secs(2);

type Values = BTreeMap<String, String>;

/// The labels, annotations and taints that a node had when it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    uid: String,
    labels: Values,
    taints: Values,
    stamp: Option<String>,
}

/// The last known state of nodes, and the changes that are not recorded yet.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Whether the webhook maintains stamps, so that nobody else can write them.
    records_last_change: bool,
    seen: HashMap<String, Seen>,
    pending: HashMap<String, Pending>,
    /// The uids of nodes whose arrival is recorded or pending.
    arrived: HashSet<String>,
    /// Keys that the controller is about to restore, by node.
    restoring: HashMap<String, HashSet<(&'static str, String)>>,
}

/// Changes of one node that are not recorded yet.
#[derive(Debug)]
struct Pending {
    since: Instant,
    changes: Vec<Change>,
}

impl History {
    /// An empty history. `stamps`: whether the webhook guards [`LAST_CHANGE`]; otherwise anybody could have written
    /// it.
    pub(super) fn new(records_last_change: bool) -> Self {
        Self { records_last_change, ..Self::default() }
    }

    /// Records the differences since this node was last seen. Seeing a node for the first time is not a change.
    pub(super) fn note(&mut self, node: &NodeObject, now: Timestamp) {
        let Ok(facts) = node.facts() else { return };
        let new = seen(node, &facts);
        let Some(old) = self.seen.insert(node.name().to_owned(), new.clone()) else { return };
        if old.uid != new.uid {
            self.pending.remove(node.name());
            return;
        }
        // No field manager claims what the webhook's patch wrote.
        let guarded = self.records_last_change && !node.claims.has_annotation(LAST_CHANGE);
        let stamp = new.stamp.as_ref().filter(|_| guarded && new.stamp != old.stamp);
        let claims = &node.claims;
        // The API server tracks no fields of a node that was created without any.
        let tracked = claims.last_writer().is_some();
        let mut changes = Vec::new();
        let mut restoring = self.restoring.get_mut(node.name());
        let mut differences =
            |field: &'static str, old: &Values, new: &Values, writer: &dyn Fn(&str) -> Option<Claim>| {
                for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
                    if old.get(key) != new.get(key) {
                        let Writer { by, by_requester, mut how } =
                            who(writer(key), stamp, tracked && new.contains_key(key));
                        let restoring = restoring.as_mut().is_some_and(|keys| keys.remove(&(field, key.clone())));
                        if how == How::Controller && restoring {
                            how = How::Restored;
                        }
                        changes.push(Change {
                            time: now.to_string(),
                            by,
                            by_requester,
                            how: how.as_str().to_owned(),
                            field: field.to_owned(),
                            key: key.clone(),
                            old: old.get(key).cloned(),
                            new: new.get(key).cloned(),
                            ..Change::default()
                        });
                    }
                }
            };
        let last = || claims.last_writer().cloned();
        differences("label", &old.labels, &new.labels, &|key| {
            if new.labels.contains_key(key) { claims.label_writer(key).cloned() } else { last() }
        });
        differences("taint", &old.taints, &new.taints, &|_| claims.taint_writer().cloned().or_else(last));
        self.add(node.name(), changes);
    }

    fn add(&mut self, node: &str, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let new = || Pending { since: Instant::now(), changes: Vec::new() };
        let pending = &mut self.pending.entry(node.to_owned()).or_insert_with(new).changes;
        pending.extend(changes);
        let surplus = pending.len().saturating_sub(PENDING_MAX);
        pending.drain(..surplus);
    }

    /// Records, when a node object is seen for the first time, that the node has returned and what admission gave it. Only
    /// the first call for a node object counts.
    pub(super) fn arrived(&mut self, node: &NodeObject, facts: &NodeFacts<'_>, arrival: &Arrival<'_>) {
        if !self.arrived.insert(node.uid().to_owned()) {
            return;
        }
        let time = node.created().map(|time| time.to_string()).unwrap_or_default();
        let entry = |how: How, field: &str, key: String, new: Option<String>| Change {
            time: time.clone(),
            how: how.as_str().to_owned(),
            field: field.to_owned(),
            key,
            new,
            ..Change::default()
        };
        let mut changes = Vec::new();
        if arrival.returned {
            changes.push(entry(How::Returned, "node", String::new(), None));
        }
        let how = |desired: &Desired| if desired.strength == Strength::Saved { How::Restored } else { How::Admission };
        for (key, desired) in &arrival.decision.labels {
            // No field manager claims what a webhook's patch wrote.
            if arrival.admitted && facts.label(key) == Some(&desired.value) && !node.claims.has_label(key) {
                changes.push(entry(how(desired), "label", key.clone(), Some(desired.value.clone())));
            }
        }
        for (id, desired) in &arrival.decision.taints {
            if arrival.admitted && facts.taint(id.key.as_str(), id.effect) == Some(&desired.value) {
                changes.push(entry(how(desired), "taint", id.to_string(), Some(desired.value.clone())));
            }
        }
        self.add(node.name(), changes);
    }

    /// Records that the controller is about to restore saved keys.
    pub(super) fn restores(&mut self, node: &str, decision: &Decision, change: &NodeChange) {
        let saved = |desired: Option<&Desired>| desired.is_some_and(|desired| desired.strength == Strength::Saved);
        let labels = change.labels().keys().filter(|key| saved(decision.labels.get(*key)));
        let taints = change.taints().keys().filter(|id| saved(decision.taints.get(*id)));
        let keys: HashSet<(&'static str, String)> =
            labels.map(|key| ("label", key.clone())).chain(taints.map(|id| ("taint", id.to_string()))).collect();
        if !keys.is_empty() {
            self.restoring.insert(node.to_owned(), keys);
        }
    }

    /// The changes of a node to record now; if further changes may follow soon, none, and how long to wait.
    pub(super) fn due(&self, node: &str, now: Instant) -> (Vec<Change>, Option<Duration>) {
        let Some(pending) = self.pending.get(node) else { return (Vec::new(), None) };
        let wait = TOGETHER.saturating_sub(now.saturating_duration_since(pending.since));
        if wait.is_zero() { (pending.changes.clone(), None) } else { (Vec::new(), Some(wait)) }
    }

    /// Removes the first `count` changes, which have been recorded.
    pub(super) fn recorded(&mut self, node: &str, count: usize) {
        if let Some(pending) = self.pending.get_mut(node) {
            pending.changes.drain(..count.min(pending.changes.len()));
            if pending.changes.is_empty() {
                self.pending.remove(node);
            }
        }
    }

    /// Forgets a node that was deleted.
    pub(super) fn forget(&mut self, node: &NodeObject) {
        self.seen.remove(node.name());
        self.pending.remove(node.name());
        self.restoring.remove(node.name());
        self.arrived.remove(node.uid());
    }
}

/// What is known of a node object that is seen for the first time.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    /// What it should have.
    pub(super) decision: &'a Decision,
    /// Whether there was a node of this name before.
    pub(super) returned: bool,
    /// Whether the webhook was registered when it was created.
    pub(super) admitted: bool,
}

/// The entry for a node that was deleted.
pub(super) fn deletion(now: Timestamp) -> Change {
    let (time, how, field) = (now.to_string(), How::Deleted.as_str().to_owned(), "node".to_owned());
    Change { time, how, field, ..Change::default() }
}

fn seen(node: &NodeObject, facts: &NodeFacts<'_>) -> Seen {
    // Taints for node conditions come and go too often to be recorded.
    let lasting = facts.taints().iter().filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    Seen {
        uid: node.uid().to_owned(),
        labels: facts.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        taints: lasting
            .map(|taint| (format!("{}:{}", &*taint.key, &*taint.effect), taint.value().to_owned()))
            .collect(),
        stamp: facts.annotation(LAST_CHANGE).map(str::to_owned),
    }
}

/// Who made a change, and how.
struct Writer {
    by: String,
    by_requester: bool,
    how: How,
}

/// Who made a change. `patched`: a key that no field manager claims was set by the webhook's patch.
fn who(writer: Option<Claim>, stamp: Option<&String>, patched: bool) -> Writer {
    let how = match &writer {
        Some(claim) if &*claim.manager == FIELD_MANAGER => How::Controller,
        Some(claim) if claim.is_kubelets() => How::Kubelet,
        Some(_) => How::User,
        None if patched => How::Admission,
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
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn node(tier: &str, stamp: &str, claimed: Json) -> NodeObject {
        let claims =
            json!([{"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": claimed}}]);
        let node = json!({"metadata": {"name": "n1", "uid": "u", "labels": {"tier": tier}, "annotations": {LAST_CHANGE: stamp},
            "managedFields": claims}});
        NodeObject::read(&node.to_string()).unwrap()
    }

    #[test]
    fn a_key_without_a_claim_is_admissions_only_where_fields_are_tracked() {
        let how = |before: NodeObject, after: NodeObject| {
            let mut history = History::new(false);
            history.note(&before, Timestamp::UNIX_EPOCH);
            history.note(&after, Timestamp::UNIX_EPOCH);
            history.pending.remove("n1").unwrap().changes.pop().unwrap().how
        };
        let other = json!({"f:labels": {"f:other": {}}});
        assert_eq!(how(node("a", "", other.clone()), node("b", "", other)), "admission");
        let untracked = |tier: &str| {
            let text = json!({"metadata": {"name": "n1", "uid": "u", "labels": {"tier": tier}}});
            NodeObject::read(&text.to_string()).unwrap()
        };
        assert_eq!(how(untracked("a"), untracked("b")), "user");
    }

    /// The recorded author of the change of the label `tier`.
    fn writer(records_last_change: bool, claimed: Json) -> String {
        let mut history = History::new(records_last_change);
        history.note(&node("a", "bob", claimed.clone()), Timestamp::UNIX_EPOCH);
        history.note(&node("b", "alice", claimed), Timestamp::UNIX_EPOCH);
        history.pending.remove("n1").unwrap().changes.pop().unwrap().by
    }

    #[test]
    fn a_stamp_is_trusted_only_if_the_webhook_maintains_it_and_no_manager_claims_it() {
        let label = json!({"f:labels": {"f:tier": {}}});
        let both = json!({"f:labels": {"f:tier": {}}, "f:annotations": {(format!("f:{LAST_CHANGE}")): {}}});
        assert_eq!(writer(true, label.clone()), "alice");
        assert_eq!(writer(false, label), "kubectl");
        assert_eq!(writer(true, both), "kubectl");
    }
}
