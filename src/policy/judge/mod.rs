//! `judge`: what governance says of a write.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance has to be thought of here")]

mod changes;
mod demands;
mod expressions;
mod glass;
mod side;
mod standing;
mod verdict;

pub use standing::violations;
pub use verdict::{Kind, Verdict, Violation};

use std::cell::{OnceCell, RefCell};

use changes::{KeyChange, Place, changes, past};
use demands::{Finding, Known};
use glass::Glass;
use side::{Instead, Side};

use super::decide::decide;
use super::decision::{Decision, Field, RuleId};
use super::governance::{Demand, Demanded, Entry, Judged, Wanted};
use super::guard::{Guard, Hold};
use super::pattern::Identities;
use super::request::{Circumstances, Operation, Write};
use super::restriction::{KUBELET_ANNOTATIONS, is_own, is_reconciled_by_kubelet};
use super::set::PolicySet;
use super::stamp::LAST_CHANGE;
use crate::api::policy::{ChangeOperation, EntryMode};

/// Who is not judged, besides what policies say.
#[derive(Clone, Debug, Default)]
pub struct Exemptions {
    /// nodegate's own user name in the cluster.
    pub self_user: Option<String>,
    /// Groups that may override every policy (`--break-glass-group`).
    pub break_glass_groups: Identities,
}

/// Judges the difference that a write makes, as it would be stored (after mutation).
///
/// # Guarantees
/// - Pure, like [`decide`].
/// - A kubelet's CREATE is never denied; the keys it reconciles always pass.
/// - What was wrong before is not held against the requester, nor is what has the value that [`decide`] gives.
pub fn judge<'a>(
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: &Circumstances<'a>,
    exemptions: &Exemptions,
) -> Verdict {
    let kubelet = write.requester.is_kubelet();
    let own = exemptions.self_user.as_deref().is_some_and(|user| user == &*write.requester.username);
    if own || (kubelet && write.operation == Operation::Create) {
        return Verdict::default();
    }
    let judge = Judge {
        set,
        write,
        circumstances,
        exemptions,
        kubelet,
        guard: Guard::of(set, write, circumstances),
        changes: changes(write),
        new: Side::new(set, &write.node, circumstances.budget),
        old: write.old.as_ref().map(|old| Side::new(set, old, circumstances.budget)),
        decision: OnceCell::new(),
        asked: OnceCell::new(),
        restored: OnceCell::new(),
        unanswered: RefCell::default(),
    };
    let keys = judge.changes.iter().filter_map(|change| judge.key(change));
    let mut violations: Vec<Violation> = keys.collect();
    violations.extend(set.governance().demands().iter().flat_map(|demand| judge.demand(demand)));
    violations.sort_by(|a, b| a.importance().cmp(&b.importance()));
    let Unanswered { unknown, too_costly } = judge.unanswered.take();
    Verdict { violations, unknown, too_costly }
}

struct Judge<'a, 'e> {
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: &'e Circumstances<'a>,
    exemptions: &'e Exemptions,
    kubelet: bool,
    guard: Option<Guard<'a>>,
    changes: Vec<KeyChange<'a>>,
    new: Side<'a>,
    old: Option<Side<'a>>,
    decision: OnceCell<Decision>,
    /// What the requester asked for, without what is not held against him.
    asked: OnceCell<Asked<'a>>,
    /// The node with what he took away and nodegate will give again; `None` where that is nothing.
    restored: OnceCell<Option<Side<'a>>>,
    unanswered: RefCell<Unanswered>,
}

/// Expressions without an answer.
#[derive(Default)]
struct Unanswered {
    unknown: Vec<(RuleId, String)>,
    too_costly: Option<(RuleId, String)>,
}

/// A write without the changes that are not held against the requester.
struct Asked<'a> {
    changes: Vec<KeyChange<'a>>,
    side: Side<'a>,
}

