//! Clocks that jump. Debian's `libfaketime` lies to nodegate about the time of day, not about how much of it passes.

use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use serde_json::json;
use tempfile::TempDir;

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, label};
use super::super::rolling::failed_calls;
use super::{POLICY, all_right, delete_all, join_all, names};
use crate::required::{Run, required};

/// The library, if it is there: where `NODEGATE_FAKETIME` says, or where Debian puts it.
fn found() -> Option<PathBuf> {
    let given = std::env::var_os("NODEGATE_FAKETIME").map(PathBuf::from);
    let architectures = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let installed = architectures.map(|architecture| architecture.path().join("faketime/libfaketimeMT.so.1"));
    given.into_iter().chain(installed).find(|library| library.is_file())
}

/// The library, which must be there where everything has to be tested.
fn library() -> Option<PathBuf> {
    let missing = "there is no libfaketime; install Debian's package, or name its library in NODEGATE_FAKETIME";
    required(found(), Run::Gate, missing)
}

/// The clock of one nodegate.
pub(super) struct Clock {
    library: String,
    file: String,
    _directory: TempDir,
}

impl Clock {
    /// A clock that goes right; nothing where it could not be made to lie.
    fn new() -> Option<Self> {
        library().map(|library| Self::of(&library))
    }

    /// The same where nothing demands that it can be made to lie.
    pub(super) fn if_possible() -> Option<Self> {
        found().map(|library| Self::of(&library))
    }

    fn of(library: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (library, file) = (text(library), text(&directory.path().join("clock")));
        let clock = Self { library, file, _directory: directory };
        clock.jump(0);
        clock
    }

    /// From now on it is so many hours ahead.
    pub(super) fn jump(&self, hours: i64) {
        // Whole at any moment: it is read whenever somebody asks for the time.
        let next = format!("{}.next", self.file);
        std::fs::write(&next, format!("{:+}\n", hours * 3600)).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
    }

    pub(super) fn environment(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_NO_CACHE", "1"),
        ]
    }
}

/// Waits until the leader has renewed the Lease by a clock so many hours ahead.
async fn until_renewed(plane: &ControlPlane, nodegate: &Nodegate<'_>, hours: i64) {
    let wanted = |renewed: Timestamp| {
        let ahead = renewed.duration_since(Timestamp::now()).as_secs();
        (ahead - hours * 3600).abs() < 600
    };
    let get = ["get", "lease", "nodegate", "-n", &nodegate.namespace, "-o", "jsonpath={.spec.renewTime}"];
    let is_renewed = || plane.kubectl(&get, None).unwrap().parse().is_ok_and(wanted);
    nodegate.eventually(&format!("somebody renews by a clock {hours} h ahead"), is_renewed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_clock_jumps_keeps_leading_without_a_failed_call_or_a_lost_label() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let Some(clock) = Clock::new() else { return };
    let environment = clock.environment();
    let setup = Setup {
        policies: POLICY,
        cluster: true,
        own_certificates: true,
        environment: &environment,
        ..Setup::default()
    };
    let nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    let (before, failed) = (names("kept-c", 3), failed_calls(plane));
    delete_all(&admin, &before).await;
    join_all(plane, &before).await;
    all_right(&admin, &before).await;
    let owned = |state: &serde_json::Value| state["owned"]["labels"]["hardware.tier"] == "standard";
    let mut versions = Vec::new();
    for name in &before {
        eventually_state(&maps, name, "owned", owned).await;
        versions.push(admin.get(name).await["metadata"]["resourceVersion"].clone());
    }
    for (hours, prefix) in [(1, "kept-d"), (0, "kept-e"), (-1, "kept-g"), (0, "kept-h")] {
        clock.jump(hours);
        let joining = names(prefix, 3);
        delete_all(&admin, &joining).await;
        join_all(plane, &joining).await;
        all_right(&admin, &joining).await;
        until_renewed(plane, &nodegate, hours).await;
        until_led(&nodegate).await;
        // What changes is saved, and what is wrong is repaired, by whatever clock.
        let saved = format!("h{hours}");
        admin.label(&before[0], "persist.demo/hours", json!(saved)).await.unwrap();
        eventually_state(&maps, &before[0], "saved", |state| state["labels"]["persist.demo/hours"] == saved.as_str())
            .await;
        delete_all(&admin, &joining).await;
    }
    // One resync more than the last jump.
    nodegate.until_resynced(before.len() as u64).await;
    all_right(&admin, &before).await;
    for (name, version) in before.iter().zip(versions).skip(1) {
        assert_eq!(admin.get(name).await["metadata"]["resourceVersion"], version, "somebody wrote to {name}");
    }
    assert!(failed_calls(plane) - failed < 0.5, "{} calls failed", failed_calls(plane) - failed);
    delete_all(&admin, &before).await;
}

#[tokio::test]
async fn another_replica_leads_when_a_leader_dies_whose_clock_was_ahead() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let Some(clock) = Clock::new() else { return };
    clock.jump(1);
    let environment = clock.environment();
    let setup = Setup { policies: POLICY, cluster: true, ..Setup::default() };
    let mut ahead = Nodegate::start(cluster.plane, &Setup { environment: &environment, ..setup.clone() });
    until_led(&ahead).await;
    until_renewed(cluster.plane, &ahead, 1).await;
    let namespace = ahead.namespace.clone();
    let follower =
        Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), unregistered: true, ..setup.clone() });
    ahead.kill();
    admin.delete("kept-ahead").await;
    Requester::kubelet(cluster.plane, "kept-ahead").await.create(&node("kept-ahead", json!({}))).await.unwrap();
    until_led(&follower).await;
    admin.eventually("kept-ahead", "kept by the other", |node| label(node, "hardware.tier").is_some()).await;
    admin.delete("kept-ahead").await;
}

