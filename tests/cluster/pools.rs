//! Pools: a node belongs to one because of what the API server authenticated about its kubelet, whatever the kubelet says.

use hyper::Request;
use kube::core::Status;
use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::{ControlPlane, exclusive};
use super::guard::Guard;
use super::keeping::{config_maps, eventually_state, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Refusal, Requester, label, taints};
use crate::eventually::{eventually, holds};

const EVIDENCE: &str = "nodegate.dev/authenticated-as";
const ROLE: &str = "node-role.kubernetes.io/gpu";

pub(crate) fn setup() -> Setup<'static> {
    Setup { policies: &["tests/cluster/pools.yaml"], cluster: true, ..Setup::default() }
}

/// What else the authenticator says of a kubelet.
#[derive(Clone, Copy, Default)]
pub(crate) struct Credential<'c> {
    pub(crate) groups: &'c [&'c str],
    pub(crate) extra: &'c [(&'c str, &'c str)],
}

pub(crate) const OF_GPU: Credential<'_> = Credential { groups: &["pool:gpu"], extra: &[] };
pub(crate) const OF_CPU: Credential<'_> = Credential { groups: &["pool:cpu"], extra: &[] };

/// The CREATE of a kubelet with this credential.
pub(crate) async fn join(
    plane: &ControlPlane,
    node: &Value,
    credential: Credential<'_>,
    dry_run: bool,
) -> Result<Value, Refusal> {
    let query = if dry_run { "?dryRun=All" } else { "" };
    let name = node["metadata"]["name"].as_str().unwrap();
    post_as_kubelet(plane, &format!("/api/v1/nodes{query}"), name, node, credential).await
}

/// What the kubelet of the node with this name creates with this credential.
pub(crate) async fn post_as_kubelet(
    plane: &ControlPlane,
    path: &str,
    name: &str,
    object: &Value,
    credential: Credential<'_>,
) -> Result<Value, Refusal> {
    let mut request = Request::post(path)
        .header("Content-Type", "application/json")
        .header("Impersonate-User", format!("system:node:{name}"));
    for group in ["system:nodes", "system:authenticated"].iter().chain(credential.groups) {
        request = request.header("Impersonate-Group", *group);
    }
    for (key, value) in credential.extra {
        request = request.header(format!("Impersonate-Extra-{key}"), *value);
    }
    let request = request.body(object.to_string().into_bytes()).unwrap();
    match plane.client(None).await.request(request).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) => {
            let Status { code, message, .. } = *status;
            Err(Refusal { code, message })
        }
        Err(other) => panic!("{other}"),
    }
}

fn asserting(name: &str, evidence: &str) -> Value {
    let mut node = node(name, json!({}));
    node["metadata"]["annotations"] = json!({EVIDENCE: evidence});
    node
}

/// Waits until the API server refuses forged evidence, and nodes are younger than the guard. For when no webhook replaces it.
async fn until_guarded(plane: &ControlPlane) {
    eventually("forged evidence is refused", async || {
        let outcome = join(plane, &asserting("pool-probe", "group=x"), OF_CPU, true).await;
        holds(outcome.as_ref().is_err_and(|refusal| refusal.code == 403), || format!("{outcome:?}"))
    })
    .await;
    until_older(plane).await;
}

/// Waits until a node that joins now counts as younger than the guard.
pub(crate) async fn until_older(plane: &ControlPlane) {
    let path = "jsonpath={.metadata.creationTimestamp}";
    let policy = ["get", "validatingadmissionpolicybinding", "nodegate-guard-evidence", "-o", path];
    let made: jiff::Timestamp = plane.kubectl(&policy, None).unwrap().parse().unwrap();
    eventually("the guard is older than a node", async || jiff::Timestamp::now().as_second() > made.as_second() + 3)
        .await;
}

