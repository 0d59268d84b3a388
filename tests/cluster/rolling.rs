//! No admission call fails while replicas come and go, the leader changes and certificates are rotated.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{is_pending, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::eventually;

/// A backend: its webhook's and its probe's port, and whether it was ready when last asked.
type Backend = (u16, u16, bool);

/// A balancer that sends connections to backends that are ready, and learns of that once a second.
pub(super) struct Balancer {
    port: u16,
    backends: Arc<Mutex<Vec<Backend>>>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

async fn is_ready(probe: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", probe)).await else { return false };
    let _ = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer.starts_with("HTTP/1.1 200")
}

impl Balancer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let backends: Arc<Mutex<Vec<Backend>>> = Arc::default();
        let (polled, served) = (backends.clone(), backends.clone());
        let poll = tokio::spawn(async move {
            loop {
                let known = polled.lock().unwrap().clone();
                for (webhook, probe, _) in known {
                    let ready = is_ready(probe).await;
                    let mut backends = polled.lock().unwrap();
                    backends.iter_mut().filter(|backend| backend.0 == webhook).for_each(|backend| backend.2 = ready);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let turn = AtomicUsize::new(0);
        let accept = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let ready: Vec<u16> =
                    served.lock().unwrap().iter().filter(|backend| backend.2).map(|backend| backend.0).collect();
                let Some(port) = ready.get(turn.fetch_add(1, Ordering::Relaxed) % ready.len().max(1)).copied() else {
                    continue;
                };
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { port, backends, tasks: vec![poll.abort_handle(), accept.abort_handle()] }
    }

    /// The port that it listens on.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn add(&self, nodegate: &Nodegate<'_>) {
        let (webhook, probe) = nodegate.ports();
        self.backends.lock().unwrap().push((webhook, probe, true));
    }

    /// Starts the first replica. It registers and is called through the balancer, which therefore has to know it before.
    pub(super) async fn first<'a>(&self, plane: &'a ControlPlane, setup: &Setup<'_>) -> Nodegate<'a> {
        let mut first = Nodegate::start_unregistered(plane, setup);
        self.add(&first);
        first.register(setup);
        until_led(&first).await;
        first
    }

    /// Forgets a backend that has ended.
    pub(super) fn remove(&self, nodegate: &Nodegate<'_>) {
        self.backends.lock().unwrap().retain(|(webhook, ..)| *webhook != nodegate.ports().0);
    }
}

/// Admission calls to nodegate that failed so far, by the API server's own counters.
pub(super) fn failed_calls(plane: &ControlPlane) -> f64 {
    counted(plane, &["fail_open", "rejection"])
}

/// Admission calls to nodegate that failed since the API server started, so that it went on without nodegate's answer.
pub(super) fn failed_open(plane: &ControlPlane) -> f64 {
    counted(plane, &["fail_open"])
}

fn counted(plane: &ControlPlane, what: &[&str]) -> f64 {
    let metrics = plane.kubectl(&["get", "--raw", "/metrics"], None).unwrap();
    let names: Vec<String> = what.iter().map(|what| format!("apiserver_admission_webhook_{what}_count")).collect();
    let ours = |line: &&str| names.iter().any(|name| line.starts_with(name)) && line.contains("nodegate");
    metrics.lines().filter(ours).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// What the API server logged of calls that failed.
fn said_of_calls(plane: &ControlPlane) -> String {
    let log = plane.api_server_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("alling webhook")).collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Nodes that join one after the other until told to stop; how many did.
async fn join_until(plane: &'static ControlPlane, prefix: &'static str, stop: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("{prefix}-{count}");
        let kubelet = Requester::kubelet(plane, &name).await;
        kubelet.create(&node(&name, json!({}))).await.unwrap();
        count += 1;
    }
    count
}

async fn all_right(admin: &Requester, prefix: &str, count: usize) {
    for at in 0..count {
        let name = format!("{prefix}-{at}");
        admin
            .eventually(&name, "as it should be", |node| {
                label(node, "node-role.kubernetes.io/worker").is_some()
                    && taints(node).contains(&"fleet=kept:NoSchedule".to_owned())
                    && !is_pending(node)
            })
            .await;
        admin.delete(&name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_replicas_leaders_and_certificates_change() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let balancer = Balancer::start().await;
    let setup = Setup {
        policies: &["tests/cluster/keeping.yaml"],
        cluster: true,
        own_certificates: true,
        behind: Some(balancer.port),
        ..Setup::default()
    };
    let mut first = balancer.first(plane, &setup).await;
    let namespace = first.namespace.clone();
    let beside = Setup { namespace: Some(&namespace), unregistered: true, ..setup.clone() };
    let mut second = Nodegate::start(plane, &beside);
    balancer.add(&second);
    tokio::time::sleep(Duration::from_secs(2)).await;

    let (before, stop) = (failed_calls(plane), Arc::new(AtomicBool::new(false)));
    let joining = tokio::spawn(join_until(plane, "kept-roll", stop.clone()));
    // A rolling restart: the leader goes first, then the other.
    let third = Nodegate::start(plane, &beside);
    balancer.add(&third);
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::task::block_in_place(|| first.terminate());
    let fourth = Nodegate::start(plane, &beside);
    balancer.add(&fourth);
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::task::block_in_place(|| second.terminate());
    // Another CA, made when somebody deletes the Secret; it is in every `caBundle` before a certificate of it is served.
    let bundle = |plane: &ControlPlane| {
        plane
            .kubectl(
                &[
                    "get",
                    "mutatingwebhookconfiguration",
                    "nodegate",
                    "-o",
                    "jsonpath={.webhooks[0].clientConfig.caBundle}",
                ],
                None,
            )
            .unwrap()
    };
    let known = bundle(plane);
    plane.kubectl(&["delete", "secret", "nodegate-tls", "-n", &namespace], None).unwrap();
    eventually("a new CA is published", async || bundle(plane) != known).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.store(true, Ordering::Relaxed);
    let joined = joining.await.unwrap();
    assert!(joined > 50, "only {joined} nodes joined, so little was shown");
    let failed = failed_calls(plane) - before;
    eprintln!("{joined} nodes joined, {failed} calls failed");
    assert!(failed < 0.5, "{failed} calls failed while {joined} nodes joined:\n{}", said_of_calls(plane));
    all_right(&admin, "kept-roll", joined).await;

    // Killed: what was sent to it before the balancer noticed may be lost, and every node is right soon after.
    let (mut third, stop) = (third, Arc::new(AtomicBool::new(false)));
    let joining = tokio::spawn(join_until(plane, "kept-kill", stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    third.kill();
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.store(true, Ordering::Relaxed);
    all_right(&admin, "kept-kill", joining.await.unwrap()).await;
}
