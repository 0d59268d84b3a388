//! Reloads policies when their files change.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::error::LoadError;
use super::load::{Loaded, Sources, Texts};
use nodegate_base::watch::Changes;

/// How long files must not change before they are taken as they are. Editors and copies empty a file before they write it.
const SETTLED: Duration = Duration::from_millis(100);
/// How often that is waited for. What changes all the time is taken as it is then.
const WAITS_MAX: usize = 20;

/// Calls `observer` with the loaded policies whenever the files differ from `since` and compile, until `shutdown`; or
/// with the errors, once and not at every poll, in which case the last good policies stay in force.
pub async fn watch(
    sources: Sources,
    since: u64,
    poll: Duration,
    observer: impl Fn(Result<Loaded, &[LoadError]>),
    shutdown: CancellationToken,
) {
    let sources = Arc::new(sources);
    let mut changes = Changes::new(sources.directories(), poll);
    let mut seen = since;
    let mut reported: Vec<LoadError> = Vec::new();
    loop {
        let read = || read(Arc::clone(&sources));
        let compiler = Arc::clone(&sources);
        if let Some((fingerprint, texts)) = settled(seen, read).await
            && let Ok(loaded) = tokio::task::spawn_blocking(move || compiler.compile(texts)).await
        {
            seen = fingerprint;
            match loaded {
                Ok(loaded) => {
                    observer(Ok(loaded));
                    reported.clear();
                }
                Err(errors) if errors != reported => {
                    observer(Err(&errors));
                    reported = errors;
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.next() => {}
        }
    }
}

/// What `read` returns twice in a row, with its fingerprint; `None` if that is `seen` already, or if reading failed.
async fn settled<T, Reading>(seen: u64, mut read: impl FnMut() -> Reading) -> Option<(u64, T)>
where
    Reading: Future<Output = Option<(u64, T)>>,
{
    let mut last = read().await?;
    for _ in 0..WAITS_MAX {
        if last.0 == seen {
            return None;
        }
        tokio::time::sleep(SETTLED).await;
        let now = read().await?;
        if now.0 == last.0 {
            return Some(now);
        }
        last = now;
    }
    Some(last)
}

/// Everything that files have, with its fingerprint.
async fn read(sources: Arc<Sources>) -> Option<(u64, Texts)> {
    let texts = tokio::task::spawn_blocking(move || sources.read()).await.ok()?;
    Some((texts.fingerprint(), texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken of files that are read as these fingerprints, one after the other, and how often they are read.
    async fn taken(readings: impl IntoIterator<Item = u64>) -> (Option<u64>, usize) {
        let (mut readings, mut count) = (readings.into_iter(), 0);
        let read = || {
            count += 1;
            std::future::ready(readings.next().map(|fingerprint| (fingerprint, ())))
        };
        let taken = settled(1, read).await.map(|(fingerprint, ())| fingerprint);
        (taken, count)
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_being_written_is_read_when_it_is_whole() {
        assert_eq!(taken([1]).await, (None, 1), "nothing changed");
        assert_eq!(taken([2, 2]).await, (Some(2), 2));
        assert_eq!(taken([2, 3, 3]).await, (Some(3), 3), "2 is half of it");
        assert_eq!(taken([2, 1]).await, (None, 2), "it is as before again");
        assert_eq!(taken(2..).await, (Some(22), 21), "it changes all the time");
    }
}
