//! The order of evaluation: writers before readers. A rule that depends on the absence or value of a
//! key that it sets, directly or through other rules, is refused; the error names the cycle.

use std::collections::{BTreeMap, HashMap, HashSet};

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use super::Draft;
use crate::api::document::{PolicyDocument, PolicyError};
use crate::api::problem::Problem;
use crate::cel::Polarity;
use crate::facts::gpu;
use crate::set::rule::Read;
use crate::set::rule::Strength;

/// How a reader depends on a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Edge {
    /// On the presence of the key: additional keys can only cause additional matches.
    Presence(String),
    /// On the absence or value of the key.
    Value(String),
    /// Possibly, because keys are computed.
    Perhaps,
}

enum Vertex {
    Rule(usize),
    /// Represents everything that GPU inference reads.
    Gpu,
    /// Represents labels that are read by computed keys.
    AnyLabel,
    /// Represents taints that are read by computed keys.
    AnyTaint,
}

/// Sorts the drafts into their order of evaluation and reports cycles.
pub(super) fn order(documents: &[PolicyDocument], drafts: Vec<Draft>, errors: &mut Vec<PolicyError>) -> Vec<Draft> {
    let graph = build(&drafts);
    report_cycles(documents, &drafts, &graph, errors);
    // tarjan_scc yields components in reverse topological order: readers first.
    let mut position = vec![0; drafts.len()];
    for (at, component) in tarjan_scc(&graph).into_iter().rev().enumerate() {
        for vertex in component {
            if let Vertex::Rule(draft) = graph[vertex] {
                position[draft] = at;
            }
        }
    }
    let mut order: Vec<(usize, Draft)> = position.into_iter().zip(drafts).collect();
    order.sort_by_key(|(at, _)| *at);
    order.into_iter().map(|(_, draft)| draft).collect()
}

/// The writers of each key.
#[derive(Default)]
struct Writers {
    labels: BTreeMap<String, Vec<NodeIndex>>,
    taints: BTreeMap<String, Vec<NodeIndex>>,
    sets: Vec<(NodeIndex, usize)>,
    all_labels: Vec<NodeIndex>,
    all_taints: Vec<NodeIndex>,
}

fn build(drafts: &[Draft]) -> DiGraph<Vertex, Edge> {
    let mut graph = DiGraph::new();
    let mut writers = Writers::default();
    for (at, draft) in drafts.iter().enumerate() {
        let vertex = graph.add_node(Vertex::Rule(at));
        for key in draft.rule.written_labels() {
            writers.labels.entry(key.as_str().to_owned()).or_default().push(vertex);
        }
        for taint in &draft.rule.assigns.taints {
            writers.taints.entry(taint.id.key.as_str().to_owned()).or_default().push(vertex);
        }
        let dynamic = draft.rule.written_label_sets().next().is_some();
        if dynamic {
            writers.sets.push((vertex, at));
        }
        if dynamic || draft.rule.written_labels().next().is_some() {
            writers.all_labels.push(vertex);
        }
        if draft.rule.assigns.saved.is_some() || !draft.rule.assigns.taints.is_empty() {
            writers.all_taints.push(vertex);
        }
    }
    let gpu = graph.add_node(Vertex::Gpu);
    for (key, vertices) in writers.labels.iter().filter(|(key, _)| gpu::reads_label(key)) {
        for vertex in vertices {
            graph.add_edge(*vertex, gpu, Edge::Value(format!("label {key}")));
        }
    }
    let any_label = any_vertex(&mut graph, Vertex::AnyLabel, drafts, &Read::AnyLabel, &writers.all_labels);
    let any_taint = any_vertex(&mut graph, Vertex::AnyTaint, drafts, &Read::AnyTaint, &writers.all_taints);
    for (reader, draft) in (0..).map(NodeIndex::new).zip(drafts) {
        for read in draft.rule.reads() {
            add_edges(&mut graph, &writers, drafts, reader, &read, [gpu, any_label, any_taint]);
        }
    }
    graph
}

/// A vertex between all writers and the readers by computed keys; without readers it has no edges.
fn any_vertex(
    graph: &mut DiGraph<Vertex, Edge>,
    vertex: Vertex,
    drafts: &[Draft],
    read: &Read,
    writers: &[NodeIndex],
) -> NodeIndex {
    let any = graph.add_node(vertex);
    if drafts.iter().any(|draft| draft.rule.reads().contains(read)) {
        for writer in writers {
            graph.add_edge(*writer, any, Edge::Perhaps);
        }
    }
    any
}

