//! Who asked for the certificates of the kubelets of a node. Every replica keeps that of each node, so it takes little memory.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::digits::Fingerprint;
use super::shared::SharedValues;

/// Certificates of a kubelet that descend, by renewals, from the same bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BootstrapDocument", into = "BootstrapDocument")]
pub struct Bootstrap {
    asker: Arc<Asker>,
    certificates: Box<[Fingerprint]>,
}

/// Who asked for the first of them: nearly all nodes of a pool have the same token.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Asker {
    user: Box<str>,
    groups: Box<[Box<str>]>,
}

/// A bootstrap in a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapDocument {
    /// The name of the user who asked for the first of the certificates.
    pub user: Box<str>,
    /// The groups of that user, without those of everyone.
    #[serde(default, skip_serializing_if = "<[Box<str>]>::is_empty")]
    pub groups: Box<[Box<str>]>,
    /// The certificates, as hexadecimal SHA-256 fingerprints of their DER form; the newest are last.
    pub certificates: Vec<String>,
}

impl Bootstrap {
    /// The name of the user who asked for the first of them.
    pub fn user(&self) -> &str {
        &self.asker.user
    }

    /// The groups of that user, without those of everyone.
    pub fn groups(&self) -> &[Box<str>] {
        &self.asker.groups
    }

    /// The certificates, as hexadecimal SHA-256 fingerprints of their DER form; the newest are last.
    pub fn certificates(&self) -> impl ExactSizeIterator<Item = String> {
        self.certificates.iter().map(ToString::to_string)
    }

    /// Whether this is one of the certificates.
    pub fn has(&self, certificate: &str) -> bool {
        self.certificates.iter().any(|known| *known == *certificate)
    }

    /// Adds a certificate, the newest.
    pub fn add(&mut self, certificate: &str) {
        let certificates = std::mem::take(&mut self.certificates);
        self.certificates = certificates.into_iter().chain([certificate.into()]).collect();
    }

    /// Forgets the oldest certificates beyond so many, but for this one.
    pub fn keep_newest(&mut self, maximum: usize, certificate: &str) {
        let certificates = std::mem::take(&mut self.certificates);
        let mut surplus = certificates.len().saturating_sub(maximum);
        let stays = |one: &Fingerprint| {
            let goes = surplus > 0 && *one != *certificate;
            surplus -= usize::from(goes);
            !goes
        };
        self.certificates = certificates.into_iter().filter(stays).collect();
    }
}

impl From<BootstrapDocument> for Bootstrap {
    fn from(BootstrapDocument { user, groups, certificates }: BootstrapDocument) -> Self {
        static ASKERS: LazyLock<SharedValues<Asker>> = LazyLock::new(SharedValues::default);
        let certificates = certificates.iter().map(|certificate| Fingerprint::from(&**certificate)).collect();
        Self { asker: ASKERS.of(Asker { user, groups }), certificates }
    }
}

impl From<Bootstrap> for BootstrapDocument {
    fn from(bootstrap: Bootstrap) -> Self {
        let Asker { user, groups } = &*bootstrap.asker;
        Self { user: user.clone(), groups: groups.clone(), certificates: bootstrap.certificates().collect() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bootstrap_is_written_as_it_was_read_and_keeps_the_newest_and_the_first_certificate() {
        let [first, second, third] = ["a", "b", "c"].map(|digit| digit.repeat(64));
        let text =
            json!({"user": "system:bootstrap:t", "groups": ["pool:gpu"], "certificates": [first, second, "odd"]});
        let mut known: Bootstrap = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&known).unwrap(), text);
        let other: Bootstrap = serde_json::from_value(text).unwrap();
        assert!(Arc::ptr_eq(&known.asker, &other.asker), "kept once");
        known.add(&third);
        assert!(known.has("odd") && known.has(&third) && !known.has("other"));
        known.keep_newest(2, &first);
        assert_eq!(known.certificates().collect::<Vec<_>>(), [first, third]);
        let least = json!({"user": "u", "certificates": []});
        let known: Bootstrap = serde_json::from_value(least.clone()).unwrap();
        assert_eq!(serde_json::to_value(&known).unwrap(), least);
    }
}
