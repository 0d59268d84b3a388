//! What an expression reads of a node, found without evaluating it.
//!
//! Whoever decides whether a rule may be trusted, or when it must be evaluated again, relies on
//! this. It errs on the side of reading more.

use nodegate_cel::Read;

use super::paths::ReadPaths;

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

/// What an expression reads of nodes, and which parts of documents.
pub(super) fn of(read: &[Read]) -> (Reads, ReadPaths) {
    let mut reader = Reader::default();
    read.iter().for_each(|read| reader.read(read));
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
    fn read(&mut self, read: &Read) {
        let keys: Vec<&str> = read.keys.iter().map(String::as_str).collect();
        let paths = read.paths();
        match read.variable {
            "gpu" => self.reads.gpu = true,
            "inventory" => self.reads.inventory = true,
            "oldObject" => {
                self.reads.old_object = true;
                self.paths.old_object.merge(&paths);
                self.paths.written.merge(&paths);
            }
            "object" => {
                self.reads.object = true;
                self.paths.object.merge(&paths);
                self.paths.written.merge(&paths);
            }
            "request" => self.paths.request = true,
            _ => {
                self.node(&keys, read.only_helps);
                // Labels and taints are not the document's: which of them count depends on who asks.
                if !matches!(keys[..], ["metadata", "labels", ..] | ["spec", "taints", ..]) {
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
