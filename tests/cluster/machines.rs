//! Pools whose names are those of the objects that provisioners make for machines, with the real definitions of these objects.

use hyper::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::commands::run;
use super::control_plane::{ControlPlane, exclusive};
use super::guard::Guard;
use super::keeping::{config_maps, eventually_state, is_pending, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join, until_older};
use super::requester::{Requester, label, taints};
use crate::cmdb::Cmdb;
use crate::eventually::{eventually, holds};

const ROLE: &str = "node-role.kubernetes.io/gpu";
const CPU: &str = "node-role.kubernetes.io/cpu";

/// A kubelet of which nothing but its name is authenticated.
const NOBODY: Credential<'static> = of(&[]);

/// A kubelet with this extra information.
const fn of<'c>(extra: &'c [(&'c str, &'c str)]) -> Credential<'c> {
    Credential { groups: &[], extra }
}

fn setup() -> Setup<'static> {
    Setup { policies: &["tests/cluster/machines.yaml"], cluster: true, ..Setup::default() }
}

/// The objects of provisioners.
pub(crate) struct Provisioners<'a> {
    plane: &'a ControlPlane,
}

impl<'a> Provisioners<'a> {
    pub(crate) fn install(plane: &'a ControlPlane) -> Self {
        let files = ["karpenter", "cluster-api", "openshift"]
            .map(|name| format!("{}/tests/data/provisioners/{name}.yaml", env!("CARGO_MANIFEST_DIR")));
        for file in &files {
            plane.kubectl(&["apply", "--server-side", "-f", file], None).unwrap();
            plane.until_established(&["-f", file]);
        }
        Self { plane }
    }

    fn create(&self, path: &str, object: &Value, status: &Value) {
        self.plane.ask(Method::POST, path, Some(object)).unwrap();
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        let mut current: Value = serde_json::from_str(&self.plane.ask(Method::GET, &path, None).unwrap()).unwrap();
        current["status"] = status.clone();
        self.plane.ask(Method::PUT, &format!("{path}/status"), Some(&current)).unwrap();
    }

    /// What Karpenter has of a machine once it is launched.
    pub(crate) fn claim(&self, name: &str, pool: &str, id: &str) {
        let object = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": pool, "topology.kubernetes.io/zone": "eu-central-1a"}},
            "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}, "requirements": []}});
        self.create("/apis/karpenter.sh/v1/nodeclaims", &object, &json!({"providerID": id, "imageID": "ami-1"}));
    }

    /// A NodePool of Karpenter, whose machines get these labels, and one value of each of these.
    pub(crate) fn node_pool(&self, name: &str, labels: &Value, only: &[(&str, &str)]) {
        let only = only.iter().map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
        let object = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
            "spec": {"template": {"metadata": {"labels": labels}, "spec": {"requirements": only.collect::<Vec<_>>(),
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}}});
        self.plane.kubectl(&["apply", "-f", "-"], Some(&object.to_string())).unwrap();
    }

    fn unclaim(&self, name: &str) {
        self.plane.ask(Method::DELETE, &format!("/apis/karpenter.sh/v1/nodeclaims/{name}"), None).unwrap();
    }

    /// What Cluster API has of a machine once its infrastructure is ready.
    pub(crate) fn machine(&self, name: &str, pool: &str, id: &str, addresses: &Value) {
        let object = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "c", "example.com/pool": pool}},
            "spec": {"clusterName": "c", "providerID": id, "bootstrap": {"dataSecretName": "s"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "VSphereMachine", "name": name}}});
        let path = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines";
        self.create(path, &object, &json!({"addresses": addresses}));
    }

    pub(crate) fn delete_machine(&self, name: &str) {
        let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines/{name}");
        self.plane.ask(Method::DELETE, &path, None).unwrap();
    }

    /// What OpenShift has of one.
    fn openshift(&self, name: &str, pool: &str, id: &str, addresses: &Value) {
        let object = json!({"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {"name": name, "labels": {"example.com/pool": pool}},
            "spec": {"providerSpec": {}, "providerID": id}});
        let path = "/apis/machine.openshift.io/v1beta1/namespaces/default/machines";
        self.create(path, &object, &json!({"addresses": addresses, "phase": "Provisioned"}));
    }
}