#[tokio::test]
async fn a_pool_is_proven_by_what_the_api_server_authenticated_about_the_kubelet() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _guard = Guard::install(plane, &[]);
    let nodegate = Nodegate::start(plane, &setup());
    until_led(&nodegate).await;
    let (admin, maps) = (Requester::admin(plane).await, config_maps(plane, &nodegate.namespace).await);
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let by_role = Credential { groups: &[], extra: &[("canonicalArn", "arn:aws:iam::1:role/gpu"), ("other", "x")] };
    for (name, credential, evidence) in [
        ("pool-1", OF_GPU, "group=pool:gpu\nno-extra.canonicalarn\nuser=system:node:pool-1"),
        ("pool-2", by_role, "extra.canonicalarn=arn:aws:iam::1:role/gpu\nuser=system:node:pool-2"),
    ] {
        admin.delete(name).await;
        let created = join(plane, &node(name, json!({})), credential, false).await.unwrap();
        assert_eq!(label(&created, "accelerator"), Some("true"), "{created:#}");
        assert!(taints(&created).contains(&"gpu=:NoSchedule".to_owned()), "{created:#}");
        assert_eq!(created["metadata"]["annotations"][EVIDENCE], evidence, "{created:#}");
        let recorded = |state: &Value| state["authenticatedAs"] == evidence;
        eventually_state(&maps, name, "the evidence is recorded", recorded).await;
        admin.eventually(name, "it has its role", |node| label(node, ROLE) == Some("")).await;
        // From then on the record counts.
        admin.merge(name, json!({"metadata": {"annotations": {EVIDENCE: null}}})).await.unwrap_err();
        admin.label(name, ROLE, Value::Null).await.unwrap();
        admin.eventually(name, "it has its role again", |node| label(node, ROLE) == Some("")).await;
    }
    // A kubelet of another pool that says it is of this one: with labels, and about its credential.
    let name = "pool-3";
    admin.delete(name).await;
    let mut forged = asserting(name, "group=pool:gpu\nno-extra.canonicalarn\nuser=system:node:pool-3");
    forged["metadata"]["labels"] = json!({"pool": "gpu"});
    let created = join(plane, &forged, OF_CPU, false).await.unwrap();
    let evidence = "group=pool:cpu\nno-extra.canonicalarn\nuser=system:node:pool-3";
    assert_eq!(created["metadata"]["annotations"][EVIDENCE], evidence, "{created:#}");
    eventually_state(&maps, name, "recorded", |state| state["authenticatedAs"] == evidence).await;
    let stored = admin.get(name).await;
    assert_eq!((label(&stored, ROLE), label(&stored, "accelerator")), (None, None), "{stored:#}");
    for name in ["pool-1", "pool-2", "pool-3"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn evidence_that_is_forged_while_every_replica_is_dead_gives_nothing() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let mut dead = Nodegate::start(plane, &setup());
    until_led(&dead).await;
    dead.eventually("the missing guard is told", || dead.log().contains("install the guard")).await;
    dead.kill();
    let admin = Requester::admin(plane).await;
    let evidence = |of: &str, pool: &str| format!("group=pool:{pool}\nno-extra.canonicalarn\nuser=system:node:{of}");
    let forged = |name: &str| asserting(name, &evidence(name, "gpu"));
    for name in ["pool-4", "pool-5", "pool-6", "pool-7"] {
        admin.delete(name).await;
    }
    // Without the guard, the API server admits it.
    join(plane, &forged("pool-4"), OF_CPU, false).await.unwrap();
    // The guard of older API servers, which cannot take it out of the object.
    let _guard = Guard::install(plane, &["--mutating", "none"]);
    until_guarded(plane).await;
    let left_out = asserting("pool-5", "no-extra.canonicalarn\nuser=system:node:pool-5");
    for forged in [forged("pool-5"), left_out] {
        let refusal = join(plane, &forged, OF_CPU, false).await.unwrap_err();
        assert_eq!(refusal.code, 403, "{}", refusal.message);
        assert!(refusal.message.contains("only nodegate may set annotation"), "{}", refusal.message);
    }
    // A kubelet that leaves nothing joins, and one that says what is true.
    join(plane, &node("pool-6", json!({})), OF_GPU, false).await.unwrap();
    join(plane, &asserting("pool-7", &evidence("pool-7", "gpu")), OF_GPU, false).await.unwrap();
    let namespace = Some(&*dead.namespace);
    let nodegate = Nodegate::start(plane, &Setup { namespace, ..setup() });
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    admin.eventually("pool-7", "what is true counts", |node| label(node, ROLE) == Some("")).await;
    for name in ["pool-4", "pool-6"] {
        let state = eventually_state(&maps, name, "recorded", |state| state["nodeUID"].is_string()).await;
        assert_eq!(state["authenticatedAs"], Value::Null, "{name}");
        assert_eq!(label(&admin.get(name).await, ROLE), None, "{name}");
    }
    // Once more, with everything that the leader knows of the guard.
    nodegate.until_resynced(3).await;
    assert_eq!(label(&admin.get("pool-4").await, ROLE), None);
    for name in ["pool-4", "pool-6", "pool-7"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn the_guard_writes_evidence_while_every_replica_is_dead_and_replaces_a_forged_one() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _guard = Guard::install(plane, &[]);
    let mut dead = Nodegate::start(plane, &setup());
    until_led(&dead).await;
    dead.until_nodes_are_younger().await;
    until_older(plane).await;
    let admin = Requester::admin(plane).await;
    for name in ["pool-8", "pool-9", "pool-probe"] {
        admin.delete(name).await;
    }
    dead.kill();
    let groups = |name: &str, pool: &str| format!("group=pool:{pool}\nno-extra.canonicalarn\nuser=system:node:{name}");
    eventually("the guard knows what pools ask for", async || {
        let probe = join(plane, &node("pool-probe", json!({})), OF_GPU, true).await.unwrap();
        let evidence = &probe["metadata"]["annotations"][EVIDENCE];
        holds(*evidence == groups("pool-probe", "gpu"), || evidence.to_string())
    })
    .await;
    let written = join(plane, &node("pool-8", json!({})), OF_GPU, false).await.unwrap();
    assert_eq!(written["metadata"]["annotations"][EVIDENCE], groups("pool-8", "gpu"));
    let forged = asserting("pool-9", &groups("pool-9", "gpu"));
    let replaced = join(plane, &forged, OF_CPU, false).await.unwrap();
    assert_eq!(replaced["metadata"]["annotations"][EVIDENCE], format!("{}\nreplaced", groups("pool-9", "cpu")));
    let namespace = Some(&*dead.namespace);
    let nodegate = Nodegate::start(plane, &Setup { namespace, ..setup() });
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    admin.eventually("pool-8", "its pool is known", |node| label(node, ROLE) == Some("")).await;
    let evidence = groups("pool-9", "cpu");
    eventually_state(&maps, "pool-9", "recorded", |state| state["authenticatedAs"] == evidence).await;
    let told = || nodegate.log().lines().any(|line| line.contains("pool-9") && line.contains("was rejected"));
    nodegate.eventually("the forged evidence is told", told).await;
    assert_eq!(label(&admin.get("pool-9").await, ROLE), None);
    for name in ["pool-8", "pool-9"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn an_administrator_vouches_for_nodes_that_were_there_before() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let admin = Requester::admin(plane).await;
    for (name, shape) in [("pool-11", "a"), ("pool-12", "a"), ("pool-13", "b")] {
        admin.delete(name).await;
        // Without a guard, nothing that a node has on it counts.
        join(plane, &node(name, json!({"shape": shape})), OF_CPU, false).await.unwrap();
    }
    let nodegate = Nodegate::start(plane, &setup());
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    for name in ["pool-11", "pool-12", "pool-13"] {
        eventually_state(&maps, name, "recorded", |state| state["nodeUID"].is_string()).await;
    }
    let pools = |arguments: &[&str]| {
        let all = [&["pools"], arguments, &["--namespace", &nodegate.namespace]].concat();
        run(plane, None, &all)
    };
    // A typo, a pool that nobody has, and a trial change nothing.
    let unknown = pools(&["adopt", "gpus", "--selector", "shape=a"]);
    assert!(unknown.errors.contains("have no pool gpus; they have gpu, gpu-by-role"), "{}", unknown.errors);
    assert!(pools(&["adopt", "gpu", "--selector", "shape=c"]).errors.contains("no node has such labels"));
    let dry = pools(&["adopt", "gpu", "--selector", "shape=a", "--dry-run"]).with(0);
    let lines =
        |what: &str| format!("node pool-11: {what} it belongs to gpu\nnode pool-12: {what} it belongs to gpu\n");
    assert_eq!(dry, lines("would be recorded:"));
    assert_eq!(pools(&["adopt", "gpu", "--selector", "shape=a"]).with(0), lines("recorded:"));
    for name in ["pool-11", "pool-12"] {
        admin.eventually(name, "it has its role", |node| label(node, ROLE) == Some("")).await;
    }
    assert_eq!(label(&admin.get("pool-13").await, ROLE), None);
    let state = eventually_state(&maps, "pool-11", "adopted", |state| state["adopted"].is_object()).await;
    assert_eq!(state["adopted"]["pools"], json!(["gpu"]), "{state:#}");
    let by = state["adopted"]["by"].as_str().unwrap();
    let explained = run(plane, None, &["explain", "pool-11", "--namespace", &nodegate.namespace]).with(0);
    assert!(explained.contains("the word of an administrator") && explained.contains(by), "{explained}");
    let history = run(plane, None, &["history", "pool-11", "--namespace", &nodegate.namespace]).with(0);
    assert!(history.lines().any(|line| line.contains(by) && line.contains("adopted")), "{history}");
    // It is about this object: whoever creates the node again proves a pool, or has none.
    admin.delete("pool-12").await;
    join(plane, &node("pool-12", json!({"shape": "a"})), OF_CPU, false).await.unwrap();
    let another = |state: &Value| state["nodeUID"].is_string() && state["adopted"].is_null();
    eventually_state(&maps, "pool-12", "another node is recorded", another).await;
    assert_eq!(label(&admin.get("pool-12").await, ROLE), None);
    // Taken back, it counts no more: what was given stays, because nothing is known, until somebody removes it.
    let forgotten = pools(&["forget", "--node", "pool-11", "--node", "pool-0"]);
    let expected = format!(
        "node pool-11: recorded: nobody vouches for it any more ({by} did, for gpu)\nnode pool-0: nothing is recorded: it is not in the cluster\n"
    );
    assert_eq!(forgotten.with(1), expected);
    eventually_state(&maps, "pool-11", "forgotten", |state| state["adopted"].is_null()).await;
    assert_eq!(label(&admin.get("pool-11").await, ROLE), Some(""));
    admin.label("pool-11", ROLE, Value::Null).await.unwrap();
    nodegate.until_resynced(1).await;
    assert_eq!(label(&admin.get("pool-11").await, ROLE), None);
    for name in ["pool-11", "pool-12", "pool-13"] {
        admin.delete(name).await;
    }
}
