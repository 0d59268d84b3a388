//! Faults at random while kubelets join, write and come back, for `NODEGATE_CHAOS_SECONDS` (`just chaos`): afterwards every write was answered, no
//! label is lost, and no node is stuck. As in an installation, the API server goes on without an answer of nodegate (`failurePolicy: Ignore`); how
//! often it had to is printed.

mod certificates;
mod fleet;
pub(super) mod proxy;
pub(super) mod writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::block_in_place;

use self::certificates::Certificates;
use self::fleet::{Fleet, How};
use self::proxy::{Proxy, Rate};
use self::writers::{Seen, write};
use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, node, state};
use super::super::nodegate::Setup;
use super::super::random::{Random, setting};
use super::super::requester::Requester;
use super::super::rolling::{Balancer, failed_open};
use super::clock::Clock;
use super::{OWN, POLICY, delete_all, is_whole, names};
use crate::eventually::eventually;

/// A node that cannot be read stays so until it changes, and here every node must be right in the end.
const RATE: Rate = Rate { lines: 30, unreadable: 0 };
/// The number of nodes that are written, and of those that are also deleted and created again.
const NODES: usize = 24;
const RECREATED: usize = 12;
/// Connections that one fault opens.
const CONNECTIONS: usize = 200;
const SILENT: &str = "silent connections";
const WITHOUT_TLS: &str = "connections without TLS";
/// For so many seconds of faults, so many are promised.
const PROMISED: (u64, usize) = (300, 10_000);

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Stopped,
    Silent,
    WithoutTls,
    Record,
    Lease,
    SecretDeleted,
    SecretReplaced,
    CaBundle,
    Clock,
    FullDisk,
    Memory,
    ApiServer,
    Etcd,
    Older,
}

/// How often each comes, of all.
const FAULTS: [(Fault, usize); 15] = [
    (Fault::Killed, 6),
    (Fault::Stopped, 4),
    (Fault::Silent, 4),
    (Fault::WithoutTls, 4),
    (Fault::Record, 4),
    (Fault::Lease, 4),
    (Fault::SecretDeleted, 3),
    (Fault::SecretReplaced, 4),
    (Fault::CaBundle, 4),
    (Fault::Clock, 3),
    (Fault::FullDisk, 2),
    (Fault::Memory, 2),
    (Fault::ApiServer, 2),
    (Fault::Etcd, 2),
    (Fault::Older, 2),
];

impl Fault {
    fn draw(dice: &mut Random) -> Self {
        let mut left = dice.below(FAULTS.iter().map(|(_, often)| often).sum());
        for (fault, often) in FAULTS {
            match left.checked_sub(often) {
                None => return fault,
                Some(rest) => left = rest,
            }
        }
        unreachable!("it was below the sum")
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

/// Where faults happen, and how many did.
struct Breaker<'a> {
    plane: &'static ControlPlane,
    namespace: &'a str,
    nodes: &'a [String],
    fleet: Fleet<'a>,
    certificates: Certificates,
    seen: &'a Seen,
    /// The program of the version before, if it was built.
    older: Option<&'a str>,
    dice: Random,
    done: BTreeMap<&'static str, usize>,
    /// The failed calls that API servers counted that are gone, without those from before the faults.
    failed_open: f64,
}

impl Breaker<'_> {
    /// Damages the saved state of a node that is never deleted.
    async fn damage_record(&mut self) -> bool {
        let maps = config_maps(self.plane, self.namespace).await;
        let name = &self.nodes[RECREATED + self.dice.below(NODES - RECREATED)];
        let text = self.dice.pick(&["", "{", "null", "{\"nodeName\": 7}", "\u{0}\u{1}"]);
        let patch = Patch::Merge(json!({"data": {"state.json": text}}));
        // It may not be there yet.
        maps.patch(&format!("node-labels-{name}"), &PatchParams::default(), &patch).await.is_ok()
    }