/// A node whose kubelet says that it is the machine with this ID.
fn claiming(name: &str, id: &str) -> Value {
    let mut node = node(name, json!({}));
    node["spec"]["providerID"] = json!(id);
    node
}

/// The provider ID of an instance on AWS.
pub(crate) fn aws(instance: &str) -> String {
    format!("aws:///eu-central-1a/{instance}")
}

fn is_quarantined(node: &Value) -> bool {
    taints(node).iter().any(|taint| taint == "example.com/quarantine=:NoSchedule")
}

fn has_role(node: &Value) -> bool {
    label(node, ROLE) == Some("") && label(node, "accelerator") == Some("true")
}

#[tokio::test]
async fn a_provisioners_object_proves_a_pool_if_what_is_authenticated_leads_to_it() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _guard = Guard::install(plane, &[]);
    let mut nodegate = Nodegate::start(plane, &setup());
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let (admin, maps) = (Requester::admin(plane).await, config_maps(plane, &nodegate.namespace).await);

    // The APIs come later than the policy that asks for them, and this node before its object.
    let late = join(plane, &claiming("late", &aws("i-late")), of(&[("sessionname", "i-late")]), false).await.unwrap();
    assert!(is_pending(&late), "{late:#}");
    let nobodys = join(plane, &node("nobodys", json!({})), NOBODY, false).await.unwrap();
    assert!(is_pending(&nobodys), "{nobodys:#}");
    let provisioners = Provisioners::install(plane);
    provisioners.claim("gpu-late", "gpu", &aws("i-late"));
    admin.eventually("late", "it has its role", |node| has_role(node) && !is_pending(node)).await;
    let released = admin.eventually("nobodys", "it waits no longer", |node| !is_pending(node)).await;
    assert_eq!(label(&released, ROLE), None, "{released:#}");

    // By the instance, by a name that follows from the ID, and by names that the provisioner has.
    provisioners.claim("gpu-x7", "gpu", &aws("i-gpu"));
    provisioners.claim("gpu-gce", "gpu", "gce://project/europe-west1-b/gke-gpu-3");
    let addresses =
        json!([{"type": "InternalIP", "address": "10.0.0.9"}, {"type": "InternalDNS", "address": "vm-9.example.com"}]);
    provisioners.machine("gpu-vm", "gpu", "vsphere://4237", &addresses);
    let addresses = json!([{"type": "Hostname", "address": "Worker-0"}]);
    provisioners.openshift("gpu-worker", "gpu", "baremetalhost:///a/b/c", &addresses);
    until_known(plane, "worker-0").await;
    let (address, as_gpu) = ("ip-10-0-1-119.eu-central-1.compute.internal", of(&[("sessionname", "i-gpu")]));
    for (name, credential, id) in [
        (address, as_gpu, aws("i-gpu")),
        ("gke-gpu-3", NOBODY, "gce://project/europe-west1-b/gke-gpu-3".to_owned()),
        ("vm-9.example.com", NOBODY, "vsphere://4237".to_owned()),
        ("worker-0", NOBODY, "baremetalhost:///a/b/c".to_owned()),
    ] {
        let created = join(plane, &claiming(name, &id), credential, false).await.unwrap();
        assert_eq!(label(&created, "accelerator"), Some("true"), "{name}: {created:#}");
        admin.eventually(name, "it has its role", has_role).await;
    }
    let object = |state: &Value| {
        state["provisionedBy"][0]["name"] == "gpu-x7" && state["provisionedBy"][0]["byInstance"] == true
    };
    eventually_state(&maps, address, "the object is recorded", object).await;

    // The record proves it when the object is gone, to another process too.
    provisioners.unclaim("gpu-x7");
    let namespace = nodegate.namespace.clone();
    nodegate.terminate();
    let nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup() });
    until_led(&nodegate).await;
    admin.label(address, ROLE, Value::Null).await.unwrap();
    admin.eventually(address, "it has its role again", has_role).await;
}

