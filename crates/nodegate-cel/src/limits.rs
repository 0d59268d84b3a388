//! How much expressions may take, and what is said of a part of a document that takes more.

/// Steps of one evaluation: about one for every part that is evaluated, every item that is looked
/// at and every 16 bytes of text that are read or written.
///
/// Nothing an expression can do is free of them, so they bound its time and its memory whatever
/// the documents hold.
pub(crate) const MAX_STEPS: u64 = 500_000;

/// Steps of all evaluations that share a [`Budget`]. Some 100,000 ordinary conditions fit in.
pub(crate) const MAX_SHARED_STEPS: u64 = 8 * MAX_STEPS;

/// Bytes of memory for everything that is read of documents with one [`Budget`].
pub(crate) const MAX_SHARED_BYTES: usize = 4 << 20;

/// How deep values may lie inside each other. Kubernetes' own objects have some twelve levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// Why a part of a document is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It takes more memory than is left.
    Large,
    /// It is nested deeper than [`MAX_DEPTH`].
    Deep,
}
