//! The webhook configurations: what they tell the API server to trust.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

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
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::history::FIELD_MANAGER;
use crate::kube_error::in_words;
use crate::telemetry::brief;
use crate::tls;
use crate::watch::Changes;

/// How often everything is looked at although nothing told of a change.
pub(super) const POLL: Duration = Duration::from_secs(10);
/// How long one look may take.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// The least time between two looks: somebody who writes against us must not keep the API server busy.
pub(super) const SPACING: Duration = Duration::from_millis(100);
/// How long a watch lasts before it is begun anew, in seconds: a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 30;
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// Whether an error says that the object changed between reading and writing it.
pub(super) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Whether an error says that the object is gone.
pub(super) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// What went wrong, without repeating it.
pub(super) fn said(error: &kube::Error) -> String {
    in_words(error)
}

/// When the mutating webhook was registered; `None` when it is not, or nobody can tell.
pub(super) async fn created(client: &Client, configuration: &str) -> Option<Timestamp> {
    let api = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client.clone());
    match api.get_opt(configuration).await {
        Ok(found) => found?.metadata.creation_timestamp.map(|time| time.0),
        Err(error) => {
            tracing::warn!(error = brief(said(&error)), "the mutating webhook configuration could not be read");
            None
        }
    }
}

/// Tells `since` when the mutating webhook was registered, at once and whenever that changes; runs until dropped.
pub(super) async fn follow_created(client: &Client, configuration: &str, mut since: impl FnMut(Option<Timestamp>)) {
    let api = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={configuration}"));
    let mut events = pin!(watcher(api, only).default_backoff());
    let (mut listed, mut failing) = (None, None);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(found)) => listed = found.metadata.creation_timestamp.map(|time| time.0),
            Ok(Event::InitDone) => {
                failing = None;
                since(listed);
            }
            Ok(Event::Apply(found)) => since(found.metadata.creation_timestamp.map(|time| time.0)),
            Ok(Event::Delete(_)) => since(None),
            Err(error) => {
                let error = brief(error);
                if failing.as_ref() != Some(&error) {
                    tracing::warn!(error, "the watch of the mutating webhook configuration failed; trying again");
                    failing = Some(error);
                }
            }
        }
    }
}

/// What was done about the caBundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaBundle {
    /// Every one was read and is right. So it is where there is no configuration.
    Right,
    /// Some were not, and have been written or have changed meanwhile: read them again.
    Written,
}

/// Keeps `caBundle` of every webhook in both configurations named `configuration` equal to `ca_pem`.
///
/// A configuration that is not there is fine. Nothing is written where nothing differs.
///
/// # Errors
/// If the API server does not answer or refuses.
pub async fn keep_ca_bundle(client: &Client, configuration: &str, ca_pem: &str) -> Result<CaBundle, kube::Error> {
    Registration::read(client, configuration).await?.publish(ca_pem).await
}

/// Both webhook configurations as they were read.
pub(super) struct Registration {
    client: Client,
    name: String,
    mutating: Option<Configuration>,
    validating: Option<Configuration>,
}

