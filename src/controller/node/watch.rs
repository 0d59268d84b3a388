//! The watch of nodes: everything that is there, then every change, for as long as it takes.

use std::time::{Duration, Instant};

use kube::runtime::watcher::DefaultBackoff;

use super::api::{Changed, NodeApi, NodesError, Read};

/// A watch that ends sooner than this without an event is begun anew with a pause, like one that failed.
const BRIEF: Duration = Duration::from_secs(1);

/// What the watch sees.
#[derive(Debug)]
pub(in crate::controller) enum Seen {
    /// Everything is read anew: what follows until [`Seen::All`] is there.
    Begin,
    /// A node is there.
    There(Read),
    /// Everything that is there has been read.
    All,
    /// Changes are being watched from now on.
    Watching,
    /// A node was added or changed.
    Changed(Read),
    /// A node is gone.
    Gone(Read),
    /// It cannot see; it tries again.
    Failed(NodesError),
}

/// Tells what it sees until dropped.
///
/// # Guarantees
/// Holds one node at a time. What expired is read anew; what broke off is gone on with, later each time.
pub(in crate::controller) async fn follow(nodes: &NodeApi, mut seen: impl FnMut(Seen)) {
    let mut backoff = DefaultBackoff::default();
    let mut version: Option<String> = None;
    loop {
        let outcome = match &mut version {
            None => list(nodes, &mut seen).await.map(|listed| version = Some(listed)),
            Some(version) => watch(nodes, version, &mut seen).await,
        };
        let Err(error) = outcome else { continue };
        if error.is_expired() {
            version = None;
        }
        seen(Seen::Failed(error));
        tokio::time::sleep(backoff.next().unwrap_or(Duration::from_secs(30))).await;
    }
}

/// Reads everything; the version that it shows.
async fn list(nodes: &NodeApi, seen: &mut impl FnMut(Seen)) -> Result<String, NodesError> {
    seen(Seen::Begin);
    let mut next = None;
    loop {
        let page = nodes.page(next.as_deref(), |node| seen(Seen::There(node))).await?;
        next = page.next;
        if next.is_none() {
            seen(Seen::All);
            return page.resource_version.ok_or_else(|| {
                NodesError::Broken("the list of nodes has no resourceVersion, so they cannot be watched".to_owned())
            });
        }
    }
}

/// Watches from `version` on, which goes on with what is seen, until the API server ends the watch.
async fn watch(nodes: &NodeApi, version: &mut String, seen: &mut impl FnMut(Seen)) -> Result<(), NodesError> {
    let mut events = nodes.watch(version).await?;
    seen(Seen::Watching);
    let (begun, mut any) = (Instant::now(), false);
    while let Some((changed, of)) = events.next().await? {
        any = true;
        match changed {
            Changed::To(node) => seen(Seen::Changed(node)),
            Changed::Gone(node) => seen(Seen::Gone(node)),
            Changed::Nothing => {}
            Changed::Failed(error) => return Err(error),
        }
        if let Some(of) = of.filter(|of| !of.is_empty()) {
            *version = of;
        }
    }
    if !any && begun.elapsed() < BRIEF {
        return Err(NodesError::Broken("the API server ended the watch of nodes at once".to_owned()));
    }
    Ok(())
}
