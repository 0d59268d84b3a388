//! What is known of certificates.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::Fingerprint;
use super::request::{Asked, Issued};
use nodegate_base::text::hexadecimal;
use nodegate_policy::api::state::{Bootstrap, SavedState, sha256_of};
use nodegate_policy::{Bootstrapper, CertificateForNode};

/// How many certificates are remembered whose requests were deleted: of kubelets that have not created their node yet. What a node
/// was created with is in its record.
const DELETED_MAX: usize = 8192;
/// Maximum number of renewals that are followed to the first certificate.
const RENEWALS_MAX: usize = 64;
/// How many bootstraps of one node are recorded, and how many certificates of each.
const BOOTSTRAPS_MAX: usize = 3;
const CERTIFICATES_MAX: usize = 4;

/// How many certificates of one node are read, the newest. A bootstrap token is enough to get any number for any name.
pub(super) const OF_NODE_MAX: usize = 64;

/// The certificates, by fingerprint and by node.
#[derive(Debug, Default)]
pub(super) struct Known {
    certificates: HashSet<Box<Certificate>>,
    /// Of each node, the oldest first.
    of_nodes: HashMap<Arc<str>, Vec<Fingerprint>>,
    /// Who asked for them: nearly all of a pool have the same token.
    pub(super) askers: HashSet<Arc<Bootstrapper>>,
    /// Those whose requests were deleted, the first to be deleted first. One that is there again stays in the queue.
    deleted: VecDeque<Fingerprint>,
    listing: u64,
}

#[derive(Debug)]
struct Certificate {
    issued: Issued,
    /// The listing in or after which its request was seen.
    listing: u64,
    is_deleted: bool,
}

// The fingerprint is the key: it is kept once.
impl Borrow<Fingerprint> for Box<Certificate> {
    fn borrow(&self) -> &Fingerprint {
        &self.issued.certificate
    }
}

impl Hash for Certificate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.issued.certificate.hash(state);
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.issued.certificate == other.issued.certificate
    }
}

impl Eq for Certificate {}

impl Known {
    /// A listing of the requests begins.
    pub(super) fn begin_listing(&mut self) {
        self.listing += 1;
    }

    /// The listing is complete: requests that are not in it are deleted.
    pub(super) fn end_listing(&mut self) {
        let is_missing = |known: &&Certificate| known.listing < self.listing && !known.is_deleted;
        let mut missing: Vec<&Issued> =
            self.certificates.iter().map(|known| &**known).filter(is_missing).map(|known| &known.issued).collect();
        missing.sort_unstable_by_key(|issued| (issued.at, issued.certificate));
        let missing: Vec<Fingerprint> = missing.into_iter().map(|issued| issued.certificate).collect();
        missing.into_iter().for_each(|certificate| self.is_deleted(certificate));
    }

    /// Takes up a certificate. Returns whether it was not known.
    pub(super) fn take_up(&mut self, mut issued: Issued) -> bool {
        let listing = self.listing;
        if let Some(mut known) = self.certificates.take(&issued.certificate) {
            // Who asked for it does not change. Only who may write in the name of the signer could say otherwise.
            known.listing = listing;
            known.is_deleted = false;
            self.certificates.insert(known);
            return false;
        }
        self.share(&mut issued);
        let of_node = self.of_nodes.entry(issued.node.clone()).or_default();
        let is_earlier =
            |other: &Fingerprint| self.certificates.get(other).is_some_and(|known| known.issued.at <= issued.at);
        let at = of_node.partition_point(is_earlier);
        // Nearly always the only one.
        of_node.reserve_exact(1);
        of_node.insert(at, issued.certificate);
        self.certificates.insert(Box::new(Certificate { issued, listing, is_deleted: false }));
        true
    }

    /// Keeps texts once that are known already.
    fn share(&mut self, issued: &mut Issued) {
        if let Some((node, _)) = self.of_nodes.get_key_value(&issued.node) {
            issued.node = node.clone();
        }
        if let Asked::By(Some(asker)) = &mut issued.asked {
            match self.askers.get(asker) {
                Some(known) => *asker = known.clone(),
                None => {
                    self.askers.insert(asker.clone());
                }
            }
        }
    }

