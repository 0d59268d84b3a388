//! Counts what is kept of one Node while it is parsed.

use std::cell::Cell;

use serde::de;

use crate::facts::json::limits::{ENTRIES_MAX, TEXTS_MAX, too_many};

thread_local! {
    /// What was kept of the Node that this thread parses; `None` while it parses none.
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Default)]
struct Kept {
    entries: usize,
    bytes: usize,
}

/// A Node is parsed on this thread, until this is dropped. All of its labels, annotations, taints and resources are counted
/// together.
pub(in crate::facts) struct CountedNode {
    before: Option<Kept>,
}

impl CountedNode {
    pub(in crate::facts) fn begin() -> Self {
        Self { before: KEPT.replace(Some(Kept::default())) }
    }
}

impl Drop for CountedNode {
    fn drop(&mut self) {
        KEPT.set(self.before);
    }
}

/// Counts one more entry, with so many bytes of text.
///
/// # Errors
/// Returns an error if the Node that is being parsed has more entries, or more text in them, than any API server sends.
pub(in crate::facts) fn count<E: de::Error>(bytes: usize) -> Result<(), E> {
    let Some(mut kept) = KEPT.get() else { return Ok(()) };
    kept.entries += 1;
    kept.bytes = kept.bytes.saturating_add(bytes);
    KEPT.set(Some(kept));
    if kept.entries > ENTRIES_MAX {
        return Err(too_many(ENTRIES_MAX));
    }
    if kept.bytes > TEXTS_MAX {
        return Err(E::custom(
            "more than 4 MiB of labels, annotations, taints and resources, which no API server sends",
        ));
    }
    Ok(())
}
