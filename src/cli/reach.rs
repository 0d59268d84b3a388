//! Waiting for a cluster: its API server may not be there yet, nor the namespace.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::connect::own_name;
use crate::kube_error::in_words;

/// How long one question may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The time between two questions grows from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// The same is told no more often than this.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// Why a cluster cannot be worked on yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreached {
    /// The API server cannot be asked.
    #[error("the API server cannot be asked: {0}")]
    ApiServer(String),
    /// There is no such namespace.
    #[error("the namespace {0} does not exist; create it: kubectl create namespace {0}")]
    Namespace(String),
}

/// Waits until the API server answers and the namespace is there. Returns our own user name if it has to be asked.
///
/// Each reason to wait is given to `told` when it changes, and again every [`TOLD_EVERY`].
pub(crate) async fn reach(
    client: &Client,
    namespace: &str,
    ask_name: bool,
    mut told: impl FnMut(&Unreached),
) -> Option<String> {
    let (mut pause, longest) = RETRY;
    let mut last: Option<(Unreached, Instant)> = None;
    loop {
        let looked = timeout(ANSWER, look(client, namespace, ask_name)).await;
        let unreached = match looked.unwrap_or_else(|_| Err(Unreached::ApiServer(format!("no answer in {ANSWER:?}")))) {
            Ok(name) => return name,
            Err(unreached) => unreached,
        };
        if last.as_ref().is_none_or(|(said, at)| *said != unreached || at.elapsed() >= TOLD_EVERY) {
            told(&unreached);
            last = Some((unreached, Instant::now()));
        }
        sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

async fn look(client: &Client, namespace: &str, ask_name: bool) -> Result<Option<String>, Unreached> {
    let name = match ask_name {
        true => Some(own_name(client).await.map_err(|error| Unreached::ApiServer(format!("{error:#}")))?),
        false => None,
    };
    match Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await {
        Ok(Some(_)) => Ok(name),
        Ok(None) => Err(Unreached::Namespace(namespace.to_owned())),
        // A pod's account needs no right to read the namespace that it runs in.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(name),
        Err(error) => Err(Unreached::ApiServer(in_words(&error))),
    }
}
