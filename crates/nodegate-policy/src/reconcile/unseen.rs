//! Detects writes that were admitted without nodegate.

use std::fmt;

use super::Planner;
use crate::keys::restriction;
use crate::set::rule::Strength;

/// A write that was admitted without nodegate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The node joined: it lacks labels that the webhook sets in the CREATE.
    Joined {
        /// The labels it lacks.
        lacking: Vec<String>,
    },
    /// Protected labels of an existing node differ from the recorded ones.
    Changed {
        /// The labels that changed.
        keys: Vec<String>,
    },
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { lacking } => {
                write!(
                    f,
                    "this node joined without admission by nodegate: it lacks {}, which the webhook would have set",
                    lacking.join(", ")
                )
            }
            Self::Changed { keys } => {
                write!(f, "protected labels changed while the controller was not watching: {}", keys.join(", "))
            }
        }
    }
}

impl Planner<'_> {
    /// What was admitted without nodegate, as far as the stored node shows it. Nobody claims a label that a webhook sets, so
    /// one such label proves that admission handled the node.
    pub(super) fn unseen(&self) -> Option<Unseen> {
        if !self.first_sight {
            let keys = self.changed_protected();
            return (!keys.is_empty()).then_some(Unseen::Changed { keys });
        }
        if !self.stored.registered || !self.stored.identified || self.was_admitted_by_us() {
            return None;
        }
        // Rules that go by the name did not match yet when admission reviewed it.
        if self.stored.node.is_name_generated {
            return None;
        }
        // Nor those that go by a pool whose proof became known later: until then, the node waits with a taint of admission.
        let may_prove_later = self.set.asks_for_bootstrap() || self.set.asks_for_machines();
        if may_prove_later && self.stored.pending.on(self.stored.node).next().is_some() {
            return None;
        }
        let given = |key: &str| {
            let enforced = |desired: &crate::Desired| desired.strength == Strength::Enforced;
            !restriction::is_restricted(key) && self.builder.decision.labels.get(key).is_some_and(enforced)
        };
        let change = self.builder.change.labels.iter();
        let lacking: Vec<String> =
            change.filter(|(key, value)| value.is_some() && given(key)).map(|(key, _)| key.clone()).collect();
        (!lacking.is_empty()).then_some(Unseen::Joined { lacking })
    }

    /// Protected labels whose value is not the one that is owned or saved.
    fn changed_protected(&self) -> Vec<String> {
        let saved = self.stored.saved;
        let owned = saved.owned.iter().flat_map(|owned| owned.labels.iter());
        let recorded = owned.chain(saved.labels.iter()).filter(|(key, _)| self.set.is_protected(key));
        let changed = recorded.filter(|(key, value)| self.stored.node.label(key) != Some(value));
        changed.map(|(key, _)| key.to_owned()).collect()
    }
}
