//! The order of evaluation: writers before readers. A rule that depends on the absence or value of a
//! key that it sets, directly or through other rules, is refused; the error names the cycle.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, EdgeReference, NodeIndex};
use petgraph::visit::EdgeRef;

use super::{Draft, add, of_all};
use crate::api::document::{PolicyDocument, PolicyError};
use crate::api::problem::Problem;
use crate::cel::Polarity;
use crate::facts::gpu;
use crate::set::rule::{Read, Rule, Strength};

/// Maximum number of edges. Each takes some forty bytes, and a key with many writers of its own and many readers has their product.
const EDGES_MAX: usize = 400_000;

/// How a reader depends on a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge<'d> {
    /// On the presence of the key: additional keys can only cause additional matches.
    Presence(What<'d>),
    /// On the absence or value of the key.
    Value(What<'d>),
    /// Possibly, because keys are computed.
    Perhaps,
    /// From a rule to the vertex of a key that it writes.
    Through,
}

/// What is read, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What<'d> {
    Label(&'d str),
    Taint(&'d str),
    Gpu,
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Taint(key) => write!(f, "taint {key}"),
            Self::Gpu => f.write_str("GPU inference"),
        }
    }
}

type Graph<'d> = DiGraph<Vertex, Edge<'d>>;

enum Vertex {
    Rule(usize),
    /// Represents a key, between the rules that always write it and those that read it: so that there are as many edges as rules
    /// that name it, and not their product. Other writers have edges of their own to each reader.
    Key,
    /// Represents everything that GPU inference reads.
    Gpu,
    /// Represents labels that are read by computed keys.
    AnyLabel,
    /// Represents taints that are read by computed keys.
    AnyTaint,
}

