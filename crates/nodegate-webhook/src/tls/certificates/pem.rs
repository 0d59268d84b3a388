//! Splits PEM text into certificates.

use std::iter;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};

use crate::tls::certificates::x509::Fields;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// A certificate and its key in PEM.
#[derive(Clone)]
pub(in crate::tls) struct Pem {
    pub(in crate::tls) certificate: String,
    pub(in crate::tls) key: String,
}

/// The certificates in a text, in order. A damaged block, for example one without an end, does not affect how the
/// next one is read.
fn blocks(text: &str) -> impl Iterator<Item = Result<CertificateDer<'static>, pem::Error>> {
    // Concatenated files may lack a newline between two blocks. Elsewhere in a line, the marker is part of a comment.
    let begins = |at: &usize| text[..*at].ends_with(['\n', '\r', '-']) || *at == 0;
    let starts: Vec<usize> = text.match_indices(BEGIN).map(|(at, _)| at).filter(begins).collect();
    let ends = starts.clone().into_iter().skip(1).chain(iter::once(text.len()));
    let ranges = starts.into_iter().zip(ends);
    ranges.map(|(start, end)| CertificateDer::from_pem_slice(&text.as_bytes()[start..end]))
}

/// All certificates in a PEM text, or none: an incomplete file does not count as a smaller one.
///
/// # Errors
/// Returns an error if one of them is damaged.
pub(in crate::tls) fn all_certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    blocks(&String::from_utf8_lossy(text)).collect()
}

/// The readable certificates in a PEM text; damaged ones are skipped.
pub fn certificates(text: &str) -> Vec<CertificateDer<'static>> {
    blocks(text).filter_map(Result::ok).filter(|certificate| Fields::read(certificate).is_ok()).collect()
}

/// Formats a certificate as PEM, always in the same way.
pub(in crate::tls) fn encode(der: &CertificateDer<'_>) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<String> = encoded.as_bytes().chunks(64).map(|l| String::from_utf8_lossy(l).into_owned()).collect();
    format!("{BEGIN}\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tls::certificates::issue;

    fn two_authorities() -> [String; 2] {
        [1, 2].map(|second| issue::ca(jiff::Timestamp::from_second(second << 31).unwrap()).unwrap().certificate)
    }

    #[test]
    fn certificates_are_found_between_comments_and_other_blocks_and_without_a_newline_between_them() {
        let [one, two] = two_authorities();
        let expected = all_certificates(format!("{one}{two}").as_bytes()).unwrap();
        assert_eq!(expected.len(), 2);
        let commented = format!("# as in -----BEGIN CERTIFICATE-----\n{one}# and the second one\r\n{two}");
        let other = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
        let joined = format!("{}{two}", one.trim_end());
        for text in [commented, format!("{one}{other}{two}"), joined] {
            assert_eq!(all_certificates(text.as_bytes()).unwrap(), expected, "{text}");
            assert_eq!(certificates(&text), expected, "{text}");
        }
    }

    #[test]
    fn a_damaged_certificate_is_skipped_or_fails_the_whole_text_and_never_hides_another_one() {
        let [one, two] = two_authorities();
        let without_end = one.split("-----END").next().unwrap().to_owned();
        for damaged in [without_end, one.replacen('M', "?", 1)] {
            let text = format!("{damaged}{two}");
            assert!(all_certificates(text.as_bytes()).is_err(), "{text}");
            assert_eq!(certificates(&text), certificates(&two), "{text}");
        }
        assert!(all_certificates(b"no PEM").unwrap().is_empty() && certificates("").is_empty());
    }
}
