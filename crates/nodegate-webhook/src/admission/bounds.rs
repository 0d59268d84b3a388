//! Limits of the webhook on bytes, time and number of reviews.

use std::time::Duration;

const MIB: usize = 1024 * 1024;

/// Default maximum size of a review. An UPDATE review contains two objects. etcd stores up to 1.5 MiB of each, as
/// protobuf; in JSON the API server writes some characters with six bytes, and empty entries become up to seven times
/// as large. That is 21 MiB, and leaves room for the rest of the review.
pub const REVIEW_BYTES: usize = 24 * MIB;
/// Maximum size of an ordinary review. A review of a typical node has some tens of kilobytes.
pub(super) const ORDINARY: usize = MIB / 4;

/// Limits of the webhook.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of reviews that are read but not answered yet; further ones get 503 without Retry-After (with
    /// that header the API server sleeps within its own timeout).
    pub reviews: usize,
    /// Maximum size of a review, in bytes; larger ones get 413.
    pub review_bytes: usize,
    /// Maximum size of an ordinary review, in bytes. A larger one waits for one of the slots for large reviews.
    pub ordinary: usize,
    /// Maximum total size of ordinary reviews, in bytes, counted as they arrive. When it is reached, the unfinished
    /// body that started first is aborted.
    pub ordinary_bytes: usize,
    /// Maximum number of concurrent large reviews, from their first byte to their answer, and of policies that are compiled. Parsed,
    /// each may take many times its bytes.
    pub large: usize,
    /// Maximum number of reviews that evaluate CEL concurrently, each on its own thread and for some milliseconds at
    /// most; others wait.
    pub expressions: usize,
    /// Maximum number of concurrent reviews whose CEL takes longer. They leave processors for the others.
    pub costly: usize,
    /// Maximum number of costly reviews that wait; further ones get 503.
    pub costly_waiting: usize,
    /// Maximum number of reviews of `NodePolicy` objects that wait for a slot for large reviews. When more come, those of the peer with
    /// the most of them get 503.
    pub policies_waiting: usize,
    /// Time for an answer if the caller sends none; the API server's default.
    pub deadline: Duration,
}

impl Bounds {
    /// Maximum size of one text of a review, in bytes: a review has two objects, and the API server writes some characters with six
    /// bytes, so this is more than an object that fits has in all.
    pub(super) fn text_bytes(&self) -> usize {
        self.review_bytes / 6
    }
}

impl Default for Bounds {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            reviews: 512,
            review_bytes: REVIEW_BYTES,
            ordinary: ORDINARY,
            ordinary_bytes: 8 * MIB,
            large: 1,
            expressions: 16,
            costly: (processors / 2).max(1),
            costly_waiting: 64,
            policies_waiting: 16,
            deadline: Duration::from_secs(10),
        }
    }
}
