//! Follows what can be watched: nodes, records and events.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Event as Reported};
use kube::api::{ListParams, WatchParams};
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::news::{Failure, News, Policies, Published, Record, Sight, Source, Told, Withheld};
use super::node_object::NodeObject;
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::watch_objects;
use nodegate_base::pages::next_page;
use nodegate_base::telemetry::brief;
use nodegate_controller::tell::{observed, published};
use nodegate_policy::PendingTaints;
use nodegate_policy::api::state::SavedState;
use nodegate_stores::state::{NAME_PREFIX, STATE_KEY, is_record};

/// The namespace of events about objects without a namespace.
const EVENTS_NAMESPACE: &str = "default";
/// Number of objects in one page of a list.
const PAGE: u32 = 100;
/// The shortest pause between two listings of what cannot be watched.
pub(super) const PAUSE: Duration = Duration::from_secs(10);
/// How much longer the pause is than the listing took: in large clusters listings are expensive.
const PAUSE_FACTOR: u32 = 20;
/// After how many listings somebody who was not allowed to watch tries it again.
const LISTINGS: u32 = 6;
/// Timeout of a request whose answer is small.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// Timeout of a request for a page of a list.
const PAGE_ANSWER: Duration = Duration::from_secs(30);
/// How long a watch lasts, in seconds. A connection that is gone without a word is noticed a few seconds later.
const WATCH_SECONDS: u32 = 60;

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
        let policies = match published::read_from(&map) {
            Ok(policies) => policies.map_or(Policies::Unknown, |policies| Policies::Named(policies.names)),
            Err(error) => Policies::Garbled(brief(error)),
        };
        let observed = observed::read_from(&map).unwrap_or_default();
        let withheld = Withheld { left_alone: observed.left_alone.len(), held_back: observed.held_back };
        return vec![News::Published(Published { policies, withheld })];
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
    let gone = |event: Reported| Some(News::EventGone(event.name_any()));
    let read = |sight: Sight, event: Reported| told(event).map(|told| News::Event(sight, told)).into_iter().collect();
    follow(api, config, (Source::Events, &teller), (&read, &gone)).await;
}

fn told(event: Reported) -> Option<Told> {
    let named = event.name_any();
    let Reported { series, event_time, last_timestamp, involved_object: about, reason, message, type_, .. } = event;
    let last = series.and_then(|series| series.last_observed_time);
    let time = last.or(event_time).map(|time| time.0).or(last_timestamp.map(|time| time.0))?;
    let name = about.name.unwrap_or_default();
    let about = match about.kind.as_deref() {
        Some("Node") | None => name,
        Some(kind) => format!("{kind}/{name}"),
    };
    let is_warning = type_.as_deref() == Some("Warning");
    let (reason, note) = (reason.unwrap_or_default(), message.unwrap_or_default());
    Some(Told { event: named, time, about, reason, note, is_warning })
}

/// What an object tells, and what its deletion tells.
type Reading<'r, K> = (&'r dyn Fn(Sight, K) -> Vec<News>, &'r dyn Fn(K) -> Option<News>);

/// Watches objects. While the user may not watch them, lists them again and again.
async fn follow<K>(api: Api<K>, config: Config, (source, teller): (Source, &Teller), reading: Reading<'_, K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    loop {
        watch(&api, &config, (source, teller), reading).await;
        teller.tell(News::NotWatched(source)).await;
        list_often(&api, &config, (source, teller), reading).await;
        teller.tell(News::Watched(source)).await;
    }
}

/// Watches objects until the user may not.
async fn watch<K>(api: &Api<K>, config: &Config, (source, teller): (Source, &Teller), reading: Reading<'_, K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let begin = || watch_objects(api.clone(), config.clone().page_size(PAGE).timeout(WATCH_SECONDS)).boxed();
    let (mut events, mut is_listing) = (begin(), false);
    loop {
        let next = if is_listing { timeout(PAGE_ANSWER, events.next()).await } else { Ok(events.next().await) };
        let Ok(next) = next else {
            teller.tell(News::Failed(source, no_answer(PAGE_ANSWER))).await;
            (events, is_listing) = (begin(), false);
            continue;
        };
        let Some(event) = next else { return };
        is_listing = matches!(event, Ok(Event::Init | Event::InitApply(_)));
        match event {
            Err(error) if is_not_watched(&error) => return,
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
}

/// Lists objects again and again, until the user may watch them.
async fn list_often<K>(api: &Api<K>, config: &Config, told: (Source, &Teller), reading: Reading<'_, K>)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    loop {
        for left in (0..LISTINGS).rev() {
            let begun = Instant::now();
            let listed = list(api, config, told, reading).await;
            let took = listed.as_ref().map_or_else(|| begun.elapsed(), |(took, _)| *took);
            sleep(pause(took)).await;
            if let (0, Some((_, version))) = (left, listed)
                && may_watch(api, config, &version).await
            {
                return;
            }
        }
    }
}

/// Whether the API server begins a watch.
async fn may_watch<K>(api: &Api<K>, config: &Config, version: &str) -> bool
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut parameters = WatchParams::default().timeout(1);
    parameters.field_selector.clone_from(&config.field_selector);
    answered(ANSWER, api.watch(&parameters, version)).await.is_ok()
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

/// Lists objects once. Returns how long it took, without the time in which what was listed was told, and the version that a
/// watch continues from; `None` if it failed.
async fn list<K>(
    api: &Api<K>,
    config: &Config,
    (source, teller): (Source, &Teller),
    reading: Reading<'_, K>,
) -> Option<(Duration, String)>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut page = ListParams::default().limit(PAGE);
    page.field_selector.clone_from(&config.field_selector);
    let (mut took, mut version) = (Duration::ZERO, None);
    tell_event(Event::<K>::Init, source, teller, reading).await;
    let mut next = Some(page);
    while let Some(page) = next {
        let begun = Instant::now();
        let listed = match answered(PAGE_ANSWER, api.list(&page)).await {
            Ok(listed) => listed,
            Err(failure) => {
                teller.tell(News::Failed(source, failure)).await;
                return None;
            }
        };
        took += begun.elapsed();
        version = version.or(listed.metadata.resource_version.clone());
        next = next_page(page, &listed.metadata);
        for object in listed.items {
            tell_event(Event::InitApply(object), source, teller, reading).await;
        }
    }
    tell_event(Event::<K>::InitDone, source, teller, reading).await;
    Some((took, version.unwrap_or_default()))
}

/// The answer to a request, which fails if there is none in time.
pub(super) async fn answered<T>(
    within: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match timeout(within, request).await {
        Ok(answer) => answer.map_err(|error| failure(&error)),
        Err(_) => Err(no_answer(within)),
    }
}

fn no_answer(within: Duration) -> Failure {
    Failure::Other(format!("no answer in {} s", within.as_secs()))
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
