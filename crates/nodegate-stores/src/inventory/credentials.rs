//! Credentials for inventories, from files that the operator of nodegate gives it.
//!
//! A policy names no files: who may write one must not be able to send a token to a host of their choice. So each set of
//! credentials says for which URLs it is.

use std::io;
use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use url::Url;

/// The files in the directory of an inventory.
const URL: &str = "url";
const TOKEN: &str = "token";
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
    ca: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

/// Credentials for one inventory.
pub(super) struct Credentials {
    /// The URLs that they are for: everything below this one.
    pub(super) url: Url,
    /// The bearer token.
    pub(super) token: Option<String>,
    /// The only CAs to trust.
    pub(super) ca: Option<Vec<CertificateDer<'static>>>,
    /// The client certificate and its key.
    pub(super) identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
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
        let (url, token, ca) = (file(URL)?, file(TOKEN)?, file(CA)?);
        Ok(Some(Self { url, token, ca, certificate: file(CERTIFICATE)?, key: file(KEY)? }))
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
        let token = match &self.token {
            Some(bytes) => {
                let text = std::str::from_utf8(bytes).map(str::trim).ok();
                let valid = text.filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()));
                Some(valid.ok_or_else(|| format!("the file {TOKEN:?} contains no token"))?.to_owned())
            }
            None => None,
        };
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
        Ok(Credentials { url, token, ca, identity })
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
        let parsed = Files { url, token: text(b"abc\n"), ..Files::default() }.parse().unwrap();
        assert_eq!(parsed.token.as_deref(), Some("abc"));
    }
}
