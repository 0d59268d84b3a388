//! The last things that happened: a list with a limit.

use std::collections::VecDeque;

use jiff::Timestamp;

use nodegate_base::text::cut;

/// How many rows are kept.
pub(super) const ROWS_MAX: usize = 500;
/// Maximum length of the text of a row, in bytes: whoever may write a record or an event decides how long it is.
const TEXT_MAX: usize = 512;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A node was created.
    Joined,
    /// A node has everything that it waited for.
    Complete,
    /// Admission set something.
    Admitted,
    /// Saved state was restored.
    Restored,
    /// The controller set something.
    Set,
    /// The controller took back a change.
    Corrected,
    /// The controller removed something.
    Removed,
    /// A claim of a kubelet was rejected.
    Rejected,
    /// Somebody else changed something.
    Changed,
    /// A node was deleted.
    Deleted,
    /// nodegate warns of something.
    Warning,
    /// Another event.
    Told,
}

impl What {
    /// What people read.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Complete => "complete",
            Self::Admitted => "admitted",
            Self::Restored => "restored",
            Self::Set => "set",
            Self::Corrected => "corrected",
            Self::Removed => "removed",
            Self::Rejected => "rejected",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
            Self::Warning => "warning",
            Self::Told => "told",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) time: Timestamp,
    /// The name of the node, or of what else it is about.
    pub(super) about: String,
    pub(super) what: What,
    pub(super) text: String,
}

impl Row {
    pub(super) fn new(time: Timestamp, about: &str, what: What, text: String) -> Self {
        let mut row = Self { time, about: about.to_owned(), what, text };
        cut(&mut row.about, TEXT_MAX);
        cut(&mut row.text, TEXT_MAX);
        row
    }
}

/// The last rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Feed {
    /// The newest last.
    rows: VecDeque<Row>,
    /// How many there ever were.
    count: u64,
}

impl Feed {
    /// Adds a row, and drops the oldest if there are too many.
    pub(super) fn add(&mut self, row: Row) {
        if self.rows.len() == ROWS_MAX {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        self.count += 1;
    }

    /// Adds rows that may be older than those that are there, puts all in the order of their times, and drops the oldest if
    /// there are too many.
    pub(super) fn merge(&mut self, rows: Vec<Row>) {
        self.count += rows.len() as u64;
        self.rows.extend(rows);
        self.rows.make_contiguous().sort_by_key(|row| row.time);
        let surplus = self.rows.len().saturating_sub(ROWS_MAX);
        self.rows.drain(..surplus);
    }

    /// How many rows there ever were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How many rows have been dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.count - self.rows.len() as u64
    }

    /// The rows, the newest first.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().rev()
    }
}
