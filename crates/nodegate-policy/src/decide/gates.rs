//! Which gates a node has not passed.

use std::time::Duration;

use crate::api::policy::OnTimeout;
use crate::decide::view::View;
use crate::set::PolicySet;
use crate::set::kleene::Kleene;
use crate::set::rule::RuleId;

/// A gate that a node has not passed: labels are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedGate {
    /// The policy, and `gate:NAME` or `topology:NAME`.
    pub id: RuleId,
    /// The keys of the missing labels, in the order of the policy.
    pub missing: Vec<String>,
    /// How long after its creation a node waits.
    pub timeout: Duration,
    /// What becomes of it then.
    pub on_timeout: OnTimeout,
}

/// The gates whose `match` holds for a node as rules see it.
pub(crate) fn matching(set: &PolicySet, view: &View<'_>) -> Vec<RuleId> {
    let matching = set.gates().iter().filter(|gate| gate.matcher.evaluate(view) == Kleene::True);
    let found = matching.map(|gate| gate.id.clone()).collect();
    view.take_failures();
    found
}

/// The gates that a node has not passed, as rules see it. One of which it is not known whether the node has to pass it counts: it may
/// become known, and waiting has an end.
pub(crate) fn closed(set: &PolicySet, view: &View<'_>) -> Vec<ClosedGate> {
    let mut found = Vec::new();
    for gate in set.gates() {
        let missing = gate.labels.iter().filter(|key| view.label(key.as_str()).is_none());
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        if missing.is_empty() {
            continue;
        }
        if gate.matcher.evaluate(view) != Kleene::False {
            let (id, timeout, on_timeout) = (gate.id.clone(), gate.timeout, gate.on_timeout);
            found.push(ClosedGate { id, missing, timeout, on_timeout });
        }
    }
    view.take_failures();
    found
}
