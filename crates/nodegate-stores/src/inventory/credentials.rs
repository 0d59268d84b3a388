//! Credentials for inventories, from files that the operator of nodegate gives it.
//!
//! A policy names no files: who may write one must not be able to send a token to a host of their choice. So each set of
//! credentials says for which URLs it is.

use std::io;
use std::path::Path;

use reqwest::header::HeaderValue;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use url::Url;

/// The files in the directory of an inventory.
const URL: &str = "url";
const TOKEN: &str = "token";
const AUTHORIZATION: &str = "authorization";
const MAAS_KEY: &str = "maas-api-key";
const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Maximum size of a file, in bytes.
const FILE_MAX: u64 = 1024 * 1024;

/// The content of the files, to notice that they changed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Files {
    url: Option<Vec<u8>>,
    token: Option<Vec<u8>>,
    authorization: Option<Vec<u8>>,
    maas_key: Option<Vec<u8>>,
    ca: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

/// Credentials for one inventory.
pub(super) struct Credentials {
    /// The URLs that they are for: everything below this one.
    pub(super) url: Url,
    /// Who asks.
    pub(super) authorization: Option<Authorization>,
    /// The only CAs to trust.
    pub(super) ca: Option<Vec<CertificateDer<'static>>>,
    /// The client certificate and its key.
    pub(super) identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

/// What the header `Authorization` says.
pub(super) enum Authorization {
    /// The same in each request.
    Fixed(HeaderValue),
    /// A key of MAAS, which signs each request.
    Maas(MaasKey),
}

/// An API key of MAAS, `CONSUMER:TOKEN:SECRET`.
pub(super) struct MaasKey {
    consumer: String,
    token: String,
    secret: String,
}

impl Authorization {
    /// The header of a request that is sent now.
    ///
    /// # Errors
    /// Returns a sentence if there is no random number for it.
    pub(super) fn header(&self) -> Result<HeaderValue, String> {
        let MaasKey { consumer, token, secret } = match self {
            Self::Fixed(header) => return Ok(header.clone()),
            Self::Maas(key) => key,
        };
        let mut nonce = [0; 8];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| "there is no random number for the signature of MAAS")?;
        let (nonce, now) = (u64::from_ne_bytes(nonce), std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs());
        // RFC 5849, sections 3.4.4 (PLAINTEXT) and 3.5.1. MAAS refuses a nonce that comes twice, and an old time.
        let text = format!(
            "OAuth oauth_version=\"1.0\", oauth_signature_method=\"PLAINTEXT\", oauth_consumer_key=\"{consumer}\", \
             oauth_token=\"{token}\", oauth_signature=\"%26{secret}\", oauth_nonce=\"{nonce:016x}\", oauth_timestamp=\"{now}\""
        );
        secret_header(&text).ok_or_else(|| format!("the file {MAAS_KEY:?} contains no key"))
    }
}

/// A header whose value is not shown.
fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl MaasKey {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(str::to_owned);
        let is_part = |part: &String| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let mut part = || parts.next().filter(is_part);
        let (consumer, token, secret) = (part()?, part()?, part()?);
        parts.next().is_none().then_some(Self { consumer, token, secret })
    }
}

impl Files {
    /// Reads the files of an inventory; `None` if it has no directory.
    ///
    /// # Errors
    /// Returns a sentence if a file cannot be read.
    pub(super) fn read(directory: &Path, inventory: &str) -> Result<Option<Self>, String> {
        let directory = directory.join(inventory);
        // Only if the directory does not exist, a request needs no credentials.
        match std::fs::metadata(&directory) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(format!("{} is not a directory", directory.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("could not read {}: {error}", directory.display())),
        }
        let file = |name: &str| {
            let path = directory.join(name);
            let fault = |error: io::Error| format!("could not read {}: {error}", path.display());
            match std::fs::metadata(&path) {
                Ok(found) if found.len() > FILE_MAX => Err(format!("{} is larger than 1 MiB", path.display())),
                Ok(_) => std::fs::read(&path).map(Some).map_err(fault),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(fault(error)),
            }
        };
        let (url, ca, certificate, key) = (file(URL)?, file(CA)?, file(CERTIFICATE)?, file(KEY)?);
        let (token, authorization, maas_key) = (file(TOKEN)?, file(AUTHORIZATION)?, file(MAAS_KEY)?);
        Ok(Some(Self { url, token, authorization, maas_key, ca, certificate, key }))
    }

