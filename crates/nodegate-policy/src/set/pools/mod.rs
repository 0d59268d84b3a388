//! Compiled `pools`: which nodes belong to a pool, and what proves it.

mod asked;
mod contradictions;
pub(crate) mod name;
pub(crate) mod witness;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::pools::MachineKind;
use crate::facts::proof::bootstrap::{Bootstrapper, CREDENTIAL_ID};
use crate::facts::proof::evidence::Evidence;
use crate::facts::proof::machines::{LabelOfMachine, MachinesOfNode};
use crate::keys::pattern::{Identities, TextSet};
use crate::set::kleene::Kleene;
use crate::set::matcher::NameGroup;
use crate::set::pools::name::PoolNameIn;

/// Why a node may belong to pools of any name.
const MACHINE_UNKNOWN: &str = "it is not known whether a provisioner's object stands for the node's machine";
pub(crate) const KUBELET_UNKNOWN: &str = "too little is recorded about the kubelet that created the node";

/// All pools of a set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    entries: Vec<Pool>,
    /// The keys of extra information that entries ask for, if any asks for something of the requester.
    asked: Option<Vec<Box<str>>>,
    asks_for_bootstrap: bool,
    by_machines: Vec<PoolByMachine>,
    by_proofs: Vec<PoolByProof>,
    /// The keys of extra information that have the ID of a kubelet's instance, each once.
    instance_keys: Vec<Box<str>>,
    machine_kinds: Vec<MachineKind>,
}

/// An entry of `pools` with a name.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) name: Box<str>,
    pub(crate) requester: Option<PoolRequester>,
    pub(crate) bootstrap: Option<PoolBootstrap>,
    pub(crate) names: Option<NameGroup>,
}

/// An entry of `pools` whose names are those that a provisioner's objects have.
#[derive(Clone, Debug)]
pub(crate) struct PoolByMachine {
    pub(crate) kind: MachineKind,
    pub(crate) label: Box<str>,
    /// The namespaces of objects that count; all if absent.
    pub(crate) namespaces: Option<TextSet>,
    /// The key of extra information that has the ID of a kubelet's instance.
    pub(crate) instance: Box<str>,
}

/// An entry of `pools` whose names are a part of what proves them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolByProof {
    /// What must be authenticated beside the name, and where that is: it must be the same everywhere.
    pub(crate) requester: Option<(PoolRequester, Vec<PoolNameOf>)>,
    /// Who must have asked for the certificate, and where their groups have the name.
    pub(crate) bootstrap: Option<(PoolBootstrap, Vec<PoolNameIn>)>,
    pub(crate) names: Vec<PoolNameIn>,
}

/// Where the name of a pool is in what is authenticated about a kubelet.
#[derive(Clone, Debug)]
pub(crate) struct PoolNameOf {
    /// In values of this key of its extra information; else in its groups.
    pub(crate) extra: Option<Box<str>>,
    pub(crate) texts: Vec<PoolNameIn>,
}

/// What the API server must have authenticated about a kubelet.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolRequester {
    pub(crate) groups: Option<Identities>,
    pub(crate) extra: Vec<(Box<str>, TextSet)>,
}

/// Who must have asked for a kubelet's first certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolBootstrap {
    pub(crate) groups: Option<Identities>,
    pub(crate) tokens: Option<TextSet>,
}

/// What proves that a node belongs to a pool, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ProofSource {
    /// What the API server authenticated about the kubelet that created the node.
    Requester,
    /// The provisioner's object that stands for the node's machine.
    Machine,
    /// Who asked for that kubelet's first certificate.
    Bootstrap,
    /// The word of an administrator, where nothing else is known.
    Administrator,
    /// The node's name.
    Name,
}

impl ProofSource {
    /// The name as the documents write it, and as expressions see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requester => "requester",
            Self::Machine => "machine",
            Self::Bootstrap => "bootstrap",
            Self::Administrator => "administrator",
            Self::Name => "name",
        }
    }

    /// What proves it.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Requester => "what the API server authenticated about its kubelet",
            Self::Machine => "the provisioner's object that stands for its machine",
            Self::Bootstrap => "who asked for its kubelet's certificate",
            Self::Administrator => "the word of an administrator",
            Self::Name => "its name",
        }
    }
}

