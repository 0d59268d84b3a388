//! The webhook configurations: their `caBundle`, and when they were created.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use futures_util::stream::{BoxStream, select};
use futures_util::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::ByteString;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{sleep, timeout};

use nodegate_base::api_server;
use nodegate_base::kube_error::{in_words, is_expired};
use nodegate_base::object_watch::{WatchFailures, watch_objects};
use nodegate_base::telemetry::brief;
use nodegate_base::watch::{Changes, Watched};
use nodegate_policy::FIELD_MANAGER;
use nodegate_webhook::tls;

/// How often everything is read again even without a watch event.
pub(crate) const POLL: Duration = Duration::from_secs(10);
/// Timeout of one pass.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// Minimum time between two passes, so that a competing writer cannot make nodegate flood the API server.
pub(crate) const SPACING: Duration = Duration::from_millis(100);
/// How long a watch lasts before it is restarted, in seconds, so that a dead connection is noticed.
const WATCH_SECONDS: u32 = 30;
/// The longest pause after an error.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Pauses after errors in a row.
const RETRY: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(500)).with_max_delay(RETRY_MAX).without_max_times();

/// Whether the error means that the object changed between reading and writing it.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Whether the error means that the object does not exist.
pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The error, without repetitions.
pub(crate) fn message(error: &kube::Error) -> String {
    in_words(error)
}

/// When the mutating webhook configuration was created; `None` if it does not exist or could not be read.
pub(crate) async fn created(client: &Client, configuration: &str) -> Option<Timestamp> {
    let api = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client.clone());
    match api.get_opt(configuration).await {
        Ok(found) => found?.metadata.creation_timestamp.map(|time| time.0),
        Err(error) => {
            tracing::warn!(error = brief(message(&error)), "could not read the mutating webhook configuration");
            None
        }
    }
}

/// Sends `since` the creation time of the mutating webhook configuration, at once and after each change. Runs until
/// dropped.
pub(crate) async fn follow_created(client: &Client, configuration: &str, mut since: impl FnMut(Option<Timestamp>)) {
    let api = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client.clone());
    let created = |found: Option<PartialObjectMeta<_>>| {
        since(found.and_then(|found| found.metadata.creation_timestamp).map(|time| time.0));
    };
    follow_object(api, configuration, created).await;
}

/// Sends `seen` an object, at once and after each change; `None` if it does not exist. Runs until dropped.
pub(crate) async fn follow_object<K>(api: Api<K>, name: &str, mut seen: impl FnMut(Option<K>))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(watch_objects(api, only));
    let (mut listed, mut failing) = (None, WatchFailures::default());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(found)) => listed = Some(found),
            Ok(Event::InitDone) => {
                failing.works();
                seen(listed.take());
            }
            Ok(Event::Apply(found)) => seen(Some(found)),
            Ok(Event::Delete(_)) => seen(None),
            Err(error) => {
                if let Some(error) = failing.news(&error) {
                    tracing::warn!(error, kind = %K::kind(&()), name, "a watch failed; retrying");
                }
            }
        }
    }
}

/// The result of a pass over the caBundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaBundle {
    /// All were read and are correct, or there is no configuration.
    Right,
    /// Some were not correct and were written, or changed concurrently; read them again.
    Written,
}

/// Keeps `caBundle` of every webhook in both configurations named `configuration` equal to `ca_pem`.
///
/// A configuration that does not exist is not an error. Nothing is written if nothing differs.
///
/// # Errors
/// Returns an error if the API server does not answer or refuses.
pub async fn keep_ca_bundle(client: &Client, configuration: &str, ca_pem: &str) -> Result<CaBundle, kube::Error> {
    Registration::read(client, configuration).await?.publish(ca_pem).await
}

/// Both webhook configurations, as read.
pub(crate) struct Registration {
    client: Client,
    name: String,
    mutating: Option<Configuration>,
    validating: Option<Configuration>,
}

