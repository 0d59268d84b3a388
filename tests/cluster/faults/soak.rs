//! Memory under constant load, for `NODEGATE_SOAK_MINUTES` (`just soak`): nodes join, change and go, policies change, watches break
//! so that nodes go while nobody watches, nodes arrive that cannot be read, and the cluster goes back to a backup once. After a warm-up
//! the server takes no more memory than before, and no saved label is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};
use tokio::task::block_in_place;
use tokio::time::MissedTickBehavior;

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::random::{Random, setting};
use super::super::requester::{Requester, label};
use super::chaos::proxy::{Proxy, Rate};
use super::chaos::writers::{Seen, write};
use super::{OWN, delete_all, names};

const POLICY: &str = include_str!("../keeping.yaml");
/// Nodes that stay and are written to.
const NODES: usize = 40;
/// The first half is the warm-up: the client library remembers the events that it has published for six minutes
/// (`kube_runtime::events`), so memory rises until then if nodes come and go.
const MINUTES: u64 = 12;
/// By which part the median of the last third of the time after the warm-up may exceed that of the middle third. A mean would count
/// what a single listing takes for some seconds.
const GROWTH_MAX: f64 = 0.01;
/// For how long records of nodes that are gone are kept: so short that they do not count as growth, and longer than the leader may be
/// without a node that was created again.
const RETENTION: &str = "60s";
/// Watches break for 4 of so many lines, after which everything is listed again, and 10 are of a node that cannot be read.
const RATE: Rate = Rate { lines: 1000, unreadable: 10 };
/// A leader that stands down forgets everything, which would hide what it did not forget.
const LEASE_SECONDS: u64 = 60;
/// The age of the backup to which the cluster goes back. With the time that this takes, it is shorter than a term.
const BACKUP_AGE: Duration = Duration::from_secs(20);
/// A node comes and goes in this time, so that as many records are kept at the end as before, however busy the machine is.
const PACE: Duration = Duration::from_millis(250);
/// Rows of the table.
const ROWS: usize = 15;

/// The time since the beginning, the memory at that time in MB, and how many nodes have saved state.
type Sample = (Duration, f64, usize);

fn median(samples: &[Sample]) -> f64 {
    let mut sorted: Vec<f64> = samples.iter().map(|(_, size, _)| *size).collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The samples of the middle third of the time after the warm-up, and those of the last third.
fn compared(samples: &[Sample], length: Duration) -> [&[Sample]; 2] {
    let third = length / 2 / 3;
    let since = |left: Duration| samples.partition_point(|(at, ..)| *at < length.saturating_sub(left));
    let (middle, last) = (since(third * 2), since(third));
    [&samples[middle..last], &samples[last..]]
}

fn print(samples: &[Sample]) {
    eprintln!("  second   median MB   lowest   highest   records");
    for row in samples.chunks(samples.len().div_ceil(ROWS)) {
        let sizes = || row.iter().map(|(_, size, _)| *size);
        let (lowest, highest) = (sizes().fold(f64::MAX, f64::min), sizes().fold(0.0, f64::max));
        let (begun, _, records) = row[0];
        eprintln!("{:>8}   {:>9.1}   {lowest:>6.1}   {highest:>7.1}   {records:>7}", begun.as_secs(), median(row));
    }
}

/// Waits until every node has the label that is saved, and its record has it too. The last version that the leader saw of a node may
/// have been made unreadable, so each gets another one.
async fn until_nothing_is_missing(admin: &Requester, maps: &Api<ConfigMap>, nodes: &[String]) {
    for name in nodes {
        admin.label(name, "soak.example/over", json!("")).await.unwrap();
        admin.eventually(name, "with the label that was saved", |node| label(node, OWN) == Some(name.as_str())).await;
        let has_own = |state: &Value| state["labels"][OWN] == name.as_str() && state["deletedAt"].is_null();
        eventually_state(maps, name, "the label of its node is saved", has_own).await;
    }
}

/// Nodes that join, change and go, until told to stop: every second one has a new name, the others have names that return.
async fn pass_through(plane: &'static ControlPlane, seen: Arc<Seen>, passed: Arc<AtomicUsize>) {
    let admin = Requester::admin(plane).await;
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !seen.over.load(Ordering::Relaxed) {
        pace.tick().await;
        let at = passed.fetch_add(1, Ordering::Relaxed);
        let name =
            if at.is_multiple_of(2) { format!("kept-passing-{at}") } else { format!("kept-returning-{}", at % 20) };
        let kubelet = Requester::kubelet(plane, &name).await;
        let joining = node(&name, json!({}));
        seen.write("join", || kubelet.create(&joining)).await;
        seen.write("label", || admin.label(&name, "team", json!("ml"))).await;
        admin.delete(&name).await;
    }
}

/// Changes a policy, or makes it anew, or deletes it.
fn change_policy(plane: &ControlPlane, turn: usize) {
    if turn % 5 == 4 {
        // In a backup it may be deleted already.
        plane.kubectl(&["delete", "nodepolicy", "soak", "--ignore-not-found"], None).unwrap();
        return;
    }
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "soak"},
        "spec": {"rules": [{"name": "turn", "match": {"names": ["kept-soak-*"]}, "labels": {"soak.example/turn": format!("t{turn}")}}]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&policy.to_string())).unwrap();
}

