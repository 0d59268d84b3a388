//! Watches objects of one kind.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Config, DefaultBackoff, Event, watcher};
use kube::{Api, Error, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::kube_error::{in_words, is_expired};
use crate::telemetry::brief;

/// The longest delay before objects are listed again that were listed in vain, as they would be after each damaged event.
const RELIST_MAX: Duration = Duration::from_secs(30);

/// The longest delay after a failed request, also after API servers were restarted one after the other.
const LONGEST: Duration = Duration::from_secs(5);

/// The usual delays, none longer than a limit.
struct Delays {
    usual: DefaultBackoff,
    longest: Duration,
}

impl Delays {
    fn new(longest: Duration) -> Self {
        Self { usual: DefaultBackoff::default(), longest }
    }
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.usual.next().map_or(self.longest, |delay| delay.min(self.longest)))
    }
}

impl Backoff for Delays {
    fn reset(&mut self) {
        self.usual.reset();
    }
}

/// The failures of a watch, of which each is told once until it works again.
#[derive(Debug, Default)]
pub struct WatchFailures(Option<String>);

impl WatchFailures {
    /// Why the watch fails, in words, if that is news. That everything has to be listed again is none.
    pub fn news(&mut self, error: &watcher::Error) -> Option<String> {
        let error = (!is_expired(error)).then(|| brief(in_words(error)))?;
        self.is_news(&error).then_some(error)
    }

    /// Whether a failure, in words, is news.
    pub fn is_news(&mut self, error: &str) -> bool {
        self.0.replace(error.to_owned()).as_deref() != Some(error)
    }

    /// The watch works.
    pub fn works(&mut self) {
        self.0 = None;
    }
}

/// Lists objects, then reports every change; retries with increasing delays.
///
/// # Guarantees
/// No change is lost. After an event that cannot be read, everything is listed again: kube's watcher alone would continue
/// with the next event, and the object would be out of date until it changes again.
pub fn watch_objects<K>(api: Api<K>, config: Config) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_with(api, config, LONGEST, RELIST_MAX)
}

/// As [`watch_objects`], for what has to be known in time: no delay is longer than `longest`.
pub fn watch_objects_within<K>(
    api: Api<K>,
    config: Config,
    longest: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_with(api, config, longest, longest)
}

