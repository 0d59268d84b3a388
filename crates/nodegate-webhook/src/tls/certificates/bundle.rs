//! The certificates of a cluster: the content of one Secret.
//!
//! | key | what it is |
//! |---|---|
//! | `ca.crt` | every CA that callers are to trust |
//! | `ca.key` | the key of the CA that signs |
//! | `tls.crt`, `tls.key` | the leaf to serve |
//! | `next-ca.key` | the key of the CA that is to sign next, while its certificate is being made known |
//! | `phase` | how far a change of the CA has come, and since when |

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

use crate::tls::certificates::pair::{Pair, PairError};
use crate::tls::certificates::pem::{Pem, certificates, encode};
use crate::tls::certificates::x509::Fields;

/// Maximum number of CAs taken from caBundles: others can write those, and they must not fill the Secret.
const MOST_FOREIGN: usize = 16;

/// The phase of a change of the CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no change.
    Settled,
    /// CA and leaf are new, so callers may not trust them yet.
    Fresh {
        /// Since when the caBundles have contained the CA.
        published: Option<Timestamp>,
    },
    /// The next CA is in `ca.crt`; the old one still signs.
    Announced {
        /// Since when the caBundles have contained both.
        published: Option<Timestamp>,
    },
    /// The leaf is issued by the new CA; callers still trust the old one.
    Served {
        /// Since when.
        since: Timestamp,
    },
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, at) = match self {
            Self::Settled => ("settled", None),
            Self::Fresh { published } => ("fresh", *published),
            Self::Announced { published } => ("announced", *published),
            Self::Served { since } => ("served", Some(*since)),
        };
        match at {
            Some(at) => write!(f, "{word} {at}"),
            None => f.write_str(word),
        }
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is not a valid phase");
        let mut words = text.split_whitespace();
        let word = words.next().unwrap_or_default();
        let at = words.next().map(|at| at.parse::<Timestamp>().map_err(|_| fault())).transpose()?;
        match (word, at, words.next()) {
            ("settled", None, None) => Ok(Self::Settled),
            ("fresh", published, None) => Ok(Self::Fresh { published }),
            ("announced", published, None) => Ok(Self::Announced { published }),
            ("served", Some(since), None) => Ok(Self::Served { since }),
            _ => Err(fault()),
        }
    }
}

/// Why a bundle contains nothing to serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// `tls.crt` and `tls.key` are not a valid pair.
    #[error("tls.crt and tls.key: {0}")]
    Leaf(#[from] PairError),
    /// No CA in `ca.crt` issued the leaf.
    #[error("tls.crt: not issued by a CA in ca.crt")]
    Untrusted,
}

/// A CA certificate that callers trust.
#[derive(Clone)]
pub(in crate::tls) struct Authority {
    pub(in crate::tls) der: CertificateDer<'static>,
    pub(in crate::tls) not_before: Timestamp,
    pub(in crate::tls) not_after: Timestamp,
    is_ca: bool,
}

/// A certificate and its key, checked to match.
#[derive(Clone)]
pub(in crate::tls) struct Keyed {
    pub(in crate::tls) pem: Pem,
    pub(in crate::tls) pair: Pair,
}

impl Keyed {
    pub(in crate::tls) fn new(pem: Pem) -> Result<Self, PairError> {
        let pair = Pair::from_pem(pem.certificate.as_bytes(), pem.key.as_bytes())?;
        Ok(Self { pem, pair })
    }
}

/// The content of the Secret, without unreadable parts.
#[derive(Clone)]
pub struct Bundle {
    pub(in crate::tls) authorities: Vec<Authority>,
    pub(in crate::tls) signer: Option<Keyed>,
    pub(in crate::tls) next: Option<Keyed>,
    pub(in crate::tls) leaf: Result<Keyed, PairError>,
    pub(in crate::tls) phase: Phase,
    /// Whether the Secret already has exactly the text that this would be written as.
    pub(in crate::tls) tidy: bool,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("authorities", &self.authorities.len())
            .field("signer", &self.signer.as_ref().map(|ca| ca.pair.subject()))
            .field("next", &self.next.as_ref().map(|ca| ca.pair.subject()))
            .field("leaf", &self.leaf.as_ref().map(|leaf| leaf.pair.not_after()))
            .field("phase", &self.phase.to_string())
            .finish()
    }
}

