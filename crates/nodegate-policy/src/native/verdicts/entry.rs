//! The common parts of governance entries: nodes, operations, exempt subjects, overrides.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::collections::BTreeSet;

use crate::api::policy::{ChangeOperation, EntryMode};
use crate::keys::Field;
use crate::native::objects::NativeOptions;
use crate::native::terms::formula::{Formula, has_foreign_glob, is_identity, is_one_of, quote};
use crate::native::terms::matching;
use crate::native::terms::selection::{Selection, why_not};
use crate::native::terms::subject::Subject;
use crate::native::verdicts::validation::{Validation, now};
use crate::set::PolicySet;
use crate::set::governance::{Entry, GovernedDocument, Subjects};
use crate::set::matcher::Source;

/// The context of an export.
#[derive(Clone, Copy)]
pub(in crate::native) struct EntryContext<'j, 'a> {
    pub(in crate::native) selection: &'j Selection<'a>,
    pub(in crate::native) options: &'j NativeOptions,
}

/// Why an entry cannot be exported.
pub(in crate::native) fn reason(set: &PolicySet, entry: &Entry, allow: &Subjects) -> Option<&'static str> {
    let foreign = |subjects: &Subjects| {
        has_foreign_glob(subjects.users.written())
            || has_foreign_glob(subjects.groups.written())
            || has_foreign_glob(subjects.service_accounts.written())
    };
    let break_glass = &set.governance().document(entry.document).break_glass;
    if [allow, &entry.except].into_iter().chain(break_glass).any(foreign) {
        return Some("contains a glob with non-ASCII characters");
    }
    entry.matcher.conditions().find_map(|condition| {
        let fails = "matches by an expression, which may fail; nodegate then skips only this entry, the API server the whole validation";
        why_not(set, condition).or_else(|| condition.expression().map(|_| fails))
    })
}

/// Whether the entry matches on names only, which no write changes.
pub(in crate::native) fn is_about_names(entry: &Entry) -> bool {
    entry.matcher.conditions().all(|condition| match condition.source() {
        Source::Name(_) => true,
        Source::Pools
        | Source::Label(_)
        | Source::Taints(_)
        | Source::Reported(_)
        | Source::Gpu
        | Source::Expression(_) => false,
    })
}

/// Whether the entry applies to this node before or after the write.
pub(in crate::native) fn is_about_node(selection: &Selection<'_>, entry: &Entry) -> Formula {
    let after = matching::matcher(selection, Subject::Entry, &entry.matcher);
    if is_about_names(entry) {
        return after;
    }
    let there = Formula::When("(oldObject != null)".to_owned());
    let before = Formula::all([there, matching::matcher(selection, Subject::EntryBefore, &entry.matcher)]);
    Formula::any([after, before])
}

/// Whether the entry applies to the change of the key in `k`.
pub(in crate::native) fn is_about_change(entry: &Entry, field: Field, title: &str) -> Formula {
    let (now, before) = (now(field), format!("variables.old{title}"));
    let all = BTreeSet::from([ChangeOperation::Add, ChangeOperation::Change, ChangeOperation::Remove]);
    let operations = entry.operations.as_ref().filter(|operations| **operations != all);
    let Some(operations) = operations else { return Formula::Always };
    Formula::any(operations.iter().map(|operation| {
        Formula::When(match operation {
            ChangeOperation::Add => format!("!(k in {before})"),
            ChangeOperation::Change => format!("(k in {now} && k in {before})"),
            ChangeOperation::Remove => format!("!(k in {now})"),
        })
    }))
}

/// Whether a requester is one of the subjects.
pub(in crate::native) fn is_subject(subjects: &Subjects) -> Formula {
    let user = "request.userInfo.username";
    let accounts: Vec<String> =
        subjects.service_accounts.written().map(|account| format!("system:serviceaccount:{account}")).collect();
    let users = is_identity(user, subjects.users.written());
    Formula::any([users, is_in_group(subjects.groups.written()), is_one_of(user, accounts.iter().map(String::as_str))])
}

/// Whether a requester is in one of the groups, which may be globs.
fn is_in_group<'a>(groups: impl IntoIterator<Item = &'a str>) -> Formula {
    match is_identity("g", groups) {
        Formula::When(text) => Formula::When(format!("request.userInfo.?groups.orValue([]).exists(g, {text})")),
        Formula::Always => Formula::When("(request.userInfo.?groups.orValue([]).size() > 0)".to_owned()),
        Formula::Never => Formula::Never,
    }
}

impl EntryContext<'_, '_> {
    fn document(&self, entry: &Entry) -> &GovernedDocument {
        self.selection.set().governance().document(entry.document)
    }

    /// Whether the requester overrides the entry.
    fn breaks_glass(&self, entry: &Entry) -> Formula {
        let by_flag = is_in_group(self.options.break_glass_groups.iter().map(String::as_str));
        let break_glass = self.document(entry).break_glass.iter().map(is_subject);
        Formula::any([by_flag].into_iter().chain(break_glass))
    }

    /// How to override the entry.
    pub(in crate::native) fn override_hint(&self, entry: &Entry) -> String {
        let subjects = self.document(entry).break_glass.iter();
        let mut break_glass: Vec<&str> = subjects.flat_map(|subjects| subjects.groups.written()).collect();
        break_glass.extend(self.options.break_glass_groups.iter().map(String::as_str));
        break_glass.sort_unstable();
        break_glass.dedup();
        if break_glass.is_empty() {
            "to allow overrides, set governance.breakGlass in the policy".to_owned()
        } else {
            format!("to override, act as a member of break-glass group {}", break_glass.join(" or "))
        }
    }

    /// The validations that a list of violating keys is empty. A violation that a break-glass subject overrides is a
    /// warning.
    ///
    /// `what` is CEL for the start of the message, `reason` is its end.
    pub(in crate::native) fn validations(
        &self,
        entry: &Entry,
        variable: &str,
        what: &str,
        reason: &str,
    ) -> Vec<Validation> {
        let none = Formula::When(format!("({variable}.size() == 0)"));
        let made = |mode: EntryMode, passes: Formula, start: &str, fallback: &str| Validation {
            mode,
            alone: false,
            expression: passes.text(),
            message: format!("{start} + {what} + {}", quote(reason)),
            fallback: format!("{fallback}this write is not allowed{reason}"),
        };
        let usual = "nodegate: ";
        // As in the webhook's warning, this says who. The API server uses the fallback if the name does not fit into a line.
        let overrides =
            format!(r#""nodegate: user " + request.userInfo.username + {}"#, quote(" overrides (break glass): "));
        let break_glass = self.breaks_glass(entry);
        if entry.mode != EntryMode::Enforce || break_glass == Formula::Never {
            return vec![made(entry.mode, none, &quote(usual), usual)];
        }
        vec![
            made(EntryMode::Enforce, Formula::any([none.clone(), break_glass.clone()]), &quote(usual), usual),
            made(EntryMode::Warn, Formula::any([none, break_glass.not()]), &overrides, "nodegate: break glass: "),
        ]
    }
}
