//! Many joins of four pools by each source of proof, a tenth of them forged: `just proofs`.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, future, stream};
use hyper::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::bootstrap::{Kubelet, Signing};
use super::control_plane::{ControlPlane, exclusive};
use super::guard::Guard;
use super::keeping::{config_maps, eventually_state, is_pending, node, until_led};
use super::machines::{Provisioners, aws};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join, until_older};
use super::random::setting;
use super::requester::{Requester, label, taints};
use crate::eventually::{eventually, holds};

const POOLS: [&str; 4] = ["gpu-a", "gpu-b", "cpu-a", "cpu-b"];
/// The label that says the pool.
const POOL: &str = "example.com/pool";
/// How many machines are prepared at a time.
const AT_ONCE: usize = 8;
/// How many join in a second, unless `NODEGATE_JOINS_PER_SECOND` says it: so many that none waits for the others.
const PER_SECOND: u64 = 5;
/// Every how many joins one is forged.
const FORGED: usize = 10;

/// What proves a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The same nodes without pools: rules match their names.
    NoPools,
    Requester,
    /// A NodeClaim that the kubelet's instance leads to.
    Instance,
    /// A Machine that has the node's name among its addresses.
    Address,
    Bootstrap,
    Name,
}

impl Source {
    fn prefix(self) -> &'static str {
        match self {
            Self::NoPools => "plain",
            Self::Requester => "group",
            Self::Instance => "claim",
            Self::Address => "machine",
            Self::Bootstrap => "token",
            Self::Name => "name",
        }
    }
}

/// A machine that joins.
#[derive(Clone, Debug)]
struct Joining {
    name: String,
    pool: &'static str,
    /// The pool that it claims to be of.
    claims: Option<&'static str>,
}

/// The machines of a source.
fn machines(source: Source, count: usize) -> Vec<Joining> {
    let one = |at: usize| {
        let [pool, other] = [at, at + 1].map(|at| POOLS[at % POOLS.len()]);
        let claims = (at % FORGED == FORGED - 1 && source != Source::NoPools).then_some(other);
        Joining { name: format!("{}-{pool}-{at}", source.prefix()), pool, claims }
    };
    (0..count).map(one).collect()
}

fn role(pool: &str) -> String {
    format!("node-role.kubernetes.io/{pool}")
}

/// The provider ID of the machine that joins under this name in this pool.
fn provider_id(name: &str, pool: &str) -> String {
    aws(&format!("i-{name}-of-{pool}"))
}

/// Everything that kubelets and provisioners need.
struct World<'a> {
    plane: &'a ControlPlane,
    admin: Requester,
    provisioners: Provisioners<'a>,
    signing: Signing,
    /// The kubelets that have a certificate already, by the names of their nodes.
    kubelets: Mutex<HashMap<String, Kubelet>>,
}

impl World<'_> {
    /// What a provisioner does before a machine joins.
    fn provision(&self, source: Source, name: &str, pool: &str) {
        match source {
            Source::Instance => self.provisioners.claim(&format!("{name}-of-{pool}"), pool, &provider_id(name, pool)),
            Source::Address => {
                let addresses = json!([{"type": "InternalDNS", "address": name}]);
                self.provisioners.machine(name, pool, &format!("vsphere://{name}-of-{pool}"), &addresses);
            }
            Source::NoPools | Source::Requester | Source::Bootstrap | Source::Name => {}
        }
    }

    /// The kubelets get their certificates before they join.
    async fn bootstrap(&self, source: Source, machines: &[Joining]) {
        if source == Source::Bootstrap {
            let each = |machine: &Joining| {
                let (name, token) = (machine.name.clone(), token(machine.pool));
                async move { (name.clone(), self.signing.bootstrap(&token, &name).await) }
            };
            let kubelets = stream::iter(machines).map(each).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
            self.kubelets.lock().unwrap().extend(kubelets);
        }
    }

    /// A machine of a pool joins with this object. Returns how long the API server took.
    async fn join(&self, source: Source, object: &Value, pool: &str) -> Instant {
        let name = object["metadata"]["name"].as_str().unwrap();
        let (group, instance) = (format!("pool:{pool}"), format!("i-{name}-of-{pool}"));
        let (groups, extra) = ([group.as_str()], [("sessionname", instance.as_str())]);
        let credential = match source {
            Source::Requester => Credential { groups: &groups, extra: &[] },
            Source::Instance => Credential { groups: &[], extra: &extra },
            Source::NoPools | Source::Address | Source::Bootstrap | Source::Name => Credential::default(),
        };
        if source == Source::Bootstrap {
            let known = self.kubelets.lock().unwrap().remove(name);
            let kubelet = match known {
                Some(known) => known,
                None => self.signing.bootstrap(&token(pool), name).await,
            };
            let begun = Instant::now();
            kubelet.join_as(object).await;
            return begun;
        }
        let begun = Instant::now();
        join(self.plane, object, credential, false).await.unwrap();
        begun
    }

    /// A machine of the other pool had the name before, and something was saved of it.
    async fn precede(&self, maps: &Api<ConfigMap>, source: Source, machine: &Joining, other: &str) {
        let name = &machine.name;
        self.provision(source, name, other);
        self.join(source, &node(name, json!({})), other).await;
        let key = role(other);
        self.admin.eventually(name, "the machine before has its role", |node| label(node, &key) == Some("")).await;
        self.admin.label(name, "team", json!(format!("of-{other}"))).await.unwrap();
        eventually_state(maps, name, "its team is saved", |state| !state["labels"]["team"].is_null()).await;
    }

    /// The next source begins with no nodes and no machines, as this one did. A fleet has machines of one provider, too: while there are
    /// claims of machines on AWS, whose names say nothing, no kubelet is known not to be on one of them that does not say its instance.
    async fn retire(&self, source: Source, machines: &[Joining]) {
        self.leave(source, machines.iter()).await;
        if source == Source::Instance {
            self.plane.ask(Method::DELETE, "/apis/karpenter.sh/v1/nodeclaims", None).unwrap();
        }
    }

    /// These machines and their nodes are deleted.
    async fn leave(&self, source: Source, machines: impl Iterator<Item = &Joining>) {
        let each = |machine: &Joining| {
            let name = machine.name.clone();
            async move {
                self.admin.delete(&name).await;
                if source == Source::Address {
                    self.provisioners.delete_machine(&name);
                }
            }
        };
        stream::iter(machines).map(each).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }
}