impl<'a> Judge<'a, '_> {
    /// What nodegate gives the node. Asked only where it matters: it decides anew.
    fn decision(&self) -> &Decision {
        self.decision.get_or_init(|| decide(self.set, self.write, self.circumstances))
    }

    /// What the requester alone would have made of the node.
    fn asked(&self) -> &Asked<'a> {
        self.asked.get_or_init(|| {
            let decision = self.decision();
            let excused =
                |change: &KeyChange<'a>| is_desired(decision, change) || (self.kubelet && is_reconciled(change));
            let (undone, changes): (Vec<_>, Vec<_>) = self.changes.iter().copied().partition(excused);
            let as_new = |change: &KeyChange<'a>| Instead { place: change.place, value: change.new };
            let as_old = |change: &KeyChange<'a>| Instead { place: change.place, value: change.old };
            let side = |facts, instead| Side::new(self.set, facts, self.circumstances.budget).with(instead);
            let side = match &self.write.old {
                // A kubelet must be able to tell how its node is: of its writes only keys are judged.
                Some(old) if self.kubelet => side(old, changes.iter().map(as_new).collect()),
                _ => side(&self.write.node, undone.iter().map(as_old).collect()),
            };
            Asked { changes, side }
        })
    }

    /// Whether an entry is about the node as it will be: as it is written, or as nodegate will put it right.
    fn will_match(&self, entry: &Entry) -> bool {
        if self.new.matches(&entry.matcher) {
            return true;
        }
        let restored = self.restored.get_or_init(|| {
            let taken = self.changes.iter().filter(|change| change.operation != ChangeOperation::Add);
            let decision = self.decision();
            let back = taken.filter(|change| change.old.is_some() && desired(decision, change.place) == change.old);
            let back: Vec<_> = back.map(|change| Instead { place: change.place, value: change.old }).collect();
            let side = || Side::new(self.set, &self.write.node, self.circumstances.budget);
            (!back.is_empty()).then(|| side().with(back))
        });
        restored.as_ref().is_some_and(|restored| restored.matches(&entry.matcher))
    }

    /// What is said of one changed key.
    fn key(&self, change: &KeyChange<'a>) -> Option<Violation> {
        if self.kubelet && is_reconciled(change) {
            return None;
        }
        let violation = self.assertion(change).or_else(|| self.reserved(change))?;
        changes::at(&self.asked().changes, change.place).is_some().then_some(violation)
    }

    /// A kubelet that asserts about itself what it may not.
    fn assertion(&self, change: &KeyChange<'_>) -> Option<Violation> {
        let place = change.place;
        let stamp = self.circumstances.stamps && place.field == Field::Annotation && place.key == LAST_CHANGE;
        if (!self.kubelet && !stamp) || place.field == Field::Taint {
            return None;
        }
        let own = |rule: &str| RuleId { policy: "nodegate".into(), rule: rule.into() };
        let hold = match place.field {
            Field::Label => self.guard.as_ref().and_then(|guard| guard.label(place.key)),
            Field::Annotation | Field::Taint => is_own(place.key).then_some(Hold::Own),
        };
        let by = match hold? {
            Hold::Own => own("own-keys"),
            Hold::Persisted => own("persisted"),
            Hold::Protected => self.set.governance().protecting(place.key)?.protect_id.clone(),
        };
        let message = if stamp {
            format!("annotation {LAST_CHANGE:?} is nodegate's own word and may not be {}", past(change.operation))
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
            way: None,
        })
    }

    fn reserved(&self, change: &KeyChange<'_>) -> Option<Violation> {
        let requester = &self.write.requester;
        // What is on trial opens nothing: each mode is asked together with the stricter ones only.
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
            "{} {:?} may not be {} by {:?}: reserved by policy {}, rule {}; writers: {writers}",
            place.field,
            place.to_string(),
            past(change.operation),
            &*requester.username,
            strictest.entry.id.policy,
            strictest.entry.id.rule,
        );
        let glass = self.glass();
        Some(Violation {
            by: strictest.entry.id.clone(),
            mode,
            kind: Kind::Reserved,
            field: place.field,
            key: place.to_string(),
            operation: change.operation,
            overridden_by: glass.overridden_by(&strictest.entry, requester),
            what: message.clone(),
            message,
            way: Some(glass.way(&strictest.entry)),
        })
    }

    /// Whether an entry is about this node, before or after: nobody gets out of it by the write that it judges.
    fn is_about_node(&self, entry: &Entry) -> bool {
        self.new.matches(&entry.matcher) || self.old.as_ref().is_some_and(|old| old.matches(&entry.matcher))
    }

    /// What an entry says of the write.
    fn demand(&self, demand: &'a Demand) -> Vec<Violation> {
        let (entry, wanted) = (&demand.entry, &demand.what);
        // On a node that it is about anyway, only keys that change can matter.
        let elsewhere = self.old.is_some() && entry.matcher.is_every_node() && !demands::touches(wanted, &self.changes);
        if elsewhere || entry.except.contain(&self.write.requester) {
            return Vec::new();
        }
        let judged = wanted.judged();
        let is_about = match judged {
            Judged::Changes { .. } => self.is_about_node(entry),
            Judged::State | Judged::Expression(_) => {
                (demands::touches(wanted, &self.changes) || self.new.matches(&entry.matcher)) && self.will_match(entry)
            }
        };
        if !is_about {
            return Vec::new();
        }
        let mut found = match judged {
            Judged::Changes { keys, of } => demands::frozen(keys, of, &self.changes),
            Judged::State => self.fresh(entry, wanted),
            Judged::Expression(demanded) => self.expression(entry, demanded),
        };
        let operation = |finding: &Finding| self.operation(demand, finding);
        found.retain(|finding| operation(finding).is_some());
        if found.is_empty() {
            return Vec::new();
        }
        // What remains when all that is not held against the requester is left out.
        let asked = self.asked();
        let held = match judged {
            Judged::Changes { keys, of } => demands::frozen(keys, of, &asked.changes),
            Judged::State => demands::findings(wanted, &asked.side),
            Judged::Expression(demanded) => self.ask(entry, demanded, &asked.side),
        };
        let held = Known::of(&held);
        found.retain(|finding| held.has(finding));
        // A node that nodegate makes one that the entry is about: then only what the requester himself changed counts.
        let may_become_one = match judged {
            Judged::Changes { .. } => false,
            Judged::State | Judged::Expression(_) => true,
        };
        if may_become_one && !asked.side.matches(&entry.matcher) {
            found.retain(|finding| asked.changes.iter().any(|change| demands::names(wanted, finding, change)));
        }
        let (glass, requester) = (self.glass(), &self.write.requester);
        let violation = |finding: Finding| {
            let operation = operation(&finding)?;
            Some(Violation::of(demand, finding, operation, glass.overridden_by(entry, requester), glass.way(entry)))
        };
        found.into_iter().filter_map(violation).collect()
    }

    fn glass(&self) -> Glass<'_> {
        Glass { governance: self.set.governance(), exemptions: self.exemptions }
    }

    /// What is wrong now and was not before.
    fn fresh(&self, entry: &Entry, wanted: &Wanted) -> Vec<Finding> {
        let mut found = demands::findings(wanted, &self.new);
        if let Some(old) = self.old.as_ref().filter(|old| !found.is_empty() && old.matches(&entry.matcher)) {
            let before = demands::findings(wanted, old);
            let before = Known::of(&before);
            found.retain(|finding| !before.has_same_or_worse(finding));
        }
        found
    }

    /// Which of the changes that an entry is about has to do with a finding.
    fn operation(&self, demand: &Demand, finding: &Finding) -> Option<ChangeOperation> {
        let one = demands::is_about_one_key(&demand.what);
        let exact = finding.place().filter(|_| one).and_then(|place| changes::at(&self.changes, place));
        let others = self.changes.iter().filter(|change| !one && demands::concerns(&demand.what, finding, change));
        let operations = || exact.into_iter().chain(others.clone()).map(|change| change.operation);
        match operations().next() {
            Some(_) => operations().find(|operation| demand.entry.is_about(*operation)),
            // The node is made without it, or has become one that the entry is about.
            None => {
                let made = if self.old.is_none() { ChangeOperation::Add } else { ChangeOperation::Change };
                demand.entry.is_about(made).then_some(made)
            }
        }
    }

    /// What an expression says of the write: an answer that was there before is not held against it.
    fn expression(&self, entry: &Entry, demanded: &Demanded) -> Vec<Finding> {
        let found = self.ask(entry, demanded, &self.new);
        let before = self.old.as_ref().filter(|_| !found.is_empty() && !demanded.expression.reads().old_object);
        match before {
            Some(old) if old.matches(&entry.matcher) && expressions::is_false(demanded, &self.about(old, None)) => {
                Vec::new()
            }
            _ => found,
        }
    }

    fn ask(&self, entry: &Entry, demanded: &Demanded, side: &Side<'a>) -> Vec<Finding> {
        expressions::findings(demanded, &self.about(side, self.old.as_ref())).unwrap_or_else(|why| {
            let mut unanswered = self.unanswered.borrow_mut();
            match why {
                expressions::Unanswered::TooCostly(reason) if self.is_binding(entry) => {
                    unanswered.too_costly = Some((entry.id.clone(), reason));
                }
                expressions::Unanswered::TooCostly(reason) | expressions::Unanswered::Unknown(reason) => {
                    if !unanswered.unknown.iter().any(|(rule, _)| *rule == entry.id) {
                        unanswered.unknown.push((entry.id.clone(), reason));
                    }
                }
            }
            Vec::new()
        })
    }

    /// Whether an entry could deny this write.
    fn is_binding(&self, entry: &Entry) -> bool {
        let requester = &self.write.requester;
        entry.mode == EntryMode::Enforce && self.glass().overridden_by(entry, requester).is_none()
    }

    fn about<'s>(&'s self, new: &'s Side<'a>, old: Option<&'s Side<'a>>) -> expressions::Asked<'s, 'a> {
        expressions::Asked { new, old, requester: &self.write.requester, write: Some(self.write) }
    }
}

/// Whether a kubelet keeps this key up to date itself.
fn is_reconciled(change: &KeyChange<'_>) -> bool {
    match change.place.field {
        Field::Label => is_reconciled_by_kubelet(change.place.key),
        Field::Annotation => KUBELET_ANNOTATIONS.contains(&change.place.key),
        Field::Taint => false,
    }
}

/// Whether a changed key now is what nodegate itself makes it.
fn is_desired(decision: &Decision, change: &KeyChange<'_>) -> bool {
    change.new.is_some() && desired(decision, change.place) == change.new
}

/// What nodegate gives a key.
fn desired<'d>(decision: &'d Decision, place: Place<'_>) -> Option<&'d str> {
    match (place.field, place.effect) {
        (Field::Taint, Some(effect)) => decision.taint(place.key, effect),
        (Field::Annotation, _) => decision.annotations.get(place.key).map(|desired| desired.value.as_str()),
        _ => decision.label(place.key),
    }
}
