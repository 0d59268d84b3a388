//! Compiles `pools`.

use std::collections::BTreeSet;

use super::Faults;
use crate::api::document::PolicyError;
use crate::api::names::{LabelKey, POOL_NAME_MAX};
use crate::api::policy::NodePolicySpec;
use crate::api::pools::{
    MachineKind, POOL_PLACEHOLDER, PoolBootstrapSpec, PoolNameFromSpec, PoolRequesterSpec, PoolSpec,
};
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::facts::proof::bootstrap::GROUPS_OF_EVERY_TOKEN;
use crate::facts::proof::evidence::GROUPS_OF_EVERY_KUBELET;
use crate::keys::pattern::{Identities, TextSet};
use crate::set::index::NameIndexBuilder;
use crate::set::pools::name::{PoolNameIn, is_pool_name};
use crate::set::pools::{Pool, PoolBootstrap, PoolByMachine, PoolByProof, PoolNameOf, PoolRequester, Pools};

/// The key of extra information in which EKS has the ID of an instance (`aws-iam-authenticator`, `server.go`).
const SESSION_NAME: &str = "sessionName";
/// Maximum number of keys of `extra` in all pools: each is a line of the evidence that every node carries.
const EXTRA_KEYS_MAX: usize = 16;
/// What follows from an empty list.
const NO_NODE: &str = "no node belongs to the pool";

/// The entries of all documents.
#[derive(Default)]
pub(super) struct PoolParts {
    pub(super) entries: Vec<Pool>,
    pub(super) by_machines: Vec<PoolByMachine>,
    pub(super) by_proofs: Vec<PoolByProof>,
}

impl PoolParts {
    /// All of them. `asks_for_instance`: whether something else asks for the instance as which a kubelet was authenticated.
    pub(super) fn build(self, asks_for_instance: bool) -> Pools {
        let mut instances: BTreeSet<Box<str>> = self.by_machines.iter().map(|entry| entry.instance.clone()).collect();
        if asks_for_instance {
            instances.insert(SESSION_NAME.into());
        }
        Pools::new(self.entries, self.by_machines, self.by_proofs, instances)
    }
}

/// The pools of a document.
pub(super) fn compile(names: &mut NameIndexBuilder, pools: &mut PoolParts, faults: &mut Faults<'_>) {
    let NodePolicySpec { pools: specs, .. } = &*faults.document.spec;
    let all = FieldPath::root().key("spec").key("pools");
    for (index, spec) in specs.iter().enumerate() {
        let path = all.index(index);
        let PoolSpec { name, name_from, requester, bootstrap, names: node_names } = spec;
        if let Some(name_from) = name_from {
            check_alone(spec, &path, faults);
            pools.by_machines.extend(by_machine(name_from, &path.key("nameFrom"), faults));
            continue;
        }
        if requester.is_none() && bootstrap.is_none() && node_names.is_none() {
            let problem = Problem::new(
                format!("nothing proves that a node belongs to pool {name:?}"),
                "write requester, bootstrap or names; or nameFrom instead of its name",
            );
            faults.at(&path, problem);
        }
        if name == POOL_PLACEHOLDER {
            pools.by_proofs.push(by_proof(spec, &path, faults));
            continue;
        }
        check_name(name, &path, faults);
        let group = node_names.as_ref().map(|list| {
            let path = path.key("names");
            faults.refuse_empty(list, &path, NO_NODE);
            refuse_placeholders(list, &path, faults);
            names.add(list, faults.budget, |index, message| faults.at(&path.index(index), message))
        });
        let requester = requester.as_ref().map(|spec| requester_of(spec, &path.key("requester"), faults));
        let bootstrap = bootstrap.as_ref().map(|spec| bootstrap_of(spec, &path.key("bootstrap"), faults));
        pools.entries.push(Pool { name: name.as_str().into(), requester, bootstrap, names: group });
    }
}

/// Refuses what has no meaning beside `nameFrom`.
fn check_alone(spec: &PoolSpec, path: &FieldPath, faults: &mut Faults<'_>) {
    let others = [
        ("name", !spec.name.is_empty()),
        ("requester", spec.requester.is_some()),
        ("bootstrap", spec.bootstrap.is_some()),
        ("names", spec.names.is_some()),
    ];
    for (field, _) in others.into_iter().filter(|(_, is_there)| *is_there) {
        let problem = Problem::new(
            format!("{field} cannot be beside nameFrom, which takes the names of pools from objects"),
            "write it into another entry",
        );
        faults.at_key(&path.key(field), problem);
    }
}

