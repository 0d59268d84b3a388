//! The answers of [`super::explain`] and [`super::why_not`], as other programs read them.
//!
//! Fields are added, never renamed.

use schemars::JsonSchema;
use serde::Serialize;

use crate::explain::identity::NodeIdentity;
use crate::keys::Field;
use crate::set::kleene::Kleene;
use crate::set::rule::Strength;

/// Why a node has what it has, and lacks what it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The name of the node.
    pub node: String,
    /// The labels, annotations and taints of the node, sorted by field and key.
    pub entries: Vec<Entry>,
    /// What rules assign, or may assign, and the node does not have; sorted by field and key.
    pub missing: Vec<Missing>,
    /// The pools of the node. Absent if no policy has pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<NodeIdentity>,
    /// Why saved state is unknown. Then `owned` is false where nothing else shows ownership.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_state_unknown: Option<String>,
    /// Why the writers of the node are unknown: it has no `managedFields`. Then `owned` is true for every value that a
    /// rule assigns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writers_unknown: Option<String>,
}

impl Explanation {
    /// Whether nodegate owns an entry, in a word.
    pub fn owned(&self, entry: &Entry) -> &'static str {
        match (entry.owned, &self.saved_state_unknown, &self.writers_unknown) {
            (_, _, Some(_)) => "?",
            (true, ..) => "yes",
            (false, None, None) => "no",
            (false, Some(_), None) => "unknown",
        }
    }
}

impl Entry {
    /// Whether a rule, saved state or nodegate itself has to do with it.
    pub fn is_ours(&self) -> bool {
        let is_ours = match self.source.kind {
            SourceKind::Rule
            | SourceKind::Saved
            | SourceKind::Inventory
            | SourceKind::Migration
            | SourceKind::Controller => true,
            SourceKind::Kubelet | SourceKind::User | SourceKind::Unknown => false,
        };
        is_ours || self.owned || !self.lost.is_empty() || self.removed_when.is_some()
    }
}

/// A label, annotation or taint of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The part of the node.
    pub field: FieldName,
    /// The key.
    pub key: String,
    /// The value; empty for a taint without a value.
    pub value: String,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Where the value comes from.
    pub source: Source,
    /// Whether nodegate owns the key, and so removes it when no rule assigns it anymore.
    pub owned: bool,
    /// Since when the key has this value (RFC 3339), if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Other values that rules assign to the key, the one with the highest precedence first.
    pub lost: Vec<Lost>,
    /// What makes nodegate remove the key, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed_when: Option<RemovedWhen>,
}

/// A part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FieldName {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
    /// `spec.taints`.
    Taint,
}

impl From<Field> for FieldName {
    fn from(field: Field) -> Self {
        match field {
            Field::Label => Self::Label,
            Field::Annotation => Self::Annotation,
            Field::Taint => Self::Taint,
        }
    }
}

impl FieldName {
    /// The name as the documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::Taint => "taint",
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The kind of source.
    pub kind: SourceKind,
    /// The policy of the rule or persist section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The rule in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The priority of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether the rule keeps the value (`enforced`) or assigns it once (`default`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The field manager that wrote the value last, whose name the client chose. For a taint: the one that wrote the
    /// list of taints last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manager: Option<String>,
    /// When this field manager last changed anything (RFC 3339): the value is at least that old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_write: Option<String>,
}

/// The kinds of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    /// A rule; without `policy` and `rule`, one that does not exist or match anymore.
    Rule,
    /// Saved state of an earlier Node object.
    Saved,
    /// An inventory.
    Inventory,
    /// A migration.
    Migration,
    /// The node's kubelet.
    Kubelet,
    /// nodegate itself, such as the pending taint.
    Controller,
    /// Another person or program.
    User,
    /// No rule assigns the value, and nobody claims it: an admission webhook or policy may have set it. Or it is a
    /// taint, and nodegate wrote the list of taints last.
    Unknown,
}

/// How a rule assigns values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// It keeps its values.
    Enforced,
    /// It keeps the labels of an inventory.
    Inventory,
    /// It restores saved values when a node joins.
    Saved,
    /// It assigns its values once, when a node joins without them.
    Default,
}

impl From<Strength> for Mode {
    fn from(strength: Strength) -> Self {
        match strength {
            Strength::Enforced => Self::Enforced,
            Strength::Inventory => Self::Inventory,
            Strength::Saved => Self::Saved,
            Strength::Default => Self::Default,
        }
    }
}

