//! The states of the model, and what happens between them.

use std::sync::Arc;

use super::KEY;
use nodegate_policy::api::state::SavedState;

/// Who set the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Writer {
    Nodegate,
    Other,
    /// Another writer set a value that nodegate had set on this node before. Nobody can tell them apart, so it may stay or go.
    Same,
}

/// The node as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The index of the value, and who set it.
    pub(super) label: Option<(usize, Writer)>,
    /// Increases with every change.
    pub(super) version: u8,
    /// How often the node was created again.
    pub(super) life: u8,
}

/// What one run of the controller writes, as computed from what it read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Job {
    /// The version of the node that was read. The API server refuses a change of another one.
    pub(super) version: u8,
    /// The record that was read, or that this run has written. A record is refused if another one is stored.
    pub(super) base: Arc<str>,
    /// The record to write before the change.
    pub(super) before: Option<Arc<str>>,
    /// The change: a value, or the removal.
    pub(super) change: Option<Option<usize>>,
    /// The record to write after the change.
    pub(super) after: Option<Arc<str>>,
}

/// Which write of a run is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Before,
    Change,
    After,
}

/// How many events of each kind may still happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) others: u8,
    pub(super) policies: u8,
    pub(super) ends: u8,
    pub(super) lives: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) node: Node,
    pub(super) record: Arc<str>,
    /// The index of the value that the rule gives; `None` without a rule.
    pub(super) rule: Option<usize>,
    pub(super) replicas: [Option<(Stage, Job)>; 2],
    /// A write of a replica that has ended: it may still arrive.
    pub(super) late: Option<(Stage, Job)>,
    pub(super) budget: Budget,
    /// Which values nodegate has set on this node.
    pub(super) given: [bool; 3],
    /// Whether nodegate has removed a value that another writer set.
    pub(super) removed_anothers: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// A replica reads the node and its record, and decides.
    Read(usize),
    /// The next write of a replica arrives, and it reads the answer.
    Write(usize),
    /// A replica ends while its next write is under way.
    End(usize),
    /// That write arrives after all.
    Late,
    /// Another writer sets the label, or removes it.
    Other(Option<usize>),
    /// The rule changes.
    Rule(Option<usize>),
    /// The node is deleted and created again.
    Anew,
}

/// A safeguard that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Without {
    Nothing,
    /// Records are written after the change only.
    RecordBefore,
    /// A change applies to whatever version the node has.
    Versions,
    /// A record replaces whatever record is stored.
    Base,
    /// Records do not count how often they were written.
    Revisions,
    /// A record does not say which change was under way.
    Unsettled,
}

impl World {
    pub(super) fn set(&mut self, label: Option<(usize, Writer)>) {
        self.node.label = label;
        self.node.version += 1;
    }

    /// The values of the label that the record says nodegate has set, or may have set.
    pub(super) fn owned(&self) -> Vec<String> {
        let record: SavedState = serde_json::from_str(&self.record).unwrap();
        let Some(owned) = record.owned else { return Vec::new() };
        let unsettled = owned.unsettled.unwrap_or_default();
        let sets = unsettled.labels.get(KEY).cloned().unwrap_or_default();
        let values = [owned.labels.get(KEY), unsettled.replaced_labels.get(KEY).map(String::as_str)];
        values.into_iter().flatten().map(str::to_owned).chain(sets).collect()
    }
}