fn add_edges(
    graph: &mut DiGraph<Vertex, Edge>,
    writers: &Writers,
    drafts: &[Draft],
    reader: NodeIndex,
    read: &Read,
    [gpu, any_label, any_taint]: [NodeIndex; 3],
) {
    let edge = |polarity: Polarity, what: String| match polarity {
        Polarity::Presence => Edge::Presence(what),
        Polarity::Value => Edge::Value(what),
    };
    match read {
        Read::Label(key, polarity) => {
            for writer in writers.labels.get(&**key).into_iter().flatten() {
                graph.add_edge(*writer, reader, edge(*polarity, format!("label {key}")));
            }
            for (writer, draft) in &writers.sets {
                if drafts[*draft].rule.written_label_sets().any(|keys| keys.contains(key)) {
                    graph.add_edge(*writer, reader, Edge::Perhaps);
                }
            }
        }
        Read::Taint(key, polarity) => {
            for writer in writers.taints.get(&**key).into_iter().flatten() {
                graph.add_edge(*writer, reader, edge(*polarity, format!("taint {key}")));
            }
            for (writer, draft) in &writers.sets {
                if drafts[*draft].rule.assigns.saved.as_ref().is_some_and(|saved| saved.taints.contains(key)) {
                    graph.add_edge(*writer, reader, Edge::Perhaps);
                }
            }
        }
        Read::Gpu => {
            graph.add_edge(gpu, reader, Edge::Value("GPU inference".to_owned()));
        }
        Read::AnyLabel => {
            graph.add_edge(any_label, reader, Edge::Perhaps);
        }
        Read::AnyTaint => {
            graph.add_edge(any_taint, reader, Edge::Perhaps);
        }
    }
}

fn report_cycles(
    documents: &[PolicyDocument],
    drafts: &[Draft],
    graph: &DiGraph<Vertex, Edge>,
    errors: &mut Vec<PolicyError>,
) {
    let certain = graph.filter_map(|_, vertex| Some(vertex), |_, edge| (*edge != Edge::Perhaps).then_some(edge));
    for component in tarjan_scc(&certain) {
        let inside: HashSet<NodeIndex> = component.iter().copied().collect();
        // A default rule depends on absence by design, and assigns its values once.
        let by_default = |vertex: NodeIndex| matches!(graph[vertex], Vertex::Rule(draft) if drafts[draft].rule.strength == Strength::Default);
        // A migration reads its keys without the values that it sets itself.
        let by_migration = |vertex: NodeIndex| matches!(graph[vertex], Vertex::Rule(draft) if drafts[draft].rule.assigns.migration.is_some());
        let unstable = component.iter().flat_map(|vertex| certain.edges(*vertex)).find(|edge| {
            let of_itself = edge.source() == edge.target() && by_migration(edge.source());
            inside.contains(&edge.target())
                && matches!(**edge.weight(), Edge::Value(_))
                && !by_default(edge.source())
                && !of_itself
        });
        let Some(unstable) = unstable else { continue };
        let cycle = describe(drafts, graph, &inside, unstable.target(), unstable.source());
        let what = match unstable.weight() {
            Edge::Value(what) | Edge::Presence(what) => what.as_str(),
            Edge::Perhaps => "",
        };
        let culprit = component.iter().filter_map(|vertex| rule_of(graph, *vertex)).min();
        if let Some(culprit) = culprit {
            let draft = &drafts[culprit];
            let problem = Problem::new(
                format!("the rule depends on the absence or value of a key that it sets: {cycle} (through {what})"),
                "match on something else, or use mode: default",
            );
            let document = &documents[draft.document];
            if !document.is_invalid_within(&draft.path) {
                errors.push(document.fault(&draft.path, problem));
            }
        }
    }
}

fn rule_of(graph: &DiGraph<Vertex, Edge>, vertex: NodeIndex) -> Option<usize> {
    match graph[vertex] {
        Vertex::Rule(draft) => Some(draft),
        Vertex::Gpu | Vertex::AnyLabel | Vertex::AnyTaint => None,
    }
}

/// The path from `from` back to `to` inside a component, as `a/x → b/y → a/x`.
fn describe(
    drafts: &[Draft],
    graph: &DiGraph<Vertex, Edge>,
    inside: &HashSet<NodeIndex>,
    from: NodeIndex,
    to: NodeIndex,
) -> String {
    let mut came_from: HashMap<NodeIndex, NodeIndex> = HashMap::new();
    let mut queue = std::collections::VecDeque::from([from]);
    while let Some(vertex) = queue.pop_front() {
        if vertex == to {
            break;
        }
        for next in graph.neighbors(vertex).filter(|next| inside.contains(next)) {
            if next != from && !came_from.contains_key(&next) {
                came_from.insert(next, vertex);
                queue.push_back(next);
            }
        }
    }
    let mut way = vec![to];
    while let Some(previous) = way.last().and_then(|vertex| came_from.get(vertex)) {
        way.push(*previous);
    }
    way.reverse();
    let name = |vertex: NodeIndex| match graph[vertex] {
        Vertex::Rule(draft) => drafts[draft].rule.id.to_string(),
        Vertex::Gpu => "GPU inference".to_owned(),
        Vertex::AnyLabel | Vertex::AnyTaint => "any key".to_owned(),
    };
    let mut names: Vec<String> = way.into_iter().map(name).collect();
    names.push(name(from));
    names.join(" → ")
}
