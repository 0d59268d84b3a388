//! Follows what the API server has: nodes, records, events, the Lease, and nodegate's pods.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event as Reported, Pod};
use kube::api::ListParams;
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::news::{Failure, Held, News, Record, Sight, Source, Told, Withheld};
use super::node_object::NodeObject;
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::watch_objects;
use nodegate_base::pages::next_page;
use nodegate_base::telemetry::brief;
use nodegate_controller::leader::LEASE;
use nodegate_controller::tell::{observed, published};
use nodegate_policy::PendingTaints;
use nodegate_policy::api::state::SavedState;
use nodegate_stores::state::{NAME_PREFIX, STATE_KEY, is_record};

/// The pods of nodegate, as the chart labels them.
const PODS: &str = "app.kubernetes.io/name=nodegate";
/// The namespace of events about objects without a namespace.
const EVENTS_NAMESPACE: &str = "default";
/// Number of objects in one page of a list.
const PAGE: u32 = 100;
/// The shortest pause between two listings of what cannot be watched.
const PAUSE: Duration = Duration::from_secs(10);
/// How much longer the pause is than the listing took: in large clusters listings are expensive.
const PAUSE_FACTOR: u32 = 20;
/// Timeout of a request for pods.
const ANSWER: Duration = Duration::from_secs(10);

/// The pause after a listing that took this long.
pub(super) fn pause(took: Duration) -> Duration {
    PAUSE.max(took.saturating_mul(PAUSE_FACTOR))
}

/// Where news goes to.
#[derive(Clone)]
pub(super) struct Teller(pub(super) Sender<News>);

impl Teller {
    /// Waits while more is told than is taken. Nobody takes anything at the end, and then nothing need be told.
    pub(super) async fn tell(&self, news: News) {
        let _ = self.0.send(news).await;
    }
}

/// Follows nodes.
pub(super) async fn nodes(client: Client, pending: PendingTaints, teller: Teller) {
    let read = |_: Sight, node: NodeObject| vec![News::Node(node.read(&pending))];
    let gone = |node: NodeObject| Some(News::NodeGone(Arc::from(node.name_any())));
    follow(Api::all(client), Config::default(), (Source::Nodes, &teller), (&read, &gone)).await;
}

/// Follows the records of nodes, and what the leader publishes.
pub(super) async fn records(client: Client, namespace: &str, teller: Teller) {
    let gone = |map: ConfigMap| Some(News::RecordGone(map.name_any()));
    let api = Api::namespaced(client, namespace);
    follow(api, Config::default(), (Source::Records, &teller), (&record, &gone)).await;
}

fn record(sight: Sight, map: ConfigMap) -> Vec<News> {
    let name = map.name_any();
    if name == published::NAME {
        let policies = published::read_from(&map).map(|policies| News::Policies(policies.names));
        let withheld = observed::read_from(&map).map(|observed| {
            News::Withheld(Withheld { left_alone: observed.left_alone.len(), held_back: observed.held_back })
        });
        return policies.into_iter().chain(withheld).collect();
    }
    let text = map.data.as_ref().and_then(|data| data.get(STATE_KEY)).filter(|_| name.starts_with(NAME_PREFIX));
    let state = text.and_then(|text| serde_json::from_str::<SavedState>(text).ok());
    let Some(state) = state.filter(|state| is_record(&name, state)) else { return Vec::new() };
    vec![News::Record(sight, Record { config_map: name, node: state.node_name, changes: state.history })]
}

/// Follows the events that nodegate publishes.
pub(super) async fn events(client: Client, teller: Teller) {
    let api: Api<Reported> = Api::namespaced(client, EVENTS_NAMESPACE);
    let config = Config::default().fields("reportingComponent=nodegate");
    // The API server drops events after an hour, which is no news.
    let gone = |_: Reported| None;
    let read = |sight: Sight, event: Reported| told(event).map(|told| News::Event(sight, told)).into_iter().collect();
    follow(api, config, (Source::Events, &teller), (&read, &gone)).await;
}

fn told(event: Reported) -> Option<Told> {
    let Reported { series, event_time, last_timestamp, involved_object: about, reason, message, type_, .. } = event;
    let last = series.and_then(|series| series.last_observed_time);
    let time = last.or(event_time).map(|time| time.0).or(last_timestamp.map(|time| time.0))?;
    let name = about.name.unwrap_or_default();
    let about = match about.kind.as_deref() {
        Some("Node") | None => name,
        Some(kind) => format!("{kind}/{name}"),
    };
    let is_warning = type_.as_deref() == Some("Warning");
    Some(Told { time, about, reason: reason.unwrap_or_default(), note: message.unwrap_or_default(), is_warning })
}

