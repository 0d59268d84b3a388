//! Which of what is asserted about a node contradicts what is proven of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::state::{Asserted, AssertedMachine, Bootstrap, ProvisionedBy};
use crate::facts::NodeFacts;
use crate::facts::proof::asserted::{Assertion, Assertions, CertificateForNode, Contradiction};
use crate::facts::proof::bootstrap::{Bootstrapper, CREDENTIAL_ID};
use crate::facts::proof::evidence::Evidence;
use crate::facts::proof::machines::{MachinesOfNode, instance_of};
use crate::set::PolicySet;

/// How many are recorded of a node: objects, bootstraps, and certificates of each bootstrap. With a bootstrap token one can get any number
/// of certificates; the first ones say enough, and each is a write.
const MACHINES_MAX: usize = 8;
const BOOTSTRAPS_MAX: usize = 3;
const CERTIFICATES_MAX: usize = 4;

impl Asserted {
    /// With what is asserted now, as far as it is not what the node is proven to be. What was asserted once stays: whoever did it can
    /// take it back.
    #[must_use]
    pub(crate) fn with(
        mut self,
        set: &PolicySet,
        Assertions { machines, certificates }: Assertions,
        own: &MachinesOfNode,
        bootstrapper: Option<&Bootstrapper>,
    ) -> Self {
        for machine in machines {
            let is_same = |known: &AssertedMachine| known.group == machine.group && known.name == machine.name;
            match self.machines.iter().position(is_same) {
                Some(at) => self.machines[at] = machine,
                None if self.machines.len() < MACHINES_MAX => self.machines.push(machine),
                None => {}
            }
        }
        let is_own = |machine: &AssertedMachine| {
            own.found.iter().any(|object| object.group() == machine.group && *object.name == *machine.name)
        };
        self.machines.retain(|machine| !is_own(machine));
        // Of a node whose own bootstrap is not known, it is not known which are others.
        let Some(own) = bootstrapper.filter(|_| !certificates.is_empty()) else { return self };
        let pools = set.bootstrapped_pools(own);
        let contradicts = |known: &Bootstrapper| set.bootstrapped_pools(known) != pools;
        for CertificateForNode { certificate, bootstrapper } in certificates {
            if *bootstrapper != *own {
                self.add(&certificate, &bootstrapper, contradicts);
            }
        }
        self
    }

    fn add(&mut self, certificate: &str, bootstrapper: &Bootstrapper, contradicts: impl Fn(&Bootstrapper) -> bool) {
        let lines = &mut self.certificates;
        let at = match lines.iter().position(|known| bootstrapper.is_of(known)) {
            Some(at) => at,
            None if lines.len() < BOOTSTRAPS_MAX => {
                lines.push(bootstrapper.to_record());
                lines.len() - 1
            }
            // Those of the same pool may come and go, as tokens do, and must not hide one of another.
            None => {
                let is_idle = |known: &Bootstrap| Bootstrapper::of(known).is_none_or(|known| !contradicts(&known));
                let Some(idle) = lines.iter().position(is_idle).filter(|_| contradicts(bootstrapper)) else { return };
                lines[idle] = bootstrapper.to_record();
                idle
            }
        };
        let known = &mut lines[at];
        if known.certificates().len() < CERTIFICATES_MAX && !known.has(certificate) {
            known.add(certificate);
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

    /// Whether everything is known that could contradict what is proven of a node.
    pub(crate) fn knows_contradictions(&self, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>) -> bool {
        let (asks_for_machines, asks_for_bootstrap) = (self.asks_for_machines(), self.asks_for_bootstrap());
        let Some(evidence) = evidence else { return !asks_for_machines && !asks_for_bootstrap };
        let machines = evidence.machines();
        let is_absent = || self.machine_kinds().iter().all(|kind| machines.is_absent(*kind));
        let has_no_certificate = || evidence.certificate().is_none() && evidence.extra(CREDENTIAL_ID).is_some();
        let has_machine = || self.machines_that_count(evidence).next().is_some();
        let knows_machine = node.provider_id.is_none() || has_machine() || is_absent();
        let knows_bootstrap = evidence.bootstrapper().is_some() || has_no_certificate();
        (knows_machine || !asks_for_machines) && (knows_bootstrap || !asks_for_bootstrap)
    }

    /// The objects that stand for a node's machine, without those in other namespaces, where others may write them.
    pub(crate) fn machines_that_count<'e>(
        &self,
        evidence: &'e Evidence<'_>,
    ) -> impl Iterator<Item = &'e ProvisionedBy> {
        evidence.machines().found.iter().filter(|object| self.pools().counts(object.kind(), &object.name))
    }