impl Bundle {
    /// The data keys of the Secret. Other keys are ignored.
    pub const KEYS: [&'static str; 6] = ["ca.crt", "ca.key", "next-ca.key", "phase", "tls.crt", "tls.key"];

    /// Reads everything that is readable; an empty map is an empty bundle.
    pub fn parse(data: &BTreeMap<String, Vec<u8>>) -> Self {
        let text = |key: &str| data.get(key).map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default();
        let authorities = authorities(&text("ca.crt"));
        let keyed = |key: &str| {
            let key = data.get(key).map(|_| text(key))?;
            let certificates = authorities.iter().filter(|authority| authority.is_ca);
            certificates
                .map(|authority| encode(&authority.der))
                .find_map(|certificate| Keyed::new(Pem { certificate, key: key.clone() }).ok())
        };
        let (signer, mut next) = (keyed("ca.key"), keyed("next-ca.key"));
        // An unreadable phase counts as the one that assumes least: callers may not trust the CA.
        let written = data.get("phase").map(|_| text("phase").parse().unwrap_or(Phase::Fresh { published: None }));
        let phase = match (written, &next) {
            (None, Some(_)) => Phase::Announced { published: None },
            (None, None) | (Some(Phase::Announced { .. }), None) => Phase::Settled,
            (Some(written), _) => written,
        };
        if !matches!(phase, Phase::Announced { .. }) {
            next = None;
        }
        let leaf = Keyed::new(Pem { certificate: text("tls.crt"), key: text("tls.key") });
        let mut bundle = Self { authorities, signer, next, leaf, phase, tidy: false };
        let ours = data.iter().filter(|(key, _)| Self::KEYS.contains(&key.as_str()));
        bundle.tidy = ours.eq(bundle.serialise().iter());
        bundle
    }

    /// Reads a damaged or missing Secret with the help of the caBundles: a CA in them stays trusted, and is complete
    /// again if its key still exists.
    pub fn salvage(data: &BTreeMap<String, Vec<u8>>, trusted: &str) -> Self {
        let mut data = data.clone();
        let text = data.entry("ca.crt".to_owned()).or_default();
        for certificate in certificates(trusted).iter().take(MOST_FOREIGN) {
            text.push(b'\n');
            text.extend(encode(certificate).into_bytes());
        }
        Self { tidy: false, ..Self::parse(&data) }
    }

    /// The content to write into the Secret.
    pub fn serialise(&self) -> BTreeMap<String, Vec<u8>> {
        let mut data = BTreeMap::new();
        let mut put = |key: &str, text: String| data.insert(key.to_owned(), text.into_bytes());
        if !self.authorities.is_empty() {
            put("ca.crt", self.ca_pem());
        }
        if let Some(signer) = &self.signer {
            put("ca.key", signer.pem.key.clone());
        }
        if let Some(next) = &self.next {
            put("next-ca.key", next.pem.key.clone());
        }
        if let Ok(leaf) = &self.leaf {
            put("tls.crt", leaf.pem.certificate.clone());
            put("tls.key", leaf.pem.key.clone());
        }
        if self.phase != Phase::Settled {
            put("phase", self.phase.to_string());
        }
        data
    }

    /// All CAs that callers must trust, as PEM: the content of `ca.crt` and every caBundle.
    pub fn ca_pem(&self) -> String {
        self.authorities.iter().map(|authority| encode(&authority.der)).collect()
    }

    /// The phase of a change of the CA.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether its leaf can be served at `now` to callers that trust only its CAs. Its CAs may be written into
    /// caBundles only then.
    pub fn is_sound(&self, now: Timestamp) -> bool {
        self.leaf.as_ref().is_ok_and(|leaf| leaf.pair.is_valid_at(now) && self.trusts(&leaf.pair, now))
    }

    /// Whether callers that trust only its CAs accept `pair` at `now`.
    pub(in crate::tls) fn trusts(&self, pair: &Pair, now: Timestamp) -> bool {
        pair.is_trusted_by(self.authorities.iter().filter(|ca| ca.is_valid_at(now)).map(|ca| &ca.der), now)
    }

    /// Whether one of its CAs has issued both, so that callers who accept one accept the other.
    fn have_one_ca(&self, held: &Pair, leaf: &Pair, now: Timestamp) -> bool {
        let issued = |ca: &Authority, pair: &Pair| pair.is_trusted_by([&ca.der], now);
        self.authorities.iter().any(|ca| issued(ca, held) && issued(ca, leaf))
    }

    /// What a replica that serves `held` must serve instead, if anything.
    ///
    /// A replica that has a pair that callers trust does not serve one from a new CA: the CA must be in the caBundles
    /// first. A pair that is not valid by this replica's clock does not replace one that is.
    ///
    /// # Errors
    /// Returns an error if there is nothing to serve; the current pair stays.
    pub fn choose(&self, held: Option<&Pair>, now: Timestamp) -> Result<Option<Pair>, Unusable> {
        let leaf = &self.leaf.as_ref().map_err(Clone::clone)?.pair;
        if !self.trusts(leaf, now.clamp(leaf.not_before(), leaf.not_after().max(leaf.not_before()))) {
            return Err(Unusable::Untrusted);
        }
        let keeps = held.is_some_and(|held| {
            let is_fresh = matches!(self.phase, Phase::Fresh { .. });
            let unknown = is_fresh && self.trusts(held, now) && !self.have_one_ca(held, leaf, now);
            held.is_same_as(leaf) || held.is_valid_at(now) && (unknown || !leaf.is_valid_at(now))
        });
        Ok((!keeps).then(|| leaf.clone()))
    }
}

impl Authority {
    pub(in crate::tls) fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

pub(in crate::tls) fn authorities(text: &str) -> Vec<Authority> {
    let mut found: Vec<Authority> = Vec::new();
    for der in certificates(text) {
        let Ok(Fields { not_before, not_after, is_ca, .. }) = Fields::read(&der) else { continue };
        if found.iter().all(|other| other.der != der) {
            found.push(Authority { der, not_before, not_after, is_ca });
        }
    }
    found
}
