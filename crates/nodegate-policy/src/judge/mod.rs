//! `judge`: finds the violations of a write.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

mod break_glass;
mod changes;
mod entries;
mod excess;
mod expressions;
mod findings;
mod parts;
mod replaced;
mod requested;
mod snapshot;
mod stored;
mod unevaluated;
mod verdict;

pub use excess::CHANGES_MAX;
pub use stored::violations;
pub use verdict::{Further, Kind, Verdict, Violation};

use std::cell::{OnceCell, RefCell};

use changes::{KeyChange, changes, past};
use expressions::SharedRequest;
use parts::Part;
use requested::{RequesterChange, Restored};
use snapshot::NodeSnapshot;
use verdict::Found;

use crate::api::policy::{ChangeOperation, EntryMode};
use crate::cel::Budget;
use crate::decide::decision::Decision;
use crate::decide::forbidden::{ForbiddenKeys, ForbiddenReason};
use crate::decide::left_at_join::LEFT_AT_JOIN;
use crate::decide::marks::last_change::LAST_CHANGE;
use crate::facts::request::{DecideContext, Operation, Write};
use crate::keys::Field;
use crate::keys::control_plane::{self, NEW_NODE_TAINT};
use crate::keys::pattern::Identities;
use crate::keys::restriction::is_own;
use crate::set::PolicySet;
use crate::set::governance::{ConstraintEntry, Entry};
use crate::set::rule::RuleId;

/// Who is not judged, in addition to the exemptions of policies.
#[derive(Clone, Debug, Default)]
pub struct Exemptions {
    /// nodegate's own user name in the cluster.
    pub self_user: Option<String>,
    /// Groups that may override every policy (`--break-glass-group`).
    pub break_glass_groups: Identities,
}

/// Judges the changes of a write, as it would be stored (after mutation).
///
/// # Guarantees
/// - Pure, like [`decide`].
/// - A kubelet's CREATE is never denied, and changes of the keys that kubelets reconcile always pass. Whoever creates a
///   Node may give it these keys as well, and the write that removes the taint `uninitialized` may add those of cloud controllers.
/// - What the control plane writes to bring a node up, and its taints of conditions, are never denied.
/// - Existing violations and values that [`decide`] assigns are never counted as violations of the requester.
/// - A write that changes more than [`CHANGES_MAX`] keys is denied as a whole.
pub fn judge<'a>(
    set: &'a PolicySet,
    write: &'a Write<'a>,
    context: &DecideContext<'a>,
    exemptions: &Exemptions,
) -> Verdict {
    let kubelet = write.requester.is_kubelet();
    let own = exemptions.self_user.as_deref().is_some_and(|user| user == &*write.requester.username);
    if own || (kubelet && write.operation == Operation::Create) {
        return Verdict::default();
    }
    if let Some(verdict) = excess::verdict(write) {
        return verdict;
    }
    let evidence = write.evidence.as_ref();
    let mut judge = Judge {
        set,
        write,
        context,
        exemptions,
        kubelet,
        control_plane: control_plane::is_control_plane(&write.requester.username),
        forbidden: ForbiddenKeys::of(set, write, context),
        changes: changes(write),
        new: NodeSnapshot::new(set, &write.node, evidence, context.budget),
        old: write.old.as_ref().map(|old| NodeSnapshot::new(set, old, evidence, context.budget)),
        decision: OnceCell::new(),
        requested: OnceCell::new(),
        restored: OnceCell::new(),
        request: SharedRequest::of(write),
        unevaluated: RefCell::default(),
    };
    judge.changes.extend(judge.following_removals());
    judge.changes.sort_unstable_by_key(|change| change.place);
    let mut found = Found::default();
    judge.changes.iter().filter_map(|change| judge.key(change)).for_each(|violation| found.add(violation));
    let in_vain = || context.budget.is_some_and(Budget::was_too_brief);
    let constraints = set.governance().constraints().iter().take_while(|_| !in_vain());
    let applying: Vec<&ConstraintEntry> = constraints.filter(|constraint| judge.is_judged_by(constraint)).collect();
    for part in Part::of(write, &judge.changes) {
        let constraints = applying.iter().take_while(|_| !in_vain());
        let found_here = constraints.flat_map(|constraint_entry| judge.entry_violations(constraint_entry, part));
        found_here.for_each(|violation| found.add(violation));
    }
    let WithoutAnswer { unknown, too_costly } = judge.unevaluated.take();
    let (violations, further) = found.sorted();
    Verdict { violations, further, unknown, too_costly }
}

struct Judge<'a, 'e> {
    set: &'a PolicySet,
    write: &'a Write<'a>,
    context: &'e DecideContext<'a>,
    exemptions: &'e Exemptions,
    kubelet: bool,
    /// Whether the control plane sends it.
    control_plane: bool,
    forbidden: Option<ForbiddenKeys<'a>>,
    changes: Vec<KeyChange<'a>>,
    new: NodeSnapshot<'a>,
    old: Option<NodeSnapshot<'a>>,
    decision: OnceCell<Decision>,
    /// The requester's own part of the write.
    requested: OnceCell<RequesterChange<'a>>,
    /// The node as it will be once nodegate has restored removed and changed keys; `None` if it restores none.
    restored: OnceCell<Option<Restored<'a>>>,
    request: SharedRequest<'a>,
    unevaluated: RefCell<WithoutAnswer>,
}

/// Expressions that could not be evaluated.
#[derive(Default)]
struct WithoutAnswer {
    unknown: Vec<(RuleId, String)>,
    too_costly: Option<(RuleId, String)>,
}

