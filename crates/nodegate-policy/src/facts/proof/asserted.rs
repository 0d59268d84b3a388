//! What is asserted about a node that its kubelet is not proven to be.
//!
//! Provisioners find "their" machine by the provider ID that a node has (Karpenter, Cluster API and kOps), and an API server takes any
//! certificate for a node's name as that node. Both can be wrong. Nothing follows from either but what the policies say.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::state::{Asserted, AssertedMachine};
use crate::facts::proof::bootstrap::Bootstrapper;

/// Why it may be unknown what contradicts.
pub(crate) const CONTRADICTIONS_UNKNOWN: &str =
    "too little is known of the node's machine, or of who asked for its kubelet's certificate";

/// A certificate for the name of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateForNode {
    /// Its fingerprint, in hexadecimal digits.
    pub certificate: String,
    /// Who asked for the first certificate that it descends from.
    pub bootstrapper: Arc<Bootstrapper>,
}

/// What may be asserted about a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assertions {
    /// The provisioners' objects whose machine has the provider ID of the node.
    pub machines: Vec<AssertedMachine>,
    /// The certificates for the node's name.
    pub certificates: Vec<CertificateForNode>,
}

/// Something that is asserted about a node and contradicts what is proven of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Contradiction {
    /// What asserts it.
    pub assertion: Assertion,
    /// The provider ID, or the SHA-256 of the certificate.
    pub asserted: String,
    /// What is known of that: the `object`s of provisioners with the provider ID; or the `user` who asked for the certificate, and the
    /// `pools` which that proves.
    pub evidence: BTreeMap<String, Vec<String>>,
    /// What is proven instead: the `object` that stands for the machine, and the `providerID` that it has; the `instance` as which the
    /// kubelet was authenticated; the `name` of the node, if the object with the provider ID leads to another; or the `user` who asked
    /// for the certificate that the node was created with, and the `pools` which that proves.
    pub proven: BTreeMap<String, Vec<String>>,
}

/// What asserts something about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub enum Assertion {
    /// A certificate for its name that was issued to another pool.
    #[serde(rename = "certificate")]
    Certificate,
    /// Its provider ID, which is that of another machine.
    #[serde(rename = "providerID")]
    ProviderId,
}

impl Assertion {
    /// As documents and expressions have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::ProviderId => "providerID",
        }
    }
}

impl Asserted {
    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.certificates.is_empty()
    }
}

impl Contradiction {
    /// What contradicts, as a sentence for people, without an end.
    pub fn in_words(&self) -> String {
        let Self { assertion, asserted, evidence, proven } = self;
        match assertion {
            Assertion::Certificate => {
                let (other, own) = (asked_by(evidence), asked_by(proven));
                format!(
                    "a certificate for the name of this node was issued to {other}, but the node was created by {own}"
                )
            }
            Assertion::ProviderId => {
                let text = |name| proven.get(name).map(|texts| texts.join(", ")).unwrap_or_default();
                let proven = match (text("providerID"), text("instance")) {
                    (id, _) if !id.is_empty() => format!("it is the machine {id} of {}", text("object")),
                    (_, instance) if !instance.is_empty() => {
                        format!("its kubelet was authenticated as instance {instance}")
                    }
                    _ => {
                        let other = evidence.get("object").map(|objects| objects.join(", ")).unwrap_or_default();
                        format!("that is the machine of {other}, whose node has another name")
                    }
                };
                format!("the node has the provider ID {asserted}, but {proven}")
            }
        }
    }
}

/// Who asked for a certificate, and the pools that it proves.
fn asked_by(by_name: &BTreeMap<String, Vec<String>>) -> String {
    let texts = |name| by_name.get(name).map(|texts| texts.join(", ")).unwrap_or_default();
    let (user, pools) = (texts("user"), texts("pools"));
    if pools.is_empty() { format!("{user} (no pool)") } else { format!("{user} (pool {pools})") }
}
