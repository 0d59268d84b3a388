//! What a CertificateSigningRequest says about the certificate of a kubelet.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::Fingerprint;
use nodegate_policy::api::state::sha256_of;
use nodegate_policy::{Bootstrapper, CREDENTIAL_ID, KUBELET_USER, certificate_of};

/// The signer of kubelets' client certificates.
pub(super) const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// How a certificate was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// By someone who is no kubelet of this node; nothing if there is too much to know of them.
    By(Option<Arc<Bootstrapper>>),
    /// By the kubelet itself, with an earlier certificate; nothing if the API server does not say with which (before Kubernetes 1.32).
    Renewing(Option<Fingerprint>),
}

/// A certificate that was issued to a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Issued {
    pub(super) certificate: Fingerprint,
    pub(super) node: Arc<str>,
    pub(super) asked: Asked,
    /// When it was asked for, in seconds.
    pub(super) at: i64,
}

impl Issued {
    /// The certificate that a request has got; `None` if it is for no kubelet, or has got none yet.
    ///
    /// Everything but the certificate is what the API server authenticated about the requester; the certificate is from the signer.
    pub(super) fn read(request: &CertificateSigningRequest) -> Option<Self> {
        let spec = &request.spec;
        let pem = request.status.as_ref()?.certificate.as_ref().filter(|_| spec.signer_name == SIGNER)?;
        let der = CertificateDer::from_pem_slice(&pem.0).ok()?;
        let certificate = Fingerprint::try_from(digest(&SHA256, &der).as_ref()).ok()?;
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let mut names = parsed.subject().iter_common_name();
        let (name, None) = (names.next()?.as_str().ok()?, names.next()) else { return None };
        let node = name.strip_prefix(KUBELET_USER).filter(|node| !node.is_empty())?;
        let user = spec.username.as_deref().unwrap_or_default();
        let asked = if user == name {
            let values = spec.extra.as_ref().and_then(|extra| extra.get(CREDENTIAL_ID));
            Asked::Renewing(match values.map(Vec::as_slice) {
                Some([one]) => certificate_of(one).and_then(sha256_of),
                _ => None,
            })
        } else {
            let groups = spec.groups.iter().flatten().map(String::as_str);
            Asked::By(Bootstrapper::new(user, groups).map(Arc::new))
        };
        let at = request.metadata.creation_timestamp.as_ref().map_or(i64::MIN, |time| time.0.as_second());
        Some(Self { certificate, node: node.into(), asked, at })
    }
}