    /// Parses the files.
    ///
    /// # Errors
    /// Returns a sentence that names the file that is missing or invalid. It contains nothing of the files but the URL.
    pub(super) fn parse(&self) -> Result<Credentials, String> {
        let Some(url) = &self.url else {
            return Err(format!(
                "the credentials have no file {URL:?}; write the URL to which they may be sent into it"
            ));
        };
        let text = std::str::from_utf8(url).map_err(|_| format!("the file {URL:?} is not UTF-8"))?.trim();
        let url: Url = text.parse().map_err(|error| format!("the file {URL:?} contains no URL: {error}"))?;
        if url.scheme() != "https" {
            return Err(format!("the file {URL:?} does not begin with https://, so the credentials would be readable"));
        }
        let authorization = self.authorization()?;
        let ca = self.ca.as_ref().map(|pem| certificates(pem, CA)).transpose()?;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| format!("the file {KEY:?} contains no private key in PEM"))?;
                Some((certificates(certificate, CERTIFICATE)?, key))
            }
            (None, None) => None,
            (Some(_), None) => return Err(format!("the credentials have a file {CERTIFICATE:?}, but no {KEY:?}")),
            (None, Some(_)) => return Err(format!("the credentials have a file {KEY:?}, but no {CERTIFICATE:?}")),
        };
        Ok(Credentials { url, authorization, ca, identity })
    }

    fn authorization(&self) -> Result<Option<Authorization>, String> {
        fn text(bytes: &[u8]) -> Option<&str> {
            std::str::from_utf8(bytes).ok().map(str::trim).filter(|text| !text.is_empty())
        }
        let bearer = |token: &str| {
            let is_token = token.bytes().all(|byte| byte.is_ascii_graphic());
            is_token.then(|| secret_header(&format!("Bearer {token}"))).flatten().map(Authorization::Fixed)
        };
        let (token, header, key) = (self.token.as_ref(), self.authorization.as_ref(), self.maas_key.as_ref());
        let found = [
            token.map(|bytes| (TOKEN, "token", text(bytes).and_then(bearer))),
            header.map(|bytes| {
                (AUTHORIZATION, "value of a header", text(bytes).and_then(secret_header).map(Authorization::Fixed))
            }),
            key.map(|bytes| {
                (
                    MAAS_KEY,
                    "key in the form CONSUMER:TOKEN:SECRET",
                    text(bytes).and_then(MaasKey::parse).map(Authorization::Maas),
                )
            }),
        ];
        let mut found = found.into_iter().flatten();
        let Some((file, what, authorization)) = found.next() else { return Ok(None) };
        if let Some((other, ..)) = found.next() {
            return Err(format!("the credentials have a file {file:?} and a file {other:?}; remove one of them"));
        }
        authorization.map(Some).ok_or_else(|| format!("the file {file:?} contains no {what}"))
    }
}

fn certificates(pem: &[u8], file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(format!("the file {file:?} contains no certificate in PEM")),
    }
}