fn token(pool: &str) -> String {
    format!("{}00", pool.replace('-', ""))
}

/// A node that says in every way that it is of another pool.
fn forged(source: Source, name: &str, other: &str) -> Value {
    let id = match source {
        Source::Address => format!("vsphere://{name}-of-{other}"),
        _ => provider_id(name, other),
    };
    let evidence = format!("extra.sessionname=i-{name}-of-{other}\ngroup=pool:{other}\nuser=system:node:{name}");
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {POOL: other, "karpenter.sh/nodepool": other},
            "annotations": {"nodegate.dev/authenticated-as": evidence}},
        "spec": {"providerID": id}})
}

/// When each node was first seen with its role and without a pending taint, noted until the task is dropped.
async fn completions(plane: &ControlPlane) -> (Arc<Mutex<HashMap<String, Instant>>>, JoinSet<()>) {
    let seen: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let (api, noted, mut task) = (Api::<Node>::all(plane.client(None).await), seen.clone(), JoinSet::new());
    task.spawn(async move {
        let mut events = std::pin::pin!(watcher(api, Config::default()));
        while let Some(event) = events.next().await {
            let Ok(Event::Apply(node) | Event::InitApply(node)) = event else { continue };
            let (now, node) = (Instant::now(), serde_json::to_value(&node).unwrap());
            let has_role = POOLS.iter().any(|pool| label(&node, &role(pool)).is_some());
            if has_role && !is_pending(&node) {
                noted.lock().unwrap().entry(node["metadata"]["name"].as_str().unwrap().to_owned()).or_insert(now);
            }
        }
    });
    (seen, task)
}

/// The median and the 99th percentile, in milliseconds.
fn percentiles(mut delays: Vec<Duration>) -> [f64; 2] {
    delays.sort_unstable();
    [50, 99].map(|percent| delays[(delays.len() - 1) * percent / 100].as_secs_f64() * 1e3)
}

/// Lets the machines of a source join, and checks what each is. Returns how long the honest ones took.
async fn run(world: &World<'_>, maps: &Api<ConfigMap>, source: Source, count: usize) -> Vec<Duration> {
    let machines = machines(source, count);
    let of_forged = || machines.iter().filter_map(|machine| Some((machine, machine.claims?)));
    if source != Source::Name {
        let each = |(machine, other)| async move { world.precede(maps, source, machine, other).await };
        stream::iter(of_forged()).map(each).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
        world.leave(source, of_forged().map(|(machine, _)| machine)).await;
    }
    machines.iter().for_each(|machine| world.provision(source, &machine.name, machine.pool));
    world.bootstrap(source, &machines).await;
    let (completed, _noting) = completions(world.plane).await;
    let (begin, pace) = (tokio::time::Instant::now(), 1.0 / setting("NODEGATE_JOINS_PER_SECOND", PER_SECOND) as f64);
    let join = |(at, machine): (usize, &Joining)| {
        let object = match machine.claims {
            Some(other) => forged(source, &machine.name, other),
            None => node(&machine.name, json!({})),
        };
        let (name, pool) = (machine.name.clone(), machine.pool);
        async move {
            tokio::time::sleep_until(begin + Duration::from_secs_f64(pace * at as f64)).await;
            (name, world.join(source, &object, pool).await)
        }
    };
    let begun: HashMap<String, Instant> =
        future::join_all(machines.iter().enumerate().map(join)).await.into_iter().collect();
    eventually("all are complete", async || {
        let left: Vec<&str> = machines
            .iter()
            .map(|machine| machine.name.as_str())
            .filter(|name| !completed.lock().unwrap().contains_key(*name))
            .collect();
        holds(left.is_empty(), || format!("{} are not: {:?}", left.len(), &left[..left.len().min(5)]))
    })
    .await;
    for machine in &machines {
        check(machine, source, &world.admin.get(&machine.name).await);
    }
    let honest = machines.iter().filter(|machine| machine.claims.is_none());
    honest.map(|machine| completed.lock().unwrap()[&machine.name].duration_since(begun[&machine.name])).collect()
}

