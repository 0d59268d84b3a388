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
pub(super) struct UnfinishedBodies {
    numbers: AtomicU64,
    unfinished: Mutex<BTreeMap<u64, Arc<Entry>>>,
}

impl UnfinishedBodies {
    /// Adds a body that starts to arrive.
    pub(super) fn begin(this: &Arc<Self>) -> UnfinishedBody {
        let (number, entry) = (this.numbers.fetch_add(1, Ordering::Relaxed), Arc::<Entry>::default());
        this.unfinished.lock().insert(number, entry.clone());
        UnfinishedBody { number, entry, bodies: this.clone() }
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
pub(super) struct UnfinishedBody {
    number: u64,
    entry: Arc<Entry>,
    bodies: Arc<UnfinishedBodies>,
}

impl UnfinishedBody {
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

impl Drop for UnfinishedBody {
    fn drop(&mut self) {
        self.bodies.unfinished.lock().remove(&self.number);
    }
}
