//! Kubelets and people who write to nodes while something else happens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

use super::super::super::control_plane::ControlPlane;
use super::super::super::keeping::{config_maps, node};
use super::super::super::random::Random;
use super::super::super::requester::{Outcome, Requester};
use super::super::OWN;

/// The longest time that a write may take: both webhooks run into their timeouts, and the API server is busy.
const WRITE_MAX: Duration = Duration::from_secs(15);
/// For how long a write is repeated that failed because the API server was away.
const REPEAT_MAX: Duration = Duration::from_secs(120);

/// What the writers have seen.
#[derive(Default)]
pub(in super::super) struct Seen {
    /// Writes that were answered.
    pub(in super::super) writes: AtomicUsize,
    /// Those of them that a policy denied, or that another write overtook.
    pub(in super::super) denied: AtomicUsize,
    /// Attempts that failed because the API server or etcd was away.
    pub(in super::super) away: AtomicUsize,
    /// Whether the writers have to stop.
    pub(in super::super) over: AtomicBool,
    is_away: AtomicBool,
    outages: AtomicUsize,
}

/// When an attempt began: the time, whether the API server was away, and how many outages there had been.
struct Begun(Instant, bool, usize);

impl Seen {
    /// Does something during which the API server may be away.
    pub(in super::super) fn outage(&self, act: impl FnOnce()) {
        self.is_away.store(true, Ordering::SeqCst);
        act();
        self.outages.fetch_add(1, Ordering::SeqCst);
        self.is_away.store(false, Ordering::SeqCst);
    }

    fn begin(&self) -> Begun {
        Begun(Instant::now(), self.is_away.load(Ordering::SeqCst), self.outages.load(Ordering::SeqCst))
    }

    /// Whether the API server may have been away since then.
    fn was_away(&self, Begun(_, away, outages): &Begun) -> bool {
        *away || self.is_away.load(Ordering::SeqCst) || self.outages.load(Ordering::SeqCst) != *outages
    }

    /// Whether a write has been answered. If not, the API server was away, and the write has to be repeated.
    fn answered(&self, what: &str, begun: &Begun, outcome: &Outcome) -> bool {
        let away = self.was_away(begun);
        let took = begun.0.elapsed();
        assert!(away || took < WRITE_MAX, "a write took {took:?}: {what}");
        if let Err(refusal) = outcome {
            // A failed call of a webhook is nodegate's, whatever else is away.
            let excused = away && matches!(refusal.code, 0 | 429 | 500..=599) && !refusal.message.contains("webhook");
            if excused {
                self.away.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            let (code, message) = (refusal.code, &refusal.message);
            assert!(matches!(code, 403 | 404 | 409), "a write failed: {what}: {code} {message}");
            self.denied.fetch_add(1, Ordering::Relaxed);
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Makes a write, again and again as long as the API server is away.
    pub(in super::super) async fn write<Made: Future<Output = Outcome>>(&self, what: &str, make: impl Fn() -> Made) {
        let until = Instant::now() + REPEAT_MAX;
        loop {
            let begun = self.begin();
            let outcome = make().await;
            if self.answered(what, &begun, &outcome) {
                return;
            }
            assert!(Instant::now() < until, "the API server never answered: {what}: {outcome:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Whether the label of a node is saved, so that it must not be lost anymore.
async fn is_saved(maps: &Api<ConfigMap>, name: &str) -> bool {
    let map = maps.get_opt(&format!("node-labels-{name}")).await.ok().flatten();
    let state = map.and_then(|map| serde_json::from_str::<Value>(map.data?.get("state.json")?).ok());
    state.is_some_and(|state| state["labels"][OWN] == name)
}

/// Writes to nodes, one write after the other, until told to stop. The first `recreated` of them are also deleted and created
/// again, once their label is saved.
pub(in super::super) async fn write(
    plane: &'static ControlPlane,
    namespace: String,
    names: Arc<[String]>,
    recreated: usize,
    seen: Arc<Seen>,
    mut dice: Random,
) {
    let (admin, maps) = (Requester::admin(plane).await, config_maps(plane, &namespace).await);
    let mut saved = BTreeSet::new();
    while !seen.over.load(Ordering::Relaxed) {
        let at = dice.below(names.len());
        let name = names[at].as_str();
        let kubelet = Requester::kubelet(plane, name).await;
        let forged = || json!({"metadata": {"labels": {"hardware.tier": "forged"}}});
        let (kind, number) = (dice.below(7), dice.below(100));
        let what = |what: &str| format!("{what} of {name}");
        match kind {
            0 | 1 => {
                let status = || json!({"status": {"phase": "Running"}});
                seen.write(&what("status"), || kubelet.merge_status(name, status())).await;
            }
            2 => seen.write(&what("forged label"), || kubelet.merge_status(name, forged())).await,
            3 => seen.write(&what("removed label"), || admin.label(name, "hardware.tier", Value::Null)).await,
            4 => {
                let team = || json!((number < 50).then_some("ml"));
                seen.write(&what("a label that a rule reads"), || admin.label(name, "team", team())).await;
            }
            5 => {
                let text = || json!(number.to_string());
                seen.write(&what("another label"), || admin.label(name, "chaos.example/n", text())).await;
            }
            _ if at < recreated && saved.contains(&at) => {
                admin.delete(name).await;
                let anew = node(name, json!({}));
                seen.write(&what("created again"), || kubelet.create(&anew)).await;
            }
            _ => {
                if is_saved(&maps, name).await {
                    saved.insert(at);
                }
            }
        }
    }
}
