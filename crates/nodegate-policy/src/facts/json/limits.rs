//! How much of a node is read.

use serde::de;

/// Maximum number of labels, annotations, taints and resources of one node. An entry takes at least nine bytes of the
/// 1.5 MiB that etcd stores of an object (protobuf: tag and length of the entry, of the key and of the value, and a key of
/// three characters, because there are not enough shorter ones), so no API server sends as many. Whoever sends more
/// exhausts memory, because an entry takes many times the bytes of its text.
pub(crate) const ENTRIES_MAX: usize = 180_000;

/// An error for a list or an object with more entries than any API server sends.
pub(crate) fn too_many<E: de::Error>(max: usize) -> E {
    E::custom(format_args!("more than {max} entries, which no API server sends"))
}

/// Maximum size of the labels, annotations, taints and resources of one node, in bytes of their keys and values. The API server
/// reads requests of up to 3 MiB, and etcd stores less.
pub(crate) const TEXTS_MAX: usize = 4 << 20;
