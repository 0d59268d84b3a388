//! What an expression reads of a node, found without evaluating it.
//!
//! Whoever decides whether a rule may be trusted, or when it must be evaluated again, relies on
//! this. It errs on the side of reading more.

use super::paths::{Paths, ReadPaths};
use super::syntax::{Constant, Operator};
use super::tree::{Call, LoopKind, Node, Variable, is_always_there};

/// How the answer depends on a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Polarity {
    /// Only on whether it is there, and its presence can only make the answer more true.
    Presence,
    /// On its value or its absence, or in a way that is not clear.
    Value,
}

/// A label with a key that is written down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelRead {
    /// The label key.
    pub key: String,
    /// How the answer depends on it.
    pub polarity: Polarity,
}

/// What an expression reads.
///
/// Of an expression over a write, only [`Reads::object`] and [`Reads::old_object`] are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Labels with keys that are written down, in order, each once: a label that is read both ways
    /// is told as [`Polarity::Value`].
    pub labels: Vec<LabelRead>,
    /// Labels are read with a key that is computed, or as a whole.
    pub any_label: bool,
    /// `node.spec.taints`
    pub taints: bool,
    /// `node.metadata.name`
    pub name: bool,
    /// `gpu`
    pub gpu: bool,
    /// `inventory`
    pub inventory: bool,
    /// Anything else of the node: a kubelet's own word.
    pub other: bool,
    /// `object`
    pub object: bool,
    /// `oldObject`
    pub old_object: bool,
}

/// What an expression reads, and which parts of documents; `condition` if its answer is true or false.
pub(super) fn of(node: &Node, condition: bool) -> (Reads, ReadPaths) {
    let mut reader = Reader::default();
    reader.part(node, condition);
    let Reader { mut reads, paths } = reader;
    reads.labels.sort();
    // Presence sorts before Value of the same key.
    let labels = std::mem::take(&mut reads.labels);
    for label in labels {
        match reads.labels.last_mut() {
            Some(last) if last.key == label.key => *last = label,
            _ => reads.labels.push(label),
        }
    }
    (reads, paths)
}

#[derive(Default)]
struct Reader {
    reads: Reads,
    paths: ReadPaths,
}

impl Reader {
    /// Collects what a part reads. `rising`: if this part becomes true, the answer does not become
    /// less true.
    fn part(&mut self, node: &Node, rising: bool) {
        if let Some((variable, keys)) = node.path() {
            return self.path(variable, &keys, false, Paths::Whole);
        }
        match node {
            Node::Constant(_) | Node::Variable(_) | Node::Local(_) => {}
            Node::Member { of, key, .. } => {
                // A computed key may name any member.
                self.part(of, false);
                self.part(key, false);
            }
            Node::Has { of, field } => self.presence(of, field, rising),
            Node::Binary { operator: Operator::In, left, right } => match &**left {
                Node::Constant(Constant::Text(key)) => self.presence(right, key, rising),
                _ => self.parts([&**left, &**right]),
            },
            Node::Binary { operator: Operator::Equal | Operator::NotEqual, left, right } => match (&**left, &**right) {
                (of, Node::Constant(Constant::Null)) | (Node::Constant(Constant::Null), of) => self.nullness(of),
                (left, right) => self.parts([left, right]),
            },
            Node::Binary { left, right, .. } => self.parts([&**left, &**right]),
            Node::Not(of) | Node::Negate(of) => self.part(of, false),
            Node::AllOf(terms) | Node::AnyOf(terms) => terms.iter().for_each(|term| self.part(term, rising)),
            Node::Choose { test, then, otherwise } => {
                self.part(test, false);
                self.part(then, rising);
                self.part(otherwise, rising);
            }
            Node::List(items) => self.parts(items.iter().map(|item| &item.value)),
            Node::Map(entries) => self.parts(entries.iter().flat_map(|entry| [&entry.key, &entry.value])),
            Node::Call(call) => self.call(call),
            Node::OrElse { of, otherwise, .. } => self.parts([&**of, &**otherwise]),
            Node::Loop(repeated) => {
                self.part(&repeated.range, false);
                self.parts(&repeated.filter);
                // True for more items makes these, and no others, more true.
                let rises = matches!(repeated.kind, LoopKind::All | LoopKind::Exists);
                self.part(&repeated.body, rising && rises);
            }
        }
    }

    fn parts<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>) {
        nodes.into_iter().for_each(|node| self.part(node, false));
    }

    fn call(&mut self, call: &Call) {
        self.parts(&call.arguments);
    }

    /// A comparison of `of` with null.
    fn nullness(&mut self, of: &Node) {
        match of.path() {
            Some((variable, keys)) => self.path(variable, &keys, false, Paths::default()),
            None => self.part(of, false),
        }
    }

    /// A test whether `of` has `key`.
    fn presence(&mut self, of: &Node, key: &str, rising: bool) {
        match of.path() {
            Some((variable, mut keys)) => {
                keys.push(key);
                // Its answer is the same for every node.
                if !is_always_there(variable, &keys) {
                    self.path(variable, &keys, rising, Paths::default());
                }
            }
            None => self.part(of, false),
        }
    }

    /// What lies behind `keys` of a variable. `present`: only its presence is asked for, in a place where that can only
    /// help. `paths`: what of it is read.
    fn path(&mut self, variable: Variable, keys: &[&str], present: bool, paths: Paths) {
        let paths = paths.under(keys);
        match variable {
            Variable::Gpu => self.reads.gpu = true,
            Variable::Inventory => self.reads.inventory = true,
            Variable::OldObject => {
                self.reads.old_object = true;
                self.paths.old_object.merge(&paths);
                self.paths.written.merge(&paths);
            }
            Variable::Object => {
                self.reads.object = true;
                self.paths.object.merge(&paths);
                self.paths.written.merge(&paths);
            }
            Variable::Request => self.paths.request = true,
            Variable::Node => {
                self.node(keys, present);
                // Labels and taints are not the document's: which of them count depends on who asks.
                if !matches!(keys, ["metadata", "labels", ..] | ["spec", "taints", ..]) {
                    self.paths.node.merge(&paths);
                }
            }
        }
    }

    fn node(&mut self, keys: &[&str], present: bool) {
        match keys {
            [] => {
                self.reads.any_label = true;
                self.reads.taints = true;
                self.reads.name = true;
                self.reads.other = true;
            }
            ["metadata"] => {
                self.reads.any_label = true;
                self.reads.name = true;
                self.reads.other = true;
            }
            ["spec"] => {
                self.reads.taints = true;
                self.reads.other = true;
            }
            ["metadata", "labels"] => self.reads.any_label = true,
            ["metadata", "labels", key, rest @ ..] => {
                let polarity = if present && rest.is_empty() { Polarity::Presence } else { Polarity::Value };
                self.reads.labels.push(LabelRead { key: (*key).to_owned(), polarity });
            }
            ["metadata", "name", ..] => self.reads.name = true,
            ["spec", "taints", ..] => self.reads.taints = true,
            _ => self.reads.other = true,
        }
    }
}