/// The pools of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolsOfNode<'s> {
    /// The proven ones by name, each with its strongest proof.
    pub(crate) proven: Vec<(&'s str, ProofSource)>,
    /// Those of which it is not known whether the node belongs to them.
    pub(crate) unknown: BTreeSet<&'s str>,
    /// Whether it may belong to others, of whatever name: a provisioner's object for its machine may be there that is not known.
    pub(crate) may_have_object: bool,
    /// Whether it may belong to others, of whatever name: what is recorded of its kubelet does not have the name, or that it has none.
    pub(crate) may_be_named: bool,
}

impl Pools {
    /// `instance_keys`: the keys of extra information that have the ID of a kubelet's instance.
    pub(crate) fn new(
        entries: Vec<Pool>,
        by_machines: Vec<PoolByMachine>,
        by_proofs: Vec<PoolByProof>,
        instance_keys: BTreeSet<Box<str>>,
    ) -> Self {
        let named = by_proofs.iter().filter_map(|entry| entry.requester.as_ref());
        let plain = entries.iter().filter_map(|pool| pool.requester.as_ref());
        let requesters: Vec<&PoolRequester> = plain.chain(named.clone().map(|(beside, _)| beside)).collect();
        let mut keys: BTreeSet<Box<str>> =
            requesters.iter().flat_map(|requester| &requester.extra).map(|(key, _)| key.clone()).collect();
        keys.extend(named.flat_map(|(_, places)| places).filter_map(|place| place.extra.clone()));
        let asks_for_bootstrap = entries.iter().any(|pool| pool.bootstrap.is_some())
            || by_proofs.iter().any(|entry| entry.bootstrap.is_some());
        if asks_for_bootstrap {
            keys.insert(CREDENTIAL_ID.into());
        }
        keys.extend(instance_keys.iter().cloned());
        let asks = asks_for_bootstrap || !requesters.is_empty() || !instance_keys.is_empty();
        let asked = asks.then(|| keys.into_iter().collect());
        let instance_keys = instance_keys.into_iter().collect();
        let machine_kinds: BTreeSet<MachineKind> = by_machines.iter().map(|entry| entry.kind).collect();
        let machine_kinds = machine_kinds.into_iter().collect();
        Self { entries, by_machines, by_proofs, asked, asks_for_bootstrap, instance_keys, machine_kinds }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.have_any_names()
    }

    /// Whether there may be pools of any name: what proves them has it.
    pub(crate) fn have_any_names(&self) -> bool {
        !self.by_machines.is_empty() || !self.by_proofs.is_empty()
    }

    /// The kinds of provisioners' objects that entries ask for, each once.
    pub(crate) fn machine_kinds(&self) -> &[MachineKind] {
        &self.machine_kinds
    }

    /// Whether an object of this kind with this name, `NAMESPACE/NAME` if it is in a namespace, counts for an entry.
    pub(crate) fn counts(&self, kind: &str, name: &str) -> bool {
        let mut of_kind = self.by_machines.iter().filter(|entry| entry.kind.as_str() == kind);
        of_kind.any(|entry| entry.counts(name))
    }

    /// The labels of those objects that entries ask for, each once.
    pub(crate) fn machine_labels(&self) -> BTreeSet<&str> {
        self.by_machines.iter().map(|entry| &*entry.label).collect()
    }

    /// The keys of extra information that have the ID of a kubelet's instance, each once.
    pub(crate) fn instance_keys(&self) -> &[Box<str>] {
        &self.instance_keys
    }