/// A node is of the pool that is proven, and has nothing of another.
fn check(machine: &Joining, source: Source, stored: &Value) {
    for pool in POOLS {
        let expected = (pool == machine.pool).then_some("");
        assert_eq!(label(stored, &role(pool)), expected, "{source:?} {machine:?}: {stored:#}");
        let has_taint = taints(stored).contains(&format!("{pool}=:NoSchedule"));
        assert_eq!(has_taint, pool == machine.pool, "{source:?} {machine:?}: {stored:#}");
    }
    if source != Source::NoPools {
        assert_eq!(label(stored, POOL), Some(machine.pool), "{source:?} {machine:?}: {stored:#}");
    }
    assert_eq!(label(stored, "team"), None, "{source:?} {machine:?}: {stored:#}");
}

/// All events about nodes.
fn events(plane: &ControlPlane) -> Vec<Value> {
    let events = plane.kubectl(&["get", "events.events.k8s.io", "-n", "default", "-o", "json"], None).unwrap();
    serde_json::from_value(serde_json::from_str::<Value>(&events).unwrap()["items"].take()).unwrap()
}

/// What events say of these nodes.
fn events_about(plane: &ControlPlane, nodes: &[&String]) -> Vec<String> {
    let about = |event: &Value| nodes.iter().any(|node| event["regarding"]["name"] == node.as_str());
    let all = events(plane).into_iter().filter(about);
    all.map(|event| format!("{}: {} {}", event["regarding"]["name"], event["reason"], event["note"])).collect()
}

/// The nodes of which an event tells that they claim something.
fn told(plane: &ControlPlane) -> BTreeSet<String> {
    let reasons = ["ClaimRejected", "ProviderIDOfAnotherMachine", "CertificateOfAnotherPool"];
    let all = events(plane);
    let of_claims = all.iter().filter(|event| reasons.iter().any(|reason| event["reason"] == *reason));
    of_claims.filter_map(|event| event["regarding"]["name"].as_str()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: just proofs"]
async fn a_thousand_joins_by_each_source_give_no_forged_one_anything_of_another_pool() {
    let count = usize::try_from(setting("NODEGATE_JOINS", 1000)).unwrap();
    let cluster = exclusive();
    let plane = cluster.plane;
    let world = World {
        plane,
        admin: Requester::admin(plane).await,
        provisioners: Provisioners::install(plane),
        signing: Signing::start(plane, &POOLS.map(|pool| (token(pool), pool))),
        kubelets: Mutex::default(),
    };
    let plain = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let rules = POOLS.map(|pool| {
        json!({"name": pool, "match": {"names": [format!("plain-{pool}-*")]}, "labels": {role(pool): ""}, "taints": [format!("{pool}:NoSchedule")]})
    });
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "plain"}, "spec": {"rules": rules}});
    std::fs::write(plain.path(), policy.to_string()).unwrap();
    let _guard = Guard::install(plane, &[]);
    let start = |policy: &str| {
        let serve = ["--writes-per-second", "1000"];
        Nodegate::start(plane, &Setup { policies: &[policy], cluster: true, serve: &serve, ..Setup::default() })
    };
    let mut nodegate = start(plain.path().to_str().unwrap());
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    let mut figures = vec![(Source::NoPools, percentiles(run(&world, &maps, Source::NoPools, count).await))];
    world.retire(Source::NoPools, &machines(Source::NoPools, count)).await;
    nodegate.terminate();
    drop(nodegate);
    let nodegate = start("tests/cluster/proofs.yaml");
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    for source in [Source::Requester, Source::Instance, Source::Address, Source::Bootstrap, Source::Name] {
        figures.push((source, percentiles(run(&world, &maps, source, count).await)));
        let forged = machines(source, count).into_iter().filter(|machine| machine.claims.is_some());
        let names: BTreeSet<String> = forged.map(|machine| machine.name).collect();
        eventually("each forged join is told", async || {
            let known = told(plane);
            let left: Vec<&String> = names.difference(&known).collect();
            holds(left.is_empty(), || {
                let left = &left[..left.len().min(5)];
                format!("{} of {} are not: {left:?}; {:#?}", left.len(), names.len(), events_about(plane, left))
            })
        })
        .await;
        world.retire(source, &machines(source, count)).await;
    }
    println!("{:<10} {:>6} {:>12} {:>12}", "source", "joins", "p50 in ms", "p99 in ms");
    for (source, [median, slowest]) in figures {
        println!("{source:<10?} {count:>6} {median:>12.1} {slowest:>12.1}");
    }
}