/// A retention of 30 days, by a clock that is 31 days ahead, and by one that is behind when a node is deleted.
#[tokio::test]
async fn a_leader_with_a_wrong_clock_deletes_no_record_before_its_time() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let Some(clock) = Clock::new() else { return };
    let environment = clock.environment();
    let policies: &[&str] = &["tests/cluster/persist.yaml"];
    let nodegate =
        Nodegate::start(plane, &Setup { policies, cluster: true, environment: &environment, ..Setup::default() });
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    for (name, hours) in [("late-a", 0), ("late-b", -1)] {
        clock.jump(hours);
        admin.delete(name).await;
        Requester::kubelet(plane, name).await.create(&node(name, json!({}))).await.unwrap();
        admin.label(name, "persist.demo/rack", json!("7")).await.unwrap();
        eventually_state(&maps, name, "saved", |state| state["labels"]["persist.demo/rack"] == "7").await;
        let deleting = Timestamp::now();
        admin.delete(name).await;
        let state = eventually_state(&maps, name, "deleted", |state| state["deletedAt"].is_string()).await;
        let at: Timestamp = state["deletedAt"].as_str().unwrap().parse().unwrap();
        // The API server's clock has whole seconds.
        assert!(at.duration_since(deleting).as_secs().abs() < 60, "deleted at {at}, not at {deleting}");
    }
    clock.jump(31 * 24);
    until_renewed(plane, &nodegate, 31 * 24).await;
    // More than one round in which records are collected: in each goes one whose time has come.
    for name in ["due-a", "due-b"] {
        let deleted_at = (Timestamp::now() - SignedDuration::from_hours(31 * 24)).to_string();
        let record =
            json!({"nodeName": name, "nodeUID": name, "labels": {"persist.demo/rack": "7"}, "deletedAt": deleted_at});
        let map =
            json!({"metadata": {"name": format!("node-labels-{name}")}, "data": {"state.json": record.to_string()}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        eventually_state(&maps, name, "it is collected", serde_json::Value::is_null).await;
    }
    for name in ["late-a", "late-b"] {
        eventually_state(&maps, name, "kept", |state| state["labels"]["persist.demo/rack"] == "7").await;
    }
}