/// Samples memory about once a second until the end, and changes a policy every few seconds. During the warm-up the cluster goes back
/// to a backup.
async fn sample(
    plane: &ControlPlane,
    nodegate: &Nodegate<'_>,
    length: Duration,
    seen: &Seen,
    load: impl Fn() -> bool,
) -> Vec<Sample> {
    let (begun, mut samples) = (Instant::now(), Vec::new());
    let (mut backup, mut is_restored) = (None, false);
    while begun.elapsed() < length && load() {
        if begun.elapsed() > length / 8 && backup.is_none() {
            backup = Some(plane.back_up().await);
        }
        if let Some(backup) = backup.as_ref().filter(|_| !is_restored && begun.elapsed() > length / 8 + BACKUP_AGE) {
            block_in_place(|| seen.outage(|| plane.restore(backup)));
            is_restored = true;
        }
        if samples.len() % 7 == 6 {
            block_in_place(|| change_policy(plane, samples.len() / 7));
        }
        samples.push((begun.elapsed(), nodegate.resident_memory() as f64 / 1e6, nodegate.records()));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    samples
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: just soak"]
async fn under_constant_load_memory_does_not_grow_after_the_warm_up() {
    let minutes = setting("NODEGATE_SOAK_MINUTES", MINUTES);
    assert!(minutes >= MINUTES, "{minutes} minutes show nothing; at least {MINUTES} do");
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    // Of the retentions of several policies the longest counts, so it is in the only one.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let kept = format!("taints: [dedicated], retention: {RETENTION}}}");
    assert!(POLICY.contains("taints: [dedicated]}"));
    std::fs::write(&file, POLICY.replace("taints: [dedicated]}", &kept)).unwrap();
    let policies = [file.to_str().unwrap()];
    let proxy = Proxy::start(plane, Random(7), RATE).await;
    let setup = Setup {
        policies: &policies,
        cluster: true,
        own_certificates: true,
        api_server: Some(&proxy.server),
        lease_seconds: LEASE_SECONDS,
        ..Setup::default()
    };
    let mut nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    let nodes: Arc<[String]> = names("kept-soak", NODES).into();
    for name in &*nodes {
        admin.delete(name).await;
        Requester::kubelet(plane, name).await.create(&node(name, json!({OWN: name}))).await.unwrap();
    }
    let (seen, passed) = (Arc::new(Seen::default()), Arc::new(AtomicUsize::new(0)));
    let mut load = vec![tokio::spawn(pass_through(plane, seen.clone(), passed.clone()))];
    load.extend((1..=2).map(|at| {
        let (namespace, nodes) = (nodegate.namespace.clone(), nodes.clone());
        tokio::spawn(write(plane, namespace, nodes, NODES / 2, seen.clone(), Random(at)))
    }));
    let goes_on = || !load.iter().any(tokio::task::JoinHandle::is_finished);
    let length = Duration::from_secs(60 * minutes);
    let samples = sample(plane, &nodegate, length, &seen, goes_on).await;
    seen.over.store(true, Ordering::Relaxed);
    for one in load {
        one.await.unwrap();
    }
    assert!(!nodegate.has_ended(), "the server ended by itself:\n{}", nodegate.log());

    print(&samples);
    let (writes, reviews) = (seen.writes.load(Ordering::Relaxed), nodegate.requests("mutate"));
    let passed = passed.load(Ordering::Relaxed);
    let [before, after] = compared(&samples, length).map(median);
    let harm = proxy.stop();
    eprintln!("{harm:?}");
    assert!(!nodegate.log().contains("no longer the leader"), "it forgot everything:\n{}", nodegate.log());
    eprintln!("{writes} writes, {reviews} reviews, {passed} nodes came and went; {before:.1} MB, then {after:.1} MB");
    for done in ["watch lines cut", "watches ended by an error", "nodes made unreadable"] {
        assert!(harm.get(done).is_some_and(|times| *times > 3), "{done}: {harm:?}");
    }
    assert!(passed > 50 && reviews > 100, "there was little load, so little is shown");
    until_nothing_is_missing(&admin, &config_maps(plane, &nodegate.namespace).await, &nodes).await;
    assert!(after <= before * (1.0 + GROWTH_MAX), "memory grew from {before:.1} MB to {after:.1} MB");
    delete_all(&admin, &nodes).await;
}
