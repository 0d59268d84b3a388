//! Rotates a bundle: renews the leaf, and replaces the CA without a failed call.
//!
//! This is a pure state machine: the next step depends only on the content of the Secret, the time, and whether the
//! caBundles
//! contain its CAs. So any replica can continue in any phase after a crash.
//!
//! ```text
//! nothing ──▶ fresh ─────────────────────┐
//!                                        ▼
//! settled ──▶ announced ──▶ … wait ──▶ served ──▶ … wait ──▶ settled
//!   CA due     old and new   both      leaf of     old CA
//!              in ca.crt     known     the new CA  dropped
//! ```

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::tls::certificates::bundle::{Authority, Bundle, Keyed, Phase, authorities};
use crate::tls::certificates::issue::{self, IssueError};
use crate::tls::certificates::subject_name::SubjectName;

/// How long after the caBundles were read back an API server may still use the old ones, and a replica may serve the
/// old leaf.
pub const PROPAGATION: Duration = Duration::from_secs(60);

/// Why the Secret is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The Secret was empty or unusable: a new CA and a leaf from it.
    Made,
    /// The leaf was due, damaged or missing, or lacked a name: a new one from the same CA.
    LeafRenewed,
    /// The CA is due, or its key is lost: callers are to trust the next CA as well.
    CaAnnounced,
    /// The caBundles are up to date; the wait begins.
    CaPublished,
    /// The caBundles were changed meanwhile; the wait begins when they are corrected.
    CaUnpublished,
    /// The leaf is issued by the next CA from now on.
    CaServed,
    /// Callers need not trust other CAs anymore.
    CaDropped,
    /// The same content, normalized.
    Tidied,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Made => "created a CA and a certificate",
            Self::LeafRenewed => "renewed the certificate from the same CA",
            Self::CaAnnounced => "publishing the next CA",
            Self::CaPublished => "published the next CA",
            Self::CaUnpublished => "the caBundles were changed; publishing the next CA again",
            Self::CaServed => "serving a certificate from the new CA",
            Self::CaDropped => "removed the old CAs",
            Self::Tidied => "normalized the Secret",
        })
    }
}

/// The next step.
#[derive(Clone, Debug)]
pub enum Step {
    /// Write the Secret, then call again.
    Write {
        /// Its new content.
        bundle: Box<Bundle>,
        /// The reason.
        change: Change,
    },
    /// Nothing to do now.
    Rest {
        /// When there is something to do at the latest, if known.
        until: Option<Timestamp>,
    },
}

/// Returns the next step for `bundle` at `now`.
///
/// `published`: whether every caBundle was read back and equals [`Bundle::ca_pem`].
///
/// # Guarantees
/// A leaf of a new CA replaces a good one only after the CA was `published` for the duration of `propagation`. If a
/// recorded time is in the future (because a clock was set back), its wait starts again.
///
/// # Errors
/// Returns an error if a certificate cannot be issued, for example because of an invalid name.
pub fn step(
    bundle: &Bundle,
    names: &[SubjectName],
    propagation: Duration,
    now: Timestamp,
    published: bool,
) -> Result<Step, IssueError> {
    let turn = Turn { bundle, names, propagation, now, published };
    let step = turn.leaf()?.map_or_else(|| turn.ca(), Ok)?;
    Ok(match step {
        Step::Rest { .. } if !bundle.tidy => write(bundle.clone(), Change::Tidied),
        step => step,
    })
}

fn write(bundle: Bundle, change: Change) -> Step {
    Step::Write { bundle: Box::new(bundle), change }
}

fn phase(bundle: &Bundle, phase: Phase, change: Change) -> Step {
    write(Bundle { phase, ..bundle.clone() }, change)
}

/// Whether a CA can sign now.
fn usable(ca: Option<&Keyed>, now: Timestamp) -> Option<&Keyed> {
    ca.filter(|ca| ca.pair.is_valid_at(now))
}

struct Turn<'a> {
    bundle: &'a Bundle,
    names: &'a [SubjectName],
    propagation: Duration,
    now: Timestamp,
    published: bool,
}

