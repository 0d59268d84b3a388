//! What admission cannot have seen: it would have left other traces, or none.

use std::fmt;

use super::Keeper;
use crate::policy::decision::Strength;
use crate::policy::restriction;

/// What was admitted although nobody was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The node joined: it lacks these labels, which admission gives in the very request.
    Joined {
        /// The labels it lacks.
        lacking: Vec<String>,
    },
    /// Protected labels of a living node are not as they were recorded.
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
                    "this node joined without being judged: it lacks {}, which admission gives",
                    lacking.join(", ")
                )
            }
            Self::Changed { keys } => {
                write!(f, "protected labels changed while the controller did not look: {}", keys.join(", "))
            }
        }
    }
}

impl Keeper<'_> {
    /// What was admitted unseen, as far as this look can tell. The label that a webhook gave is claimed by nobody, so one
    /// such label shows that admission was asked.
    pub(super) fn unseen(&self) -> Option<Unseen> {
        if !self.first_sight {
            let keys = self.changed_protected();
            return (!keys.is_empty()).then_some(Unseen::Changed { keys });
        }
        if !self.living.registered || !self.living.identified || self.was_admitted_by_us() {
            return None;
        }
        let given = |key: &str| {
            let enforced = |desired: &super::super::Desired| desired.strength == Strength::Enforced;
            !restriction::is_restricted(key) && self.split.decision.labels.get(key).is_some_and(enforced)
        };
        let change = self.split.change.labels.iter();
        let lacking: Vec<String> =
            change.filter(|(key, value)| value.is_some() && given(key)).map(|(key, _)| key.clone()).collect();
        (!lacking.is_empty()).then_some(Unseen::Joined { lacking })
    }

    /// Protected labels whose value is not the one that is owned or saved.
    fn changed_protected(&self) -> Vec<String> {
        let saved = self.living.saved;
        let owned = saved.owned.iter().flat_map(|owned| &owned.labels);
        let recorded = owned.chain(&saved.labels).filter(|(key, _)| self.set.is_protected(key));
        let changed = recorded.filter(|(key, value)| self.living.node.label(key) != Some(value));
        changed.map(|(key, _)| key.clone()).collect()
    }
}
