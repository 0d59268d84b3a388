//! Restricts callers to those with a client certificate of certain CAs and, if names are given, with one of these
//! names.
//!
//! # Guarantees
//! A caller is refused in the handshake, so nothing that it sends is read as a request. If a CA is removed from the
//! file, connections that depend on it are closed after their request in progress.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::tls::certificates::pem::all_certificates;
use crate::tls::certificates::x509::{Fields, VERSION};

/// Refusals of one kind are logged no more often than this; all are counted.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Why a caller was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It presented no certificate.
    NoCertificate,
    /// Its certificate was not issued by a CA in the file.
    UnknownCa,
    /// Its certificate, or an intermediate one, has expired or is not valid yet.
    NotValidNow,
    /// Its certificate is not a client certificate: the extended key usage clientAuth is missing.
    WrongUsage,
    /// Its certificate contains no allowed name.
    NameNotAllowed,
    /// Its certificate cannot be read, or it does not have the key.
    BadCertificate,
}

impl Refusal {
    /// All variants.
    pub const ALL: [Self; 6] = [
        Self::NoCertificate,
        Self::UnknownCa,
        Self::NotValidNow,
        Self::WrongUsage,
        Self::NameNotAllowed,
        Self::BadCertificate,
    ];

    /// The label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::UnknownCa => "unknown_ca",
            Self::NotValidNow => "not_valid_now",
            Self::WrongUsage => "wrong_usage",
            Self::NameNotAllowed => "name_not_allowed",
            Self::BadCertificate => "bad_certificate",
        }
    }

    /// Why a handshake failed, if the reason is the caller's certificate.
    pub(in crate::tls) fn of(error: &io::Error) -> Option<Self> {
        use CertificateError as Fault;
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let fault = match error {
            Error::NoCertificatesPresented => return Some(Self::NoCertificate),
            Error::InvalidCertificate(fault) => fault,
            _ => return None,
        };
        Some(match fault {
            Fault::UnknownIssuer => Self::UnknownCa,
            Fault::Expired | Fault::ExpiredContext { .. } => Self::NotValidNow,
            Fault::NotValidYet | Fault::NotValidYetContext { .. } => Self::NotValidNow,
            Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => Self::WrongUsage,
            Fault::ApplicationVerificationFailure => Self::NameNotAllowed,
            _ => Self::BadCertificate,
        })
    }
}

/// Why a file with CAs of clients cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file is not a valid bundle of CA certificates.
    #[error("{}: {fault}; write the PEM certificates of the CAs that issue client certificates into it", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        fault: String,
    },
}

/// The CAs that are currently trusted.
#[derive(Debug)]
struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Checks callers' certificates in the handshake; the CAs are replaced when their file changes.
#[derive(Debug)]
pub struct Callers {
    path: PathBuf,
    names: Vec<String>,
    trust: ArcSwap<Trust>,
    changes: watch::Sender<()>,
    logged: [Mutex<Option<Instant>>; Refusal::ALL.len()],
}

impl Callers {
    /// Accepts certificates of the CAs in the PEM file `path` that have one of `names` as subject common name or DNS
    /// name; if `names` is empty, every name is accepted.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a bundle of CA certificates.
    pub fn open(path: &Path, names: Vec<String>, now: Timestamp) -> Result<Arc<Self>, CallersError> {
        let trust = read(path, now)?;
        let (changes, _) = watch::channel(());
        Ok(Arc::new(Self {
            path: path.to_owned(),
            names,
            trust: ArcSwap::from_pointee(trust),
            changes,
            logged: Default::default(),
        }))
    }

    /// The file with the CAs.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. Returns whether the CAs have changed.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a bundle of CA certificates; the last good CAs stay.
    pub(in crate::tls) fn reload(&self, now: Timestamp) -> Result<bool, CallersError> {
        let trust = read(&self.path, now)?;
        if trust.authorities == self.trust.load().authorities {
            return Ok(false);
        }
        self.trust.store(Arc::new(trust));
        self.changes.send_replace(());
        Ok(true)
    }

    /// The number of trusted CAs.
    pub(in crate::tls) fn authorities(&self) -> usize {
        self.trust.load().authorities.len()
    }

