//! Unfinished bodies, in the order in which they started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// One unfinished body.
#[derive(Default)]
struct Entry {
    bytes: AtomicUsize,
    cut: Notify,
}

/// The unfinished bodies in the order in which they started.
#[derive(Default)]
pub(super) struct Arrivals {
    numbers: AtomicU64,
    unfinished: Mutex<BTreeMap<u64, Arc<Entry>>>,
}

impl Arrivals {
    /// Adds a body that starts to arrive.
    pub(super) fn begin(this: &Arc<Self>) -> Arrival {
        let (number, entry) = (this.numbers.fetch_add(1, Ordering::Relaxed), Arc::<Entry>::default());
        this.unfinished.lock().insert(number, entry.clone());
        Arrival { number, entry, arrivals: this.clone() }
    }

    /// Aborts bodies that started before `number` (any, if it is `None`) until this many bytes are freed.
    pub(super) fn cut_oldest(&self, bytes: usize, number: Option<u64>) {
        let mut unfinished = self.unfinished.lock();
        let mut freed = 0;
        while freed < bytes {
            let Some(oldest) = unfinished.first_entry().filter(|oldest| number.is_none_or(|own| *oldest.key() < own))
            else {
                return;
            };
            let entry = oldest.remove();
            freed += entry.bytes.load(Ordering::Relaxed);
            entry.cut.notify_one();
        }
    }
}

/// A body that is being received, until this is dropped.
pub(super) struct Arrival {
    number: u64,
    entry: Arc<Entry>,
    arrivals: Arc<Arrivals>,
}

impl Arrival {
    /// Its position in the order in which bodies started.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds to the number of bytes that it holds.
    pub(super) fn holds(&self, bytes: usize) {
        self.entry.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns when the body is aborted in favor of others.
    pub(super) async fn cut(&self) {
        self.entry.cut.notified().await;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.unfinished.lock().remove(&self.number);
    }
}