    /// The node's provider ID, if it is that of another machine than the one that the node is proven to be.
    fn machine_of_another(&self, node: &NodeFacts<'_>, evidence: &Evidence<'_>) -> Option<Contradiction> {
        let asserted = node.provider_id.as_deref()?;
        let own: Vec<&ProvisionedBy> = self.machines_that_count(evidence).collect();
        if own.iter().any(|object| *object.provider_id == *asserted) {
            return None;
        }
        // What was recorded of another provider ID says nothing of this one. A node can get one, but not another.
        let is_with_id =
            |other: &&AssertedMachine| other.provider_id == asserted && self.pools().counts(&other.kind, &other.name);
        let with_id: Vec<&AssertedMachine> = evidence.asserted().machines.iter().filter(is_with_id).collect();
        let own = own.into_iter().find(|object| !object.provider_id.is_empty());
        let proven = match (own, self.instances(evidence).as_deref()) {
            (Some(own), _) => vec![
                ("object", vec![format!("{} {}", own.kind(), own.name)]),
                ("providerID", vec![own.provider_id.to_string()]),
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
        for line in &evidence.asserted().certificates {
            let Some(other) = Bootstrapper::of(line) else { continue };
            let others = self.bootstrapped_pools(&other);
            if others == pools {
                continue;
            }
            found.extend(line.certificates().map(|certificate| Contradiction {
                assertion: Assertion::Certificate,
                asserted: certificate,
                evidence: asked(other.user(), &others),
                proven: asked(own.user(), &pools),
            }));
        }
        found.sort_unstable();
        found
    }
}

fn named<'n>(texts: impl IntoIterator<Item = (&'n str, Vec<String>)>) -> BTreeMap<String, Vec<String>> {
    texts.into_iter().map(|(name, texts)| (name.to_owned(), texts)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reconcile::tests::scene::set;

    fn machine(name: &str, has_another_name: bool) -> AssertedMachine {
        AssertedMachine {
            group: "g".to_owned(),
            kind: "Machine".to_owned(),
            name: name.to_owned(),
            provider_id: "x://1".to_owned(),
            has_another_name,
        }
    }

    fn by(token: &str) -> Bootstrapper {
        Bootstrapper::new(&format!("system:bootstrap:{token}"), []).unwrap()
    }

    fn certificates(tokens: &[&str]) -> Assertions {
        let certificate = |(at, token): (usize, &&str)| CertificateForNode {
            certificate: format!("{token}-{at}"),
            bootstrapper: by(token).into(),
        };
        Assertions { machines: Vec::new(), certificates: tokens.iter().enumerate().map(certificate).collect() }
    }

    /// Tokens that begin with `g` are of one pool.
    fn pools() -> PolicySet {
        set(json!({"pools": [
            {"name": "gpu", "bootstrap": {"tokens": ["g*"]}},
            {"name": "cpu", "bootstrap": {"tokens": ["c*"]}},
        ]}))
    }

    #[test]
    fn what_was_asserted_first_stays_and_is_bounded() {
        let (set, none) = (pools(), MachinesOfNode::default());
        let with = |asserted: &Asserted, now| asserted.clone().with(&set, now, &none, Some(&by("g1")));
        let lines = |asserted: &Asserted| -> Vec<(String, usize)> {
            asserted.certificates.iter().map(|one| (one.user()[17..].to_owned(), one.certificates().len())).collect()
        };
        let line = |token: &str, count| (token.to_owned(), count);
        let many = ["g1", "c1", "c2", "c3", "c4"].repeat(20);
        let asserted = with(&Asserted::default(), certificates(&many));
        assert_eq!(lines(&asserted), [line("c1", 4), line("c2", 4), line("c3", 4)], "the own one is none");
        assert_eq!(with(&asserted, certificates(&["c5"])), asserted);
        assert_eq!(with(&asserted, Assertions::default()), asserted);
        // Tokens of the own pool that came before leave room for one of another.
        let own = with(&Asserted::default(), certificates(&["g2", "g3", "g4", "g5"]));
        assert_eq!(lines(&own), [line("g2", 1), line("g3", 1), line("g4", 1)]);
        assert_eq!(lines(&with(&own, certificates(&["c1"]))), [line("c1", 1), line("g3", 1), line("g4", 1)]);
        let machines = (0..20).map(|at| machine(&at.to_string(), false)).collect();
        let asserted = with(&Asserted::default(), Assertions { machines, certificates: Vec::new() });
        assert_eq!(asserted.machines.len(), MACHINES_MAX);
        let later = Assertions { machines: vec![machine("new", true)], certificates: Vec::new() };
        assert_eq!(with(&asserted, later), asserted);
    }

    #[test]
    fn what_is_known_later_of_an_object_replaces_what_was_known() {
        let none = MachinesOfNode::default();
        let with = |asserted: Asserted, machines: &[AssertedMachine], own: &MachinesOfNode| {
            let now = Assertions { machines: machines.to_vec(), certificates: Vec::new() };
            asserted.with(&pools(), now, own, None).machines
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
        let asserted = Asserted::default().with(&pools(), certificates(&["c1"]), &MachinesOfNode::default(), None);
        assert!(asserted.is_empty());
    }

    #[test]
    fn an_object_in_a_namespace_that_does_not_count_contradicts_nothing() {
        let name_from = |namespaces| json!({"pools": [{"nameFrom": {"kind": "Machine", "label": "pool", "namespaces": namespaces}}]});
        let node = json!({"metadata": {"name": "vm-1"}, "spec": {"providerID": "x://1"}}).to_string();
        let node = NodeFacts::parse(&node).unwrap();
        let contradictions = |own: Option<&str>, asserted: Option<&str>| {
            let object =
                |id: &str| json!({"group": "g", "kind": "Machine", "name": "tenant/a", "uid": "u", "providerID": id});
            let saved = json!({
                "nodeName": "vm-1", "nodeUID": "u", "authenticatedAs": "no-extra.sessionName\nuser=system:node:vm-1",
                "provisionedBy": own.into_iter().map(object).collect::<Vec<_>>(), "provisionedFor": "u",
                "asserted": {"nodeUID": "u", "machines": asserted.map(|name| machine(name, true)).into_iter().collect::<Vec<_>>()},
            });
            let saved = serde_json::from_value(saved).unwrap();
            let node = NodeFacts { uid: Some(crate::Text("u".into())), ..node.clone() };
            let evidence = Evidence::of_stored(&node, &saved, false).unwrap();
            [json!(["tenant"]), json!(["fleet"])].map(|namespaces| set(name_from(namespaces))).map(|set| {
                (set.contradictions(&node, &evidence).len(), set.knows_contradictions(&node, Some(&evidence)))
            })
        };
        assert_eq!(contradictions(Some("x://2"), None), [(1, true), (0, false)], "an own object with another ID");
        assert_eq!(contradictions(None, Some("tenant/b")), [(1, false), (0, false)], "another's with this ID");
        assert_eq!(
            contradictions(Some("x://1"), Some("fleet/b")),
            [(0, true), (1, false)],
            "no own object of a tenant hides it"
        );
    }
}
