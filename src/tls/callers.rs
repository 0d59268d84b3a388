//! Who may call: with a client certificate of certain CAs and, if names are given, of one of them.
//!
//! # Guarantees
//! The refusal is in the handshake, so nothing that a refused caller sends is read as a request.
//! A CA that is taken out of the file ends the connections that only it admitted, after their request in flight.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::pair::Facts;

/// Refusals of one kind are logged no more often than this; all are counted.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Why a caller was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It showed no certificate.
    NoCertificate,
    /// Its certificate is of no CA in the file.
    UnknownCa,
    /// Its certificate, or one between it and the CA, has expired or is not valid yet.
    NotValidNow,
    /// Its certificate is not for clients: the extended key usage clientAuth is missing.
    WrongUsage,
    /// No name in its certificate is allowed.
    NameNotAllowed,
    /// Its certificate cannot be read, or it does not have the key.
    BadCertificate,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NoCertificate,
        Self::UnknownCa,
        Self::NotValidNow,
        Self::WrongUsage,
        Self::NameNotAllowed,
        Self::BadCertificate,
    ];

    /// As it is written in metrics.
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

    /// Why a handshake failed, if the caller's certificate is the reason.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
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

/// Why a file of client CAs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    /// It could not be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
    /// What is in it is no bundle of CAs.
    #[error("{}: {fault}; put the certificates there, as PEM, of the CAs that sign the callers' client certificates", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
    },
}

/// The CAs that are trusted now.
#[derive(Debug)]
struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Checks callers' certificates in the handshake; the CAs are swapped when their file changes.
#[derive(Debug)]
pub struct Callers {
    path: PathBuf,
    names: Vec<String>,
    trust: ArcSwap<Trust>,
    changes: watch::Sender<()>,
    logged: [Mutex<Option<Instant>>; Refusal::ALL.len()],
}

impl Callers {
    /// Admits certificates of the CAs in the PEM file `path` that carry one of `names` as subject common name or DNS
    /// name; of any name when there are none.
    ///
    /// # Errors
    /// If the file cannot be read or is no bundle of CAs.
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

    /// The file of CAs.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. Returns whether other CAs are trusted from now on.
    ///
    /// # Errors
    /// If the file cannot be read or is no bundle of CAs; the last good ones stay.
    pub(super) fn reload(&self, now: Timestamp) -> Result<bool, CallersError> {
        let trust = read(&self.path, now)?;
        if trust.authorities == self.trust.load().authorities {
            return Ok(false);
        }
        self.trust.store(Arc::new(trust));
        self.changes.send_replace(());
        Ok(true)
    }

    /// How many CAs are trusted now.
    pub(super) fn authorities(&self) -> usize {
        self.trust.load().authorities.len()
    }

    /// Returns when the CAs have changed so that `chain`, which was admitted, is not any more.
    pub(super) async fn until_withdrawn(&self, chain: &[CertificateDer<'static>]) {
        let mut changes = self.changes.subscribe();
        loop {
            // Before the first wait as well: the change may have come right after the handshake.
            let admitted = chain
                .split_first()
                .is_some_and(|(leaf, rest)| self.verify_client_cert(leaf, rest, UnixTime::now()).is_ok());
            if !admitted || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Logs a refusal, unless one of its kind was logged a moment ago: anybody can cause them.
    pub(super) fn log(&self, refusal: Refusal, error: &io::Error, peer: Option<SocketAddr>) {
        let mut last = self.logged[refusal as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= LOGGED_EVERY) {
            *last = Some(Instant::now());
            let (reason, peer) = (refusal.as_str(), peer.map(|peer| peer.to_string()));
            tracing::warn!(reason, %error, peer, "caller refused; more of this kind within a minute are only counted");
        }
    }

    /// Whether the leaf is for clients and of an allowed name. Its chain is checked already.
    fn check_leaf(&self, leaf: &CertificateDer<'_>) -> Result<(), CertificateError> {
        let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
        // A chain is also taken where no usage is said at all; who calls has to have a certificate for that.
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
        tracing::debug!(subject = %leaf.subject(), "no name of this caller's certificate is allowed");
        Err(CertificateError::ApplicationVerificationFailure)
    }
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // None: a caller whose certificate is of another CA would leave it out, and could not be told so.
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
            // A CA of the same name with another key.
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

/// Reads a bundle whole or not at all, so that a half-written file is not taken for a smaller one. CAs that are not
/// valid at `now` are left out: the check of a chain does not look at the life of its root.
fn read(path: &Path, now: Timestamp) -> Result<Trust, CallersError> {
    let text = std::fs::read(path).map_err(|error| CallersError::File { path: path.to_owned(), error })?;
    let content = |fault: String| CallersError::Content { path: path.to_owned(), fault };
    let found: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| content(format!("it is not PEM, or not whole: {error}")))?;
    if found.is_empty() {
        return Err(content("there is no certificate in it".to_owned()));
    }
    let (mut roots, mut authorities) = (RootCertStore::empty(), Vec::new());
    for (place, certificate) in found.into_iter().enumerate() {
        let place = place + 1;
        let facts = Facts::of(&certificate).map_err(|error| content(format!("certificate {place}: {error}")))?;
        if !facts.is_ca {
            return Err(content(format!("certificate {place} ({}) is not of a CA", facts.subject)));
        }
        if facts.not_before <= now && now < facts.not_after {
            roots.add(certificate.clone()).map_err(|error| content(format!("certificate {place}: {error}")))?;
            authorities.push(certificate);
        }
    }
    if authorities.is_empty() {
        return Err(content("no CA in it is valid now".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| content(error.to_string()))?;
    Ok(Trust { authorities, verifier })
}