    /// Says that another replica holds the Lease.
    async fn steal_lease(&self) -> bool {
        let client = self.plane.client(None).await;
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(client, self.namespace);
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "nobody"}}));
        leases.patch("nodegate", &PatchParams::default(), &patch).await.is_ok()
    }

    /// Has one fault happen at random.
    async fn act(&mut self) {
        let at = self.dice.below(fleet::COUNT);
        let fault = Fault::draw(&mut self.dice);
        let happened = match fault {
            Fault::Silent => Some((SILENT, connect(self.fleet.replica(at).ports().0, false).await)),
            Fault::WithoutTls => Some((WITHOUT_TLS, connect(self.fleet.replica(at).ports().0, true).await)),
            Fault::Record => self.damage_record().await.then_some(("records damaged", 1)),
            Fault::Lease => self.steal_lease().await.then_some(("Leases stolen", 1)),
            Fault::SecretDeleted => {
                self.certificates.delete().await;
                Some(("Secrets deleted", 1))
            }
            Fault::SecretReplaced => self.certificates.replace(&mut self.dice).await.map(|what| (what, 1)),
            Fault::CaBundle => self.certificates.mistell(&mut self.dice).await.map(|what| (what, 1)),
            Fault::Stopped => {
                self.fleet.replica(at).signal("-STOP");
                tokio::time::sleep(Duration::from_millis(self.dice.below(2500) as u64)).await;
                self.fleet.replica(at).signal("-CONT");
                Some(("replicas stopped for a while", 1))
            }
            Fault::Killed | Fault::Clock | Fault::FullDisk | Fault::Memory | Fault::Older => {
                block_in_place(|| self.replace(at, fault)).map(|what| (what, 1))
            }
            Fault::ApiServer | Fault::Etcd => {
                let length = Duration::from_millis(500 + self.dice.below(3000) as u64);
                Some((block_in_place(|| self.take_away(fault, length)), 1))
            }
        };
        if let Some((what, count)) = happened {
            *self.done.entry(what).or_default() += count;
        }
        self.fleet.assert_alive();
    }

    /// Faults of one replica, which is started anew for them.
    fn replace(&mut self, at: usize, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Clock => {
                // Without the library there is nothing to jump.
                Clock::if_possible()?;
                let hours = self.dice.pick(&[-5, -2, -1, 1, 2, 5]);
                self.fleet.replace(at, How::Clock(hours));
                Some("replicas with a wrong clock")
            }
            Fault::FullDisk => {
                self.fleet.replace(at, How::FullDisk);
                Some("replicas with a full disk")
            }
            Fault::Memory => Some(match self.fleet.starve(at, &mut self.dice) {
                true => "replicas ended by a limit of memory",
                false => "replicas short of memory",
            }),
            Fault::Older => {
                self.fleet.replace(at, How::Program(self.older?));
                std::thread::sleep(Duration::from_secs(3));
                self.fleet.replace(at, How::Usual);
                Some("replicas taken back to the version before, and upgraded")
            }
            _ => {
                self.fleet.replace(at, How::Usual);
                Some("replicas killed")
            }
        }
    }

    /// How many calls of nodegate have failed.
    fn failed_open(&self) -> f64 {
        self.failed_open + failed_open(self.plane)
    }

    /// Takes the API server or etcd away for a while.
    fn take_away(&mut self, fault: Fault, length: Duration) -> &'static str {
        let (plane, seen) = (self.plane, self.seen);
        if fault == Fault::ApiServer {
            // The next one counts from zero.
            self.failed_open = self.failed_open();
            seen.outage(|| plane.restart_api_server(length));
            return "restarts of the API server";
        }
        seen.outage(|| plane.stall_etcd(length));
        "stalls of etcd"
    }
}

