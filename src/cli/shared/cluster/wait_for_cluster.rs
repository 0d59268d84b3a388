//! Waits for a cluster: the API server or the namespace may not exist yet.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use crate::cli::shared::cluster::connect::own_name;
use nodegate_base::kube_error::in_words;

/// Timeout of one request.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pauses between attempts.
const RETRY: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(250)).with_max_delay(RETRY_MAX).without_max_times();
/// The same reason is not reported again within this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Why the cluster is not usable yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreached {
    /// The API server does not answer.
    #[error("cannot reach the API server: {0}")]
    ApiServer(String),
    /// The namespace does not exist.
    #[error("namespace {0} does not exist; create it with: kubectl create namespace {0}")]
    Namespace(String),
}

/// Waits until the API server answers and the namespace exists. Returns nodegate's own user name if `ask_name` is
/// set.
///
/// Calls `report` with the reason when the reason changes, and again every [`REPORT_INTERVAL`].
pub(crate) async fn reach(
    client: &Client,
    namespace: &str,
    ask_name: bool,
    mut report: impl FnMut(&Unreached),
) -> Option<String> {
    let mut pauses = RETRY.build();
    let mut last: Option<(Unreached, Instant)> = None;
    loop {
        let looked = timeout(ANSWER, look(client, namespace, ask_name)).await;
        let unreached = match looked.unwrap_or_else(|_| Err(Unreached::ApiServer(format!("no answer in {ANSWER:?}")))) {
            Ok(name) => return name,
            Err(unreached) => unreached,
        };
        if last.as_ref().is_none_or(|(reported, at)| *reported != unreached || at.elapsed() >= REPORT_INTERVAL) {
            report(&unreached);
            last = Some((unreached, Instant::now()));
        }
        sleep(pauses.next().unwrap_or(RETRY_MAX)).await;
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
        // A pod's service account may lack the permission to read its own namespace.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(name),
        Err(error) => Err(Unreached::ApiServer(in_words(&error))),
    }
}