/// Waits until nodegate knows the objects that were made until now: until the last of them leads a node with this name to its pool.
async fn until_known(plane: &ControlPlane, name: &str) {
    eventually("the objects are known", async || {
        let probe = join(plane, &node(name, json!({})), NOBODY, true).await.unwrap();
        holds(label(&probe, "accelerator") == Some("true"), || probe.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_provider_id_that_a_kubelet_claims_gives_nothing_and_is_told() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _guard = Guard::install(plane, &[]);
    let provisioners = Provisioners::install(plane);
    provisioners.claim("gpu-x7", "gpu", &aws("i-gpu"));
    provisioners.claim("gpu-y8", "gpu", &aws("i-new"));
    provisioners.claim("cpu-1", "cpu", &aws("i-cpu"));
    provisioners.claim("gpu-gce", "gpu", "gce://project/europe-west1-b/gke-gpu-4");
    let addresses = json!([{"type": "Hostname", "address": "worker-0"}]);
    provisioners.openshift("gpu-worker", "gpu", "baremetalhost:///a/b/c", &addresses);
    let nodegate = Nodegate::start(plane, &setup());
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    until_known(plane, "worker-0").await;
    let admin = Requester::admin(plane).await;

    join(plane, &claiming("real", &aws("i-gpu")), of(&[("sessionname", "i-gpu")]), false).await.unwrap();
    admin.eventually("real", "it has its role", has_role).await;
    let of_cpu = of(&[("sessionname", "i-cpu")]);
    let zone_b = "aws:///eu-central-1b/i-gpu".to_owned();
    let forged = [
        // The machine of another pool that has a node, and one that has none yet; one in another zone.
        ("forged-1", of_cpu, aws("i-gpu"), true),
        ("forged-2", of_cpu, aws("i-new"), true),
        ("forged-3", of_cpu, zone_b, true),
        // Authenticated as a machine that has no object, and as no machine.
        ("forged-4", of(&[("sessionname", "i-none")]), aws("i-gpu"), false),
        ("forged-5", NOBODY, "gce://project/europe-west1-b/gke-gpu-4".to_owned(), false),
        ("forged-6", NOBODY, "baremetalhost:///a/b/c".to_owned(), false),
    ];
    for (name, credential, claimed, _) in &forged {
        let created = join(plane, &claiming(name, claimed), *credential, false).await.unwrap();
        assert_eq!(label(&created, "accelerator"), None, "{name}: {created:#}");
        assert!(is_quarantined(&created), "{name}: {created:#}");
    }
    for (name, _, claimed, is_cpu) in &forged {
        let told = || nodegate.log().lines().any(|line| line.contains(name) && line.contains(claimed.as_str()));
        nodegate.eventually(&format!("what {name} claims is told"), told).await;
        let settled = |node: &Value| label(node, CPU).is_some() == *is_cpu && !is_pending(node) && is_quarantined(node);
        let stored = admin.eventually(name, "it is what it is", settled).await;
        assert_eq!([ROLE, "accelerator"].map(|key| label(&stored, key)), [None; 2], "{name}: {stored:#}");
    }
    let events = ["get", "events.events.k8s.io", "-n", "default", "-o", "jsonpath={.items[*].reason}"];
    let has_event = || plane.kubectl(&events, None).unwrap().matches("ProviderIDOfAnotherMachine").count() >= 6;
    nodegate.eventually("events tell it", has_event).await;
    // The machine that had no node yet comes.
    join(plane, &claiming("new", &aws("i-new")), of(&[("sessionname", "i-new")]), false).await.unwrap();
    admin.eventually("new", "it has its role", has_role).await;
    let metrics = nodegate.probe("/metrics").unwrap();
    assert!(metrics.lines().any(|line| line == "nodegate_provider_id_contradictions_total 6"), "{metrics}");
    // What contradicts is recorded, and stays when the objects are gone.
    for object in ["gpu-x7", "gpu-y8", "cpu-1", "gpu-gce"] {
        provisioners.unclaim(object);
    }
    let report = run(plane, None, &["report", "--namespace", &nodegate.namespace, "-o", "json"]).with(0);
    let report: Value = serde_json::from_str(&report).unwrap();
    let found: Vec<(&str, &str)> = report["contradictions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["node"].as_str().unwrap(), one["asserted"].as_str().unwrap()))
        .collect();
    let expected: Vec<(&str, &str)> = forged.iter().map(|(name, _, claimed, _)| (*name, claimed.as_str())).collect();
    assert_eq!(found, expected, "{report:#}");
}

#[tokio::test]
async fn an_inventory_answers_about_the_machine_that_a_node_provably_is() {
    const BLOCK: &str = "fabric.example.com/block";
    let cluster = exclusive();
    let (plane, cmdb, directory) = (cluster.plane, Cmdb::start(), TempDir::with_prefix("nodegate-fabric-").unwrap());
    let provisioners = Provisioners::install(plane);
    let path = |name: &str| directory.path().join(name).display().to_string();
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "fabric"}, "spec": {
        "pools": [
            {"nameFrom": {"kind": "NodeClaim", "label": "karpenter.sh/nodepool", "instance": "sessionname"}},
            {"nameFrom": {"kind": "Machine", "label": "example.com/pool", "instance": "sessionname"}}],
        "inventory": [{"name": "fabric", "url": format!("https://127.0.0.1:{}/all", cmdb.port), "refresh": "1s",
            "allow": ["fabric.example.com/*"], "require": true,
            "answer": {"machine": "item.id", "labels": {BLOCK: "item.block"}}}]}});
    std::fs::write(path("policy.yaml"), policy.to_string()).unwrap();
    cmdb.credentials(std::path::Path::new(&path("credentials")), "fabric");
    cmdb.answer(
        "/all",
        Some(r#"[{"id": "i-real", "block": "b1"}, {"id": "aws:///eu-central-1a/i-object", "block": "b3"}]"#),
    );
    let (policies, credentials) = (path("policy.yaml"), path("credentials"));
    let (policies, serve) = ([policies.as_str()], ["--inventory-credentials", credentials.as_str()]);
    let environment = [("NO_PROXY", "*")];
    let setup =
        Setup { policies: &policies, serve: &serve, environment: &environment, cluster: true, ..Setup::default() };
    let _guard = Guard::install(plane, &[]);
    let mut nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let known = "nodegate_inventory_nodes{policy=\"fabric\",inventory=\"fabric\"} 2";
    nodegate.eventually("it has answered", || nodegate.probe("/metrics").is_some_and(|all| all.contains(known))).await;

    let admin = Requester::admin(plane).await;
    provisioners.claim("real", "gpu", &aws("i-real"));
    let real = join(plane, &claiming("real", &aws("i-real")), of(&[("sessionname", "i-real")]), false).await.unwrap();
    assert_eq!(label(&real, BLOCK), Some("b1"), "it is there when the node is created: {real:#}");
    let claimed = claiming("forged", &aws("i-real"));
    let forged = join(plane, &claimed, of(&[("sessionname", "i-forged")]), false).await.unwrap();
    assert!(label(&forged, BLOCK).is_none() && is_pending(&forged), "{forged:#}");
    // As the provisioner's object says, to which the node's name leads.
    provisioners.machine("object", "gpu", &aws("i-object"), &json!([{"type": "InternalDNS", "address": "by-name"}]));
    join(plane, &claiming("by-name", &aws("i-real")), NOBODY, false).await.unwrap();
    admin
        .eventually("by-name", "its machine's block", |node| label(node, BLOCK) == Some("b3") && !is_pending(node))
        .await;

    // What is answered later is set on the node that is this machine.
    cmdb.answer("/all", Some(r#"[{"id": "I-REAL", "block": "b2"}, {"id": "i-forged", "block": "b9"}]"#));
    admin.eventually("real", "the next answer", |node| label(node, BLOCK) == Some("b2")).await;
    admin.eventually("forged", "its own block", |node| label(node, BLOCK) == Some("b9") && !is_pending(node)).await;
    assert_eq!(label(&admin.get("by-name").await, BLOCK), Some("b3"), "a machine that is missing keeps its labels");
    run(plane, None, &["plan", "--exit-code", "--namespace", &nodegate.namespace]).with(0);
    let explained = run(plane, None, &["explain", "real", BLOCK, "--namespace", &nodegate.namespace]).with(0);
    assert!(explained.contains("inventory"), "{explained}");
    nodegate.terminate();
}