/// Sorts the drafts into their order of evaluation and reports cycles.
pub(super) fn order(documents: &[PolicyDocument], drafts: Vec<Draft>, errors: &mut Vec<PolicyError>) -> Vec<Draft> {
    let reads: Vec<Vec<Read>> = drafts.iter().map(|draft| draft.rule.reads()).collect();
    let graph = build(&drafts, &reads);
    if graph.edge_count() >= EDGES_MAX {
        let what = format!("rules depend on each other in more than {EDGES_MAX} ways in total");
        errors.push(of_all(Problem::new(
            what,
            "let fewer rules set a key in mode default or by a migration, or fewer read it",
        )));
        return drafts;
    }
    report_cycles(documents, &drafts, &graph, errors);
    // kosaraju_scc, which needs no stack, yields components in reverse topological order: readers first.
    let mut position = vec![0; drafts.len()];
    for (at, component) in kosaraju_scc(&graph).into_iter().rev().enumerate() {
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

/// Those who write a key.
#[derive(Default)]
struct Writers {
    /// The vertex of the key, if any rule always writes it.
    key: Option<NodeIndex>,
    /// Rules whose own writes they do not depend on.
    own: Vec<NodeIndex>,
}

impl Writers {
    fn add(&mut self, graph: &mut Graph<'_>, writer: NodeIndex, rule: &Rule) {
        if rule.is_blind_to_itself() {
            self.own.push(writer);
            return;
        }
        let key = *self.key.get_or_insert_with(|| graph.add_node(Vertex::Key));
        graph.add_edge(writer, key, Edge::Through);
    }

    fn vertices(&self) -> impl Iterator<Item = NodeIndex> {
        self.key.into_iter().chain(self.own.iter().copied())
    }
}

/// The writers of all keys.
#[derive(Default)]
struct AllWriters<'d> {
    labels: BTreeMap<&'d str, Writers>,
    taints: BTreeMap<&'d str, Writers>,
    sets: Vec<(NodeIndex, usize)>,
    all_labels: Vec<NodeIndex>,
    all_taints: Vec<NodeIndex>,
}

/// Stops at [`EDGES_MAX`] edges.
fn build<'d>(drafts: &'d [Draft], reads: &'d [Vec<Read>]) -> Graph<'d> {
    let mut graph = DiGraph::new();
    let mut writers = AllWriters::default();
    let vertices: Vec<NodeIndex> = (0..drafts.len()).map(|at| graph.add_node(Vertex::Rule(at))).collect();
    for (at, (draft, vertex)) in drafts.iter().zip(vertices.iter().copied()).enumerate() {
        for key in draft.rule.written_labels() {
            writers.labels.entry(key.as_str()).or_default().add(&mut graph, vertex, &draft.rule);
        }
        for taint in &draft.rule.assigns.taints {
            writers.taints.entry(taint.id.key.as_str()).or_default().add(&mut graph, vertex, &draft.rule);
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
    for (key, of_key) in writers.labels.iter().filter(|(key, _)| gpu::reads_label(key)) {
        for vertex in of_key.vertices() {
            graph.add_edge(vertex, gpu, Edge::Value(What::Label(key)));
        }
    }
    let any_label = any_vertex(&mut graph, Vertex::AnyLabel, reads, &Read::AnyLabel, &writers.all_labels);
    let any_taint = any_vertex(&mut graph, Vertex::AnyTaint, reads, &Read::AnyTaint, &writers.all_taints);
    for (reader, of_rule) in vertices.into_iter().zip(reads) {
        for read in of_rule {
            add_edges(&mut graph, &writers, drafts, reader, read, [gpu, any_label, any_taint]);
            if graph.edge_count() >= EDGES_MAX {
                return graph;
            }
        }
    }
    graph
}

/// A vertex between all writers and the readers by computed keys; without readers it has no edges.
fn any_vertex(
    graph: &mut Graph<'_>,
    vertex: Vertex,
    reads: &[Vec<Read>],
    read: &Read,
    writers: &[NodeIndex],
) -> NodeIndex {
    let any = graph.add_node(vertex);
    if reads.iter().any(|of_rule| of_rule.contains(read)) {
        for writer in writers {
            graph.add_edge(*writer, any, Edge::Perhaps);
        }
    }
    any
}

fn add_edges<'d>(
    graph: &mut Graph<'d>,
    writers: &AllWriters<'d>,
    drafts: &[Draft],
    reader: NodeIndex,
    read: &'d Read,
    [gpu, any_label, any_taint]: [NodeIndex; 3],
) {
    let edge = |polarity: Polarity, what: What<'d>| match polarity {
        Polarity::Presence => Edge::Presence(what),
        Polarity::Value => Edge::Value(what),
    };
    match read {
        Read::Label(key, polarity) => {
            for writer in writers.labels.get(&**key).into_iter().flat_map(Writers::vertices) {
                graph.add_edge(writer, reader, edge(*polarity, What::Label(key)));
            }
            for (writer, draft) in &writers.sets {
                if drafts[*draft].rule.written_label_sets().any(|keys| keys.contains(key)) {
                    graph.add_edge(*writer, reader, Edge::Perhaps);
                }
            }
        }
        Read::Taint(key, polarity) => {
            for writer in writers.taints.get(&**key).into_iter().flat_map(Writers::vertices) {
                graph.add_edge(writer, reader, edge(*polarity, What::Taint(key)));
            }
            for (writer, draft) in &writers.sets {
                if drafts[*draft].rule.assigns.saved.as_ref().is_some_and(|saved| saved.taints.contains(key)) {
                    graph.add_edge(*writer, reader, Edge::Perhaps);
                }
            }
        }
        Read::Gpu => {
            graph.add_edge(gpu, reader, Edge::Value(What::Gpu));
        }
        Read::AnyLabel => {
            graph.add_edge(any_label, reader, Edge::Perhaps);
        }
        Read::AnyTaint => {
            graph.add_edge(any_taint, reader, Edge::Perhaps);
        }
    }
}

fn report_cycles(documents: &[PolicyDocument], drafts: &[Draft], graph: &Graph<'_>, errors: &mut Vec<PolicyError>) {
    let certain = graph.filter_map(|_, vertex| Some(vertex), |_, edge| (*edge != Edge::Perhaps).then_some(edge));
    for component in kosaraju_scc(&certain) {
        let inside: HashSet<NodeIndex> = component.iter().copied().collect();
        // A default rule depends on absence by design, and assigns its values once.
        let by_default = |vertex: NodeIndex| matches!(graph[vertex], Vertex::Rule(draft) if drafts[draft].rule.strength == Strength::Default);
        // A migration reads its keys without the values that it sets itself.
        let by_migration = |vertex: NodeIndex| matches!(graph[vertex], Vertex::Rule(draft) if drafts[draft].rule.assigns.migration.is_some());
        let unstable = component.iter().flat_map(|vertex| certain.edges(*vertex)).filter(|edge| {
            let of_itself = edge.source() == edge.target() && by_migration(edge.source());
            inside.contains(&edge.target())
                && matches!(**edge.weight(), Edge::Value(_))
                && !by_default(edge.source())
                && !of_itself
        });
        // The same one in whatever order the rules are.
        let reader = |edge: &EdgeReference<'_, _>| rule_of(graph, edge.target()).map(|draft| &drafts[draft].rule.id);
        let Some(unstable) = unstable.min_by_key(|edge| (reader(edge).is_none(), reader(edge))) else { continue };
        let cycle = describe(drafts, graph, &inside, unstable.target(), unstable.source());
        let what = match unstable.weight() {
            Edge::Value(what) | Edge::Presence(what) => what.to_string(),
            Edge::Perhaps | Edge::Through => String::new(),
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
                add(errors, document.fault(&draft.path, problem));
            }
        }
    }
}

fn rule_of(graph: &Graph<'_>, vertex: NodeIndex) -> Option<usize> {
    match graph[vertex] {
        Vertex::Rule(draft) => Some(draft),
        Vertex::Key | Vertex::Gpu | Vertex::AnyLabel | Vertex::AnyTaint => None,
    }
}

/// The path from `from` back to `to` inside a component, as `a/x → b/y → a/x`.
fn describe(
    drafts: &[Draft],
    graph: &Graph<'_>,
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
    way.push(from);
    let name = |vertex: NodeIndex| match graph[vertex] {
        Vertex::Rule(draft) => Some(drafts[draft].rule.id.to_string()),
        Vertex::Key => None,
        Vertex::Gpu => Some("GPU inference".to_owned()),
        Vertex::AnyLabel | Vertex::AnyTaint => Some("any key".to_owned()),
    };
    let names: Vec<String> = way.into_iter().filter_map(name).collect();
    names.join(" → ")
}
