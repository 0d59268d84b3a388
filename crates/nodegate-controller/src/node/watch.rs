//! Watches nodes: lists all of them, then reports every change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::sync::watch::Receiver;

use super::api::NodeApi;
use super::event::Changed;
use super::read::{NodesError, Read};
use nodegate_base::api_server;
use nodegate_policy::cel::Paths;

/// The delays before what failed is tried again.
const PAUSES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(500)).without_max_times().with_jitter();

/// A watch that ends sooner than this without an event is restarted after a delay, like one that failed.
const BRIEF: Duration = Duration::from_secs(1);

/// An event of the watch.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// A new listing begins and lasts until [`WatchEvent::All`].
    Begin,
    /// A node of the listing.
    There(Read),
    /// The listing is complete; these parts of nodes were read.
    All(Arc<Paths>),
    /// The watch has started.
    Watching,
    /// A node was added or changed.
    Changed(Read),
    /// A node was deleted.
    Gone(Read),
    /// Listing or watching failed; it is retried.
    Failed(NodesError),
}

/// Reports events until dropped.
///
/// # Guarantees
/// Holds one node at a time. If the version has expired, lists again; if the connection breaks or an event arrives
/// damaged, resumes, with increasing delays up to `longest`, and at once when the API server answers again. A watch that has
/// worked begins with short delays anew. An event that is damaged twice affects only its node; if it names none, all
/// nodes are listed again.
///
/// Only the `parts` of nodes are read that are wanted when they are listed. When more are, which `changed` counts, all nodes are listed again.
pub(crate) async fn follow(
    nodes: &NodeApi,
    (parts, mut changed): (impl Fn() -> Arc<Paths>, Receiver<u64>),
    longest: Duration,
    mut seen: impl FnMut(WatchEvent),
) {
    let pauses = || PAUSES.with_max_delay(longest).build();
    let mut pause = pauses();
    let mut version: Option<String> = None;
    // The version after which an event arrived damaged.
    let mut damaged: Option<String> = None;
    let mut read = Arc::default();
    let mut reading = nodes.clone();
    loop {
        let mut works = false;
        let outcome = match &mut version {
            None => {
                read = parts();
                reading = nodes.reading(Arc::clone(&read));
                list(&reading, &read, &mut seen).await.map(|listed| version = Some(listed))
            }
            Some(from) => tokio::select! {
                outcome = watch(&reading, from, &mut damaged, &mut works, &mut seen) => outcome,
                Ok(_) = changed.wait_for(|_| !read.hold(&parts())) => {
                    version = None;
                    continue;
                }
            },
        };
        if works {
            pause = pauses();
        }
        let Err(error) = outcome else { continue };
        if error.needs_listing() {
            version = None;
        }
        seen(WatchEvent::Failed(error));
        tokio::select! {
            // Jitter is added to the limit as well.
            () = tokio::time::sleep(pause.next().unwrap_or(longest).min(longest)) => {}
            () = api_server::answers_again() => {}
        }
    }
}

/// Lists all nodes. Returns the version of the listing.
async fn list(nodes: &NodeApi, parts: &Arc<Paths>, seen: &mut impl FnMut(WatchEvent)) -> Result<String, NodesError> {
    seen(WatchEvent::Begin);
    let mut next = None;
    loop {
        let page = nodes.page(next.as_deref(), |node| seen(WatchEvent::There(node))).await?;
        next = page.next;
        if next.is_none() {
            seen(WatchEvent::All(Arc::clone(parts)));
            return page.resource_version.ok_or_else(|| {
                NodesError::Broken("the list of nodes has no resourceVersion, so they cannot be watched".to_owned())
            });
        }
    }
}

/// Watches from `version` on, and updates it, until the API server ends the watch. Says whether it `works`: it has brought an
/// event, or lasted.
async fn watch(
    nodes: &NodeApi,
    version: &mut String,
    damaged: &mut Option<String>,
    works: &mut bool,
    seen: &mut impl FnMut(WatchEvent),
) -> Result<(), NodesError> {
    let mut events = nodes.watch(version).await?;
    seen(WatchEvent::Watching);
    let begun = Instant::now();
    while let Some((changed, of)) = {
        let next = events.next().await;
        *works |= begun.elapsed() >= BRIEF;
        next?
    } {
        let changed = match changed {
            Changed::Damaged(_) if damaged.as_ref() != Some(version) => {
                *damaged = Some(version.clone());
                return Err(NodesError::Broken("received a damaged event; asking for it again".to_owned()));
            }
            Changed::Damaged(seeming) if seeming.names_no_node() => {
                *damaged = None;
                return Err(NodesError::Lost("received a damaged event again; listing all nodes".to_owned()));
            }
            Changed::Damaged(seeming) => *seeming,
            changed => changed,
        };
        *works |= !matches!(changed, Changed::Failed(_));
        match changed {
            Changed::To(node) => seen(WatchEvent::Changed(node)),
            Changed::Gone(node) => seen(WatchEvent::Gone(node)),
            Changed::Nothing | Changed::Damaged(_) => {}
            Changed::Failed(error) => return Err(error),
        }
        if let Some(of) = of.filter(|of| !of.is_empty()) {
            *version = of;
        }
    }
    if !*works {
        return Err(NodesError::Broken("the API server ended the watch of nodes immediately".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
