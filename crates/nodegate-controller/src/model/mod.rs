//! The controller's protocols as small state machines, checked exhaustively: every interleaving of a few events.
//!
//! The transitions call the code that the controller runs: [`plan_reconcile`](nodegate_policy::plan_reconcile) with its records,
//! `Removals`, and the authority that a Lease gives. Only what is between them is modelled: writes that arrive late or never, replicas
//! that end, other writers, and time. Each model is also checked with one of its safeguards taken away, and then has to fail.

mod brake;
mod lease;
mod ownership;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker as _, Model};

/// Checks a model, and returns the number of its states and the properties that do not hold, each with the events that lead
/// to it.
fn check<M>(model: M) -> (usize, Vec<(&'static str, String)>)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + Send + Sync + PartialEq + Clone + 'static,
{
    let checked = model.checker().threads(2).spawn_bfs().join();
    let mut failed: Vec<(&'static str, String)> = checked
        .discoveries()
        .into_iter()
        .map(|(property, path)| {
            let actions: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
            (property, actions.join(", "))
        })
        .collect();
    failed.sort_unstable();
    (checked.unique_state_count(), failed)
}
