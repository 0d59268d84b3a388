//! Policies for Kubernetes Nodes: [`api`] has the documents, a [`PolicySet`] is compiled from them, [`decide()`] computes what
//! a node should have, [`judge()`] the violations of a write, [`patch()`] the JSON patch for a change.
//!
//! Nothing here reads a clock, a file, a socket or the environment, and nothing is asynchronous: the same arguments always
//! give the same result. `Cargo.toml` and `crates/nodegate-policy/clippy.toml` enforce it.

pub mod api;
pub mod cel;
pub mod cleanup;
mod compile;
mod decide;
pub mod explain;
mod facts;
pub mod init;
mod judge;
mod keys;
mod lint;
pub mod native;
mod reconcile;
mod set;
pub mod simulate;
pub mod templates;
pub mod translate;

pub use api::Quoted;
pub use api::document::{Origin, PolicyDocument, PolicyError};
pub use api::presets::{baseline, baseline_in};
pub use compile::review::{ObjectFault, ObjectReview, name_is_taken, review_object};
pub use decide::decide;
pub use decide::decision::{Decision, Desired, LeftOut, NodeChange, Note};
pub use decide::forbidden::{CORRECTIONS_MAX, corrections_exceeded, excess};
pub use decide::gates::ClosedGate;
pub use decide::limits::fit;
pub use decide::marks::admission::{ADMISSION, AdmissionMark};
pub use decide::marks::last_change::LAST_CHANGE;
pub use decide::patch::{NodePatch, patch, patch_of_write};
pub use facts::devices::{DeviceSlice, NodeDevices};
pub use facts::gpu;
pub use facts::inventory::{
    DroppedLabel, INVENTORY_LABELS_MAX, InventoryAnswers, InventoryLabels, InventoryQuestion, is_machine,
    name_of_machine,
};
pub use facts::json::borrow::{Capacity, Entries, Text};
pub use facts::json::compact::read_compact;
pub use facts::json::kinds::{Flag, List, Object};
pub use facts::managed_fields::{Claim, Claims, FIELD_MANAGER, TaintsClaimed, Writes};
pub use facts::pending_taints::{PendingKey, PendingTaints};
pub use facts::pool_memory::{Disagreement, PoolLabels, PoolMemory, PoolShare};
pub use facts::proof::asserted::{Assertion, Assertions, CertificateForNode, Contradiction};
pub use facts::proof::bootstrap::{Bootstrapper, CREDENTIAL_ID, certificate_of};
pub use facts::proof::evidence::{AUTHENTICATED_AS, Evidence, GROUPS_OF_EVERY_KUBELET};
pub use facts::proof::extra::Extra;
pub use facts::proof::machines::{Absence, MachinesOfNode, instance_of, is_named_after, node_names};
pub use facts::publishers::{Publishers, table as publishers};
pub use facts::quantity::quantity;
pub use facts::request::{DecideContext, Operation, Write};
pub use facts::requester::{KUBELET_USER, Requester};
pub use facts::{FactsError, NodeFacts, NodeFields, ObjectText, Readiness, TaintFact, needed_by_facts, without_place};
pub use judge::{CHANGES_MAX, Exemptions, Further, Kind, Verdict, Violation, judge, violations};
pub use keys::annotations::ANNOTATIONS_MAX;
pub use keys::pattern::Identities;
pub use keys::{Field, programs, restriction};
pub use lint::{Lint, LintName};
pub use reconcile::{
    ReconcilePlan, RejectedClaim, Removal, SAVED_LABELS_MAX, SAVED_TAINTS_MAX, StoredNode, Unseen, gates_of,
    plan_reconcile,
};
pub use set::PolicySet;
pub use set::gates::{AwaitedLabel, GateLabels};
pub use set::inventory::answer_form::{AnswerForm, ItemLabels};
pub use set::inventory::{Inventory, InventoryUrl, without_credentials};
pub use set::kleene::Kleene;
pub use set::migration::{MigrationInForce, Ownership};
pub use set::pools::witness::Witness;
pub use set::rule::{RuleId, Strength};
pub use set::uses::PolicyUse;
