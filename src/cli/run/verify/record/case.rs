//! The PolicyTest of a recording: with what is known beside the reviews, and what presets make of all.
//!
//! As in [reviews](super::review), whatever is of the cluster is a [`Redacted`].

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::redacted::{Pseudonyms, Redacted};
use super::review::{FileName, Review, extra, texts};
use super::seen::Seen;
use nodegate_policy::GROUPS_OF_EVERY_KUBELET;
use nodegate_policy::api::presets::presets_with_pools;
use nodegate_policy::api::state::{Bootstrap, ProvisionedBy};

/// The labels that the rule of the PolicyTest sets, and their expressions.
pub(super) const POOL: &str = "recorded.example.com/pool";
pub(super) const PROOF: &str = "recorded.example.com/proven-by";

/// What presets make of recorded nodes: the spec of a policy.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Presets {
    presets: Vec<&'static str>,
    rules: [Rule; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    name: &'static str,
    label_expressions: BTreeMap<&'static str, &'static str>,
}

impl Presets {
    /// All presets for pools.
    pub(super) fn all() -> Self {
        let label_expressions = [(POOL, "identity.pool"), (PROOF, "identity.proof")].into();
        Self { presets: presets_with_pools(), rules: [Rule { name: "pool", label_expressions }] }
    }
}

/// A PolicyTest with what presets make of the recorded nodes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Test {
    api_version: &'static str,
    kind: &'static str,
    policy: Presets,
    cases: Vec<Case>,
}

impl Test {
    pub(super) fn of(cases: Vec<Case>) -> Self {
        Self { api_version: "nodegate.dev/v1alpha1", kind: "PolicyTest", policy: Presets::all(), cases }
    }
}

/// A kubelet's CREATE as a case: with what is known beside the review.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    name: Redacted,
    node_file: FileName,
    groups: Vec<Redacted>,
    extra: BTreeMap<Redacted, Vec<Redacted>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrapped_by: Option<BootstrappedBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provisioned_by: Option<Machine>,
    expect: Expected,
}

#[derive(Serialize)]
struct BootstrappedBy {
    user: Redacted,
    groups: Vec<Redacted>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Machine {
    kind: Redacted,
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    provider_id: Option<Redacted>,
    labels: BTreeMap<Redacted, Redacted>,
}

/// What presets made of a node when it was recorded.
#[derive(Default, Serialize)]
struct Expected {
    labels: BTreeMap<&'static str, Redacted>,
    absent: BTreeSet<&'static str>,
}

impl Case {
    pub(super) fn of(seen: &Seen, review: &Review, pseudonyms: &mut Pseudonyms) -> Self {
        let telling: Vec<String> = seen
            .user
            .groups
            .iter()
            // A case of a PolicyTest has these without being told.
            .filter(|group| !GROUPS_OF_EVERY_KUBELET.contains(&group.as_str()))
            .cloned()
            .collect();
        Self {
            name: review.node().clone(),
            node_file: review.file(),
            groups: texts(&telling, pseudonyms),
            extra: extra(&seen.user, pseudonyms),
            bootstrapped_by: seen.bootstrapped_by.as_ref().map(|by| BootstrappedBy::of(by, pseudonyms)),
            provisioned_by: seen.provisioned_by.first().map(|by| Machine::of(by, pseudonyms)),
            expect: Expected::default(),
        }
    }

    /// Expects the pool and the proof that presets gave.
    pub(super) fn expect(&mut self, found: [(&'static str, Option<Redacted>); 2]) {
        for (key, value) in found {
            match value {
                Some(value) => drop(self.expect.labels.insert(key, value)),
                None => drop(self.expect.absent.insert(key)),
            }
        }
    }

    /// The value of a label that is expected.
    pub(super) fn expected(&self, key: &str) -> Option<&Redacted> {
        self.expect.labels.get(key)
    }
}

impl BootstrappedBy {
    fn of(by: &Bootstrap, pseudonyms: &mut Pseudonyms) -> Self {
        Self { user: pseudonyms.text(by.user()), groups: texts(by.groups(), pseudonyms) }
    }
}

impl Machine {
    fn of(by: &ProvisionedBy, pseudonyms: &mut Pseudonyms) -> Self {
        let labels = by.labels().iter().filter(|(_, value)| !value.is_empty());
        Self {
            kind: pseudonyms.text(by.kind()),
            provider_id: Some(pseudonyms.text(&by.provider_id)).filter(|_| !by.provider_id.is_empty()),
            labels: labels.map(|(key, value)| (pseudonyms.text(key), pseudonyms.text(value))).collect(),
        }
    }
}
