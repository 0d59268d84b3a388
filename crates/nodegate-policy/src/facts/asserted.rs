//! What is asserted about a node that its kubelet is not proven to be, and which of that contradicts its proof.
//!
//! Provisioners find "their" machine by the provider ID that a node has (Karpenter, Cluster API and kOps), and an API server takes any
//! certificate for a node's name as that node. Both can be wrong. Nothing follows from either but what the policies say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::state::{Asserted, AssertedMachine, Bootstrap};
use crate::facts::NodeFacts;
use crate::facts::bootstrap::Bootstrapper;
use crate::facts::evidence::Evidence;
use crate::facts::machines::{MachinesOfNode, instance_of};
use crate::set::PolicySet;

/// How many are recorded of a node: objects, bootstraps, and certificates of each bootstrap. With a bootstrap token one can get any number
/// of certificates; the first ones say enough, and each is a write.
const MACHINES_MAX: usize = 8;
const BOOTSTRAPS_MAX: usize = 3;
const CERTIFICATES_MAX: usize = 4;

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

    /// With what is asserted now, as far as it is not what the node is proven to be. What was asserted once stays: whoever did it can
    /// take it back.
    #[must_use]
    pub(crate) fn with(
        mut self,
        Assertions { machines, certificates }: Assertions,
        own: &MachinesOfNode,
        bootstrapper: Option<&Arc<Bootstrapper>>,
    ) -> Self {
        for machine in machines {
            let is_same = |known: &AssertedMachine| known.kind == machine.kind && known.name == machine.name;
            match self.machines.iter().position(is_same) {
                Some(at) => self.machines[at] = machine,
                None if self.machines.len() < MACHINES_MAX => self.machines.push(machine),
                None => {}
            }
        }
        let is_own = |machine: &AssertedMachine| {
            own.found.iter().any(|object| object.kind == machine.kind && object.name == machine.name)
        };
        self.machines.retain(|machine| !is_own(machine));
        // Of a node whose own bootstrap is not known, it is not known which are others.
        let Some(own) = bootstrapper else { return self };
        for CertificateForNode { certificate, bootstrapper } in certificates {
            if bootstrapper != *own {
                self.add(certificate, &bootstrapper);
            }
        }
        self
    }

    fn add(&mut self, certificate: String, bootstrapper: &Bootstrapper) {
        let user = bootstrapper.user();
        let is_same =
            |known: &Bootstrap| known.user == user && known.groups.iter().map(String::as_str).eq(bootstrapper.groups());
        let at = match self.certificates.iter().position(is_same) {
            Some(at) => at,
            None if self.certificates.len() >= BOOTSTRAPS_MAX => return,
            None => {
                let groups = bootstrapper.groups().map(str::to_owned).collect();
                self.certificates.push(Bootstrap { user: user.to_owned(), groups, certificates: Vec::new() });
                self.certificates.len() - 1
            }
        };
        let known = &mut self.certificates[at].certificates;
        if known.len() < CERTIFICATES_MAX && !known.contains(&certificate) {
            known.push(certificate);
        }
    }
}

impl PolicySet {
    /// What is asserted about a node and contradicts what is proven of it, as far as the policies ask for that, sorted.
    pub fn contradictions(&self, node: &NodeFacts<'_>, evidence: &Evidence<'_>) -> Vec<Contradiction> {
        let machine = self.asks_for_machines().then(|| self.machine_of_another(node, evidence)).flatten();
        let certificates = self.asks_for_bootstrap().then(|| self.certificates_of_another(evidence));
        certificates.into_iter().flatten().chain(machine).collect()
    }

    /// The node's provider ID, if it is that of another machine than the one that the node is proven to be.
    fn machine_of_another(&self, node: &NodeFacts<'_>, evidence: &Evidence<'_>) -> Option<Contradiction> {
        let asserted = node.provider_id.as_deref()?;
        let (own, others) = (&evidence.machines().found, &evidence.asserted().machines);
        if own.iter().any(|object| object.provider_id == asserted) {
            return None;
        }
        // What was recorded of another provider ID says nothing of this one. A node can get one, but not another.
        let with_id: Vec<&AssertedMachine> = others.iter().filter(|other| other.provider_id == asserted).collect();
        let own = own.iter().find(|object| !object.provider_id.is_empty());
        let proven = match (own, self.instances(evidence).as_deref()) {
            (Some(own), _) => vec![
                ("object", vec![format!("{} {}", own.kind, own.name)]),
                ("providerID", vec![own.provider_id.clone()]),
            ],
            (None, Some([instance, ..])) if *instance != instance_of(asserted) && !with_id.is_empty() => {
                vec![("instance", vec![(*instance).to_owned()])]
            }
            (None, Some([])) if with_id.iter().any(|other| other.has_another_name) => {
                vec![("name", vec![node.name.to_string()])]
            }
            (None, _) => return None,
        };
        let objects: Vec<String> = with_id.iter().map(|other| format!("{} {}", other.kind, other.name)).collect();
        let evidence = (!objects.is_empty()).then_some(("object", objects));
        Some(Contradiction {
            assertion: Assertion::ProviderId,
            asserted: asserted.to_owned(),
            evidence: named(evidence),
            proven: named(proven),
        })
    }