fn by_machine(spec: &PoolNameFromSpec, path: &FieldPath, faults: &mut Faults<'_>) -> Option<PoolByMachine> {
    let PoolNameFromSpec { kind, label, namespaces, instance } = spec;
    let namespaces = namespaces.as_ref().map(|list| {
        let path = path.key("namespaces");
        if *kind == MachineKind::NodeClaim {
            faults.at(&path, Problem::new("a NodeClaim is in no namespace", "remove it"));
        }
        faults.texts(list, &path, "no object counts")
    });
    let label = faults.check(&path.key("label"), label.parse::<LabelKey>())?;
    let instance = instance.as_deref().unwrap_or(SESSION_NAME);
    check_extra_key(instance, &path.key("instance"), |problem, path| faults.at(path, problem));
    Some(PoolByMachine { kind: *kind, label: label.as_str().into(), namespaces, instance: instance.into() })
}

/// Refuses what cannot be a key of extra information, or be in a line of evidence.
fn check_extra_key(key: &str, path: &FieldPath, refuse: impl FnOnce(Problem, &FieldPath)) {
    if key.is_empty() || key.len() > 253 || key.contains(|c: char| c == '=' || c.is_control()) {
        let what = format!("{key:?} is no key of extra information");
        refuse(Problem::new(what, "use at most 253 characters, without \"=\""), path);
    }
}

fn check_name(name: &str, path: &FieldPath, faults: &mut Faults<'_>) {
    if !is_pool_name(name) {
        let problem = Problem::new(
            format!("{name:?} is no name of a pool"),
            format!(
                "use 1 to {POOL_NAME_MAX} letters, digits, \"-\", \"_\" and \".\", so that it can be the value of a label; or {POOL_PLACEHOLDER}, if \
                 what proves it has the name"
            ),
        );
        faults.at(&path.key("name"), problem);
    }
}

/// Refuses the place of a pool's name where the name is given.
fn refuse_placeholders(list: &[String], path: &FieldPath, faults: &mut Faults<'_>) {
    for (index, text) in list.iter().enumerate().filter(|(_, text)| PoolNameIn::is_in(text)) {
        let problem = Problem::new(
            format!("{text:?} has the name of the pool in it, but this entry gives the name"),
            format!("write {POOL_PLACEHOLDER} as its name, or replace it here"),
        );
        faults.at(&path.index(index), problem);
    }
}

/// An entry whose names are where its texts have [`POOL_PLACEHOLDER`].
fn by_proof(spec: &PoolSpec, path: &FieldPath, faults: &mut Faults<'_>) -> PoolByProof {
    let mut found = PoolByProof::default();
    if let Some(PoolRequesterSpec { groups, extra }) = &spec.requester {
        let (path, mut beside, mut places) = (path.key("requester"), PoolRequesterSpec::default(), Vec::new());
        match groups {
            Some(list) if has_place(list) => {
                places.push(PoolNameOf { extra: None, texts: places_in(list, &path.key("groups"), faults) });
            }
            _ => beside.groups.clone_from(groups),
        }
        for (key, list) in extra {
            if has_place(list) {
                let path = path.key("extra").key(key);
                check_extra_key(key, &path, |problem, path| faults.at_key(path, problem));
                places.push(PoolNameOf { extra: Some(key.as_str().into()), texts: places_in(list, &path, faults) });
            } else {
                beside.extra.insert(key.clone(), list.clone());
            }
        }
        refuse_nameless(places.is_empty(), &path, faults);
        let beside = if beside == PoolRequesterSpec::default() {
            PoolRequester::default()
        } else {
            requester_of(&beside, &path, faults)
        };
        found.requester = Some((beside, places));
    }
    if let Some(PoolBootstrapSpec { groups, tokens }) = &spec.bootstrap {
        let path = path.key("bootstrap");
        let list = groups.as_deref().unwrap_or_default();
        refuse_nameless(!has_place(list), &path, faults);
        let places = if has_place(list) { places_in(list, &path.key("groups"), faults) } else { Vec::new() };
        let beside = match tokens {
            Some(_) => bootstrap_of(&PoolBootstrapSpec { groups: None, tokens: tokens.clone() }, &path, faults),
            None => PoolBootstrap::default(),
        };
        found.bootstrap = Some((beside, places));
    }
    if let Some(list) = &spec.names {
        let path = path.key("names");
        faults.refuse_empty(list, &path, NO_NODE);
        found.names = places_in(list, &path, faults);
    }
    found
}

fn has_place(list: &[String]) -> bool {
    list.iter().any(|text| PoolNameIn::is_in(text))
}

fn places_in(list: &[String], path: &FieldPath, faults: &mut Faults<'_>) -> Vec<PoolNameIn> {
    let place = |(index, text): (usize, &String)| faults.check(&path.index(index), PoolNameIn::parse(text));
    list.iter().enumerate().filter_map(place).collect()
}

