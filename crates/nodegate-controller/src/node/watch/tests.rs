use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use kube::Client;
use kube::client::Body;

use super::*;

/// The API server's answers, in order, and the requests it received.
type Script = Arc<Mutex<(VecDeque<(u16, String)>, Vec<String>)>>;

fn scripted(answers: &[(u16, &str)]) -> (NodeApi, Script) {
    let answers = answers.iter().map(|(code, text)| (*code, (*text).to_owned())).collect();
    let script = Script::new(Mutex::new((answers, Vec::new())));
    let server = script.clone();
    let service = tower::service_fn(move |request: hyper::Request<Body>| {
        let server = server.clone();
        async move {
            let next = {
                let mut script = server.lock().unwrap();
                script.1.push(request.uri().to_string());
                script.0.pop_front()
            };
            // After the last answer it does not answer anymore.
            let Some((code, text)) = next else { return std::future::pending().await };
            let answer = hyper::Response::builder().status(code).body(Body::from(text.into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    (NodeApi::new(Client::new(service, "default")), script)
}

fn told(seen: WatchEvent) -> String {
    let name = |read: Read| match read {
        Ok(node) => format!("{} {}", node.name(), node.resource_version()),
        Err(unreadable) => format!("unreadable {}", unreadable.name),
    };
    match seen {
        WatchEvent::Begin => "begin".to_owned(),
        WatchEvent::There(read) => format!("there {}", name(read)),
        WatchEvent::All(_) => "all".to_owned(),
        WatchEvent::Watching => "watching".to_owned(),
        WatchEvent::Changed(read) => format!("changed {}", name(read)),
        WatchEvent::Gone(read) => format!("gone {}", name(read)),
        WatchEvent::Failed(error) => format!("failed: {error}"),
    }
}

/// All of each node is read.
fn whole() -> (fn() -> Arc<Paths>, Receiver<u64>) {
    (|| Arc::new(Paths::Whole), tokio::sync::watch::channel(0).1)
}

/// The events until the API server does not answer anymore, and the requests it received.
async fn follow_all(answers: &[(u16, &str)]) -> (Vec<String>, Vec<String>) {
    let (nodes, script) = scripted(answers);
    let mut seen = Vec::new();
    {
        let mut following =
            std::pin::pin!(follow(&nodes, whole(), Duration::from_secs(30), |one| seen.push(told(one))));
        while script.lock().unwrap().1.len() <= answers.len() {
            assert!(following.as_mut().now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let asked = script.lock().unwrap().1.clone();
    (seen, asked)
}

fn node(name: &str, version: u32) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#)
}

fn list(metadata: &str, items: &[String]) -> String {
    format!(r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{metadata},"items":[{}]}}"#, items.join(","))
}

fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

#[tokio::test(start_paused = true)]
async fn all_pages_are_read_and_then_changes_are_watched_from_the_version_of_the_listing() {
    let first = list(r#"{"resourceVersion":"9","continue":"more","remainingItemCount":1}"#, &[node("a", 1)]);
    let second = list(r#"{"resourceVersion":"9"}"#, &[node("b", 2)]);
    let changes =
        [event("MODIFIED", &node("a", 10)), event("BOOKMARK", &node("", 12)), event("DELETED", &node("b", 13))];
    let (seen, asked) = follow_all(&[(200, &first), (200, &second), (200, &changes.concat())]).await;
    let expected = ["begin", "there a 1", "there b 2", "all", "watching", "changed a 10", "gone b 13"];
    assert_eq!(seen, expected);
    assert!(!asked[0].contains("continue=") && asked[1].contains("continue=more"), "{asked:?}");
    assert!(asked[2].contains("watch=true") && asked[2].contains("resourceVersion=9"), "{asked:?}");
    assert!(asked[3].contains("resourceVersion=13"), "it resumes from the last version:  {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_read_does_not_affect_other_nodes() {
    let broken = r#"{"metadata":{"name":"bad","resourceVersion":"3","labels":[1]}}"#;
    let listed = list(r#"{"resourceVersion":"9"}"#, &[node("a", 1), broken.to_owned(), node("b", 2)]);
    let changes = [event("MODIFIED", broken), event("MODIFIED", &node("b", 10))].concat();
    let (seen, _) = follow_all(&[(200, &listed), (200, &changes)]).await;
    let expected =
        ["begin", "there a 1", "there unreadable bad", "there b 2", "all", "watching", "changed unreadable bad"];
    assert_eq!(seen[..7], expected);
    assert_eq!(seen[7], "changed b 10");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_arrives_damaged_is_asked_for_again() {
    let listed = list(r#"{"resourceVersion":"9"}"#, &[node("a", 1)]);
    let whole = event("MODIFIED", &node("a", 10));
    let cut = format!("{}\n", &whole[..whole.len() - 5]);
    for damaged in [cut.as_str(), "{\"type\":\"MODIFIED\",\"object\":[]}\n", "#\n"] {
        let after = [damaged, &event("MODIFIED", &node("b", 11))].concat();
        let (seen, asked) = follow_all(&[(200, &listed), (200, &after), (200, &whole)]).await;
        assert_eq!(seen[..4], ["begin", "there a 1", "all", "watching"], "{damaged}");
        assert!(seen[4].starts_with("failed") && seen[5..] == ["watching", "changed a 10"], "{damaged}: {seen:?}");
        assert!(asked[2].contains("resourceVersion=9"), "{damaged}: {asked:?}");
    }
    // Nothing says which node changed: no other event may hide that.
    for damaged in ["{\"type\":\"MODIFIED\",\"object\":[]}\n", "#\n", "{\"type\":\"UNHEARD\",\"object\":{}}\n"] {
        let after = [damaged, &event("MODIFIED", &node("b", 11))].concat();
        let (seen, asked) = follow_all(&[(200, &listed), (200, &after), (200, &after), (200, &listed)]).await;
        assert!(seen.iter().filter(|what| *what == "begin").count() == 2, "{damaged}: {seen:?}");
        assert!(!seen.contains(&"changed b 11".to_owned()) && asked.len() >= 4, "{damaged}: {seen:?}");
    }
    // The API server itself sends it so: the others must not wait for it.
    let after = [cut.as_str(), &event("MODIFIED", &node("b", 11))].concat();
    let (seen, _) = follow_all(&[(200, &listed), (200, &after), (200, &after)]).await;
    assert_eq!(seen[5..], ["watching", "changed unreadable a", "changed b 11"]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_is_listed_again_and_a_broken_connection_is_resumed() {
    let page = list(r#"{"resourceVersion":"9","continue":"more"}"#, &[node("a", 1)]);
    let whole = list(r#"{"resourceVersion":"20"}"#, &[node("a", 1)]);
    let expired = r#"{"kind":"Status","message":"The provided continue parameter is too old","code":410}"#;
    let too_old = event("ERROR", r#"{"kind":"Status","message":"too old resource version: 20 (30)","code":410}"#);
    let busy = r#"{"kind":"Status","message":"too many requests","code":429}"#;
    let script: [(u16, &str); 7] = [
        (200, &page),
        (410, expired),
        (200, &whole[..whole.len() - 9]),
        (200, &whole),
        (429, busy),
        (200, &too_old),
        (200, &whole),
    ];
    let (seen, asked) = follow_all(&script).await;
    let of = |text: &str| seen.iter().filter(|seen| seen.contains(text)).count();
    assert_eq!(
        (of("begin"), of("all"), of("continue parameter is too old"), of("is incomplete")),
        (4, 2, 1, 1),
        "{seen:?}"
    );
    assert_eq!((of("too many requests"), of("too old resource version"), of("watching")), (1, 1, 1), "{seen:?}");
    assert!(asked[5].contains("resourceVersion=20"), "after 429 it resumes from the same version: {asked:?}");
    assert!(!asked[6].contains("watch=true") && asked[7].contains("watch=true"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_watch_that_worked_the_delays_begin_anew_and_none_exceeds_the_longest() {
    let listed = list(r#"{"resourceVersion":"9"}"#, &[node("a", 1)]);
    let busy = r#"{"kind":"Status","message":"too many requests","code":429}"#;
    let change = event("MODIFIED", &node("a", 10));
    let failing = [(429, busy); 12];
    let script: Vec<(u16, &str)> =
        [(200, &*listed)].into_iter().chain(failing).chain([(200, &*change), (429, busy), (429, busy)]).collect();
    let (nodes, _) = scripted(&script);
    let longest = Duration::from_secs(5);
    let failed = Mutex::new(Vec::new());
    let note = |one| {
        if matches!(one, WatchEvent::Failed(_)) {
            failed.lock().unwrap().push(tokio::time::Instant::now());
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(120), follow(&nodes, whole(), longest, note)).await;
    let failed = failed.into_inner().unwrap();
    assert_eq!(failed.len(), 14, "{failed:?}");
    let pauses: Vec<Duration> = failed.windows(2).map(|two| two[1] - two[0]).collect();
    // Jitter makes no delay longer than the longest.
    assert!(pauses.iter().all(|pause| *pause <= longest + Duration::from_millis(1)), "{pauses:?}");
    assert!(pauses[8] >= longest, "they increase: {pauses:?}");
    assert!(pauses[12] < Duration::from_secs(2), "they begin anew: {pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn when_more_of_nodes_is_wanted_they_are_listed_again_and_when_less_is_they_are_not() {
    let node = r#"{"metadata":{"name":"a","resourceVersion":"1"},"status":{"images":[1],"phase":"x"}}"#;
    let listed = list(r#"{"resourceVersion":"9"}"#, &[node.to_owned()]);
    let (nodes, script) = scripted(&[(200, &listed)]);
    let of = |field: &str| Arc::new(Paths::Whole.under(&["status", field]));
    let (wanted, policies) = (Mutex::new(of("phase")), tokio::sync::watch::Sender::new(0));
    let parts = (|| wanted.lock().unwrap().clone(), policies.subscribe());
    let want = |parts| {
        *wanted.lock().unwrap() = parts;
        policies.send_modify(|changes| *changes += 1);
    };
    let kept = Mutex::new(Vec::new());
    let note = |one| match one {
        WatchEvent::There(Ok(node)) => kept.lock().unwrap().push(node.text().json().to_owned()),
        WatchEvent::All(parts) => kept.lock().unwrap().push(format!("{parts:?}")),
        _ => {}
    };
    let mut following = std::pin::pin!(follow(&nodes, parts, Duration::from_secs(30), note));
    let mut until_asked = async |requests: usize| {
        while script.lock().unwrap().1.len() < requests {
            assert!(following.as_mut().now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(following.as_mut().now_or_never().is_none());
    };
    until_asked(2).await;
    want(Arc::default());
    until_asked(2).await;
    script.lock().unwrap().0.push_back((200, listed.clone()));
    want(of("images"));
    until_asked(4).await;
    let requests = script.lock().unwrap().1.clone();
    let watches: Vec<bool> = requests.iter().map(|request| request.contains("watch=true")).collect();
    assert_eq!(watches, [false, true, false, true], "{requests:?}");
    let kept = kept.lock().unwrap();
    assert!(kept[0].contains("phase") && !kept[0].contains("images") && kept[1].contains("phase"), "{kept:?}");
    assert!(kept[2].contains("images") && !kept[2].contains("phase") && kept[3].contains("images"), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn when_the_api_server_answers_again_the_watch_does_not_wait() {
    let listed = list(r#"{"resourceVersion":"9"}"#, &[node("a", 1)]);
    let (nodes, script) = scripted(&[(200, &listed), (429, r#"{"kind":"Status","message":"busy","code":429}"#)]);
    let mut following = std::pin::pin!(follow(&nodes, whole(), Duration::from_secs(30), |_| {}));
    let mut asked_within = async |turns: usize| {
        for _ in 0..turns {
            assert!(following.as_mut().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        script.lock().unwrap().1.len()
    };
    let begun = tokio::time::Instant::now();
    assert_eq!(asked_within(200).await, 2, "it sleeps after the failure");
    // Before the first answer nothing counts as a failure.
    api_server::answered();
    assert_eq!(asked_within(200).await, 2, "nothing has changed");
    api_server::failed(&"refused");
    api_server::answered();
    assert_eq!(asked_within(200).await, 3);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}