impl<'a> Judge<'a, '_> {
    /// The violation by the change of one key, if any.
    fn key(&self, change: &KeyChange<'a>) -> Option<Violation> {
        if self.is_own_work(change) {
            return None;
        }
        let violation = self.assertion(change).or_else(|| match self.replaced(change) {
            Some(denied) if denied.denies() => Some(denied),
            overridden if self.is_given_at_the_start(change) => overridden,
            // Who may override the policy of a migration may not override others by that.
            overridden => self.reserved(change).or(overridden),
        })?;
        changes::at(&self.requested().changes, change.place).is_some().then_some(violation)
    }

    /// Whether the change is a kubelet's or the control plane's own work, which no policy denies.
    fn is_own_work(&self, change: &KeyChange<'_>) -> bool {
        let place = change.place;
        let of_api_server = || {
            self.write.operation == Operation::Create
                && place.field == Field::Taint
                && place.to_string() == NEW_NODE_TAINT
        };
        (self.kubelet && change.is_reconciled())
            || (self.control_plane && control_plane::is_written(place.field, place.key))
            || of_api_server()
    }

    /// Whether the key is one that a node has from its start. A Node that somebody else creates, such as a backup or a simulated one,
    /// has the keys that its kubelet gives it. A cloud controller, whose name nobody may know, adds some in the write without which
    /// its node never runs a pod.
    fn is_given_at_the_start(&self, change: &KeyChange<'_>) -> bool {
        let by_cloud = || {
            let place = change.place;
            let adds_label = place.field == Field::Label && change.operation == ChangeOperation::Add;
            adds_label && control_plane::GIVEN_BY_CLOUDS.contains(&place.key) && self.write.is_initial()
        };
        (self.old.is_none() && change.is_reconciled()) || by_cloud()
    }

    /// The violation if a kubelet changes a key that it may not change, or anyone changes an annotation that nodegate maintains.
    fn assertion(&self, change: &KeyChange<'_>) -> Option<Violation> {
        let place = change.place;
        let is_kept = match place.key {
            LAST_CHANGE => self.context.records_last_change,
            key => LEFT_AT_JOIN.contains(&key) && self.write.operation == Operation::Update,
        };
        let stamp = is_kept && place.field == Field::Annotation;
        if (!self.kubelet && !stamp) || place.field == Field::Taint {
            return None;
        }
        let hold = match place.field {
            Field::Label => self.forbidden.as_ref().and_then(|forbidden| forbidden.label(place.key)),
            Field::Annotation | Field::Taint => is_own(place.key).then_some(ForbiddenReason::Own),
        };
        let by = hold?.rule(self.set, place.key)?;
        let message = if stamp {
            format!(
                "annotation {:?} is maintained by nodegate and may not be {} by others",
                place.key,
                past(change.operation)
            )
        } else {
            format!(
                "{} {:?} may not be {} by a kubelet: policy {} protects it ({}); an administrator or a policy rule may set it",
                place.field,
                place.to_string(),
                past(change.operation),
                by.policy,
                by.rule
            )
        };
        Some(Violation {
            by,
            mode: EntryMode::Enforce,
            kind: Kind::Asserted,
            field: place.field,
            key: place.to_string(),
            operation: change.operation,
            overridden_by: None,
            what: message.clone(),
            message,
            override_hint: None,
        })
    }

    fn reserved(&self, change: &KeyChange<'_>) -> Option<Violation> {
        let requester = &self.write.requester;
        // An entry in a weaker mode must not permit what a stricter one forbids, so each mode is evaluated with stricter ones only.
        let violated = [EntryMode::Enforce, EntryMode::Warn, EntryMode::Audit].into_iter().find_map(|mode| {
            let entries = self.set.governance().reserved(change.place.field, change.place.key, |reserved| {
                let entry = &reserved.entry;
                entry.mode >= mode
                    && entry.is_about(change.operation)
                    && !entry.except.contain(requester)
                    && self.is_about_node(entry)
            });
            let may = entries.is_empty() || entries.iter().any(|reserved| reserved.allow.contain(requester));
            (!may).then_some((mode, entries))
        });
        let (mode, entries) = violated?;
        let strictest = entries.iter().max_by_key(|reserved| reserved.entry.mode)?;
        let writers: Vec<String> = entries.iter().flat_map(|reserved| reserved.allow.describe()).collect();
        let writers = if writers.is_empty() { "nobody".to_owned() } else { writers.join("; ") };
        let place = change.place;
        let message = format!(
            "{} {:?} may not be {} by {:?}: it is reserved by policy {}, rule {} (allowed writers: {writers})",
            place.field,
            place.to_string(),
            past(change.operation),
            // The API server bounds no user name, and the message is written for each key.
            findings::cut(&requester.username),
            strictest.entry.id.policy,
            strictest.entry.id.rule,
        );
        let break_glass = self.break_glass();
        Some(Violation {
            by: strictest.entry.id.clone(),
            mode,
            kind: Kind::Reserved,
            field: place.field,
            key: place.to_string(),
            operation: change.operation,
            overridden_by: break_glass.overridden_by(strictest.entry.document, requester),
            what: message.clone(),
            message,
            override_hint: Some(break_glass.override_hint(strictest.entry.document)),
        })
    }

    /// Whether an entry applies to this node before or after the write, so that a write cannot escape its own judgement.
    fn is_about_node(&self, entry: &Entry) -> bool {
        self.new.matches(&entry.matcher) || self.old.as_ref().is_some_and(|old| old.matches(&entry.matcher))
    }
}
