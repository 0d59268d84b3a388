//! Compiles `migrations` to rules that copy one label to another.

use std::collections::HashMap;

use super::{Draft, Faults};
use crate::api::document::{PolicyDocument, PolicyError};
use crate::api::names::LabelKey;
use crate::api::policy::{MigrationSpec, Operator};
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::keys::restriction::{is_reconciled_by_kubelet, writable_label};
use crate::set::gates::Gate;
use crate::set::matcher::{Condition, Conditions, Matcher, Requirement};
use crate::set::migration::Migration;
use crate::set::rule::{Assignments, REMOVE_AFTER, Rule, RuleId, Strength};

/// Compiles the migrations of a document.
pub(super) fn compile(document: usize, drafts: &mut Vec<Draft>, faults: &mut Faults<'_>) {
    for (index, spec) in faults.document.spec.migrations.iter().enumerate() {
        let path = FieldPath::root().key("spec").key("migrations").index(index);
        let MigrationSpec { from, to, phase, trust_kubelet } = spec;
        let old = faults.check(&path.key("from"), movable(from));
        let new = faults.check(&path.key("to"), movable(to));
        if from == to {
            faults.at(&path.key("to"), Problem::new("to is the same key as from", "write the new key"));
        }
        let (Some(from), Some(to)) = (old, new) else { continue };
        let id = RuleId { policy: faults.document.name.as_str().into(), rule: format!("migration:{from}:{to}").into() };
        let migration = Migration { from, to, phase: *phase, document };
        let rule = rule(migration, id, trust_kubelet.unwrap_or_default());
        drafts.push(Draft { rule, document, path });
    }
}

/// A label that a migration may set and remove.
fn movable(text: &str) -> Result<LabelKey, Problem> {
    let key = writable_label(text)?;
    if is_reconciled_by_kubelet(text) {
        let what = format!("{text:?} is set and maintained by every kubelet, so it cannot be moved");
        return Err(Problem::new(what, "copy it with a rule instead (labelExpressions)"));
    }
    Ok(key)
}

/// The rule of a migration: on nodes that have either key.
fn rule(migration: Migration, id: RuleId, trust_kubelet: bool) -> Rule {
    let has = |key: &LabelKey| -> Conditions {
        let requirement = Requirement::new(key.as_str(), Operator::Exists, Vec::new());
        [Condition::Label(requirement)].into_iter().collect()
    };
    let any_of = vec![has(&migration.from), has(&migration.to)];
    Rule {
        id,
        strength: Strength::Enforced,
        // Between two values for one of its keys the migration decides, and reports the conflict.
        priority: i32::MAX,
        rank: 0,
        matcher: Matcher { all: Conditions::default(), any_of: Some(any_of) },
        assigns: Assignments { migration: Some(migration), ..Assignments::default() },
        trust_kubelet,
        evict: false,
        remove_after: REMOVE_AFTER,
    }
}

/// Adds the other key of a migration to the persist sections that name one of its keys: which of them is saved depends on
/// the phase, and an old value may be restored as a new one.
pub(super) fn persist_both(drafts: &mut [Draft]) {
    let migrations: Vec<Migration> = drafts.iter().filter_map(|draft| draft.rule.assigns.migration.clone()).collect();
    for saved in drafts.iter_mut().filter_map(|draft| draft.rule.assigns.saved.as_mut()) {
        for Migration { from, to, .. } in &migrations {
            let persisted = [from, to].map(|key| saved.labels.contains(key.as_str()));
            match persisted {
                [true, false] => saved.labels.insert(to),
                [false, true] => saved.labels.insert(from),
                [true, true] | [false, false] => {}
            }
        }
    }
}

/// Reports keys that are in two migrations, and rules that set, or gates that wait for, the old key of a migration that is cut over.
pub(super) fn check(documents: &[PolicyDocument], drafts: &[Draft], gates: &[Gate], errors: &mut Vec<PolicyError>) {
    let mut seen: HashMap<&str, &Draft> = HashMap::new();
    let migrations = drafts.iter().filter_map(|draft| Some((draft, draft.rule.assigns.migration.as_ref()?)));
    for (draft, migration) in migrations {
        let document = &documents[draft.document];
        for (field, key) in [("from", migration.from.as_str()), ("to", migration.to.as_str())] {
            if let Some(first) = seen.get(key).filter(|first| !std::ptr::eq(**first, draft)) {
                let what = format!("{key:?} is also in {}, and a key can be in one migration only", first.rule.id);
                let remedy = "finish and delete the other migration first";
                super::add(errors, document.fault(&draft.path.key(field), Problem::new(what, remedy)));
            }
            seen.entry(key).or_insert(draft);
        }
        let writes = |other: &&Draft| other.rule.written_labels().any(|key| *key == migration.from);
        let others = drafts.iter().filter(|other| !std::ptr::eq(*other, draft) && migration.is_cut_over());
        if let Some(writer) = others.filter(|other| other.rule.assigns.migration.is_none()).find(writes) {
            let what = format!(
                "rule {} sets {:?}, which is replaced by {:?} in this phase",
                writer.rule.id,
                migration.from.as_str(),
                migration.to.as_str()
            );
            let remedy = "set the new key in that rule while the phase is dualWrite, then change the phase";
            super::add(errors, document.fault(&draft.path.key("phase"), Problem::new(what, remedy)));
        }
        let mut waiting = gates.iter().filter(|gate| gate.labels.contains(&migration.from) && migration.is_cut_over());
        if let Some(gate) = waiting.next() {
            let (from, to) = (migration.from.as_str(), migration.to.as_str());
            let what = format!("{} waits for {from:?}, which is replaced by {to:?} in this phase", gate.id);
            let remedy = "let it wait for the new key while the phase is dualWrite, then change the phase";
            super::add(errors, document.fault(&draft.path.key("phase"), Problem::new(what, remedy)));
        }
    }
}