/// Follows the Lease.
pub(super) async fn lease(client: Client, namespace: &str, teller: Teller) {
    let config = Config::default().fields(&format!("metadata.name={LEASE}"));
    let read = |_: Sight, lease: Lease| vec![News::Lease(held(lease))];
    let gone = |_: Lease| Some(News::Lease(None));
    follow(Api::namespaced(client, namespace), config, (Source::Lease, &teller), (&read, &gone)).await;
}

fn held(lease: Lease) -> Option<Held> {
    let spec = lease.spec?;
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty())?;
    let time = |time: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime>| time.map(|time| time.0);
    let seconds = spec.lease_duration_seconds.filter(|seconds| (1..=3600).contains(seconds)).unwrap_or(15);
    Some(Held { holder, since: time(spec.acquire_time), renewed: time(spec.renew_time), seconds: seconds.into() })
}

/// Counts nodegate's pods, again and again.
pub(super) async fn pods(client: Client, namespace: &str, teller: Teller) {
    let api: Api<Pod> = Api::namespaced(client, namespace);
    loop {
        let listed = timeout(ANSWER, api.list(&ListParams::default().labels(PODS))).await;
        let news = match listed {
            Ok(Ok(pods)) => News::Pods(pods.items.iter().filter(|pod| is_ready(pod)).count(), pods.items.len()),
            Ok(Err(error)) => News::Failed(Source::Pods, failure(&error)),
            Err(_) => News::Failed(Source::Pods, Failure::Other(format!("no answer in {} s", ANSWER.as_secs()))),
        };
        teller.tell(news).await;
        sleep(PAUSE).await;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What an object tells, and what its deletion tells.
type Reading<'r, K> = (&'r dyn Fn(Sight, K) -> Vec<News>, &'r dyn Fn(K) -> Option<News>);

/// Watches objects. If the user may not watch them, lists them again and again.
async fn follow<K>(api: Api<K>, config: Config, (source, teller): (Source, &Teller), reading: Reading<'_, K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = watch_objects(api.clone(), config.clone().page_size(PAGE)).boxed();
    while let Some(event) = events.next().await {
        match event {
            Err(error) if is_not_watched(&error) => break,
            Err(error) => {
                let failure = match status(&error) {
                    Some(403) => Failure::Denied,
                    Some(410) => continue,
                    _ => Failure::Other(brief(in_words(&error))),
                };
                teller.tell(News::Failed(source, failure)).await;
            }
            Ok(event) => tell_event(event, source, teller, reading).await,
        }
    }
    drop(events);
    teller.tell(News::NotWatched(source)).await;
    loop {
        let begun = Instant::now();
        sleep(pause(list(&api, &config, (source, teller), reading).await.unwrap_or_else(|| begun.elapsed()))).await;
    }
}

async fn tell_event<K>(event: Event<K>, source: Source, teller: &Teller, (read, gone): Reading<'_, K>) {
    let news = match event {
        Event::Init => vec![News::Begins(source)],
        Event::InitApply(object) => read(Sight::Listed, object),
        Event::InitDone => vec![News::Listed(source)],
        Event::Apply(object) => read(Sight::Changed, object),
        Event::Delete(object) => gone(object).into_iter().collect(),
    };
    for news in news {
        teller.tell(news).await;
    }
}

/// Lists objects once. Returns how long it took, without the time in which what was listed was told; `None` if it failed.
async fn list<K>(
    api: &Api<K>,
    config: &Config,
    (source, teller): (Source, &Teller),
    reading: Reading<'_, K>,
) -> Option<Duration>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut page = ListParams::default().limit(PAGE);
    page.field_selector.clone_from(&config.field_selector);
    let mut took = Duration::ZERO;
    tell_event(Event::<K>::Init, source, teller, reading).await;
    let mut next = Some(page);
    while let Some(page) = next {
        let begun = Instant::now();
        let listed = match api.list(&page).await {
            Ok(listed) => listed,
            Err(error) => {
                teller.tell(News::Failed(source, failure(&error))).await;
                return None;
            }
        };
        took += begun.elapsed();
        next = next_page(page, &listed.metadata);
        for object in listed.items {
            tell_event(Event::InitApply(object), source, teller, reading).await;
        }
    }
    tell_event(Event::<K>::InitDone, source, teller, reading).await;
    Some(took)
}

fn failure(error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 403 => Failure::Denied,
        error => Failure::Other(brief(in_words(error))),
    }
}

/// The code of the answer that an error is.
fn status(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Whether the objects can be listed, but not watched.
fn is_not_watched(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(_)) && status(error) == Some(403)
}
