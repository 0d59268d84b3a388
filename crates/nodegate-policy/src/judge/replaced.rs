//! Writes that set a label that a migration has replaced by another one.

use super::Judge;
use super::changes::{KeyChange, past};
use super::verdict::{Kind, Violation};
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::keys::Field;

impl<'a> Judge<'a, '_> {
    /// The violation if someone sets the old key of a migration that is cut over.
    pub(super) fn replaced(&self, change: &KeyChange<'a>) -> Option<Violation> {
        let place = change.place;
        if place.field != Field::Label || change.operation == ChangeOperation::Remove {
            return None;
        }
        let (rule, migration) = self.set.replaced(place.key)?;
        // The old key follows the new one.
        if change.is_desired(self.decision()) {
            return None;
        }
        let (new, requester, break_glass) = (migration.to.as_str(), &self.write.requester, self.break_glass());
        let message = format!(
            "label {:?} may not be {} anymore: it is replaced by {new:?} (policy {}, rule {}); set {new:?} instead",
            place.to_string(),
            past(change.operation),
            rule.id.policy,
            rule.id.rule,
        );
        Some(Violation {
            by: rule.id.clone(),
            mode: EntryMode::Enforce,
            kind: Kind::Replaced,
            field: place.field,
            key: place.to_string(),
            operation: change.operation,
            overridden_by: break_glass.overridden_by(migration.document, requester),
            what: message.clone(),
            message,
            override_hint: Some(break_glass.override_hint(migration.document)),
        })
    }
}