impl Registration {
    pub(crate) async fn read(client: &Client, name: &str) -> Result<Self, kube::Error> {
        let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
        let mutating = mutating.map(|read| Configuration {
            ca_bundles: read.webhooks.iter().flatten().map(|webhook| webhook.client_config.ca_bundle.clone()).collect(),
            resource_version: read.resource_version(),
        });
        let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
        let validating = validating.map(|read| Configuration {
            ca_bundles: read.webhooks.iter().flatten().map(|webhook| webhook.client_config.ca_bundle.clone()).collect(),
            resource_version: read.resource_version(),
        });
        Ok(Self { client: client.clone(), name: name.to_owned(), mutating, validating })
    }

    fn configurations(&self) -> impl Iterator<Item = &Configuration> {
        self.mutating.iter().chain(&self.validating)
    }

    /// The CA certificates of all entries, as PEM.
    pub(crate) fn trusted(&self) -> String {
        let bundles = self.configurations().flat_map(|read| read.ca_bundles.iter().flatten());
        let texts: BTreeSet<&[u8]> = bundles.map(|text| text.0.as_slice()).collect();
        texts.into_iter().map(|text| format!("{}\n", String::from_utf8_lossy(text))).collect()
    }

    /// Writes what differs, unless the configuration changed since it was read.
    pub(crate) async fn publish(&self, ca_pem: &str) -> Result<CaBundle, kube::Error> {
        if self.configurations().all(|read| read.differing(ca_pem).next().is_none()) {
            return Ok(CaBundle::Right);
        }
        // A refused write of one configuration must not prevent the write of the other.
        let mutating = self.write::<MutatingWebhookConfiguration>(self.mutating.as_ref(), ca_pem).await;
        let validating = self.write::<ValidatingWebhookConfiguration>(self.validating.as_ref(), ca_pem).await;
        mutating.and(validating).map(|()| CaBundle::Written)
    }

    async fn write<K>(&self, read: Option<&Configuration>, ca_pem: &str) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug,
    {
        let Some((read, operations)) = read.map(|read| (read, read.operations(ca_pem))) else { return Ok(()) };
        if operations.is_empty() {
            return Ok(());
        }
        let api = Api::<PartialObjectMeta<K>>::all(self.client.clone());
        if write_to(&api, &self.name, read.resource_version.as_deref(), operations).await? {
            tracing::info!(kind = %K::kind(&()), name = self.name, "caBundle written");
        }
        Ok(())
    }
}

