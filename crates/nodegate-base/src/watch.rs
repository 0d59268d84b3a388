//! Notifies readers of files when the files may have changed.
//!
//! Directories are watched, not files: a mounted Secret or ConfigMap changes by replacing its `..data` link, which
//! breaks the watch of a file. Polling covers file systems that send no notifications. Readers read everything again
//! and compare: a notification only means that something *may* have changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How long to wait after the first notification for further ones.
const SETTLE: Duration = Duration::from_millis(100);

/// A directory to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// The entries of this directory, not those of directories in it: there may be thousands beside a file that
    /// somebody keeps in `/etc` or `/`, and each takes one of the watches that Linux gives to a user.
    Entries(PathBuf),
    /// The directory and all directories in it.
    Tree(PathBuf),
}

impl Watched {
    /// The directory that contains `file`.
    pub fn parent_of(file: &Path) -> Self {
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        Self::Entries(parent.unwrap_or(Path::new(".")).to_owned())
    }

    fn path_and_mode(&self) -> (&Path, RecursiveMode) {
        match self {
            Self::Entries(path) => (path, RecursiveMode::NonRecursive),
            Self::Tree(path) => (path, RecursiveMode::Recursive),
        }
    }
}

/// Notifications about changes in some directories.
pub struct Changes {
    directories: Vec<Watched>,
    poll: Duration,
    signs: mpsc::Receiver<()>,
    watcher: Option<RecommendedWatcher>,
}

impl Changes {
    /// Watches `directories` (those that exist; missing ones are retried at each poll) and polls as well.
    pub fn new(directories: Vec<Watched>, poll: Duration) -> Self {
        let (sender, signs) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading a file is not a change, so nodegate's own reads cause no notification.
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = sender.try_send(());
            }
        });
        let watcher = watcher
            .map_err(|error| tracing::warn!(%error, "cannot watch files; changes are noticed by polling only"))
            .ok();
        let mut changes = Self { directories, poll, signs, watcher };
        changes.watch();
        changes
    }

    /// (Re-)registers every directory, because a directory may have been replaced.
    fn watch(&mut self) {
        if let Some(watcher) = &mut self.watcher {
            for (directory, mode) in self.directories.iter().map(Watched::path_and_mode) {
                let _ = watcher.unwatch(directory);
                if let Err(error) = watcher.watch(directory, mode) {
                    tracing::debug!(directory = %directory.display(), %error, "cannot watch the directory; changes are noticed by polling only");
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
                // A change causes several notifications; the last one may arrive while waiting.
                sleep(SETTLE).await;
                let _ = self.signs.try_recv();
            }
        }
    }
}
