//! Faults at random while kubelets join, write and come back, for `NODEGATE_CHAOS_SECONDS` (`just chaos`): afterwards no write has failed, no
//! label is lost, and no node is stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, node, state, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::random::Random;
use super::super::requester::{Outcome, Requester, label};
use super::super::rolling::Balancer;
use super::{POLICY, is_right, names};

/// The number of nodes that are written, and of those that are also deleted and created again.
const NODES: usize = 24;
const RECREATED: usize = 12;
/// The longest time that a write may take: both webhooks run into their timeouts, and the API server is busy.
const WRITE_MAX: Duration = Duration::from_secs(15);
/// Connections that one fault opens.
const CONNECTIONS: usize = 200;
const OWN: &str = "persist.demo/own";

fn setting(name: &str, usually: u64) -> u64 {
    std::env::var(name).ok().map_or(usually, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// What the writers have seen.
#[derive(Default)]
struct Seen {
    writes: AtomicUsize,
    denied: AtomicUsize,
    over: AtomicBool,
}

impl Seen {
    /// Counts a write. One that a policy denies, or that another one overtook, has been answered.
    fn answered(&self, what: &str, began: Instant, outcome: Outcome) -> Option<Value> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let took = began.elapsed();
        assert!(took < WRITE_MAX, "a write took {took:?}: {what}");
        match outcome {
            Ok(node) => Some(node),
            Err(refusal) => {
                assert!(
                    matches!(refusal.code, 403 | 404 | 409),
                    "a write failed: {what}: {} {}",
                    refusal.code,
                    refusal.message
                );
                self.denied.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// Kubelets and people, one write after the other.
async fn write(plane: &'static ControlPlane, namespace: &str, names: &[String], seen: &Seen, mut dice: Random) {
    let (admin, maps) = (Requester::admin(plane).await, config_maps(plane, namespace).await);
    let mut saved = BTreeSet::new();
    while !seen.over.load(Ordering::Relaxed) {
        let at = dice.below(names.len());
        let (name, began) = (&names[at], Instant::now());
        let kubelet = Requester::kubelet(plane, name).await;
        let (what, outcome) = match dice.below(7) {
            0 | 1 => ("status", kubelet.merge_status(name, json!({"status": {"phase": "Running"}})).await),
            2 => (
                "forged label",
                kubelet.merge_status(name, json!({"metadata": {"labels": {"hardware.tier": "forged"}}})).await,
            ),
            3 => ("removed label", admin.label(name, "hardware.tier", Value::Null).await),
            4 => (
                "a label that a rule reads",
                admin.label(name, "team", json!((dice.below(2) == 0).then_some("ml"))).await,
            ),
            5 => ("another label", admin.label(name, "chaos.example/n", json!(dice.below(100).to_string())).await),
            _ if at < RECREATED && saved.contains(name) => {
                admin.delete(name).await;
                ("created again", kubelet.create(&node(name, json!({}))).await)
            }
            _ => {
                // A label that is not saved yet would be lost rightly.
                if state(&maps, name).await["labels"][OWN] == json!(name) {
                    saved.insert(name.clone());
                }
                continue;
            }
        };
        seen.answered(&format!("{what} of {name}"), began, outcome);
    }
}

/// Opens many connections that say nothing, or nothing that is TLS, and drops them.
async fn connect(port: u16, speak: bool) -> usize {
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
            if speak {
                let _ = stream.write_all(b"POST /mutate HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello").await;
            }
            open.push(stream);
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    open.len()
}

/// Damages the saved state of a node that is never deleted.
async fn damage(plane: &ControlPlane, namespace: &str, name: &str, dice: &mut Random) {
    let maps = config_maps(plane, namespace).await;
    let text = ["", "{", "null", "{\"nodeName\": 7}", "\u{0}\u{1}"][dice.below(5)];
    let patch = json!({"data": {"state.json": text}});
    // It may not be there yet.
    let _ = maps.patch(&format!("node-labels-{name}"), &PatchParams::default(), &Patch::Merge(patch)).await;
}

/// Says that another replica holds the Lease.
async fn steal_lease(plane: &ControlPlane, namespace: &str) {
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(plane.client(None).await, namespace);
    let patch = json!({"spec": {"holderIdentity": "nobody"}});
    let _ = leases.patch("nodegate", &PatchParams::default(), &Patch::Merge(patch)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn random_faults_lose_no_label_and_stop_no_write() {
    let (seconds, seed) = (setting("NODEGATE_CHAOS_SECONDS", 20), setting("NODEGATE_SEED", 20_261_123));
    eprintln!("NODEGATE_SEED={seed} NODEGATE_CHAOS_SECONDS={seconds}");
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let (nodes, balancer) = (names("kept-chaos", NODES), Balancer::start().await);
    let setup = Setup {
        policies: POLICY,
        cluster: true,
        own_certificates: true,
        behind: Some(balancer.port()),
        ..Setup::default()
    };
    let mut first = Nodegate::start_unregistered(plane, &setup);
    balancer.add(&first);
    first.register(&setup);
    until_led(&first).await;
    let namespace = first.namespace.clone();
    let beside = Setup { namespace: Some(&namespace), unregistered: true, ..setup.clone() };
    let mut replicas = [Nodegate::start(plane, &beside), Nodegate::start(plane, &beside)];
    replicas.iter().for_each(|replica| balancer.add(replica));
    for name in &nodes {
        admin.delete(name).await;
        Requester::kubelet(plane, name).await.create(&node(name, json!({OWN: name}))).await.unwrap();
    }

    let (seen, mut faults) = (Seen::default(), BTreeMap::<&str, usize>::new());
    let writing = (0..2).map(|at| write(plane, &namespace, &nodes, &seen, Random(seed + 1 + at)));
    let breaking = async {
        let (end, mut dice) = (Instant::now() + Duration::from_secs(seconds), Random(seed));
        while Instant::now() < end {
            let at = dice.below(replicas.len());
            let (fault, count) = match dice.below(8) {
                0 | 1 => {
                    tokio::task::block_in_place(|| replicas[at].kill());
                    balancer.remove(&replicas[at]);
                    replicas[at] = tokio::task::block_in_place(|| Nodegate::start(plane, &beside));
                    balancer.add(&replicas[at]);
                    ("killed", 1)
                }
                2 => {
                    replicas[at].signal("-STOP");
                    tokio::time::sleep(Duration::from_millis(dice.below(2500) as u64)).await;
                    replicas[at].signal("-CONT");
                    ("stopped for a while", 1)
                }
                3 => ("silent connections", connect(replicas[at].ports().0, false).await),
                4 => ("connections without TLS", connect(replicas[at].ports().0, true).await),
                5 => {
                    let name = &nodes[RECREATED + dice.below(NODES - RECREATED)];
                    damage(plane, &namespace, name, &mut dice).await;
                    ("damaged records", 1)
                }
                6 => {
                    steal_lease(plane, &namespace).await;
                    ("stolen Leases", 1)
                }
                _ => {
                    let _ = plane.kubectl(&["delete", "secret", "nodegate-tls", "-n", &namespace], None);
                    ("deleted certificates", 1)
                }
            };
            *faults.entry(fault).or_default() += count;
        }
        seen.over.store(true, Ordering::Relaxed);
    };
    tokio::join!(breaking, futures_util::future::join_all(writing));

    let (writes, denied) = (seen.writes.load(Ordering::Relaxed), seen.denied.load(Ordering::Relaxed));
    let served: u64 = replicas.iter().chain([&first]).map(|replica| replica.requests("mutate")).sum();
    eprintln!(
        "faults: {faults:?}; {writes} writes, {denied} of them denied or overtaken; {served} reviews by the replicas that are left"
    );
    assert!(writes > 50 && faults.values().sum::<usize>() > CONNECTIONS, "little was shown");
    for name in &nodes {
        let node = admin.eventually(name, "exactly as it should be", is_right).await;
        assert_eq!(label(&node, OWN), Some(name.as_str()), "a persisted label was lost");
        admin.delete(name).await;
    }
}
