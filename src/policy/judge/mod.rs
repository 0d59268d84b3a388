//! `judge`: what governance says of a write.

mod changes;
mod demands;
mod expressions;
mod side;
mod verdict;

pub use verdict::{Kind, Verdict, Violation};

use std::cell::{OnceCell, RefCell};

use changes::{KeyChange, changes, past};
use demands::{Finding, Known};
use side::Side;

use super::decide::decide;
use super::decision::{Decision, Field, RuleId};
use super::facts::NodeFacts;
use super::governance::{Demand, Entry, Governance, Reserved, Wanted};
use super::request::{Circumstances, Operation, Requester, Write};
use super::restriction::{is_own, is_reconciled_by_kubelet};
use super::set::PolicySet;
use super::stamp::LAST_CHANGE;
use crate::api::policy::{ChangeOperation, EntryMode};

/// Who is not judged, besides what policies say.
#[derive(Clone, Debug, Default)]
pub struct Exemptions {
    /// nodegate's own user name in the cluster.
    pub self_user: Option<String>,
    /// Groups that may override every policy (`--break-glass-group`).
    pub break_glass_groups: Vec<String>,
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
        changes: changes(write),
        new: Side::new(set, &write.node, write.old.as_ref()),
        old: write.old.as_ref().map(|old| Side::new(set, old, None)),
        asked: OnceCell::new(),
        unknown: RefCell::default(),
    };
    let keys = judge.changes.iter().filter_map(|change| judge.key(change));
    let mut violations: Vec<Violation> = keys.collect();
    violations.extend(set.governance().demands().iter().flat_map(|demand| judge.demand(demand)));
    violations.sort_by(|a, b| a.importance().cmp(&b.importance()));
    Verdict { violations, unknown: judge.unknown.take() }
}

/// What of all that is demanded a node lacks as it is, whoever made it so.
///
/// Who may write a key, what does not change, and expressions over `oldObject` are about writes: they are not looked at.
pub fn violations(set: &PolicySet, node: &NodeFacts<'_>) -> Verdict {
    let side = Side::new(set, node, None);
    let requester = Requester::default();
    let mut verdict = Verdict::default();
    for demand in set.governance().demands().iter().filter(|demand| side.matches(&demand.entry.matcher)) {
        let found = match &demand.what {
            Wanted::Expression(demanded) if demanded.expression.reads().old_object => continue,
            Wanted::Expression(demanded) => {
                let asked = expressions::Asked { new: &side, old: None, requester: &requester, write: None };
                expressions::findings(demanded, &asked).unwrap_or_else(|reason| {
                    verdict.unknown.push((demand.entry.id.clone(), reason));
                    Vec::new()
                })
            }
            wanted => demands::findings(wanted, &side),
        };
        let documents = set.governance();
        let made = found.into_iter().map(|finding| {
            made(documents, demand, &demand.entry, finding, ChangeOperation::Add, None, &Exemptions::default())
        });
        verdict.violations.extend(made);
    }
    verdict.violations.sort_by(|a, b| a.importance().cmp(&b.importance()));
    verdict
}

struct Judge<'a, 'e> {
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: &'e Circumstances<'a>,
    exemptions: &'e Exemptions,
    kubelet: bool,
    changes: Vec<KeyChange<'a>>,
    new: Side<'a>,
    old: Option<Side<'a>>,
    /// What the requester asked for, without what is not held against him.
    asked: OnceCell<Asked<'a>>,
    unknown: RefCell<Vec<(RuleId, String)>>,
}

/// A write without the changes that are not held against the requester.
struct Asked<'a> {
    changes: Vec<KeyChange<'a>>,
    side: Side<'a>,
}