/// Prints what happened, which must not be little.
fn summarize(seconds: u64, done: &BTreeMap<&'static str, usize>, seen: &Seen, (served, failed_open): (u64, f64)) {
    let [writes, denied, away] = [&seen.writes, &seen.denied, &seen.away].map(|count| count.load(Ordering::Relaxed));
    let faults: usize = done.values().sum();
    let others = faults - [SILENT, WITHOUT_TLS].iter().filter_map(|what| done.get(what)).sum::<usize>();
    done.iter().for_each(|(what, count)| eprintln!("{count:>7}  {what}"));
    eprintln!("{faults:>7}  faults in all, {others} of them other than connections");
    eprintln!("{writes:>7}  writes answered, {denied} of them denied or overtaken");
    eprintln!("{away:>7}  attempts that failed because the API server or etcd was away, and were repeated");
    eprintln!("{served:>7}  reviews of /mutate answered");
    eprintln!("{failed_open:>7}  calls of nodegate that failed, so that the API server went on without it");
    assert!(writes > 50 && others > 10 && done.len() > 3, "little was shown");
    assert!(seconds < PROMISED.0 || faults >= PROMISED.1, "{PROMISED:?} are promised");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn random_faults_lose_no_label_and_stop_no_write() {
    let (seconds, seed) = (setting("NODEGATE_CHAOS_SECONDS", 20), setting("NODEGATE_SEED", 20_261_123));
    eprintln!("NODEGATE_SEED={seed} NODEGATE_CHAOS_SECONDS={seconds}");
    let (cluster, older) = (exclusive(), std::env::var("NODEGATE_OLDER").ok());
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let (nodes, balancer): (Arc<[String]>, _) = (names("kept-chaos", NODES).into(), Balancer::start().await);
    let proxy = Proxy::start(plane, Random(seed + 9), RATE).await;
    let setup = Setup {
        policies: POLICY,
        cluster: true,
        own_certificates: true,
        behind: Some(balancer.port()),
        ..Setup::default()
    };
    let mut first = balancer.first(plane, &setup).await;
    let namespace = first.namespace.clone();
    let beside = Setup { namespace: Some(&namespace), unregistered: true, ..setup.clone() };
    let fleet = block_in_place(|| Fleet::start(plane, beside, &proxy.server, &balancer));
    for name in &*nodes {
        admin.delete(name).await;
        Requester::kubelet(plane, name).await.create(&node(name, json!({OWN: name}))).await.unwrap();
    }

    let (seen, certificates) = (Arc::new(Seen::default()), Certificates::new(plane, &namespace).await);
    let writing: Vec<_> = (1..=2)
        .map(|at| write(plane, namespace.clone(), nodes.clone(), RECREATED, seen.clone(), Random(seed + at)))
        .map(tokio::spawn)
        .collect();
    let (dice, done) = (Random(seed), BTreeMap::new());
    let mut breaker = Breaker {
        plane,
        namespace: &namespace,
        nodes: &nodes,
        fleet,
        certificates,
        seen: &seen,
        older: older.as_deref(),
        dice,
        done,
        failed_open: -failed_open(plane),
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end && !writing.iter().any(tokio::task::JoinHandle::is_finished) {
        breaker.act().await;
    }
    seen.over.store(true, Ordering::Relaxed);
    for writer in writing {
        writer.await.unwrap();
    }
    breaker.done.extend(proxy.stop());
    assert!(!first.has_ended(), "the first replica ended by itself:\n{}", first.log());
    let served = breaker.fleet.served() + first.requests("mutate");
    summarize(seconds, &breaker.done, &seen, (served, breaker.failed_open()));
    let maps = config_maps(plane, &namespace).await;
    for name in &*nodes {
        eventually(&format!("{name}: exactly as it should be, with the label that was saved"), async || {
            let node = admin.get(name).await;
            if is_whole(&node) {
                return Ok(());
            }
            let about_it = |log: String| log.lines().filter(|line| line.contains(name)).collect::<Vec<_>>().join("\n");
            let logs = [first.log()].into_iter().chain((0..fleet::COUNT).map(|at| breaker.fleet.replica(at).log()));
            let told: Vec<String> = logs.map(about_it).collect();
            Err(format!("{node:#}\n{:#}\n{}", state(&maps, name).await, told.join("\n\n")))
        })
        .await;
    }
    delete_all(&admin, &nodes).await;
}
