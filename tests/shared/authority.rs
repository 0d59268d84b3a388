//! A CA of the tests' own, and the client certificates it signs.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// A CA whose key is at hand.
pub(crate) struct Authority {
    /// Its certificate.
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

fn params(name: &str, years: (i32, i32)) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(years.0, 1, 1), rcgen::date_time_ymd(years.1, 1, 1));
    params
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        Self::valid(name, (2020, 2120))
    }

    /// One that is valid from the first of these years to the second.
    pub(crate) fn valid(name: &str, years: (i32, i32)) -> Self {
        let mut params = params(name, years);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Its key, PEM.
    pub(crate) fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A client certificate with this common name.
    pub(crate) fn client(&self, name: &str) -> Identity {
        self.sign(name, |_| {})
    }

    /// A client certificate that `change` has had a hand in.
    pub(crate) fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = params(name, (2020, 2120));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

/// A client that trusts the server's `ca` (PEM) alone and shows `identity`, if it has one.
pub(crate) fn client_config(
    ca: &[u8],
    identity: Option<&Identity>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

/// Asks `path` once, as `localhost`, trusting `ca` (PEM) alone: the answer with its head, or why there is none.
pub(crate) fn ask(address: &str, ca: &[u8], identity: Option<&Identity>, path: &str) -> io::Result<String> {
    send(address, ca, identity, format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
}

/// Posts a review to `path`, as a caller without a certificate: the answer with its head.
pub(crate) fn post(address: &str, ca: &[u8], path: &str, review: &str) -> io::Result<String> {
    post_as(address, ca, None, path, review)
}

/// Posts a review to `path`: the answer with its head.
pub(crate) fn post_as(
    address: &str,
    ca: &[u8],
    identity: Option<&Identity>,
    path: &str,
    review: &str,
) -> io::Result<String> {
    let length = review.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    send(address, ca, identity, &[head.as_bytes(), review.as_bytes()].concat())
}

/// A connection that blocks, and whose handshake happens with the first write.
pub(crate) type Stream = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// Connects as `localhost`, trusting `ca` (PEM) alone.
pub(crate) fn connect(address: &str, ca: &[u8], identity: Option<&Identity>) -> io::Result<Stream> {
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(client_config(ca, identity, rustls::ALL_VERSIONS), name).unwrap();
    let stream = rustls::StreamOwned::new(client, TcpStream::connect(address)?);
    stream.sock.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

fn send(address: &str, ca: &[u8], identity: Option<&Identity>, request: &[u8]) -> io::Result<String> {
    let mut stream = connect(address, ca, identity)?;
    stream.write_all(request)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}