/// Refuses a source of proof that does not have the name.
fn refuse_nameless(is_nameless: bool, path: &FieldPath, faults: &mut Faults<'_>) {
    if is_nameless {
        let problem = Problem::new(
            format!("nothing in it has the name of the pool, which is to be {POOL_PLACEHOLDER}"),
            format!("write {POOL_PLACEHOLDER} where a group or value has the name, or give the name of this pool"),
        );
        faults.at(path, problem);
    }
}

fn requester_of(spec: &PoolRequesterSpec, path: &FieldPath, faults: &mut Faults<'_>) -> PoolRequester {
    let PoolRequesterSpec { groups: group_spec, extra: extra_spec } = spec;
    if group_spec.is_none() && extra_spec.is_empty() {
        faults.at(path, Problem::new("it names nothing, so every kubelet would prove it", "write groups or extra"));
    }
    let groups = group_spec.as_ref().map(|list| {
        let every = ("every kubelet would prove it", "name a group that only this pool's kubelets are in");
        groups_of(list, &path.key("groups"), GROUPS_OF_EVERY_KUBELET, every, faults)
    });
    let mut extra = Vec::new();
    for (key, values) in extra_spec {
        let path = path.key("extra").key(key);
        check_extra_key(key, &path, |problem, path| faults.at_key(path, problem));
        let any = Problem::new("any value would prove it", "name the values that only this pool's kubelets have");
        extra.push((key.as_str().into(), texts_of(values, &path, any, faults)));
    }
    PoolRequester { groups, extra }
}

fn bootstrap_of(spec: &PoolBootstrapSpec, path: &FieldPath, faults: &mut Faults<'_>) -> PoolBootstrap {
    let PoolBootstrapSpec { groups: group_spec, tokens: token_spec } = spec;
    if group_spec.is_none() && token_spec.is_none() {
        faults.at(path, Problem::new("it names nobody, so everyone who asks would prove it", "write groups or tokens"));
    }
    let groups = group_spec.as_ref().map(|list| {
        let every = ("every bootstrap token would prove it", "name a group that only this pool's tokens are in");
        groups_of(list, &path.key("groups"), GROUPS_OF_EVERY_TOKEN, every, faults)
    });
    let tokens = token_spec.as_ref().map(|list| {
        let path = path.key("tokens");
        for (index, text) in list.iter().enumerate().filter(|(_, text)| text.contains('.')) {
            let problem = Problem::new(
                format!("{text:?} is no ID of a bootstrap token"),
                "write only the part before the dot; what follows is the secret",
            );
            faults.at(&path.index(index), problem);
        }
        texts_of(list, &path, Problem::new("any token would prove it", "name the tokens of this pool"), faults)
    });
    PoolBootstrap { groups, tokens }
}

/// A list of texts that leaves some out; `any` says that it does not.
fn texts_of(list: &[String], path: &FieldPath, any: Problem, faults: &mut Faults<'_>) -> TextSet {
    refuse_placeholders(list, path, faults);
    let set = faults.texts(list, path, NO_NODE);
    if set.contains("\u{1}") {
        faults.at(path, any);
    }
    set
}

/// A list of groups, none of which everyone is in; `every` says what would follow, and what to do.
fn groups_of(
    list: &[String],
    path: &FieldPath,
    of_everyone: [&str; 2],
    every: (&str, &str),
    faults: &mut Faults<'_>,
) -> Identities {
    faults.refuse_empty(list, path, NO_NODE);
    refuse_placeholders(list, path, faults);
    let groups = Identities::compile(list.iter().map(String::as_str), faults.budget, |index, message| {
        faults.at(&path.index(index), message);
    });
    for group in of_everyone.into_iter().filter(|group| groups.contains(group)) {
        let includes = |text: &&String| Identities::parse([text.as_str()]).is_ok_and(|one| one.contains(group));
        for (index, text) in list.iter().enumerate().filter(|(_, text)| includes(text)) {
            let problem = Problem::new(format!("{text:?} includes {group:?}, so {}", every.0), every.1);
            faults.at(&path.index(index), problem);
        }
    }
    groups
}

/// Refuses pools that together ask for more than evidence can hold.
pub(super) fn check(pools: &Pools, errors: &mut Vec<PolicyError>) {
    let count = pools.asked_of_requester().map_or(0, <[_]>::len);
    if count > EXTRA_KEYS_MAX {
        let what = format!(
            "the pools and inventories of all policies ask for {count} keys of extra information, but the limit is {EXTRA_KEYS_MAX}, because each node carries all of them"
        );
        super::add(errors, super::of_all(Problem::new(what, "use fewer keys")));
    }
}
