//! What the sources tell of what an API server answers, and of answers that do not come.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};

use kube::Client;
use kube::client::Body;
use tokio::sync::mpsc;

use super::super::sources::{self, Teller};
use super::super::{replicas, survey};
use super::*;
use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;

/// An API server that gives these answers to a path with its query. Requests for which there is none are never answered.
fn api_server(answer: impl Fn(&str) -> Option<(u16, Value)> + Send + Sync + 'static) -> Client {
    let service = tower::service_fn(move |request: hyper::Request<Body>| {
        let answer = answer(&request.uri().to_string());
        async move {
            let Some((code, body)) = answer else { return pending().await };
            let body = Body::from(format!("{body}\n").into_bytes());
            Ok::<_, Infallible>(hyper::Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

fn forbidden() -> (u16, Value) {
    let message = "nodes is forbidden";
    (403, json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": message, "code": 403}))
}

fn page(items: Value) -> (u16, Value) {
    (200, json!({"metadata": {"resourceVersion": "5"}, "items": items}))
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "6"}})
}

/// What a source tells until it has told something.
async fn told(
    source: impl Future<Output = ()>,
    mut news: mpsc::Receiver<News>,
    until: impl Fn(&News) -> bool,
) -> Vec<News> {
    let mut source = pin!(source);
    let mut told = Vec::new();
    loop {
        tokio::select! {
            () = &mut source => panic!("a source does not end: {told:?}"),
            next = news.recv() => {
                let next = next.unwrap();
                let is_last = until(&next);
                told.push(next);
                if is_last {
                    return told;
                }
            }
        }
    }
}

fn teller() -> (Teller, mpsc::Receiver<News>) {
    let (sender, news) = mpsc::channel(16);
    (Teller(sender), news)
}

/// The reason of a failure that is not about rights.
fn why(news: &News, of: Source) -> Option<&str> {
    match news {
        News::Failed(source, Failure::Other(why)) if *source == of => Some(why),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_refused_is_tried_again_after_some_listings() {
    let lists = AtomicU32::new(0);
    let client = api_server(move |path| match path.contains("watch=true") {
        false => {
            lists.fetch_add(1, Ordering::Relaxed);
            Some(page(json!([named("old")])))
        }
        // The listing of the watch, and six others.
        true if lists.load(Ordering::Relaxed) < 7 => Some(forbidden()),
        true => {
            let mut node = named("new");
            node["kind"] = json!("Node");
            node["apiVersion"] = json!("v1");
            Some((200, json!({"type": "ADDED", "object": node})))
        }
    });
    let (teller, news) = teller();
    let is_new = |news: &News| matches!(news, News::Node(node) if &*node.name == "new");
    let all = told(sources::nodes(client, PendingTaints::default(), teller), news, is_new).await;
    let mut words = Vec::new();
    for news in &all {
        words.push(match news {
            News::Begins(Source::Nodes) => "begins",
            News::Listed(Source::Nodes) => "listed",
            News::NotWatched(Source::Nodes) => "not watched",
            News::Watched(Source::Nodes) => "watched",
            News::Node(_) => continue,
            other => panic!("{other:?}"),
        });
    }
    let listing = ["begins", "listed"];
    let expected = [&listing[..], &["not watched"], &listing.repeat(6), &["watched"], &listing].concat();
    assert_eq!(words, expected);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_does_not_come_is_a_failure_and_the_list_is_asked_for_again() {
    for may_watch in [true, false] {
        let lists = AtomicU32::new(0);
        // The first one of a listing that is repeated, or of a watch.
        let lost = u32::from(!may_watch);
        let client = api_server(move |path| match path.contains("watch=true") {
            false if lists.fetch_add(1, Ordering::Relaxed) == lost => None,
            false => Some(page(json!([named("old")]))),
            true if may_watch => None,
            true => Some(forbidden()),
        });
        let ((teller, mut news), mut count) = (teller(), 0);
        let mut source = pin!(sources::nodes(client, PendingTaints::default(), teller));
        let mut failures = Vec::new();
        // The listing after the failure.
        while failures.is_empty() || count < 2 {
            tokio::select! {
                () = &mut source => panic!("a source does not end"),
                next = news.recv() => {
                    let next = next.unwrap();
                    failures.extend(why(&next, Source::Nodes).map(str::to_owned));
                    count += u32::from(!failures.is_empty() && matches!(next, News::Begins(_) | News::Listed(_)));
                }
            }
        }
        assert_eq!(failures, ["no answer in 30 s"], "{may_watch}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_read_again_after_an_answer_that_does_not_come() {
    let reads = AtomicU32::new(0);
    let client = api_server(move |path| {
        assert!(path.starts_with("/apis/coordination.k8s.io/v1/namespaces/ours/leases/nodegate"), "{path}");
        let spec = json!({"holderIdentity": "pod-1_1-ab", "leaseDurationSeconds": 30});
        match reads.fetch_add(1, Ordering::Relaxed) {
            1 => None,
            _ => Some((200, json!({"metadata": {"name": "nodegate"}, "spec": spec}))),
        }
    });
    let ((teller, news), leases) = (teller(), AtomicU32::new(0));
    let is_second = |news: &News| matches!(news, News::Lease(_)) && leases.fetch_add(1, Ordering::Relaxed) == 1;
    let all = told(replicas::lease(client, "ours", teller), news, is_second).await;
    let [News::Lease(Some(held)), failure, News::Lease(Some(_))] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((held.host(), held.valid_for().as_secs()), ("pod-1", 30));
    assert_eq!(why(failure, Source::Lease), Some("no answer in 10 s"));
}

#[tokio::test(start_paused = true)]
async fn replicas_are_the_pods_with_the_labels_of_the_one_that_leads() {
    let pod = |name: &str, ready: &str| {
        let labels =
            json!({"app.kubernetes.io/name": "labels", "app.kubernetes.io/instance": "mine", "pod-template-hash": "7"});
        json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    };
    for (may_read, expected) in [(true, (1, 2)), (false, (0, 1))] {
        let client = api_server(move |path| {
            let query = path.split_once('?').map(|(_, query)| query).unwrap_or_default();
            let parameter =
                query.split('&').find(|part| part.starts_with("fieldSelector") || part.starts_with("labelSelector"));
            let lease = json!({"metadata": {"name": "nodegate"}, "spec": {"holderIdentity": "labels-7-x_1-ab"}});
            Some(match parameter {
                None if may_read => (200, lease),
                None => forbidden(),
                Some("fieldSelector=metadata.name%3Dlabels-7-x") => page(json!([pod("labels-7-x", "True")])),
                Some("labelSelector=app.kubernetes.io%2Fname%3Dlabels%2Capp.kubernetes.io%2Finstance%3Dmine") => {
                    page(json!([pod("labels-7-x", "True"), pod("labels-7-y", "False")]))
                }
                Some("labelSelector=app.kubernetes.io%2Fname%3Dnodegate") => {
                    page(json!([pod("nodegate-7-z", "False")]))
                }
                Some(other) => panic!("{other}"),
            })
        });
        let (teller, news) = teller();
        let all = told(replicas::pods(client, "ours", teller), news, |_| true).await;
        assert!(matches!(all.as_slice(), [News::Pods(ready, count)] if (*ready, *count) == expected), "{all:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn policies_that_are_published_and_cannot_be_read_are_told_as_such() {
    for (data, expected) in [
        (json!({"policies.json": "{"}), "cannot be read"),
        (json!({"policies.json": r#"{"names": ["fleet"], "hash": "x"}"#}), "fleet"),
        (json!({"controller.json": r#"{"heldBack": "too many"}"#}), "too many"),
    ] {
        let client = api_server(move |path| match path.contains("watch=true") {
            false => {
                let mut map = named("nodegate-in-force");
                map["data"] = data.clone();
                Some(page(json!([map])))
            }
            true => None,
        });
        let (teller, news) = teller();
        let all = told(sources::records(client, "ours", teller), news, |news| matches!(news, News::Published(_))).await;
        let Some(News::Published(Published { policies, withheld })) = all.last() else { panic!("{all:?}") };
        let text = match policies {
            Policies::Garbled(why) => why.clone(),
            Policies::Named(names) => names.join(", "),
            Policies::Unknown => withheld.held_back.clone().unwrap(),
        };
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_told_by_name_also_when_they_are_dropped() {
    let reported = json!({"metadata": {"name": "n1.1", "resourceVersion": "6"}, "involvedObject": {"kind": "Node", "name": "n1"},
        "reason": "LeftAlone", "message": "it", "type": "Warning", "eventTime": "2026-11-30T12:00:07.000000Z"});
    let client = api_server(move |path| {
        assert!(path.contains("fieldSelector=reportingComponent%3Dnodegate"), "{path}");
        let mut gone = reported.clone();
        gone["kind"] = json!("Event");
        gone["apiVersion"] = json!("v1");
        Some(match path.contains("watch=true") {
            false => page(json!([reported])),
            true => (200, json!({"type": "DELETED", "object": gone})),
        })
    });
    let (teller, news) = teller();
    let all = told(sources::events(client, teller), news, |news| matches!(news, News::EventGone(_))).await;
    let [_, News::Event(Sight::Listed, told), _, News::EventGone(gone)] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((&*told.event, &*told.about, told.time, &**gone), ("n1.1", "n1", at(7), "n1.1"));
}

#[tokio::test(start_paused = true)]
async fn a_comparison_of_all_nodes_that_does_not_end_is_a_failure() {
    #[derive(clap::Parser)]
    struct Served {
        #[command(flatten)]
        served: ServedArgs,
    }
    let Served { served } = clap::Parser::parse_from(["nodegate"]);
    let (kubeconfig, namespace) = (Some("absent".into()), Some("ours".to_owned()));
    let place = ConnectArgs { kubeconfig, context: None, namespace }.place(Invocation::Nodegate).unwrap().unwrap();
    let (teller, news) = teller();
    let all = told(survey::keep(api_server(|_| None), place, served, teller), news, |_| true).await;
    assert_eq!(why(&all[0], Source::Survey), Some("a comparison of all nodes was not done in 5 min"));
}
