//! Records changes of labels and taints on nodes, with who wrote them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::node::NodeObject;
use nodegate_policy::api::state::Change;
use nodegate_policy::{Claim, LAST_CHANGE, NodeFacts};

/// The field manager of the controller's own writes.
pub const FIELD_MANAGER: &str = "nodegate";
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
        let mut changes = Vec::new();
        let mut differences = |field: &str, old: &Values, new: &Values, writer: &dyn Fn(&str) -> Option<Claim>| {
            for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
                if old.get(key) != new.get(key) {
                    let (by, how) = who(writer(key), stamp, new.contains_key(key));
                    changes.push(Change {
                        time: now.to_string(),
                        by,
                        how,
                        field: field.to_owned(),
                        key: key.clone(),
                        old: old.get(key).cloned(),
                        new: new.get(key).cloned(),
                        ..Change::default()
                    });
                }
            }
        };
        let claims = &node.claims;
        let last = || claims.last_writer().cloned();
        differences("label", &old.labels, &new.labels, &|key| {
            if new.labels.contains_key(key) { claims.label_writer(key).cloned() } else { last() }
        });
        differences("taint", &old.taints, &new.taints, &|_| claims.taint_writer().cloned().or_else(last));
        if !changes.is_empty() {
            let new = || Pending { since: Instant::now(), changes: Vec::new() };
            let pending = &mut self.pending.entry(node.name().to_owned()).or_insert_with(new).changes;
            pending.extend(changes);
            let surplus = pending.len().saturating_sub(PENDING_MAX);
            pending.drain(..surplus);
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
    pub(super) fn forget(&mut self, node: &str) {
        self.seen.remove(node);
        self.pending.remove(node);
    }
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

/// Who made a change, and how. A key that no field manager claims was set by the webhook's patch.
fn who(writer: Option<Claim>, stamp: Option<&String>, there: bool) -> (String, String) {
    let how = match &writer {
        Some(claim) if &*claim.manager == FIELD_MANAGER => "controller",
        Some(claim) if claim.status => "status",
        Some(_) => "update",
        None if there => "admission",
        None => "update",
    };
    let manager = writer.map(|claim| claim.manager.to_string()).unwrap_or_default();
    let by = stamp.filter(|_| how != "controller").cloned().unwrap_or(manager);
    (by, how.to_owned())
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
