//! A stored node with what is known about its past, as the controller sees it; from a cluster or from files.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, Client};
use serde_json::Value as Json;

use super::output;
use crate::controller::{NodeObject, Unreadable};
use crate::kube_error::in_words;
use nodegate_policy::api::names::TaintId;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{FactsError, NodeFacts, StoredNode};

/// A stored node with what is known about its past.
pub(super) struct Member {
    /// The node.
    pub(super) node: NodeObject,
    /// Its saved state.
    pub(super) saved: SavedState,
    /// Whether the node was created while the webhook was registered.
    registered: bool,
    /// Taints that a webhook's patch added, as far as it is known.
    patched_taints: BTreeSet<String>,
}

impl Member {
    /// A node of a cluster. `webhook_since`: when the webhook was registered.
    pub(super) fn of_cluster(node: NodeObject, saved: SavedState, webhook_since: Option<Timestamp>) -> Self {
        let registered = webhook_since.zip(node.created()).is_some_and(|(since, created)| created > since);
        Self { node, saved, registered, patched_taints: BTreeSet::new() }
    }

    /// A node of a file. Without saved state, it is assumed that admission handled the node and that it did not join just
    /// now.
    ///
    /// # Errors
    /// Returns an error if it is not a Node.
    pub(super) fn of_file(node: &Json, saved: Option<SavedState>) -> anyhow::Result<Self> {
        let node = NodeObject::read(&node.to_string()).map_err(|Unreadable { name, why }| {
            anyhow::anyhow!("{}: {why}", if name.is_empty() { "a node without a name" } else { &name })
        })?;
        let patched_taints = match &saved {
            Some(_) => BTreeSet::new(),
            None => node.facts()?.taints().iter().map(|taint| format!("{}:{}", &*taint.key, &*taint.effect)).collect(),
        };
        let saved = saved.unwrap_or_else(|| SavedState {
            node_name: node.name().to_owned(),
            node_uid: Some(node.uid().to_owned()).filter(|uid| !uid.is_empty()),
            ..SavedState::default()
        });
        Ok(Self { node, saved, registered: true, patched_taints })
    }

    /// The facts of the node.
    ///
    /// # Errors
    /// Returns an error if a field has an unexpected type.
    pub(super) fn facts(&self) -> Result<NodeFacts<'_>, FactsError> {
        self.node.facts()
    }

    /// The node as `plan_reconcile` takes it.
    pub(super) fn stored<'a>(&'a self, facts: &'a NodeFacts<'a>, pending: &'a [TaintId]) -> StoredNode<'a> {
        let Self { node, saved, registered, patched_taints } = self;
        StoredNode {
            node: facts,
            claims: &node.claims,
            saved,
            registered: *registered,
            identified: true,
            pending,
            adopt: false,
            patched_taints,
        }
    }
}

/// When the webhook was registered. If that cannot be read, prints a note.
pub(super) async fn webhook_since(client: &Client, configuration: &str) -> Option<Timestamp> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match api.get_opt(configuration).await {
        Ok(found) => found?.metadata.creation_timestamp.map(|time| time.0),
        Err(error) => {
            output::note(&format!(
                "note: could not read webhook configuration {configuration}, so it is unknown which nodes were created after it: {}",
                in_words(&error)
            ));
            None
        }
    }
}
