//! Watches objects of one kind.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Config, DefaultBackoff, Event, watcher};
use kube::{Api, Error, Resource};
use serde::de::DeserializeOwned;

/// The delay when the usual ones are used up.
const DELAY_MAX: Duration = Duration::from_secs(30);

/// The longest delay after a failed request. A leader must see its Lease again before it ends, also after API servers were
/// restarted one after the other.
const LONGEST: Duration = Duration::from_secs(5);

/// The usual delays, with [`LONGEST`] as their limit.
#[derive(Default)]
struct Delays(DefaultBackoff);

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|delay| delay.min(LONGEST))
    }
}

impl Backoff for Delays {
    fn reset(&mut self) {
        self.0.reset();
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
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let first = (begin(), false, DefaultBackoff::default());
    let events = stream::unfold(first, move |(mut events, lost, mut delays)| {
        if lost {
            events = begin();
        }
        async move {
            if lost {
                // The delays below begin anew with every listing.
                tokio::time::sleep(delays.next().unwrap_or(DELAY_MAX)).await;
            }
            let event = events.next().await?;
            if matches!(event, Ok(Event::Apply(_) | Event::Delete(_))) {
                delays = DefaultBackoff::default();
            }
            // Any JSON object that is no event counts as an answer of the API server in kube's client.
            let lost = matches!(event, Err(watcher::Error::WatchFailed(Error::SerdeError(_) | Error::Api(_))));
            Some((event, (events, lost, delays)))
        }
    });
    events.backoff(Delays::default())
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
        let mut delays = Delays::default();
        assert!(delays.by_ref().take(20).all(|delay| delay <= LONGEST));
        assert_eq!(delays.next(), Some(LONGEST));
        delays.reset();
        assert!(delays.next().unwrap() < LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_is_continued_without_a_listing() {
        let event = r#"{"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "6"}}}"#;
        let told = told(&[LISTED, &format!("{event}\n"), &format!("{event}\n")], 5).await;
        assert_eq!(told, ["begin", "there a", "all", "changed a", "changed a"]);
    }
}