impl Turn<'_> {
    /// The next step for the leaf.
    fn leaf(&self) -> Result<Option<Step>, IssueError> {
        let Self { bundle, now, .. } = *self;
        let sound = bundle.is_sound(now);
        let due = bundle.leaf.as_ref().map_or(true, |leaf| leaf.pair.is_due(now) || !leaf.pair.covers(self.names));
        if let Some(signer) = usable(bundle.signer.as_ref(), now) {
            if sound && !due {
                return Ok(None);
            }
            let leaf = Ok(self.issue(signer)?);
            return Ok(Some(write(Bundle { leaf, ..bundle.clone() }, Change::LeafRenewed)));
        }
        // If no CA can sign, a good leaf is kept until the next CA is published.
        if sound {
            return Ok(None);
        }
        self.make().map(Some)
    }

    /// Nothing can be served: continues with the next CA if there is one, or creates one.
    fn make(&self) -> Result<Step, IssueError> {
        let mut bundle = self.without_expired();
        let published = match (usable(self.bundle.next.as_ref(), self.now), bundle.phase) {
            (Some(_), Phase::Announced { published }) => published,
            _ => None,
        };
        let signer = match usable(self.bundle.next.as_ref(), self.now) {
            Some(next) => next.clone(),
            None => new_ca(&mut bundle, self.now)?,
        };
        bundle.leaf = Ok(self.issue(&signer)?);
        (bundle.signer, bundle.next, bundle.phase) = (Some(signer), None, Phase::Fresh { published });
        Ok(write(bundle, Change::Made))
    }

    /// The next step for the CA, if the leaf is good.
    fn ca(&self) -> Result<Step, IssueError> {
        let Self { bundle, now, published, .. } = *self;
        match bundle.phase {
            Phase::Settled => match usable(bundle.signer.as_ref(), now) {
                // An unknown CA in `ca.crt` is removed like an old one.
                Some(signer) if !signer.pair.is_due(now) && self.has_others() => {
                    Ok(phase(bundle, Phase::Served { since: now }, Change::CaServed))
                }
                Some(signer) if !signer.pair.is_due(now) => Ok(Step::Rest { until: None }),
                _ => self.announce(),
            },
            Phase::Fresh { published: at } => Ok(match self.wait(at) {
                Wait::Over if self.has_others() => phase(bundle, Phase::Served { since: now }, Change::CaServed),
                Wait::Over => phase(bundle, Phase::Settled, Change::CaServed),
                Wait::Until(until) => Step::Rest { until },
                Wait::Note(at, change) => phase(bundle, Phase::Fresh { published: at }, change),
            }),
            Phase::Announced { published: at } => match usable(bundle.next.as_ref(), now) {
                None => self.announce(),
                Some(next) => match self.wait(at) {
                    Wait::Over => self.serve(next),
                    Wait::Until(until) => Ok(Step::Rest { until }),
                    Wait::Note(at, change) => Ok(phase(bundle, Phase::Announced { published: at }, change)),
                },
            },
            Phase::Served { since } if since > now => Ok(phase(bundle, Phase::Served { since: now }, Change::CaServed)),
            Phase::Served { since } => {
                let until = self.after(since);
                Ok(if published && until <= now { self.drop_others() } else { Step::Rest { until: Some(until) } })
            }
        }
    }

    fn announce(&self) -> Result<Step, IssueError> {
        let mut bundle = self.without_expired();
        bundle.next = Some(new_ca(&mut bundle, self.now)?);
        bundle.phase = Phase::Announced { published: None };
        Ok(write(bundle, Change::CaAnnounced))
    }

    fn serve(&self, next: &Keyed) -> Result<Step, IssueError> {
        let mut bundle = self.bundle.clone();
        bundle.leaf = Ok(self.issue(next)?);
        (bundle.signer, bundle.next) = (Some(next.clone()), None);
        bundle.phase = Phase::Served { since: self.now };
        Ok(write(bundle, Change::CaServed))
    }

    fn has_others(&self) -> bool {
        self.others_dropped().authorities.len() < self.bundle.authorities.len()
    }

    fn drop_others(&self) -> Step {
        write(Bundle { phase: Phase::Settled, ..self.others_dropped() }, Change::CaDropped)
    }

    /// Only the signing CA, and the one that issued the leaf.
    fn others_dropped(&self) -> Bundle {
        let mut bundle = self.bundle.clone();
        let (signer, leaf) = (self.bundle.signer.as_ref(), self.bundle.leaf.as_ref());
        bundle.authorities.retain(|Authority { der, .. }| {
            signer.is_some_and(|signer| signer.pair.leaf() == Some(der))
                || leaf.is_ok_and(|leaf| leaf.pair.is_trusted_by([der], self.now))
        });
        bundle
    }

    fn without_expired(&self) -> Bundle {
        let mut bundle = self.bundle.clone();
        bundle.authorities.retain(|authority| self.now < authority.not_after);
        bundle
    }

    fn issue(&self, ca: &Keyed) -> Result<Keyed, IssueError> {
        let leaf = issue::leaf(&ca.pem, ca.pair.not_after(), self.names, self.now)?;
        Keyed::new(leaf).map_err(IssueError::from)
    }

    fn after(&self, moment: Timestamp) -> Timestamp {
        let propagation = SignedDuration::try_from(self.propagation).unwrap_or(SignedDuration::MAX);
        moment.saturating_add(propagation).unwrap_or(Timestamp::MAX)
    }

    /// Whether the caBundles have contained all CAs for long enough, since `at`.
    fn wait(&self, at: Option<Timestamp>) -> Wait {
        match at {
            None if self.published => Wait::Note(Some(self.now), Change::CaPublished),
            None => Wait::Until(None),
            Some(_) if !self.published => Wait::Note(None, Change::CaUnpublished),
            Some(at) if at > self.now => Wait::Note(Some(self.now), Change::CaPublished),
            Some(at) if self.after(at) > self.now => Wait::Until(Some(self.after(at))),
            Some(_) => Wait::Over,
        }
    }
}

enum Wait {
    Until(Option<Timestamp>),
    Note(Option<Timestamp>, Change),
    Over,
}

/// Creates a CA and trusts it.
fn new_ca(bundle: &mut Bundle, now: Timestamp) -> Result<Keyed, IssueError> {
    let ca = Keyed::new(issue::ca(now)?).map_err(IssueError::from)?;
    bundle.authorities.extend(authorities(&ca.pem.certificate));
    Ok(ca)
}

#[cfg(test)]
mod tests;