    /// The request of a certificate was deleted.
    pub(super) fn is_deleted(&mut self, certificate: Fingerprint) {
        let Some(mut known) = self.certificates.take(&certificate) else { return };
        if !std::mem::replace(&mut known.is_deleted, true) {
            self.deleted.push_back(certificate);
        }
        self.certificates.insert(known);
        while self.deleted.len() > DELETED_MAX {
            let Some(oldest) = self.deleted.pop_front() else { return };
            if self.certificates.get(&oldest).is_some_and(|known| known.is_deleted) {
                self.forget(oldest);
            }
        }
    }

    fn forget(&mut self, certificate: Fingerprint) {
        let Some(known) = self.certificates.take(&certificate) else { return };
        if let Some(of_node) = self.of_nodes.get_mut(&known.issued.node) {
            of_node.retain(|other| *other != certificate);
            if of_node.is_empty() {
                self.of_nodes.remove(&known.issued.node);
            }
        }
        if let Asked::By(Some(asker)) = &known.issued.asked
            && Arc::strong_count(asker) == 2
        {
            // Only the set has it, and what is forgotten now.
            self.askers.remove(asker);
        }
    }

    /// Who asked for the first certificate that this one descends from.
    pub(super) fn bootstrapper(
        &self,
        certificate: Fingerprint,
        saved: Option<&SavedState>,
    ) -> Option<Arc<Bootstrapper>> {
        let mut next = certificate;
        for _ in 0..RENEWALS_MAX {
            match self.certificates.get(&next).map(|known| &known.issued.asked) {
                Some(Asked::By(bootstrapper)) => return bootstrapper.clone(),
                Some(Asked::Renewing(Some(earlier))) => next = *earlier,
                Some(Asked::Renewing(None)) | None => return Bootstrapper::recorded(saved?, &hexadecimal(&next)),
            }
        }
        None
    }

    /// The newest certificates of a node, the oldest of them first.
    fn newest(&self, node: &str) -> &[Fingerprint] {
        let of_node = self.of_nodes.get(node).map_or(&[][..], Vec::as_slice);
        &of_node[of_node.len().saturating_sub(OF_NODE_MAX)..]
    }

    /// The newest certificates for the name of a node of which it is known who asked, without those of kubelets that have created a node
    /// with the name: another machine may have had it before.
    pub(super) fn for_node(&self, node: &str, saved: Option<&SavedState>) -> Vec<CertificateForNode> {
        let has_created = |certificate: &str| {
            let mut recorded = saved.iter().flat_map(|saved| &saved.bootstrapped_by);
            recorded.any(|one| one.has(certificate))
        };
        let known = self.newest(node).iter().filter_map(|fingerprint| {
            let certificate = Some(hexadecimal(fingerprint)).filter(|certificate| !has_created(certificate))?;
            Some(CertificateForNode { certificate, bootstrapper: self.bootstrapper(*fingerprint, saved)? })
        });
        known.collect()
    }

    /// What to record of a node that was created with this certificate.
    pub(super) fn to_record(&self, node: &str, certificate: &str, saved: &SavedState) -> Box<[Bootstrap]> {
        let mut all = saved.bootstrapped_by.to_vec();
        let bootstrapper = sha256_of(certificate).and_then(|wanted| self.bootstrapper(wanted, Some(saved)));
        let Some(bootstrapper) = bootstrapper else { return all.into() };
        let mut current = match all.iter().position(|known| bootstrapper.is_of(known)) {
            Some(at) => all.remove(at),
            None => bootstrapper.to_record(),
        };
        if !current.has(certificate) {
            current.add(certificate);
        }
        all.push(current);
        // Renewals that came after the newest one that is recorded. Earlier ones were recorded, or displaced by later ones.
        let of_node = self.newest(node);
        let is_recorded = |one: &Fingerprint| all.iter().any(|known| known.has(&hexadecimal(one)));
        let later = of_node.iter().rposition(is_recorded).map_or(0, |at| at + 1);
        for one in &of_node[later..] {
            let Some(Asked::Renewing(Some(earlier))) = self.certificates.get(one).map(|known| &known.issued.asked)
            else {
                continue;
            };
            let earlier = hexadecimal(earlier);
            if let Some(known) = all.iter_mut().find(|known| known.has(&earlier)) {
                known.add(&hexadecimal(one));
            }
        }
        for known in &mut all {
            // The oldest ones go, but for the one that the node was created with.
            known.keep_newest(CERTIFICATES_MAX, certificate);
        }
        all.drain(..all.len().saturating_sub(BOOTSTRAPS_MAX));
        all.into()
    }
}
