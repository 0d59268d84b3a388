//! The annotations that only the webhook writes, and only on a node that joins: they tell the controller what admission has seen.

use crate::decide::DecisionBuilder;
use crate::decide::decision::{Desired, Note};
use crate::decide::marks::admission::ADMISSION;
use crate::facts::proof::evidence::AUTHENTICATED_AS;
use crate::set::migration::Ownership;
use crate::set::rule::{REMOVE_AFTER, RuleId, Strength};

/// These annotations.
pub(crate) const LEFT_AT_JOIN: [&str; 2] = [ADMISSION, AUTHENTICATED_AS];

impl DecisionBuilder<'_> {
    /// Sets one of these annotations, or removes what stands there. If it is the guard's (`is_guards`), nobody is told that it was
    /// removed.
    pub(super) fn leave(&mut self, annotation: &str, wanted: Option<String>, is_guards: bool) {
        let is_ours = self.write.node.annotation(annotation) == wanted.as_deref();
        if is_ours {
            self.change.annotations.remove(annotation);
        } else {
            self.change.annotations.insert(annotation.to_owned(), wanted.clone());
        }
        if is_ours || is_guards {
            self.decision.notes.retain(|note| !matches!(note, Note::Stripped { key, .. } if key == annotation));
        }
        if let Some(value) = wanted {
            let by = RuleId::own("admission");
            let strength = Strength::Enforced;
            let desired = Desired { value, strength, by, remove_after: REMOVE_AFTER, ownership: Ownership::Usual };
            self.decision.annotations.insert(annotation.to_owned(), desired);
        }
    }
}