/// Whether `url` is `prefix` or below it: the same scheme, host and port, and a path that begins with its path.
///
/// Some servers decode a path before they resolve `..` in it. So a path with an encoded slash, backslash, dot or percent sign
/// is not below any other.
pub(super) fn covers(prefix: &Url, url: &Url) -> bool {
    let below = prefix.path().trim_end_matches('/');
    let path = url.path();
    let same_path = path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let path = path.to_ascii_lowercase();
    let is_plain = !["%2f", "%5c", "%2e", "%25"].iter().any(|encoded| path.contains(encoded));
    prefix.origin() == url.origin() && prefix.origin().is_tuple() && same_path && is_plain
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_for_one_origin_and_what_is_below_a_path() {
        let prefix: Url = "https://cmdb.example.com/api".parse().unwrap();
        for (url, expected) in [
            ("https://cmdb.example.com/api", true),
            ("https://cmdb.example.com/api/nodes/n1?x=y", true),
            ("https://CMDB.example.com:443/api/", true),
            ("https://cmdb.example.com/apis", false),
            ("https://cmdb.example.com/", false),
            ("https://cmdb.example.com/api/../secrets", false),
            ("https://cmdb.example.com/api/%2e%2e/secrets", false),
            ("https://cmdb.example.com/api/..%2fsecrets", false),
            ("https://cmdb.example.com/api/..%5Csecrets", false),
            ("https://cmdb.example.com/api/%2e%2e%2Fsecrets", false),
            ("https://cmdb.example.com/api/%252e%252e%252fsecrets", false),
            ("https://cmdb.example.com/api/a%20b?path=%2f", true),
            ("https://cmdb.example.com:8443/api/nodes", false),
            ("http://cmdb.example.com/api/nodes", false),
            ("https://cmdb.example.com.evil.example/api/nodes", false),
            ("https://cmdb.example.com@evil.example/api/nodes", false),
        ] {
            assert_eq!(covers(&prefix, &url.parse().unwrap()), expected, "{url}");
        }
        let root: Url = "https://cmdb.example.com".parse().unwrap();
        assert!(covers(&root, &"https://cmdb.example.com/x".parse().unwrap()));
    }

    #[test]
    fn only_an_inventory_without_a_directory_has_no_credentials() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Files::read(directory.path(), "cmdb").unwrap().is_none());
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let error = Files::read(directory.path(), "file").err().unwrap();
        assert!(error.contains("is not a directory"), "{error}");
        // As with a directory that may not be read, the reason is not that nothing is there.
        let error = Files::read(&directory.path().join("file"), "cmdb").err().unwrap();
        assert!(error.contains("could not read"), "{error}");
        std::fs::create_dir(directory.path().join("cmdb")).unwrap();
        assert!(Files::read(directory.path(), "cmdb").unwrap().is_some());
    }

    #[test]
    fn incomplete_credentials_are_refused_and_the_file_is_named() {
        let url = Some(b"https://cmdb.example.com/\n".to_vec());
        let text = |text: &[u8]| Some(text.to_vec());
        for (files, why) in [
            (Files { token: text(b"t"), ..Files::default() }, "no file \"url\""),
            (Files { url: text(b"http://cmdb.example.com"), ..Files::default() }, "https://"),
            (Files { url: text(b"cmdb"), ..Files::default() }, "no URL"),
            (Files { url: url.clone(), token: text(b" \n"), ..Files::default() }, "\"token\""),
            (Files { url: url.clone(), token: text(b"a\nX-Evil: b"), ..Files::default() }, "\"token\""),
            (Files { url: url.clone(), authorization: text(b"a\nX-Evil: b"), ..Files::default() }, "\"authorization\""),
            (Files { url: url.clone(), maas_key: text(b"a:b"), ..Files::default() }, "CONSUMER:TOKEN:SECRET"),
            (
                Files { url: url.clone(), token: text(b"a"), maas_key: text(b"a:b:c"), ..Files::default() },
                "remove one of them",
            ),
            (Files { url: url.clone(), ca: text(b"x"), ..Files::default() }, "\"ca.crt\""),
            (Files { url: url.clone(), certificate: text(b"x"), ..Files::default() }, "no \"tls.key\""),
            (
                Files { url: url.clone(), key: text(b"secret"), certificate: text(b"x"), ..Files::default() },
                "\"tls.key\"",
            ),
        ] {
            let error = files.parse().err().unwrap();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        let header = |files: Files| files.parse().unwrap().authorization.unwrap().header().unwrap();
        let url = || url.clone();
        assert_eq!(header(Files { url: url(), token: text(b"abc\n"), ..Files::default() }), "Bearer abc");
        assert_eq!(header(Files { url: url(), authorization: text(b"Token abc\n"), ..Files::default() }), "Token abc");
        let maas = || header(Files { url: url(), maas_key: text(b"C1:T2:S3\n"), ..Files::default() });
        let (one, other) = (maas(), maas());
        let said = one.to_str().unwrap();
        assert!(said.contains("oauth_consumer_key=\"C1\"") && said.contains("oauth_signature=\"%26S3\""), "{said}");
        assert!(one != other, "no request has the nonce of another one");
    }
}
