//! Wakes whoever reads files when they may have changed.
//!
//! Directories are watched, not files: a mounted Secret or ConfigMap changes by a swap of its `..data`
//! link, at which a watch of a file dies for good. A poll comes on top, for file systems that tell
//! nothing. Readers re-read whole and compare; a wake-up says *may have*.

use std::path::PathBuf;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

/// How long after the first sign of a change to wait for the rest of it.
const SETTLE: Duration = Duration::from_millis(100);

/// Signs of change in some directories.
pub struct Changes {
    directories: Vec<PathBuf>,
    poll: Duration,
    signs: mpsc::Receiver<()>,
    watcher: Option<RecommendedWatcher>,
}

impl Changes {
    /// Watches `directories` (those that exist; others are tried again at each poll) and polls as well.
    pub fn new(directories: Vec<PathBuf>, poll: Duration) -> Self {
        let (sender, signs) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading is no change, and our own reading must not wake us.
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = sender.try_send(());
            }
        });
        let watcher = watcher.map_err(|error| tracing::warn!(%error, "files are only polled, not watched")).ok();
        let mut changes = Self { directories, poll, signs, watcher };
        changes.watch();
        changes
    }

    /// (Re-)registers every directory; one that was replaced needs that.
    fn watch(&mut self) {
        if let Some(watcher) = &mut self.watcher {
            for directory in &self.directories {
                let _ = watcher.unwatch(directory);
                if let Err(error) = watcher.watch(directory, RecursiveMode::Recursive) {
                    tracing::debug!(directory = %directory.display(), %error, "not watched, only polled");
                }
            }
        }
    }

    /// Returns when something may have changed, at the latest after the poll interval.
    pub async fn next(&mut self) {
        let poll = sleep(self.poll);
        tokio::select! {
            () = poll => self.watch(),
            Some(()) = self.signs.recv() => {
                // A change comes as several signs; the last may come while we wait.
                let settled = Instant::now() + SETTLE;
                while timeout_at(settled, self.signs.recv()).await.is_ok_and(|sign| sign.is_some()) {}
            }
        }
    }
}
