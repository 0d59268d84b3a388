//! What admission has seen of a node, by when it was created.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Reconciler;
use crate::memory::fleet::patience;
use crate::node::NodeObject;
use nodegate_base::api_server;
use nodegate_policy::api::state::{Bootstrap, SavedState};
use nodegate_policy::{Absence, Evidence, NodeFacts, PolicySet};
use nodegate_stores::witnesses::Witnesses;

/// How long a joining node waits for what proves its pools. Both are there before the node and are read as they change, so what is not
/// known by then was deleted long ago, or never there.
const PROOF_WAIT: Duration = Duration::from_secs(15);

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

    /// The evidence for the pools of a node, and how long the node is to wait for more, if it is.
    pub(crate) fn evidence(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        set: &PolicySet,
        saved: &SavedState,
    ) -> (Option<Evidence<'static>>, Option<Duration>) {
        let evidence = self.evidence_so_far(node, facts, set, saved);
        match self.waits_for_proof(node, set, saved, evidence.as_ref()) {
            Some(wait) => (evidence, Some(wait)),
            None => (evidence.map(Evidence::settled), None),
        }
    }

    fn evidence_so_far(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        set: &PolicySet,
        saved: &SavedState,
    ) -> Option<Evidence<'static>> {
        let evidence = Evidence::of_stored(facts, saved, is_younger(node, **self.evidence_guarded.load()));
        match &self.witnesses {
            Some(witnesses) => {
                let evidence = Evidence::witnessed(evidence, set, facts, Some(saved), &**witnesses);
                evidence.map(|known| known.contradicted(set, facts, Some(saved), &**witnesses))
            }
            None => evidence,
        }
    }

    /// How long a node that was not processed yet is to wait for what its pools depend on, and so what is restored to it: who asked for
    /// its kubelet's certificate, or its provisioner's object. Nothing if it has waited for long enough.
    fn waits_for_proof(
        &self,
        node: &NodeObject,
        set: &PolicySet,
        saved: &SavedState,
        evidence: Option<&Evidence<'_>>,
    ) -> Option<Duration> {
        let is_new = !saved.is_of_object(Some(node.uid()));
        if self.witnesses.is_none() || !is_new || !set.awaits_proof(node.name(), Some(saved), evidence) {
            return None;
        }
        let now = api_server::time_at_most(Timestamp::now())?;
        // What is saved or remembered of a pool is not to be lost because the API server does not tell the objects.
        let is_unlisted = |known: &Evidence<'_>| known.machines().absence == Absence::Unlisted;
        let waits_for_list =
            set.asks_for_machines() && set.may_give_back(Some(saved)) && evidence.is_some_and(is_unlisted);
        let longest = if waits_for_list { self.pending_timeout().max(PROOF_WAIT) } else { PROOF_WAIT };
        let of_node = patience(node.created()?.as_second(), now, longest);
        // A leader that has just begun may not have read what there is.
        let left = of_node.max(PROOF_WAIT.saturating_sub(self.begun.elapsed()));
        (!left.is_zero()).then_some(left)
    }

    /// Who asked for the certificates of a node's kubelets, to be recorded with this evidence.
    pub(crate) fn bootstraps(
        &self,
        facts: &NodeFacts<'_>,
        stored: &SavedState,
        record: &SavedState,
    ) -> Box<[Bootstrap]> {
        let evidence = Evidence::of_stored(facts, record, false);
        match evidence.as_ref().and_then(Evidence::certificate).zip(self.witnesses.as_ref()) {
            Some((certificate, witnesses)) => witnesses.certificates.to_record(&facts.name, certificate, stored),
            None => stored.bootstrapped_by.clone(),
        }
    }

    /// What is known of nodes beside their records, if it is followed.
    pub(crate) fn witnesses(&self) -> Option<&Witnesses> {
        self.witnesses.as_deref()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::reconcile::{KeepConfig, fixture};
    use nodegate_policy::{PolicyDocument, PolicySet};

    /// A node that was created so many seconds ago, whose kubelet presented a certificate.
    fn node(age: i64) -> NodeObject {
        let at = |seconds: i64| Timestamp::from_second(Timestamp::now().as_second() - seconds).unwrap().to_string();
        let evidence = format!(
            "extra.authentication.kubernetes.io/credential-id=X509SHA256={}\nuser=system:node:n",
            "0".repeat(64)
        );
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "1", "creationTimestamp": at(age),
            "annotations": {"nodegate.dev/authenticated-as": evidence}});
        NodeObject::read(&json!({"metadata": metadata, "spec": {}}).to_string()).unwrap()
    }

    #[tokio::test]
    async fn a_new_node_waits_for_who_asked_for_its_kubelets_certificate_as_long_as_that_may_be_read() {
        let spec = json!({"pools": [{"name": "gpu", "bootstrap": {"tokens": ["abcdef"]}}]});
        let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        let nothing = tower::service_fn(|_: hyper::Request<Body>| async {
            Ok::<_, std::io::Error>(hyper::Response::new(Body::empty()))
        });
        nodegate_base::api_server::dated(
            &jiff::fmt::rfc2822::to_string(&Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC)).unwrap(),
        );
        let config = || KeepConfig { pending_timeout: Duration::from_secs(600), ..fixture::config() };
        let reconciler = || fixture::reconciler(Client::new(nothing, "default"), set.clone(), config());
        let following = || reconciler().with_witnesses(Arc::default());
        let just_begun = following();
        let mut following = following();
        following.begun = following.begun.checked_sub(PROOF_WAIT).unwrap();
        let waits = |reconciler: &Reconciler, node: &NodeObject, saved: &SavedState| {
            reconciler.evidence(node, &node.text().facts().unwrap(), &set, saved).1
        };
        let (new, old) = (node(3), node(20));
        assert_eq!(waits(&following, &new, &SavedState::default()), None, "nobody has checked what the node says");
        following.evidence_guarded(Some(Timestamp::UNIX_EPOCH));
        let left = waits(&following, &new, &SavedState::default()).unwrap();
        assert!((Duration::from_secs(10)..=Duration::from_secs(13)).contains(&left), "{left:?}");
        just_begun.evidence_guarded(Some(Timestamp::UNIX_EPOCH));
        assert!(waits(&just_begun, &old, &SavedState::default()) > Some(Duration::from_secs(10)));
        assert_eq!(waits(&following, &old, &SavedState::default()), None, "it has waited");
        let recorded = SavedState { node_uid: Some("u".to_owned()), ..SavedState::default() };
        assert_eq!(waits(&following, &new, &recorded), None, "it was processed before");
        let saved = SavedState { labels: [("team".to_owned(), "ml".to_owned())].into(), ..SavedState::default() };
        assert_eq!(waits(&following, &old, &saved), None, "nobody knows that certificate");
        // A command follows no requests.
        let alone = reconciler();
        alone.evidence_guarded(Some(Timestamp::UNIX_EPOCH));
        assert_eq!(waits(&alone, &new, &SavedState::default()), None);
        // Which objects provisioners have, the API server has not told.
        let spec = json!({"pools": [{"nameFrom": {"kind": "NodeClaim", "label": "pool"}}]});
        let by_object = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
        let left = |saved: &SavedState| following.evidence(&old, &old.text().facts().unwrap(), &by_object, saved).1;
        assert_eq!(left(&SavedState::default()), None);
        assert!(left(&saved) > Some(Duration::from_secs(500)), "{:?}", left(&saved));
    }
}