    /// The names that the policies have, each once. Those that only what proves them has are not known here.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.entries.iter().map(|pool| &*pool.name).collect()
    }

    /// The keys of extra information that entries ask for, each once; `None` if no entry asks for anything of the requester.
    pub(crate) fn asked_of_requester(&self) -> Option<&[Box<str>]> {
        self.asked.as_deref()
    }

    /// Whether entries ask who requested the certificate of a kubelet.
    pub(crate) fn asks_for_bootstrap(&self) -> bool {
        self.asks_for_bootstrap
    }

    /// The pools that this bootstrapper proves.
    pub(crate) fn of_bootstrapper<'s>(&'s self, bootstrapper: &'s Bootstrapper) -> BTreeSet<&'s str> {
        let is_proven = |pool: &&Pool| pool.bootstrap.as_ref().is_some_and(|wanted| wanted.matches(bootstrapper));
        let named = self.by_proofs.iter().filter_map(|entry| entry.bootstrap.as_ref());
        let named = named.filter(|(beside, _)| beside.matches(bootstrapper));
        let named = named.flat_map(|(_, places)| names_in(places, bootstrapper.groups()));
        self.entries.iter().filter(is_proven).map(|pool| &*pool.name).chain(named).collect()
    }

    /// The pools of the node with this name, which is in these groups.
    pub(crate) fn of_node<'s>(
        &'s self,
        node: &'s str,
        name_groups: &[NameGroup],
        evidence: Option<&'s Evidence<'_>>,
    ) -> PoolsOfNode<'s> {
        let mut found = PoolsOfNode::default();
        let machines = evidence.map(Evidence::machines);
        for entry in &self.by_machines {
            let label =
                |machines: &'s MachinesOfNode| machines.label(entry.kind, &entry.label, |name| entry.counts(name));
            match machines.map_or(LabelOfMachine::Unknown, label) {
                LabelOfMachine::Value(name) => found.proven.push((name, ProofSource::Machine)),
                LabelOfMachine::None => {}
                LabelOfMachine::Unknown => found.may_have_object = true,
            }
        }
        for entry in &self.by_proofs {
            let sources = [
                (entry.of_requester(evidence), ProofSource::Requester),
                (entry.of_bootstrap(evidence), ProofSource::Bootstrap),
                (Some(names_in(&entry.names, [node]).collect()), ProofSource::Name),
            ];
            for (names, proof) in sources {
                match names {
                    Some(names) => found.proven.extend(names.into_iter().map(|name| (name, proof))),
                    None => found.may_be_named = true,
                }
            }
        }
        for pool in &self.entries {
            let by_name = pool.names.is_some_and(|group| name_groups.binary_search(&group).is_ok());
            let by_requester = pool.requester.as_ref().map_or(Kleene::False, |wanted| wanted.evaluate(evidence));
            let by_bootstrap = pool.bootstrap.as_ref().map_or(Kleene::False, |wanted| wanted.evaluate(evidence));
            let sources = [
                (by_requester, ProofSource::Requester),
                (by_bootstrap, ProofSource::Bootstrap),
                (by_name.into(), ProofSource::Name),
            ];
            match sources.iter().find(|(holds, _)| *holds == Kleene::True) {
                Some((_, proof)) => found.proven.push((&pool.name, *proof)),
                None if sources.iter().any(|(holds, _)| *holds == Kleene::Unknown) => {
                    found.unknown.insert(&pool.name);
                }
                None => {}
            }
        }
        if let Some(adopted) = evidence.and_then(Evidence::adopted) {
            let is_possible = |pool: &&'s str| found.others().is_some() || found.unknown.contains(pool);
            let vouched = adopted.pools.iter().map(String::as_str).filter(is_possible);
            let vouched: Vec<_> = vouched.map(|pool| (pool, ProofSource::Administrator)).collect();
            found.proven.extend(vouched);
        }
        found.proven.sort_unstable();
        found.proven.dedup_by_key(|(name, _)| *name);
        let proven = &found.proven;
        found.unknown.retain(|name| !proven.iter().any(|(known, _)| known == name));
        found
    }
}

impl PoolByMachine {
    /// Whether an object with this name, `NAMESPACE/NAME` if it is in a namespace, counts.
    fn counts(&self, name: &str) -> bool {
        let is_in = |namespace| self.namespaces.as_ref().is_none_or(|wanted| wanted.contains(namespace));
        name.split_once('/').is_none_or(|(namespace, _)| is_in(namespace))
    }
}

/// The names of pools in these texts.
fn names_in<'t>(places: &'t [PoolNameIn], texts: impl IntoIterator<Item = &'t str>) -> impl Iterator<Item = &'t str> {
    texts.into_iter().flat_map(|text| places.iter().filter_map(move |place| place.find(text)))
}