/// Patches the exact version of an object that was read. Returns whether that version was still current.
pub(crate) async fn write_to<K>(
    api: &Api<K>,
    name: &str,
    read: Option<&str>,
    mut operations: Vec<PatchOperation>,
) -> Result<bool, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    // The API server answers 409 if the current resourceVersion differs.
    let path = PointerBuf::from_tokens(["metadata", "resourceVersion"]);
    operations.push(PatchOperation::Add(AddOperation { path, value: json!(read) }));
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(name, &parameters, &Patch::Json::<()>(JsonPatch(operations))).await {
        Ok(_) => Ok(true),
        Err(error) if is_conflict(&error) || is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The parts of a webhook configuration that are needed here.
struct Configuration {
    resource_version: Option<String>,
    ca_bundles: Vec<Option<ByteString>>,
}

impl Configuration {
    /// The indexes of the webhooks whose `caBundle` differs.
    fn differing(&self, ca_pem: &str) -> impl Iterator<Item = usize> {
        let differs = |text: &Option<ByteString>| text.as_ref().is_none_or(|text| text.0 != ca_pem.as_bytes());
        self.ca_bundles.iter().enumerate().filter(move |(_, text)| differs(text)).map(|(place, _)| place)
    }

    fn operations(&self, ca_pem: &str) -> Vec<PatchOperation> {
        let ca_bundle = json!(ByteString(ca_pem.as_bytes().to_vec()));
        self.differing(ca_pem)
            .map(|place| PointerBuf::from_tokens(["webhooks", &place.to_string(), "clientConfig", "caBundle"]))
            .map(|path| PatchOperation::Add(AddOperation { path, value: ca_bundle.clone() }))
            .collect()
    }
}

/// Keeps `caBundle` of every webhook in both configurations equal to a file. Runs until dropped.
///
/// If the file contains no certificate, nothing changes and the error is logged.
pub async fn inject_ca(client: Client, configuration: String, ca_pem_file: PathBuf) {
    let mut files = Changes::new(vec![Watched::parent_of(&ca_pem_file)], POLL);
    let mut triggers = triggers(&client, &configuration);
    let mut errors = ErrorBackoff::new("caBundle is not up to date");
    loop {
        let look = async {
            let file = |error: &dyn std::fmt::Display| format!("{}: {error}", ca_pem_file.display());
            let text = tokio::fs::read_to_string(&ca_pem_file).await.map_err(|error| file(&error))?;
            if tls::certificates(&text).is_empty() {
                return Err(file(&"contains no PEM certificate"));
            }
            keep_ca_bundle(&client, &configuration, &text).await.map_err(|error| message(&error))
        };
        let pause = match in_time(look).await {
            Ok(CaBundle::Right) => errors.succeeded(POLL),
            Ok(CaBundle::Written) => Duration::ZERO,
            Err(error) => errors.failed(&error),
        };
        sleep(SPACING).await;
        let mut changed = pin!(files.next());
        tokio::select! {
            () = &mut changed => {}
            () = next_trigger(&mut triggers) => {}
            () = sleep(pause) => {}
        }
    }
}

/// Applies the timeout to a pass.
pub(crate) async fn in_time<T>(look: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(LOOK_LIMIT, look)
        .await
        .unwrap_or_else(|_| Err(format!("the API server did not answer within {LOOK_LIMIT:?}")))
}

/// Signals that a configuration may have changed.
pub(crate) fn triggers(client: &Client, configuration: &str) -> BoxStream<'static, ()> {
    let mutating = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client.clone());
    let validating = Api::<PartialObjectMeta<ValidatingWebhookConfiguration>>::all(client.clone());
    select(triggers_of(mutating, configuration), triggers_of(validating, configuration)).boxed()
}

/// The object to watch, and the timeout of the watch.
pub(crate) fn only(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS)
}

/// Signals that one object may have changed. Errors here are harmless, because the poll finds every change as well.
pub(crate) fn triggers_of<K>(api: Api<K>, name: &str) -> BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut errors = ErrorBackoff::new("a watch failed; changes are noticed by polling only");
    let triggers = watch_objects(api, only(name)).filter_map(move |event| {
        let trigger = match event {
            Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => Some(()),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(error) if is_expired(&error) => None,
            Err(error) => {
                errors.failed(&format!("{}: {}", K::kind(&()), in_words(&error)));
                None
            }
        };
        std::future::ready(trigger)
    });
    triggers.boxed()
}

/// Waits for a signal, and consumes all that are pending.
pub(crate) async fn next_trigger(triggers: &mut BoxStream<'static, ()>) {
    if triggers.next().await.is_none() {
        std::future::pending::<()>().await;
    }
    while triggers.next().now_or_never().flatten().is_some() {}
}

/// Consecutive errors: an error is logged when it differs from the previous one, and each makes the delay longer.
pub(crate) struct ErrorBackoff {
    consequence: &'static str,
    last: Option<String>,
    pauses: ExponentialBackoff,
}

impl ErrorBackoff {
    pub(crate) fn new(consequence: &'static str) -> Self {
        Self { consequence, last: None, pauses: RETRY.build() }
    }

    /// Records an error. Returns how long to wait before the next attempt.
    pub(crate) fn failed(&mut self, error: &str) -> Duration {
        if api_server::is_failing() {
            // The outage is reported elsewhere, and its end resolves this.
            tracing::debug!(error, "{}", self.consequence);
        } else if self.last.as_deref() != Some(error) {
            tracing::error!(error, "{}", self.consequence);
            self.last = Some(error.to_owned());
        }
        self.pauses.next().unwrap_or(RETRY_MAX)
    }

    /// Records a success. Returns `pause`, how long to wait then.
    pub(crate) fn succeeded(&mut self, pause: Duration) -> Duration {
        if self.last.take().is_some() {
            tracing::info!("resolved: {}", self.consequence);
        }
        self.pauses = RETRY.build();
        pause
    }
}
