//! Determines what an expression reads of a node, without evaluating it.
//!
//! The check of trust and the order of evaluation rely on this. It may report too much, but never too
//! little.

use nodegate_cel::Read;

use super::paths::ReadPaths;

/// How the result depends on a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Polarity {
    /// Only on its presence, which can only change the result from false to true.
    Presence,
    /// On its value or absence, or in an unknown way.
    Value,
}

/// A label with a constant key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelRead {
    /// The label key.
    pub key: String,
    /// How the result depends on it.
    pub polarity: Polarity,
}

/// What an expression reads.
///
/// For an expression over a write, only [`Reads::object`] and [`Reads::old_object`] are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Labels with constant keys, sorted, each once. A label that is read both ways has
    /// [`Polarity::Value`].
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
    /// `devices`
    pub devices: bool,
    /// `identity`, but for the following fields of it
    pub pools: bool,
    /// `identity.contradictions`
    pub contradictions: bool,
    /// `identity.instance`
    pub instance: bool,
    /// Any other field of the node, which a kubelet can choose.
    pub other: bool,
    /// `object`
    pub object: bool,
    /// `oldObject`
    pub old_object: bool,
}

impl Reads {
    /// Whether it reads `identity`.
    pub fn identity(&self) -> bool {
        self.pools || self.contradictions || self.instance
    }
}

/// The reads and the paths of an expression.
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
            "devices" => {
                self.reads.devices = true;
                self.paths.devices.merge(&paths);
            }
            "identity" => {
                let field = keys.first().copied();
                self.reads.contradictions |= matches!(field, None | Some("contradictions"));
                self.reads.instance |= matches!(field, None | Some("instance"));
                self.reads.pools |= !matches!(field, Some("contradictions" | "instance"));
            }
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
            "item" => self.paths.item.merge(&paths),
            "key" => self.paths.key = true,
            _ => {
                self.node(&keys, read.only_helps);
                // Labels and taints are not read from the document, because some may be masked or assigned.
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
