//! Dependencies between labels: refuses cycles, and collects chains for messages.

use std::collections::{BTreeSet, HashMap};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;

use crate::api::document::{PolicyDocument, PolicyError};
use crate::api::names::or_quotes;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::compile::{add, of_all};
use crate::set::governance::{Constraint, Dependency, Governance};

/// Maximum number of comparisons of what one entry requires with what another one asks for: some milliseconds.
const COMPARISONS_MAX: usize = 400_000;

/// Maximum number of links of a chain that are followed.
const FURTHER_MAX: usize = 8;

type Label = (Box<str>, Option<Box<str>>);

/// Whether a required label can satisfy a `when` label of another entry.
fn may_be(required: &Label, asked: &Label) -> bool {
    required.0 == asked.0 && (required.1.is_none() || asked.1.is_none() || required.1 == asked.1)
}

/// Whether a required label always satisfies a `when` label of another entry.
fn is(required: &Label, asked: &Label) -> bool {
    required.0 == asked.0 && (asked.1.is_none() || required.1 == asked.1)
}

/// Refuses labels that require each other, because neither could be set first.
pub(super) fn refuse(
    governance: &Governance,
    places: &[(usize, FieldPath, usize)],
    documents: &[PolicyDocument],
    errors: &mut Vec<PolicyError>,
) {
    let entries: Vec<(usize, &Dependency)> = dependencies(governance).collect();
    let by_key: HashMap<&str, Vec<usize>> =
        entries.iter().enumerate().fold(HashMap::new(), |mut map, (at, (_, entry))| {
            entry.when.iter().for_each(|(key, _)| map.entry(&**key).or_default().push(at));
            map
        });
    let mut graph = DiGraph::<usize, ()>::new();
    let vertices: Vec<_> = (0..entries.len()).map(|at| graph.add_node(at)).collect();
    let mut left = COMPARISONS_MAX;
    for (from, (_, entry)) in entries.iter().enumerate() {
        let mut needed = BTreeSet::new();
        for required in &entry.require {
            for to in by_key.get(&*required.0).into_iter().flatten() {
                let when = &entries[*to].1.when;
                if left < when.len() {
                    let what = "the entries of dependencies refer to each other in too many ways";
                    errors.push(of_all(Problem::new(
                        what,
                        "let fewer entries have the same label in `when` or `require`",
                    )));
                    return;
                }
                left -= when.len();
                if when.iter().any(|asked| may_be(required, asked)) {
                    needed.insert(*to);
                }
            }
        }
        for to in needed {
            graph.add_edge(vertices[from], vertices[to], ());
        }
    }
    for mut component in kosaraju_scc(&graph) {
        component.sort();
        let Some(first) = component.first().copied() else { continue };
        if component.len() == 1 && !graph.contains_edge(first, first) {
            continue;
        }
        let keys: BTreeSet<&str> =
            component.iter().flat_map(|vertex| entries[graph[*vertex]].1.when.iter().map(|(key, _)| &**key)).collect();
        let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
        let rules: Vec<String> = component
            .iter()
            .map(|vertex| governance.constraints()[entries[graph[*vertex]].0].entry.id.to_string())
            .collect();
        let constraint = entries[graph[first]].0;
        let Some((document, path, _)) = places.iter().find(|(_, _, at)| *at == constraint) else { continue };
        let message = Problem::new(
            format!("these labels require each other: {keys} ({})", rules.join(" -> ")),
            "remove one of the dependencies",
        );
        add(errors, documents[*document].fault(path, message));
    }
}

/// Records for each dependency what its required labels require in turn.
pub(super) fn note_further(governance: &mut Governance) {
    let mut asking: HashMap<&str, Vec<&Dependency>> = HashMap::new();
    for (_, dependency) in dependencies(governance) {
        if let Some((key, _)) = dependency.when.first() {
            asking.entry(key).or_default().push(dependency);
        }
    }
    let notes: Vec<(usize, Vec<String>)> =
        dependencies(governance).map(|(at, entry)| (at, further(&asking, entry))).collect();
    for (at, found) in notes {
        if let Constraint::Dependency(dependency) = &mut governance.constraint_mut(at).constraint {
            dependency.further = found;
        }
    }
}

/// Follows the chain by the first `when` label of each entry, so that a step is cheap for any number of entries.
fn further(asking: &HashMap<&str, Vec<&Dependency>>, entry: &Dependency) -> Vec<String> {
    let mut there: Vec<&Label> = entry.when.iter().chain(&entry.require).collect();
    let mut found = Vec::new();
    let mut next = entry.when.len();
    while let Some((key, _)) = there.get(next).copied().filter(|_| next < FURTHER_MAX) {
        next += 1;
        for dependency in asking.get(&**key).into_iter().flatten().take(FURTHER_MAX) {
            if !dependency.when.iter().all(|asked| there.iter().any(|label| is(label, asked))) {
                continue;
            }
            for label in dependency.require.iter().take(FURTHER_MAX) {
                if there.iter().any(|known| is(known, label)) {
                    continue;
                }
                found.push(match &label.1 {
                    Some(value) => format!("{}={}", label.0, or_quotes(value)),
                    None => label.0.to_string(),
                });
                there.push(label);
            }
        }
    }
    found
}

fn dependencies(governance: &Governance) -> impl Iterator<Item = (usize, &Dependency)> {
    governance.constraints().iter().enumerate().filter_map(|(at, entry)| match &entry.constraint {
        Constraint::Dependency(dependency) => Some((at, dependency)),
        _ => None,
    })
}
