//! What admission has seen of a node, by when it was created.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Reconciler;
use crate::memory::fleet::patience;
use crate::node::NodeObject;
use nodegate_base::api_server;
use nodegate_policy::api::state::{Bootstrap, SavedState};
use nodegate_policy::{Evidence, NodeFacts};
use nodegate_stores::certificates::KubeletCertificates;

/// How long a joining node waits for who asked for its kubelet's certificate. Requests are read as they are answered, so what is not
/// known by then was deleted long ago.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(15);

impl Reconciler {
    /// When the mutating webhook was registered; `None` if it is not. Creation times have whole seconds: a node of
    /// the same second may be older.
    pub fn registered(&self, since: Option<Timestamp>) {
        self.registered_at.store(Arc::new(since));
    }

    /// From when on the API server admits only true evidence for pools; `None` if it does not. Returns whether that is news.
    pub(crate) fn evidence_guarded(&self, since: Option<Timestamp>) -> bool {
        *self.evidence_guarded.swap(Arc::new(since)) != since
    }

    /// The evidence for the pools of a node.
    pub(crate) fn evidence(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        saved: &SavedState,
    ) -> Option<Evidence<'static>> {
        let evidence = Evidence::of_stored(facts, saved, is_younger(node, **self.evidence_guarded.load()))?;
        let known = evidence.bootstrapped(|certificate| self.certificates.bootstrapper(certificate, Some(saved)));
        Some(if self.awaits_certificate(node).is_some() { known } else { known.not_awaited() })
    }

    /// How much longer a node may wait for who asked for its kubelet's certificate; `None` if it has waited for long enough.
    pub(crate) fn awaits_certificate(&self, node: &NodeObject) -> Option<Duration> {
        let now = api_server::time_at_most(Timestamp::now())?;
        let left = patience(node.created()?.as_second(), now, CERTIFICATE_WAIT);
        (!left.is_zero()).then_some(left)
    }

    /// Who asked for the certificates of a node's kubelets, to be recorded with this evidence.
    pub(crate) fn bootstraps(&self, facts: &NodeFacts<'_>, stored: &SavedState, record: &SavedState) -> Vec<Bootstrap> {
        let evidence = Evidence::of_stored(facts, record, false);
        match evidence.as_ref().and_then(Evidence::certificate) {
            Some(certificate) => self.certificates.to_record(&facts.name, certificate, stored),
            None => stored.bootstrapped_by.clone(),
        }
    }

    /// Who asked for the certificates of kubelets.
    pub(crate) fn certificates(&self) -> &KubeletCertificates {
        &self.certificates
    }

    /// Whether a node was created while the mutating webhook was registered.
    pub(crate) fn was_admitted(&self, node: &NodeObject) -> bool {
        is_younger(node, **self.registered_at.load())
    }
}

/// Whether a node was created after something that is there.
fn is_younger(node: &NodeObject, since: Option<Timestamp>) -> bool {
    since.zip(node.created()).is_some_and(|(since, created)| created > since)
}