/// A value that is not used, because another one takes precedence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// The policy.
    pub policy: String,
    /// The rule in it.
    pub rule: String,
    /// Its priority.
    pub priority: i32,
    /// The value that it assigns, which may be the one in use.
    pub value: String,
    /// Why it is not used.
    pub why: LostTo,
}

/// Why a value is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LostTo {
    /// The other rule has a higher priority.
    Priority,
    /// The priorities are equal, and the name of the other policy, or rule, sorts first.
    Name,
    /// Rules take precedence over inventories.
    Inventory,
    /// Rules and inventories take precedence over saved state.
    Saved,
    /// Everything else takes precedence over defaults.
    Default,
    /// The node had the value already, so nodegate does not own it.
    Present,
    /// The node does not have this value yet: see `missing`.
    NotWritten,
}

/// What makes nodegate remove a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovedWhen {
    /// The event.
    pub when: RemovalCause,
    /// How long after that event, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<u64>,
}

/// The events after which nodegate removes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RemovalCause {
    /// The rule stops matching, and no other rule assigns the key.
    RuleStopsMatching,
    /// No rule assigns the key anymore, and the grace period has begun.
    GracePeriodEnds,
    /// No rule assigns the key anymore, but removals are held back: they exceed `--max-removals`, no rule remains, or
    /// not all nodes are checked yet.
    Confirmed,
    /// The key stays until it is known whether a rule assigns it.
    ResultIsKnown,
    /// For the pending taint: nothing is deferred anymore.
    NothingIsDeferred,
    /// The kubelet may not set the key. The controller's next write removes it.
    Stripped,
}

/// Something that the node does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    /// The part of the node.
    pub field: FieldName,
    /// The key, or a pattern such as `team/*` if the rule could not compute its keys.
    pub key: String,
    /// The value, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The value that the node has instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has: Option<String>,
    /// The policy.
    pub policy: String,
    /// The rule in it.
    pub rule: String,
    /// Why the node does not have it.
    pub why: MissingBecause,
    /// The reason in words.
    pub detail: String,
}

/// Why a node does not have what a rule assigns or may assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MissingBecause {
    /// The rule does not match. Only listed if a key is asked for.
    False,
    /// It is unknown whether the rule matches, or what it assigns.
    Unknown,
    /// The controller has yet to write it.
    Deferred,
    /// The same, and the node has the pending taint until then.
    Pending,
    /// Somebody else has to set it: a gate keeps the pending taint on the node until then.
    Gate,
    /// The key is not repaired anymore, because others keep reverting it.
    Fight,
    /// Defaults and saved state apply only when a node joins.
    Joined,
    /// A NoExecute taint is not added to an existing node without `evict: true`.
    Withheld,
    /// The computed or saved key or value is invalid.
    Invalid,
    /// Another rule takes precedence.
    Conflict,
}

/// Every rule that may assign a key, and why it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyNot {
    /// The name of the node.
    pub node: String,
    /// The key.
    pub key: String,
    /// The rules, in the order of precedence.
    pub rules: Vec<RuleResult>,
}

/// The result of one rule on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleResult {
    /// The policy.
    pub policy: String,
    /// The rule in it.
    pub rule: String,
    /// Its priority.
    pub priority: i32,
    /// How it assigns values.
    pub mode: Mode,
    /// Whether all conditions hold.
    pub result: Outcome,
    /// Its conditions, the cheapest first. Empty if it matches every node.
    pub conditions: Vec<ConditionResult>,
}

/// The result of one condition on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionResult {
    /// The condition, as policies write it.
    pub condition: String,
    /// The index of its alternative in `anyOf`, from 0. Absent outside `anyOf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any_of: Option<usize>,
    /// Whether it holds.
    pub result: Outcome,
    /// The fact that the result depends on.
    pub fact: String,
}

/// A result in three-valued logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is unknown, which adds and removes nothing.
    Unknown,
}

impl From<Kleene> for Outcome {
    fn from(result: Kleene) -> Self {
        match result {
            Kleene::True => Self::True,
            Kleene::False => Self::False,
            Kleene::Unknown => Self::Unknown,
        }
    }
}

impl Outcome {
    /// The result as the documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Unknown => "unknown",
        }
    }
}