impl<'a> Judge<'a, '_> {
    /// What the requester alone would have made of the node. Asked only about violations: it decides anew.
    fn asked(&self) -> &Asked<'a> {
        self.asked.get_or_init(|| {
            let decision = decide(self.set, self.write, self.circumstances);
            let excused =
                |change: &KeyChange<'a>| is_desired(&decision, change) || (self.kubelet && is_reconciled(change));
            let (undone, changes): (Vec<_>, Vec<_>) = self.changes.iter().copied().partition(excused);
            // A kubelet must be able to tell how its node is: of its writes only keys are judged.
            let old = self.write.old.as_ref();
            let around = old.filter(|_| self.kubelet).unwrap_or(&self.write.node);
            let side = Side::without(self.set, &self.write.node, old, undone, around);
            Asked { changes, side }
        })
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
        let by = if is_own(place.key) {
            own("own-keys")
        } else if self.is_persisted(change) {
            own("persisted")
        } else {
            let protecting = self.set.governance().protecting(place.key).filter(|_| place.field == Field::Label)?;
            protecting.protect_id.clone()
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

    /// Whether this label of a living node is saved: a kubelet that changed it would change what comes back.
    fn is_persisted(&self, change: &KeyChange<'_>) -> bool {
        let uid = self.write.old.as_ref().and_then(|old| old.uid.as_deref());
        let saved = self.circumstances.saved.filter(|saved| uid.is_some() && saved.node_uid.as_deref() == uid);
        change.place.field == Field::Label && saved.is_some_and(|saved| saved.labels.contains_key(change.place.key))
    }

    fn reserved(&self, change: &KeyChange<'_>) -> Option<Violation> {
        let entries = self.set.governance().reserved(change.place.field, change.place.key, |reserved| {
            reserved.entry.is_about(change.operation) && self.is_about_node(&reserved.entry)
        });
        let requester = &self.write.requester;
        let may = |reserved: &&Reserved| reserved.allow.contain(requester) || reserved.entry.except.contain(requester);
        if entries.is_empty() || entries.iter().any(may) {
            return None;
        }
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
        let (documents, glass) = (self.set.governance(), self.exemptions);
        Some(Violation {
            by: strictest.entry.id.clone(),
            mode: strictest.entry.mode,
            kind: Kind::Reserved,
            field: place.field,
            key: place.to_string(),
            operation: change.operation,
            overridden_by: break_glass(documents, &strictest.entry, requester, glass),
            what: message.clone(),
            message,
            way: Some(way(documents, &strictest.entry, glass)),
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
        let mut found = match wanted {
            Wanted::Immutable { .. } if self.is_about_node(entry) => demands::frozen(wanted, &self.changes),
            Wanted::Immutable { .. } => return Vec::new(),
            _ if !self.new.matches(&entry.matcher) => return Vec::new(),
            Wanted::Expression(demanded) => self.expression(entry, demanded),
            _ => self.fresh(entry, wanted),
        };
        let operation = |finding: &Finding| self.operation(demand, finding);
        found.retain(|finding| operation(finding).is_some());
        if found.is_empty() {
            return Vec::new();
        }
        // What remains when all that is not held against the requester is left out.
        let asked = self.asked();
        let held = match wanted {
            Wanted::Immutable { .. } => demands::frozen(wanted, &asked.changes),
            _ if !asked.side.matches(&entry.matcher) => return Vec::new(),
            Wanted::Expression(demanded) => self.ask(entry, demanded, &asked.side),
            _ => demands::findings(wanted, &asked.side),
        };
        let held = Known::of(&held);
        found.retain(|finding| held.has(finding));
        let violation = |finding: Finding| {
            let operation = operation(&finding)?;
            let requester = Some(&self.write.requester);
            Some(made(self.set.governance(), demand, entry, finding, operation, requester, self.exemptions))
        };
        found.into_iter().filter_map(violation).collect()
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
    fn expression(&self, entry: &Entry, demanded: &super::governance::Demanded) -> Vec<Finding> {
        let found = self.ask(entry, demanded, &self.new);
        let before = self.old.as_ref().filter(|_| !found.is_empty() && !demanded.expression.reads().old_object);
        match before {
            Some(old) if old.matches(&entry.matcher) && expressions::is_false(demanded, &self.about(old, None)) => {
                Vec::new()
            }
            _ => found,
        }
    }

    fn ask(&self, entry: &Entry, demanded: &super::governance::Demanded, side: &Side<'a>) -> Vec<Finding> {
        expressions::findings(demanded, &self.about(side, self.old.as_ref())).unwrap_or_else(|reason| {
            let mut unknown = self.unknown.borrow_mut();
            if !unknown.iter().any(|(rule, _)| *rule == entry.id) {
                unknown.push((entry.id.clone(), reason));
            }
            Vec::new()
        })
    }

    fn about<'s>(&'s self, new: &'s Side<'a>, old: Option<&'s Side<'a>>) -> expressions::Asked<'s, 'a> {
        expressions::Asked { new, old, requester: &self.write.requester, write: Some(self.write) }
    }
}

fn is_reconciled(change: &KeyChange<'_>) -> bool {
    change.place.field == Field::Label && is_reconciled_by_kubelet(change.place.key)
}

/// Whether a changed key now is what nodegate itself makes it.
fn is_desired(decision: &Decision, change: &KeyChange<'_>) -> bool {
    let Some(value) = change.new else { return false };
    let place = change.place;
    let desired = match (place.field, place.effect) {
        (Field::Taint, Some(effect)) => decision.taint(place.key, effect),
        (Field::Annotation, _) => decision.annotations.get(place.key).map(|desired| desired.value.as_str()),
        _ => decision.label(place.key),
    };
    desired == Some(value)
}

fn made(
    governance: &Governance,
    demand: &Demand,
    entry: &Entry,
    finding: Finding,
    operation: ChangeOperation,
    requester: Option<&Requester<'_>>,
    exemptions: &Exemptions,
) -> Violation {
    let except = entry.except.describe();
    let except = if except.is_empty() { String::new() } else { format!("; not asked of {}", except.join("; ")) };
    Violation {
        by: entry.id.clone(),
        mode: entry.mode,
        kind: Kind::of(&demand.what),
        field: finding.field,
        key: finding.key,
        operation,
        overridden_by: requester.and_then(|requester| break_glass(governance, entry, requester, exemptions)),
        message: format!("{} (policy {}, rule {}{except})", finding.what, entry.id.policy, entry.id.rule),
        what: finding.what,
        way: Some(way(governance, entry, exemptions)),
    }
}

/// Who of the requester's identities overrides this entry.
fn break_glass(
    governance: &Governance,
    entry: &Entry,
    requester: &Requester<'_>,
    exemptions: &Exemptions,
) -> Option<String> {
    let by_flag =
        requester.groups.iter().find(|group| exemptions.break_glass_groups.iter().any(|open| open == &***group));
    if let Some(group) = by_flag {
        return Some(group.to_string());
    }
    let document = governance.document(entry.document);
    document.break_glass.iter().any(|subjects| subjects.contain(requester)).then(|| requester.username.to_string())
}

/// How to override an entry.
fn way(governance: &Governance, entry: &Entry, exemptions: &Exemptions) -> String {
    let document = governance.document(entry.document);
    let groups = document.break_glass.iter().flat_map(|subjects| subjects.groups.written());
    let mut glass: Vec<&str> = groups.chain(exemptions.break_glass_groups.iter().map(String::as_str)).collect();
    glass.sort_unstable();
    glass.dedup();
    if glass.is_empty() {
        "to override, name a break-glass group in the policy or start nodegate with --break-glass-group".to_owned()
    } else {
        format!("to override, act as a member of break-glass group {}", glass.join(" or "))
    }
}
