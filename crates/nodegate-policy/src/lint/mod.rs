//! Warnings about policies that compile, but probably do not do what their authors want.
//!
//! All of them are here. `check` and the review of `NodePolicy` objects show them.

mod applied;
mod common;
mod conflicts;
mod evaded;
mod openings;
mod persisted;
mod places;
mod pools;
mod programs;
mod resources;
mod waiting;

use std::fmt;

use crate::api::document::{Origin, PolicyError};
use crate::facts::pending_taints::PendingKey;
use crate::set::PolicySet;

/// A warning about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// Its kind.
    pub name: LintName,
    /// Where it is, what is probably wrong, and what to do.
    pub fault: PolicyError,
}

/// The kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LintName {
    /// Two rules assign different values to one key on the same nodes.
    Conflict,
    /// A `reserved` entry forgets the control plane, which writes some of its keys.
    CoversControlPlane,
    /// A kubelet can choose not to wait at a gate.
    EvadedGate,
    /// A rule evicts pods from every node.
    EvictsEverywhere,
    /// A resource in `capacity` is almost a known one.
    MistypedResource,
    /// A user or group is almost a known one, or written like a service account.
    MistypedSubject,
    /// Nobody may write a reserved key.
    NobodyAllowed,
    /// A file has what `kubectl apply` refuses.
    OnlyInFiles,
    /// Everybody may write a reserved key, override a policy, or is exempt from it.
    OpenGate,
    /// A rule or `persist` names a key that a program sets for a moment or for each machine.
    SetByProgram,
    /// A `match` names a pool that no policy has.
    UnknownPool,
    /// A label is persisted that kubelets may bring.
    UnprotectedPersist,
    /// Nodes wait with a taint that no autoscaler takes for a startup taint.
    WaitsUnknown,
}

impl fmt::Display for LintName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conflict => "conflict",
            Self::CoversControlPlane => "covers-control-plane",
            Self::EvadedGate => "evaded-gate",
            Self::EvictsEverywhere => "evicts-everywhere",
            Self::MistypedResource => "mistyped-resource",
            Self::MistypedSubject => "mistyped-subject",
            Self::NobodyAllowed => "nobody-allowed",
            Self::OnlyInFiles => "only-in-files",
            Self::OpenGate => "open-gate",
            Self::SetByProgram => "set-by-program",
            Self::UnknownPool => "unknown-pool",
            Self::UnprotectedPersist => "unprotected-persist",
            Self::WaitsUnknown => "waits-unknown",
        })
    }
}

impl PolicySet {
    /// All warnings, sorted by their place.
    pub fn lints(&self) -> Vec<Lint> {
        self.lints_of(None)
    }

    /// The same, with those that depend on the key of the pending taint.
    pub fn lints_with(&self, pending: &PendingKey) -> Vec<Lint> {
        let mut lints = self.lints();
        if let Some(key) = pending.unknown_to_autoscalers() {
            self.documents().iter().for_each(|document| waiting::waits_unknown(document, key, &mut lints));
            sort(&mut lints);
        }
        lints
    }

    /// The warnings that are about `policy`, or about all policies.
    pub(crate) fn lints_of(&self, policy: Option<&str>) -> Vec<Lint> {
        let mut lints = conflicts::conflicts(self, policy);
        let documents = self.documents().iter();
        for document in documents.filter(|document| policy.is_none_or(|policy| document.name == policy)) {
            resources::mistyped(document, &mut lints);
            applied::only_in_files(document, &mut lints);
            // What a preset opens is decided, and nobody can mend it in a policy.
            if document.origin != Origin::Preset {
                openings::openings(document, &mut lints);
                pools::unknown(document, self, &mut lints);
                evaded::evaded(document, self, &mut lints);
                persisted::unprotected(document, self, &mut lints);
                programs::set_by_program(document, &mut lints);
            }
        }
        sort(&mut lints);
        lints
    }
}

/// Sorts warnings by their place.
fn sort(lints: &mut [Lint]) {
    lints.sort_by_cached_key(|lint| {
        let PolicyError { file, place, policy, path, .. } = &lint.fault;
        (file.clone(), *place, policy.clone(), path.to_string(), lint.name)
    });
}

/// Where the lints of this kind are in the policies of these names.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
fn found(kind: LintName, policies: &[(&str, serde_json::Value)]) -> Vec<String> {
    let document = |(name, spec): &(&str, serde_json::Value)| {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        crate::PolicyDocument::new(*name, Origin::Object, spec)
    };
    let set = PolicySet::compile(&policies.iter().map(document).collect::<Vec<_>>()).unwrap();
    let found = set.lints().into_iter().filter(|lint| lint.name == kind);
    found.map(|lint| lint.fault.path.to_string()).collect()
}
