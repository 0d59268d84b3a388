//! What `nodegate migrate status` prints for other programs. Fields are added, never renamed.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::scheduling::{ConsumerKind, LabelUse};
use nodegate_policy::MigrationInForce;
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::api::policy::MigrationPhase;

/// How far migrations are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MigrationsStatus {
    /// The migrations, sorted by their old keys.
    pub(super) migrations: Vec<MigrationStatus>,
    /// Kinds of objects that could not be listed and may use an old key.
    pub(super) unread: Vec<Unread>,
}

/// How far one migration is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MigrationStatus {
    /// The old key.
    pub(super) from: String,
    /// The new key.
    pub(super) to: String,
    /// The policy that contains it. Absent if it is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<String>,
    /// Its phase. Absent if it is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<Phase>,
    /// How many nodes have which of the two keys.
    pub(super) nodes: NodeCounts,
    /// The nodes whose keys differ; in `done`, those that still have the old key. Sorted by name.
    pub(super) unequal: Vec<UnequalNode>,
    /// The field managers that set the old key, sorted by name.
    pub(super) writers: Vec<Writer>,
    /// What uses the old key, without the pods of other consumers. Sorted by kind, namespace and name.
    pub(super) consumers: Vec<Consumer>,
    /// The number of pods that use the old key and belong to a workload, which is listed itself if it uses the key.
    pub(super) pods_of_workloads: usize,
}

/// The phase of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
#[value(rename_all = "camelCase")]
pub(super) enum Phase {
    /// The old key is authoritative, and the new one follows it.
    DualWrite,
    /// The new key is authoritative, and the old one follows it.
    Cutover,
    /// The old key is removed.
    Done,
}

impl Phase {
    /// The name as policies write it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::DualWrite => "dualWrite",
            Self::Cutover => "cutover",
            Self::Done => "done",
        }
    }
}

impl From<MigrationPhase> for Phase {
    fn from(phase: MigrationPhase) -> Self {
        match phase {
            MigrationPhase::DualWrite => Self::DualWrite,
            MigrationPhase::Cutover => Self::Cutover,
            MigrationPhase::Done => Self::Done,
        }
    }
}

/// Numbers of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeCounts {
    /// Nodes with both keys and one value.
    pub(super) equal: usize,
    /// Nodes with both keys and two values.
    pub(super) different: usize,
    /// Nodes with the old key only.
    pub(super) old_only: usize,
    /// Nodes with the new key only.
    pub(super) new_only: usize,
    /// Nodes with neither key.
    pub(super) neither: usize,
}

/// A node on which the keys are not as the phase means them to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnequalNode {
    /// The name of the node.
    pub(super) node: String,
    /// The value of the old key, if the node has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) old: Option<String>,
    /// The value of the new key, if the node has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) new: Option<String>,
}

/// A field manager that claims the old key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Writer {
    /// Its name, which the client chooses.
    pub(super) manager: String,
    /// On how many nodes.
    pub(super) nodes: usize,
}

/// An object that uses the old key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Consumer {
    /// Its kind.
    pub(super) kind: ConsumerKind,
    /// Its namespace. Absent if its kind has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    /// Its name; for a NodePolicy, `policy/rule` or `policy/entry`.
    pub(super) name: String,
    /// The places in the object that name the key.
    pub(super) uses: Vec<LabelUse>,
}

/// A kind of objects that could not be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unread {
    /// The kind.
    pub(super) kind: ConsumerKind,
    /// Why it could not be listed, or how many objects could not be read.
    pub(super) reason: String,
}

impl MigrationStatus {
    /// A migration of the policies in force, before anything is counted.
    pub(super) fn in_force(migration: &MigrationInForce<'_>) -> Self {
        let MigrationInForce { policy, from, to, phase } = *migration;
        Self { policy: Some(policy.to_owned()), phase: Some(phase.into()), ..Self::of(from, to) }
    }

    /// One that is not in force.
    pub(super) fn planned(from: &LabelKey, to: &LabelKey) -> Self {
        Self::of(from.as_str(), to.as_str())
    }

    fn of(from: &str, to: &str) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            policy: None,
            phase: None,
            nodes: NodeCounts::default(),
            unequal: Vec::new(),
            writers: Vec::new(),
            consumers: Vec::new(),
            pods_of_workloads: 0,
        }
    }

    /// Counts a node on which these field managers claim the old key. One that claims it twice is counted once.
    pub(super) fn note_writers<'a>(&mut self, managers: impl Iterator<Item = &'a str>) {
        for manager in managers.collect::<BTreeSet<_>>() {
            match self.writers.iter_mut().find(|writer| writer.manager == manager) {
                Some(writer) => writer.nodes += 1,
                None => self.writers.push(Writer { manager: manager.to_owned(), nodes: 1 }),
            }
        }
    }

    /// Whether something uses the old key.
    pub(super) fn is_used(&self) -> bool {
        !self.consumers.is_empty() || self.pods_of_workloads > 0
    }

    pub(super) fn sort(&mut self) {
        self.unequal.sort_unstable();
        self.writers.sort_unstable();
        self.consumers.sort_unstable();
        // Two versions of a kind list the same objects.
        self.consumers.dedup();
    }
}
