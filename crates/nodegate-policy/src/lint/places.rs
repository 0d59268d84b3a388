//! The parts of a document that several warnings are about, with their paths.

use crate::api::document::PolicyDocument;
use crate::api::policy::{ConditionsSpec, EntrySpec, GovernanceSpec, MatchSpec, NodePolicySpec};
use crate::api::source::FieldPath;

/// All governance entries.
pub(super) fn entries<'d>(document: &'d PolicyDocument) -> Vec<(FieldPath, &'d EntrySpec)> {
    let Some(governance) = &document.spec.governance else { return Vec::new() };
    let GovernanceSpec { reserved, required, allowed, immutable, dependencies, naming, expressions, break_glass: _ } =
        governance;
    let section = |name: &str| governance_path().key(name);
    let mut found = Vec::new();
    let mut add = |name: &str, entries: Vec<&'d EntrySpec>| {
        found.extend(entries.into_iter().enumerate().map(|(at, entry)| (section(name).index(at), entry)));
    };
    add("reserved", reserved.iter().map(|spec| &spec.entry).collect());
    add("required", required.iter().map(|spec| &spec.entry).collect());
    add("allowed", allowed.iter().map(|spec| &spec.entry).collect());
    add("immutable", immutable.iter().map(|spec| &spec.entry).collect());
    add("dependencies", dependencies.iter().map(|spec| &spec.entry).collect());
    add("naming", naming.iter().map(|spec| &spec.entry).collect());
    add("expressions", expressions.iter().map(|spec| &spec.entry).collect());
    found
}

/// The path of the section `governance`.
pub(super) fn governance_path() -> FieldPath {
    spec_path().key("governance")
}

/// The path of the spec.
pub(super) fn spec_path() -> FieldPath {
    FieldPath::root().key("spec")
}

/// Every `match`.
fn matches(document: &PolicyDocument) -> Vec<(FieldPath, &MatchSpec)> {
    let NodePolicySpec {
        presets: _,
        rules,
        derived: _,
        persist,
        inventory: _,
        protect: _,
        governance: _,
        migrations: _,
        pools: _,
        gates,
        topologies,
    } = &*document.spec;
    let rules = rules.iter().enumerate().map(|(at, rule)| (spec_path().key("rules").index(at), &rule.match_));
    let persist = persist.iter().map(|persist| (spec_path().key("persist"), &persist.match_));
    let gates = gates.iter().enumerate().map(|(at, gate)| (spec_path().key("gates").index(at), &gate.wait.match_));
    let topologies = topologies.iter().enumerate();
    let topologies = topologies.map(|(at, spec)| (spec_path().key("topologies").index(at), &spec.wait.match_));
    let entries = entries(document).into_iter().map(|(path, entry)| (path, &entry.match_));
    let all = rules.chain(persist).chain(gates).chain(topologies).chain(entries);
    all.filter_map(|(path, spec)| Some((path.key("match"), spec.as_ref()?))).collect()
}

/// The conditions of every `match`, and of its alternatives.
pub(super) fn conditions(document: &PolicyDocument) -> impl Iterator<Item = (FieldPath, &ConditionsSpec)> {
    matches(document).into_iter().flat_map(|(path, MatchSpec { conditions, any_of })| {
        let alternatives = any_of.iter().flatten().enumerate();
        let alternatives: Vec<_> =
            alternatives.map(|(at, conditions)| (path.key("anyOf").index(at), conditions)).collect();
        std::iter::once((path, conditions)).chain(alternatives)
    })
}
