//! Who asked for the certificates of kubelets, from the CertificateSigningRequests of the API server.
//!
//! The API server deletes a request about an hour after its certificate was issued (`csrcleaner` of kube-controller-manager). Until
//! then the leader has recorded who asked, so that others, and later replicas, find it in the record of the node.

mod known;
mod request;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use parking_lot::RwLock;

use self::known::Known;
use self::request::{Issued, SIGNER};
use crate::touched::Touched;
use nodegate_base::object_watch::{WatchFailures, watch_objects_within};
use nodegate_policy::api::state::{Bootstrap, SavedState, sha256_of};
use nodegate_policy::{Bootstrapper, CertificateForNode};

/// The SHA-256 of a certificate's DER form.
type Fingerprint = [u8; 32];

/// The certificates of kubelets that requests are known of.
#[derive(Debug, Default)]
pub struct KubeletCertificates {
    /// Complete after every change, so a panic elsewhere leaves it usable.
    known: RwLock<Known>,
    touched: Touched,
}

impl KubeletCertificates {
    /// The names of nodes for which certificates are issued.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Who asked for the first certificate that the one with this fingerprint descends from by renewals. `None` if that is not known,
    /// neither here nor in the record of its node.
    pub fn bootstrapper(&self, certificate: &str, saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>> {
        self.known.read().bootstrapper(sha256_of(certificate)?, saved)
    }

    /// The newest certificates for the name of a node of which it is known who asked, the oldest first, without those of kubelets that
    /// have created a node with the name.
    pub fn for_node(&self, node: &str, saved: Option<&SavedState>) -> Vec<CertificateForNode> {
        self.known.read().for_node(node, saved)
    }

    /// What to record of a node whose kubelet has created it with this certificate: who asked for it, and those that descend from
    /// recorded ones.
    pub fn to_record(&self, node: &str, certificate: &str, saved: &SavedState) -> Box<[Bootstrap]> {
        self.known.read().to_record(node, certificate, saved)
    }

    /// What these requests say, for a command that watches nothing.
    pub fn of_requests<'r>(requests: impl IntoIterator<Item = &'r CertificateSigningRequest>) -> Self {
        let certificates = Self::default();
        requests.into_iter().for_each(|request| certificates.take_up(request));
        certificates
    }

    /// Follows the requests of the API server until dropped. What fails is tried again after `longest` at the latest.
    pub async fn follow(&self, client: Client, longest: Duration) {
        let requests: Api<CertificateSigningRequest> = Api::all(client);
        let config = Config::default().fields(&format!("spec.signerName={SIGNER}"));
        let mut stream = std::pin::pin!(watch_objects_within(requests, config, longest));
        let mut failing = WatchFailures::default();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => self.known.write().begin_listing(),
                Ok(Event::InitApply(request) | Event::Apply(request)) => self.take_up(&request),
                Ok(Event::InitDone) => {
                    self.known.write().end_listing();
                    failing.works();
                }
                Ok(Event::Delete(request)) => {
                    if let Some(issued) = Issued::read(&request) {
                        self.known.write().is_deleted(issued.certificate);
                    }
                }
                Err(error) => {
                    if let Some(error) = failing.news(&error) {
                        tracing::warn!(%error, "the watch of CertificateSigningRequests failed, so it is not known who asks for the certificates of kubelets, and nodes are not known to belong to pools with `bootstrap`; retrying");
                    }
                }
            }
        }
    }

    fn take_up(&self, request: &CertificateSigningRequest) {
        let Some(issued) = Issued::read(request) else { return };
        let node = issued.node.clone();
        if self.known.write().take_up(issued) {
            self.touched.tell([node]);
        }
    }
}