    /// Returns when the CAs have changed so that `chain`, which was accepted, is no longer.
    pub(in crate::tls) async fn until_withdrawn(&self, chain: &[CertificateDer<'static>]) {
        let mut changes = self.changes.subscribe();
        loop {
            // Also checked before the first wait: the change may have happened right after the handshake.
            let admitted = chain
                .split_first()
                .is_some_and(|(leaf, rest)| self.verify_client_cert(leaf, rest, UnixTime::now()).is_ok());
            if !admitted || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Logs a refusal, unless one of its kind was logged recently: anyone can cause refusals.
    pub(in crate::tls) fn log(&self, refusal: Refusal, error: &io::Error, peer: Option<SocketAddr>) {
        let mut last = self.logged[refusal as usize].lock();
        if last.is_none_or(|last| last.elapsed() >= LOGGED_EVERY) {
            *last = Some(Instant::now());
            let (reason, peer) = (refusal.as_str(), peer.map(|peer| peer.to_string()));
            tracing::warn!(reason, %error, peer, "refused a caller; further refusals of this kind within a minute are only counted");
        }
    }

    /// Whether the leaf is a client certificate with an allowed name. Its chain is already checked.
    fn check_leaf(&self, leaf: &CertificateDer<'_>) -> Result<(), CertificateError> {
        let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
        // The check of the chain accepts certificates without a key usage; client certificates must have clientAuth.
        let usage = leaf.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
        if !usage.is_some_and(|usage| usage.value.client_auth) {
            return Err(CertificateError::InvalidPurpose);
        }
        if self.names.is_empty() {
            return Ok(());
        }
        let alternatives = leaf.subject_alternative_name().map_err(|_| CertificateError::BadEncoding)?;
        let alternatives = alternatives.iter().flat_map(|names| &names.value.general_names);
        let dns = alternatives.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
        let common = leaf.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        if dns.chain(common).any(|name| self.names.iter().any(|allowed| allowed == name)) {
            return Ok(());
        }
        tracing::debug!(subject = %leaf.subject(), "the caller's certificate contains no allowed name");
        Err(CertificateError::ApplicationVerificationFailure)
    }
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // None: otherwise a caller with a certificate of another CA would not send it, and the reason could not be
        // reported.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.trust.load().verifier.verify_client_cert(end_entity, intermediates, now);
        let verified = verified.map_err(|error| match error {
            // A CA with the same name and another key.
            Error::InvalidCertificate(CertificateError::BadSignature) => CertificateError::UnknownIssuer.into(),
            other => other,
        })?;
        self.check_leaf(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.load().verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.load().verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.load().verifier.supported_verify_schemes()
    }
}

/// Reads a bundle completely or not at all, so that an incomplete file does not count as a smaller bundle. CAs that
/// are not valid at `now` are left out, because the check of a chain ignores the validity of its root.
fn read(path: &Path, now: Timestamp) -> Result<Trust, CallersError> {
    let text = std::fs::read(path).map_err(|error| CallersError::File { path: path.to_owned(), error })?;
    let content = |fault: String| CallersError::Content { path: path.to_owned(), fault };
    let found = all_certificates(&text).map_err(|error| content(format!("invalid or incomplete PEM: {error}")))?;
    if found.is_empty() {
        return Err(content("contains no certificate".to_owned()));
    }
    let (mut roots, mut authorities) = (RootCertStore::empty(), Vec::new());
    for (place, certificate) in found.into_iter().enumerate() {
        let place = place + 1;
        let fields = Fields::read(&certificate).map_err(|error| content(format!("certificate {place}: {error}")))?;
        if fields.version != VERSION {
            return Err(content(format!(
                "certificate {place} ({}) has X.509 version {}, which does not say whether it is a CA; issue the CA again with \
                 version {VERSION}, for example with openssl req -x509 -addext basicConstraints=critical,CA:TRUE",
                fields.subject, fields.version
            )));
        }
        if !fields.is_ca {
            return Err(content(format!("certificate {place} ({}) is not a CA certificate", fields.subject)));
        }
        if fields.not_before <= now && now < fields.not_after {
            roots.add(certificate.clone()).map_err(|error| content(format!("certificate {place}: {error}")))?;
            authorities.push(certificate);
        }
    }
    if authorities.is_empty() {
        return Err(content("contains no CA certificate that is currently valid".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| content(error.to_string()))?;
    Ok(Trust { authorities, verifier })
}