impl PoolByProof {
    /// The names in what the API server authenticated; `None` if too little is recorded.
    fn of_requester<'s>(&'s self, evidence: Option<&'s Evidence<'_>>) -> Option<BTreeSet<&'s str>> {
        let Some((beside, places)) = &self.requester else { return Some(BTreeSet::new()) };
        let evidence = match beside.evaluate(evidence) {
            Kleene::False => return Some(BTreeSet::new()),
            Kleene::Unknown => return None,
            Kleene::True => evidence?,
        };
        let names = |PoolNameOf { extra, texts }: &'s PoolNameOf| -> Option<BTreeSet<&'s str>> {
            Some(match extra {
                Some(key) => names_in(texts, evidence.extra(key)?).collect(),
                None => names_in(texts, evidence.groups()).collect(),
            })
        };
        let all: Vec<BTreeSet<&str>> = places.iter().map(names).collect::<Option<_>>()?;
        all.into_iter().reduce(|some, others| &some & &others)
    }

    /// The names in the groups of who asked for the kubelet's certificate; `None` if that is not known.
    fn of_bootstrap<'s>(&'s self, evidence: Option<&'s Evidence<'_>>) -> Option<BTreeSet<&'s str>> {
        let Some((beside, places)) = &self.bootstrap else { return Some(BTreeSet::new()) };
        match beside.evaluate(evidence) {
            Kleene::False => Some(BTreeSet::new()),
            Kleene::Unknown => None,
            Kleene::True => Some(names_in(places, evidence?.bootstrapper()?.groups()).collect()),
        }
    }
}

impl PoolRequester {
    /// Whether it matches. Unknown if nothing, or too little, was recorded of the kubelet.
    fn evaluate(&self, evidence: Option<&Evidence<'_>>) -> Kleene {
        let Some(evidence) = evidence.filter(|known| known.authenticated_as().is_some()) else {
            return Kleene::Unknown;
        };
        let groups = self
            .groups
            .as_ref()
            .map_or(Kleene::True, |wanted| evidence.groups().any(|group| wanted.contains(group)).into());
        let extra = self.extra.iter().map(|(key, wanted)| match evidence.extra(key) {
            Some(values) => values.into_iter().any(|value| wanted.contains(value)).into(),
            None => Kleene::Unknown,
        });
        extra.fold(groups, Kleene::and)
    }
}

impl PoolBootstrap {
    /// Whether it matches. Unknown if it is not known who asked for the kubelet's certificate; false if it presented none.
    fn evaluate(&self, evidence: Option<&Evidence<'_>>) -> Kleene {
        let Some(evidence) = evidence else { return Kleene::Unknown };
        match (evidence.bootstrapper(), evidence.certificate(), evidence.extra(CREDENTIAL_ID)) {
            (Some(bootstrapper), _, _) => self.matches(bootstrapper).into(),
            (None, None, Some(_)) => Kleene::False,
            (None, _, _) => Kleene::Unknown,
        }
    }

    fn matches(&self, asked: &Bootstrapper) -> bool {
        let group = self.groups.as_ref().is_none_or(|wanted| asked.groups().any(|group| wanted.contains(group)));
        let is_wanted = |wanted: &TextSet| asked.token().is_some_and(|token| wanted.contains(token));
        group && self.tokens.as_ref().is_none_or(is_wanted)
    }
}

impl<'s> PoolsOfNode<'s> {
    /// The one with the strongest proof, the first by name of several.
    pub(crate) fn strongest(&self) -> Option<(&'s str, ProofSource)> {
        self.proven.iter().copied().min_by_key(|(_, proof)| *proof)
    }

    /// Those that something else than the node's name proves.
    pub(crate) fn proven_by_more_than_its_name(self) -> impl Iterator<Item = &'s str> {
        self.proven.into_iter().filter(|(_, proof)| *proof != ProofSource::Name).map(|(name, _)| name)
    }

    /// Why it may belong to pools of any name, if it may.
    pub(crate) fn others(&self) -> Option<&'static str> {
        match (self.may_have_object, self.may_be_named) {
            (true, _) => Some(MACHINE_UNKNOWN),
            (false, true) => Some(KUBELET_UNKNOWN),
            (false, false) => None,
        }
    }

    /// Whether the node belongs to one of the pools with these names.
    pub(crate) fn any_of(&self, wanted: &TextSet) -> Kleene {
        if self.proven.iter().any(|(name, _)| wanted.contains(name)) {
            Kleene::True
        } else if self.others().is_some() || self.unknown.iter().any(|name| wanted.contains(name)) {
            Kleene::Unknown
        } else {
            Kleene::False
        }
    }
}
