//! A leader that asks an inventory about each node of a fleet, over HTTPS with keep-alive and ETags.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use nodegate_webhook::tls::{Certificate, Directory, Limits, Protocol, RequestBody, SubjectName, https, serve};
use tokio_util::sync::CancellationToken;

use super::control_plane::ControlPlane;
use super::{probe, replica};

/// How often the leader asks about each node.
const REFRESH: Duration = Duration::from_secs(180);
/// The permitted requests per second: the default.
const RATE: u64 = 100;

/// What the inventory was asked.
#[derive(Default)]
struct Asked {
    by_second: BTreeMap<u64, u64>,
    unchanged: u64,
}

/// Prints how the leader asks an inventory about `count` nodes, which exist, and what that costs.
pub(crate) async fn measure(plane: &ControlPlane, count: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let (_, pair) =
        Directory::open(&at.join("server"), &[SubjectName::Ip([127, 0, 0, 1].into())], jiff::Timestamp::now())
            .expect("certificates");
    let protocol = Protocol::Https(https(Certificate::new(pair), None).expect("TLS"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("https://{}/", listener.local_addr().expect("an address"));
    let asked: Arc<Mutex<Asked>> = Arc::default();
    let (begin, counted) = (Instant::now(), asked.clone());
    let service = service_fn(move |request: Request<RequestBody>| {
        let answer = answer(&request, begin, &counted);
        async { Ok::<_, Infallible>(answer) }
    });
    let stop = CancellationToken::new();
    let server = tokio::spawn(serve(listener, protocol, service, Limits::default(), Arc::new(|_| {}), stop.clone()));

    let own = at.join("credentials/cmdb");
    std::fs::create_dir_all(&own).expect("a directory");
    std::fs::write(own.join("url"), &url).expect("written");
    std::fs::copy(at.join("server/ca.crt"), own.join("ca.crt")).expect("copied");
    let policy = at.join("policy.yaml");
    let refresh = REFRESH.as_secs();
    let text = format!(
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: bench}}\nspec:\n  inventory:\n    \
         - {{name: cmdb, url: \"{url}{{node}}\", refresh: {refresh}s, allow: [\"rack.example.com/*\"]}}\n"
    );
    std::fs::write(&policy, text).expect("written");

    let leader = replica(
        plane,
        at,
        &policy,
        "leader",
        &["--inventory-credentials", &at.join("credentials").display().to_string()],
    );
    let cpu = || probe::cpu_seconds(leader.server.0.id());
    let started = (Instant::now(), cpu());
    while leader.metric("nodegate_inventory_nodes{") < count as u64 {
        assert_eq!(leader.metric("nodegate_inventory_failing{"), 0, "the inventory fails:\n{}", leader.get("/metrics"));
        assert!(
            started.0.elapsed() < Duration::from_secs(900),
            "nodegate does not ask about all nodes:\n{}",
            leader.get("/metrics")
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let took = started.0.elapsed().as_secs_f64();
    let requests = |from: u64| {
        let asked = asked.lock().expect("not poisoned");
        let seconds: Vec<u64> = asked.by_second.range(from..).map(|(_, count)| *count).collect();
        (seconds.iter().sum::<u64>(), seconds.iter().max().copied().unwrap_or_default(), asked.unchanged)
    };
    let (all, most, _) = requests(0);
    println!(
        "{count} nodes answered in {took:.0} s: {all} requests, at most {most} in one second of {RATE} allowed; \
         {:.1} s CPU time of nodegate, which also labels the nodes meanwhile; memory {:.1} MB",
        cpu() - started.1,
        leader.memory_mb()
    );

    // The labels are written, and every node is due once more.
    tokio::time::sleep(REFRESH).await;
    let (from, before, writes) = (begin.elapsed().as_secs(), cpu(), leader.metric("nodegate_writes_total{"));
    let unchanged = requests(0).2;
    tokio::time::sleep(REFRESH).await;
    let (all, most, now) = requests(from);
    println!(
        "one refresh of {refresh} s later: {all} requests, at most {most} in one second, {} of them answered with 304; \
         {:.1} s CPU time; {} node writes; memory {:.1} MB, at most {:.1} MB",
        now - unchanged,
        cpu() - before,
        leader.metric("nodegate_writes_total{") - writes,
        leader.memory_mb(),
        probe::memory_mb(leader.server.0.id(), "VmHWM:")
    );
    stop.cancel();
    let _ = server.await;
}

/// Five labels, by the number in the name of the node.
fn answer(request: &Request<RequestBody>, begin: Instant, asked: &Mutex<Asked>) -> Response<Full<Bytes>> {
    let node = request.uri().path().trim_start_matches('/');
    let tag = format!("\"{node}\"");
    let is_unchanged = request.headers().get(header::IF_NONE_MATCH).is_some_and(|known| *known == *tag);
    let mut asked = asked.lock().expect("not poisoned");
    *asked.by_second.entry(begin.elapsed().as_secs()).or_default() += 1;
    asked.unchanged += u64::from(is_unchanged);
    drop(asked);
    let response = Response::builder().header(header::ETAG, &tag);
    let (response, body) = if is_unchanged {
        (response.status(StatusCode::NOT_MODIFIED), String::new())
    } else {
        let labels: Vec<String> = ["row", "unit", "cage", "power", "asset"]
            .iter()
            .map(|key| format!("rack.example.com/{key}={node}\n"))
            .collect();
        (response, labels.concat())
    };
    response.body(Full::new(Bytes::from(body))).expect("a response")
}
