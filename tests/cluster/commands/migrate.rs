//! `nodegate migrate status` in a cluster with consumers of each kind.

use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::node;
use super::super::requester::Requester;
use super::run;
use crate::shared::output::assert_conforms;

const OLD: &str = "used.example/tier";
const NEW: &str = "moved.example/tier";
const NAMESPACE: &str = "consumers";

/// One object of each kind that names the old key, and some that do not count.
fn consumers() -> Vec<Value> {
    let container = json!([{"name": "c", "image": "x"}]);
    let selecting = json!({"nodeSelector": {OLD: "gold"}, "containers": container});
    let spreading = json!({"containers": container, "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": OLD,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]});
    let term = json!({"matchExpressions": [{"key": OLD, "operator": "Exists"}]});
    let preferring = json!({"containers": container, "affinity": {"nodeAffinity":
        {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}}});
    let apart = json!({"containers": container, "affinity": {"podAntiAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": OLD, "labelSelector": {"matchLabels": {"app": "x"}}}]}}});
    let once = |spec: &Value| {
        let mut spec = spec.clone();
        spec["restartPolicy"] = json!("Never");
        spec
    };
    let template = |spec: &Value| json!({"metadata": {"labels": {"app": "x"}}, "spec": spec});
    let object = |version: &str, kind: &str, name: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    let workload = |spec: &Value| json!({"selector": {"matchLabels": {"app": "x"}}, "template": template(spec)});
    let mut set = workload(&apart);
    set["serviceName"] = json!("x");
    let mut owned = object("v1", "Pod", "of-a-deployment", selecting.clone());
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "used-class"},
        "provisioner": "x", "allowedTopologies": [{"matchLabelExpressions": [{"key": OLD, "values": ["gold"]}]}]});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "used-volume"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}});
    let pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "used-pool"},
        "spec": {"template": {"spec": {"requirements": [{"key": OLD, "operator": "Exists"}]}}}});
    vec![
        object("v1", "Pod", "alone", selecting.clone()),
        owned,
        object("v1", "Pod", "other", json!({"nodeSelector": {NEW: "gold"}, "containers": container})),
        object("apps/v1", "Deployment", "deployment", workload(&selecting)),
        object("apps/v1", "StatefulSet", "set", set),
        object("apps/v1", "DaemonSet", "daemons", workload(&preferring)),
        object("batch/v1", "Job", "job", json!({"template": template(&once(&spreading))})),
        object(
            "batch/v1",
            "CronJob",
            "cron",
            json!({"schedule": "0 0 * * *",
            "jobTemplate": {"spec": {"template": template(&once(&selecting))}}}),
        ),
        class,
        volume,
        pool,
    ]
}

/// Karpenter's definition, as far as the API server needs it.
fn install_node_pools(plane: &ControlPlane) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let names = json!({"kind": "NodePool", "plural": "nodepools", "singular": "nodepool"});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodepools.karpenter.sh",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {"group": "karpenter.sh", "scope": "Cluster", "names": names,
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&definition.to_string())).unwrap();
    plane.until_established(&["crd/nodepools.karpenter.sh"]);
}

