//! Compiled `gates`.

use std::time::Duration;

use crate::api::gates::OnTimeout;
use crate::api::names::LabelKey;
use crate::set::matcher::{Condition, Matcher};
use crate::set::rule::RuleId;

/// Labels that a joining node waits for.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// The policy, and `gate:NAME`.
    pub(crate) id: RuleId,
    pub(crate) matcher: Matcher,
    pub(crate) labels: Vec<LabelKey>,
    pub(crate) timeout: Duration,
    pub(crate) on_timeout: OnTimeout,
}

impl Gate {
    /// Whether it waits for this label, or for nodes with it.
    pub(crate) fn names_label(&self, key: &str) -> bool {
        self.labels.iter().any(|label| label.as_str() == key)
            || self.matcher.conditions().map(Condition::source).any(|source| source.names_label(key))
    }
}