impl Registration {
    pub(super) async fn read(client: &Client, name: &str) -> Result<Self, kube::Error> {
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

    /// Everything callers trust, as PEM.
    pub(super) fn trusted(&self) -> String {
        let bundles = self.configurations().flat_map(|read| read.ca_bundles.iter().flatten());
        let texts: BTreeSet<&[u8]> = bundles.map(|text| text.0.as_slice()).collect();
        texts.into_iter().map(|text| format!("{}\n", String::from_utf8_lossy(text))).collect()
    }

    /// Writes what differs, if nobody wrote since it was read.
    pub(super) async fn publish(&self, ca_pem: &str) -> Result<CaBundle, kube::Error> {
        if self.configurations().all(|read| read.differing(ca_pem).next().is_none()) {
            return Ok(CaBundle::Right);
        }
        // One that is refused must not keep the other from being written.
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

/// Changes the very version of an object that was read; whether that version was still there.
pub(super) async fn write_to<K>(
    api: &Api<K>,
    name: &str,
    read: Option<&str>,
    mut operations: Vec<PatchOperation>,
) -> Result<bool, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    // The API server answers 409 when the present resourceVersion is another one.
    let path = PointerBuf::from_tokens(["metadata", "resourceVersion"]);
    operations.push(PatchOperation::Add(AddOperation { path, value: json!(read) }));
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(name, &parameters, &Patch::Json::<()>(JsonPatch(operations))).await {
        Ok(_) => Ok(true),
        Err(error) if is_conflict(&error) || is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What matters here of a webhook configuration.
struct Configuration {
    resource_version: Option<String>,
    ca_bundles: Vec<Option<ByteString>>,
}

impl Configuration {
    /// The webhooks, by their place, that are told something else.
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
/// A file without a certificate changes nothing and is logged.
pub async fn inject_ca(client: Client, configuration: String, ca_pem_file: PathBuf) {
    let directory = ca_pem_file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut files = Changes::new(vec![directory.to_owned()], POLL);
    let mut signs = signs(&client, &configuration);
    let mut trouble = Trouble::new("caBundle not kept");
    loop {
        let look = async {
            let file = |error: &dyn std::fmt::Display| format!("{}: {error}", ca_pem_file.display());
            let text = tokio::fs::read_to_string(&ca_pem_file).await.map_err(|error| file(&error))?;
            if tls::certificates(&text).is_empty() {
                return Err(file(&"has no PEM certificate"));
            }
            keep_ca_bundle(&client, &configuration, &text).await.map_err(|error| said(&error))
        };
        let pause = match in_time(look).await {
            Ok(CaBundle::Right) => trouble.over(POLL),
            Ok(CaBundle::Written) => Duration::ZERO,
            Err(error) => trouble.pause(&error),
        };
        sleep(SPACING).await;
        let mut changed = pin!(files.next());
        tokio::select! {
            () = &mut changed => {}
            () = next_sign(&mut signs) => {}
            () = sleep(pause) => {}
        }
    }
}

/// Ends a look that takes too long.
pub(super) async fn in_time<T>(look: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(LOOK_LIMIT, look).await.unwrap_or_else(|_| Err(format!("no answer in {LOOK_LIMIT:?}")))
}

/// Signs that a configuration may have changed.
pub(super) fn signs(client: &Client, configuration: &str) -> BoxStream<'static, ()> {
    let mutating = Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client.clone());
    let validating = Api::<PartialObjectMeta<ValidatingWebhookConfiguration>>::all(client.clone());
    select(signs_of(mutating, configuration), signs_of(validating, configuration)).boxed()
}

/// Which object to watch, and for how long at a time.
pub(super) fn only(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS)
}

/// Signs that one object may have changed. What fails here is found by the poll as well.
pub(super) fn signs_of<K>(api: Api<K>, name: &str) -> BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut trouble = Trouble::new("not watched, only polled");
    let signs = watcher(api, only(name)).default_backoff().filter_map(move |event| {
        let sign = match event {
            Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => Some(()),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(error) => {
                trouble.pause(&format!("{}: {}", K::kind(&()), in_words(&error)));
                None
            }
        };
        std::future::ready(sign)
    });
    signs.boxed()
}

/// Waits for a sign, and takes those that came with it.
pub(super) async fn next_sign(signs: &mut BoxStream<'static, ()>) {
    if signs.next().await.is_none() {
        std::future::pending::<()>().await;
    }
    while signs.next().now_or_never().flatten().is_some() {}
}

/// Errors in a row: each is logged when it is another than the last, and makes the pause longer.
pub(super) struct Trouble {
    consequence: &'static str,
    last: Option<String>,
    pause: Duration,
}

impl Trouble {
    pub(super) fn new(consequence: &'static str) -> Self {
        Self { consequence, last: None, pause: RETRY_FIRST }
    }

    /// Notes an error: how long to wait before trying again.
    pub(super) fn pause(&mut self, error: &str) -> Duration {
        if self.last.as_deref() != Some(error) {
            tracing::error!(error, "{}", self.consequence);
            self.last = Some(error.to_owned());
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(RETRY_LAST);
        pause
    }

    /// Notes success: `pause` is how long to wait then.
    pub(super) fn over(&mut self, pause: Duration) -> Duration {
        if self.last.take().is_some() {
            tracing::info!("over: {}", self.consequence);
        }
        self.pause = RETRY_FIRST;
        pause
    }
}