#[tokio::test]
async fn status_counts_nodes_and_lists_consumers_of_each_kind_once() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    let _ = plane.kubectl(&["create", "namespace", NAMESPACE], None);
    let nodes = [
        ("used-1", json!({OLD: "a", NEW: "a"})),
        ("used-2", json!({OLD: "a", NEW: "b"})),
        ("used-3", json!({OLD: "a"})),
        ("used-4", json!({NEW: "a"})),
    ];
    for (name, labels) in &nodes {
        admin.delete(name).await;
        admin.create(&node(name, labels.clone())).await.unwrap();
    }
    let status = |arguments: &[&str], code: i32| {
        let all = [&["migrate", "status"], arguments, &["--namespace", NAMESPACE]].concat();
        run(plane, None, &all).with(code)
    };
    let json = |arguments: &[&str], code: i32| -> Value {
        let printed = serde_json::from_str(&status(&[arguments, &["-o", "json"]].concat(), code)).unwrap();
        assert_conforms("migrate-status", &printed);
        printed
    };
    // Without Karpenter, and without anything that uses the key.
    let unused = json(&[OLD, NEW, "--exit-code"], 0);
    assert_eq!((&unused["migrations"][0]["consumers"], &unused["unread"]), (&json!([]), &json!([])), "{unused:#}");
    assert!(unused["migrations"][0]["phase"].is_null() && status(&[], 0) == "no migrations are in force\n");

    install_node_pools(plane);
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": consumers()});
    plane.kubectl(&["apply", "-f", "-"], Some(&objects.to_string())).unwrap();
    let spec = json!({"migrations": [{"from": OLD, "to": NEW, "phase": "dualWrite"}],
        "rules": [{"name": "reader", "match": {"selector": {"matchLabels": {OLD: "gold"}}}, "labels": {"seen": "x"}}],
        "governance": {"expressions": [{"name": "asks", "expression": format!("!('{OLD}' in object.metadata.labels) || true")}]}});
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "move"}, "spec": spec});
    plane.kubectl(&["apply", "-f", "-"], Some(&policy.to_string())).unwrap();

    let printed = json(&[OLD, "--exit-code"], 1);
    let migration = &printed["migrations"][0];
    assert_eq!((&migration["policy"], &migration["phase"]), (&json!("move"), &json!("dualWrite")));
    let counts = &migration["nodes"];
    assert_eq!(
        (&counts["equal"], &counts["different"], &counts["oldOnly"], &counts["newOnly"]),
        (&json!(1), &json!(1), &json!(1), &json!(1))
    );
    let unequal: Vec<&str> =
        migration["unequal"].as_array().unwrap().iter().map(|one| one["node"].as_str().unwrap()).collect();
    assert_eq!(unequal, ["used-2", "used-3", "used-4"]);
    let manager = admin.get("used-1").await["metadata"]["managedFields"][0]["manager"].as_str().unwrap().to_owned();
    assert_eq!(migration["writers"], json!([{"manager": manager, "nodes": 3}]), "who created the nodes");
    let text = status(&[OLD], 0);
    let expected = format!("{OLD} is set by these field managers: {manager} (3 nodes); let them set the new key");
    assert!(text.contains(&expected), "{text}");
    let found: Vec<String> = migration["consumers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {} {}", one["kind"].as_str().unwrap(), one["name"].as_str().unwrap(), one["uses"]))
        .collect();
    assert_eq!(
        found,
        [
            r#"Pod alone ["nodeSelector"]"#,
            r#"Deployment deployment ["nodeSelector"]"#,
            r#"StatefulSet set ["podAntiAffinity"]"#,
            r#"DaemonSet daemons ["preferredNodeAffinity"]"#,
            r#"Job job ["topologySpread"]"#,
            r#"CronJob cron ["nodeSelector"]"#,
            r#"PersistentVolume used-volume ["requiredNodeAffinity"]"#,
            r#"StorageClass used-class ["allowedTopologies"]"#,
            r#"NodePool used-pool ["requirements"]"#,
            r#"NodePolicy move/asks ["match"]"#,
            r#"NodePolicy move/reader ["match"]"#,
        ],
        "{printed:#}"
    );
    assert_eq!(migration["podsOfWorkloads"], 1, "its Deployment is counted instead");
    let table = status(&[], 0);
    assert!(table.starts_with(&format!("{OLD} → {NEW}: phase dualWrite (policy move)\n")), "{table}");
    assert!(table.contains(&format!("    Pod {NAMESPACE}/alone: node selector\n")), "{table}");
    assert!(table.contains(&format!("    used-2: {OLD} \"a\", {NEW} \"b\"\n")), "{table}");

    plane.kubectl(&["delete", "--wait=false", "-f", "-"], Some(&objects.to_string())).unwrap();
    plane.kubectl(&["delete", "crd", "nodepools.karpenter.sh"], None).unwrap();
    plane.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"], None).unwrap();
    for (name, _) in &nodes {
        admin.delete(name).await;
    }
}