    /// The certificates for the node's name whose bootstrap proves other pools than the one that the node was created with.
    fn certificates_of_another(&self, evidence: &Evidence<'_>) -> Vec<Contradiction> {
        let Some(own) = evidence.bootstrapper() else { return Vec::new() };
        let pools = self.bootstrapped_pools(own);
        let asked = |user: &str, pools: &BTreeSet<&str>| {
            let pools: Vec<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
            named([("user", vec![user.to_owned()]), ("pools", pools)])
        };
        let mut found: Vec<Contradiction> = Vec::new();
        for Bootstrap { user, groups, certificates } in &evidence.asserted().certificates {
            let Some(other) = Bootstrapper::new(user, groups.iter().map(String::as_str)) else { continue };
            let others = self.bootstrapped_pools(&other);
            if others == pools {
                continue;
            }
            found.extend(certificates.iter().map(|certificate| Contradiction {
                assertion: Assertion::Certificate,
                asserted: certificate.clone(),
                evidence: asked(user, &others),
                proven: asked(own.user(), &pools),
            }));
        }
        found.sort_unstable();
        found
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

fn named<'n>(texts: impl IntoIterator<Item = (&'n str, Vec<String>)>) -> BTreeMap<String, Vec<String>> {
    texts.into_iter().map(|(name, texts)| (name.to_owned(), texts)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::state::ProvisionedBy;

    fn machine(name: &str, has_another_name: bool) -> AssertedMachine {
        AssertedMachine {
            kind: "Machine".to_owned(),
            name: name.to_owned(),
            provider_id: "x://1".to_owned(),
            has_another_name,
        }
    }

    fn by(user: &str) -> Arc<Bootstrapper> {
        Arc::new(Bootstrapper::new(user, ["g"]).unwrap())
    }

    #[test]
    fn what_was_asserted_first_stays_and_is_bounded() {
        let none = MachinesOfNode::default();
        let own = by("own");
        let certificate = |user: &str, digits: usize| CertificateForNode {
            certificate: format!("{digits:064x}"),
            bootstrapper: by(user),
        };
        let many = (0..100).map(|at| certificate(["own", "a", "b", "c", "d"][at % 5], at)).collect();
        let machines = (0..20).map(|at| machine(&at.to_string(), false)).collect();
        let asserted = Asserted::default().with(Assertions { machines, certificates: many }, &none, Some(&own));
        let users: Vec<(&str, usize)> =
            asserted.certificates.iter().map(|one| (one.user.as_str(), one.certificates.len())).collect();
        assert_eq!(users, [("a", 4), ("b", 4), ("c", 4)]);
        assert_eq!(asserted.machines.len(), MACHINES_MAX);
        let more = Assertions { machines: vec![machine("new", true)], certificates: vec![certificate("e", 7)] };
        assert_eq!(asserted.clone().with(more, &none, Some(&own)), asserted);
        assert_eq!(asserted.clone().with(Assertions::default(), &none, Some(&own)), asserted);
    }

    #[test]
    fn what_is_known_later_of_an_object_replaces_what_was_known() {
        let none = MachinesOfNode::default();
        let with = |asserted: Asserted, machines: &[AssertedMachine], own: &MachinesOfNode| {
            asserted.with(Assertions { machines: machines.to_vec(), certificates: Vec::new() }, own, None).machines
        };
        let asserted = Asserted { machines: vec![machine("ns/a", false)], ..Asserted::default() };
        assert_eq!(with(asserted.clone(), &[machine("ns/a", true)], &none), [machine("ns/a", true)]);
        // It stands for the machine by now.
        let object = json!({"group": "g", "kind": "Machine", "name": "ns/a", "uid": "u"});
        let found = vec![serde_json::from_value::<ProvisionedBy>(object).unwrap()];
        let own = MachinesOfNode { found, ..MachinesOfNode::default() };
        assert_eq!(with(asserted, &[machine("ns/a", true), machine("ns/b", true)], &own), [machine("ns/b", true)]);
    }

    #[test]
    fn of_a_node_whose_own_bootstrap_is_not_known_nothing_is_anothers() {
        let certificates = vec![CertificateForNode { certificate: "0".repeat(64), bootstrapper: by("a") }];
        let now = Assertions { machines: Vec::new(), certificates };
        assert!(Asserted::default().with(now, &MachinesOfNode::default(), None).is_empty());
    }
}