fn watch_with<K>(
    api: Api<K>,
    config: Config,
    longest: Duration,
    relist_max: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let first = (begin(), None, Delays::new(relist_max));
    let events = stream::unfold(first, move |(mut events, lost, mut delays)| {
        if lost.is_some() {
            events = begin();
        }
        async move {
            if let Some(lost) = lost {
                // The delays below begin anew with every listing, and have passed by now.
                tokio::time::sleep_until(lost + delays.next().unwrap_or(relist_max)).await;
            }
            let event = events.next().await?;
            if matches!(event, Ok(Event::Apply(_) | Event::Delete(_))) {
                delays.reset();
            }
            // Any JSON object that is no event counts as an answer of the API server in kube's client.
            let is_lost = matches!(event, Err(watcher::Error::WatchFailed(Error::SerdeError(_) | Error::Api(_))));
            Some((event, (events, is_lost.then(Instant::now), delays)))
        }
    });
    events.backoff(Delays::new(longest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use kube::{Client, ResourceExt as _};

    use super::*;

    /// An API server that gives these answers in order, and then none.
    fn scripted(answers: &[&str]) -> Client {
        let answers: VecDeque<String> = answers.iter().map(|text| (*text).to_owned()).collect();
        let answers = Arc::new(Mutex::new(answers));
        let service = tower::service_fn(move |_: hyper::Request<Body>| {
            let next = answers.lock().unwrap().pop_front();
            async move {
                let Some(text) = next else { return std::future::pending().await };
                Ok::<_, Infallible>(hyper::Response::new(Body::from(text.into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    async fn told(answers: &[&str], count: usize) -> Vec<String> {
        let events = watch_objects(Api::<ConfigMap>::default_namespaced(scripted(answers)), Config::default());
        let mut events = pin!(events);
        let mut told = Vec::new();
        while told.len() < count {
            told.push(match events.next().await.unwrap() {
                Ok(Event::Init) => "begin".to_owned(),
                Ok(Event::InitApply(map)) => format!("there {}", map.name_any()),
                Ok(Event::InitDone) => "all".to_owned(),
                Ok(Event::Apply(map)) => format!("changed {}", map.name_any()),
                Ok(Event::Delete(map)) => format!("gone {}", map.name_any()),
                Err(_) => "failed".to_owned(),
            });
        }
        told
    }

    const LISTED: &str =
        r#"{"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a", "resourceVersion": "1"}}]}"#;
    const AGAIN: &str =
        r#"{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b", "resourceVersion": "6"}}]}"#;

    #[test]
    fn a_failure_is_told_once_until_the_watch_works_and_listing_again_is_none() {
        let failure = |text: &str| {
            let status = kube::core::Status::failure(text, "Forbidden").with_code(403);
            watcher::Error::WatchError(Box::new(status))
        };
        let expired =
            watcher::Error::WatchError(Box::new(kube::core::Status::failure("old", "Expired").with_code(410)));
        let mut failing = WatchFailures::default();
        let told = |failing: &mut WatchFailures, error| failing.news(&error).is_some();
        assert!(
            told(&mut failing, failure("a")) && !told(&mut failing, failure("a")) && told(&mut failing, failure("b"))
        );
        assert_eq!(failing.news(&expired), None);
        assert!(!told(&mut failing, failure("b")));
        failing.works();
        assert!(told(&mut failing, failure("b")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_cannot_be_read_has_everything_listed_again() {
        for unreadable in [r#"{"type": "MODIFIED", "object": []}"#, r#"{"type": "UNHEARD", "object": {}}"#, "#"] {
            let told = told(&[LISTED, &format!("{unreadable}\n"), AGAIN], 7).await;
            assert_eq!(told, ["begin", "there a", "all", "failed", "begin", "there b", "all"], "{unreadable}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn damage_that_stays_has_objects_listed_less_and_less_often() {
        let damaged: Vec<&str> = std::iter::repeat_n([LISTED, "#\n"], 8).flatten().collect();
        let begun = tokio::time::Instant::now();
        told(&damaged, 8 * 4).await;
        assert!(begun.elapsed() > Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_long_outage_makes_no_delay_longer_than_a_leader_can_wait() {
        for longest in [LONGEST, Duration::from_secs(2)] {
            let mut delays = Delays::new(longest);
            assert!(delays.by_ref().take(20).all(|delay| delay <= longest));
            assert_eq!(delays.next(), Some(longest));
            delays.reset();
            assert!(delays.next().unwrap() < longest);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_to_be_known_in_time_is_asked_for_within_the_longest_delay_whatever_fails() {
        let longest = Duration::from_secs(1);
        let damaged = std::iter::repeat_n([LISTED, "#\n"], 8).flatten();
        let refused = r#"{"kind": "Status", "status": "Failure", "message": "not now", "reason": "X", "code": 503}"#;
        let refused = std::iter::once(LISTED).chain(std::iter::repeat_n(refused, 8));
        for answers in [damaged.collect::<Vec<_>>(), refused.collect()] {
            let api = Api::<ConfigMap>::default_namespaced(scripted(&answers));
            let mut events = pin!(watch_objects_within(api, Config::default(), longest));
            let (mut failures, begun) = (0_u32, tokio::time::Instant::now());
            while failures < 8 {
                failures += u32::from(events.next().await.unwrap().is_err());
            }
            assert!(begun.elapsed() <= longest * failures, "{:?}: {answers:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_is_continued_without_a_listing() {
        let event = r#"{"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "6"}}}"#;
        let told = told(&[LISTED, &format!("{event}\n"), &format!("{event}\n")], 5).await;
        assert_eq!(told, ["begin", "there a", "all", "changed a", "changed a"]);
    }
}
