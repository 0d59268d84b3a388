//! Who may not write a key gets 403 and is told why, through `nodes` and through `nodes/status`.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use serde_json::json;

use super::control_plane::exclusive;
use super::join::example_nodes;
use super::keeping::until_led;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

#[tokio::test]
async fn reserved_labels_are_refused_through_nodes_and_nodes_status() {
    let cluster = exclusive();
    let _nodegate = Nodegate::start(cluster.plane, &Setup::default());
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("reserved-1").await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "reserved-1",
        "labels": {"kubernetes.io/hostname": "reserved-1", "node.kubernetes.io/kind": "a", "team": "x"}}});
    Requester::kubelet(cluster.plane, "reserved-1").await.create(&node).await.unwrap();

    let labels = |value| json!({"metadata": {"labels": {"node.kubernetes.io/kind": value}}});
    for (refused, what) in [
        (admin.merge("reserved-1", labels(json!("b"))).await, "changed"),
        (admin.merge("reserved-1", labels(json!(null))).await, "removed"),
        (admin.merge_status("reserved-1", labels(json!("b"))).await, "changed"),
        (admin.label("reserved-1", "feature.node.kubernetes.io/x", json!("true")).await, "added"),
    ] {
        let refusal = refused.unwrap_err();
        assert_eq!(refusal.code, 403, "{refusal:?}");
        for part in [what, "\"admin\"", "preset:baseline", "kube-system:*", "--break-glass-group"] {
            assert!(refusal.message.contains(part), "{part:?} is missing in {refusal:?}");
        }
    }
    let node = admin.get("reserved-1").await;
    assert_eq!(
        (label(&node, "node.kubernetes.io/kind"), label(&node, "feature.node.kubernetes.io/x")),
        (Some("a"), None)
    );

    let everything_else = json!({"metadata": {"labels": {"team": "y", "node-role.kubernetes.io/worker": ""}}});
    admin.merge("reserved-1", everything_else).await.unwrap();
    let kubeadm = admin.label("reserved-1", "node.kubernetes.io/exclude-from-external-load-balancers", json!("")).await;
    kubeadm.unwrap();
    let controller =
        Requester::user(cluster.plane, "system:serviceaccount:kube-system:node-controller", &["system:masters"]).await;
    controller.merge("reserved-1", labels(json!("c"))).await.unwrap();
    admin.delete("reserved-1").await;
}

#[tokio::test]
async fn a_break_glass_group_may_write_and_is_warned() {
    let cluster = exclusive();
    let setup = Setup { serve: &["--break-glass-group", "nodegate:break-glass"], ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("glass-1").await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "glass-1"}});
    admin.create(&node).await.unwrap();
    let rescuer = Requester::user(cluster.plane, "alice", &["system:masters", "nodegate:break-glass"]).await;
    rescuer.label("glass-1", "node.kubernetes.io/kind", json!("x")).await.unwrap();
    assert_eq!(admin.label("glass-1", "node.kubernetes.io/kind", json!("y")).await.unwrap_err().code, 403);
    let metrics = nodegate.probe("/metrics").unwrap();
    assert!(
        metrics.lines().any(|line| line.contains("break_glass") && !line.starts_with('#') && !line.ends_with(" 0")),
        "{metrics}"
    );
    admin.delete("glass-1").await;
}

#[tokio::test]
async fn a_kubelet_cannot_forge_its_tier() {
    let cluster = exclusive();
    let _nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: &["examples/fako/policy.yaml"], ..Setup::default() });
    let (admin, kubelet) =
        (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "thinkpad01").await);
    admin.delete("thinkpad01").await;
    let mut node = example_nodes("fako")["thinkpad01"].clone();
    node["metadata"]["labels"]["hardware.tier"] = json!("dual-gpu");
    node["metadata"]["labels"]["nodegate.dev/trusted"] = json!("true");
    let created = kubelet.create(&node).await.unwrap();
    assert_eq!((label(&created, "hardware.tier"), label(&created, "nodegate.dev/trusted")), (Some("standard"), None));

    // Through `nodes` the enforced value comes back in the same write; through `nodes/status`, where
    // nothing is patched, the write is refused.
    let updated = kubelet.label("thinkpad01", "hardware.tier", json!("dual-gpu")).await.unwrap();
    assert_eq!(label(&updated, "hardware.tier"), Some("standard"));
    let forged = json!({"metadata": {"labels": {"hardware.tier": "dual-gpu"}}});
    let refusal = kubelet.merge_status("thinkpad01", forged).await.unwrap_err();
    assert_eq!(refusal.code, 403, "{refusal:?}");
    assert!(refusal.message.contains("hardware.tier") && refusal.message.contains("fako"), "{refusal:?}");
    let reconciled = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}});
    kubelet.merge_status("thinkpad01", reconciled).await.unwrap();
    admin.delete("thinkpad01").await;
}

#[tokio::test]
async fn annotations_are_judged_where_policies_govern_them_and_nodegates_own_always() {
    let cluster = exclusive();
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "noted-1").await);
    admin.delete("noted-1").await;
    kubelet.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "noted-1"}})).await.unwrap();
    let annotate = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    {
        let nodegate = Nodegate::start(cluster.plane, &Setup::default());
        let calls = nodegate.requests("validate");
        admin.merge("noted-1", annotate("corp.example/note", "a")).await.unwrap();
        assert_eq!(nodegate.requests("validate"), calls, "nobody governs it");
        let refusal = kubelet.merge_status("noted-1", annotate("nodegate.dev/forged", "")).await.unwrap_err();
        assert!(refusal.code == 403 && refusal.message.contains("own-keys"), "{refusal:?}");
        admin.merge_status("noted-1", annotate("nodegate.dev/mine", "a")).await.unwrap();
        for forged in [json!("b"), json!(null)] {
            let forged = json!({"metadata": {"annotations": {"nodegate.dev/mine": forged}}});
            assert_eq!(kubelet.merge_status("noted-1", forged).await.unwrap_err().code, 403);
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: notes}\nspec: {governance: {immutable: [{name: note, keys: [corp.example/note], of: [annotations]}]}}\n";
    std::fs::write(&file, policy).unwrap();
    let _nodegate = Nodegate::start(cluster.plane, &Setup { policies: &[file.to_str().unwrap()], ..Setup::default() });
    for outcome in [
        admin.merge("noted-1", annotate("corp.example/note", "b")).await,
        admin.merge_status("noted-1", annotate("corp.example/note", "b")).await,
    ] {
        let refusal = outcome.unwrap_err();
        assert!(refusal.code == 403 && refusal.message.contains("is immutable and cannot be changed"), "{refusal:?}");
    }
    admin.delete("noted-1").await;
}

#[tokio::test]
async fn a_policy_on_annotations_says_that_the_registration_leaves_them_out_until_it_asks_for_them() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    admin.delete("noted-2").await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "noted-2", "annotations": {"corp.example/note": "a"}}});
    admin.create(&node).await.unwrap();
    let mut nodegate = Nodegate::start(plane, &Setup { cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes.yaml");
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: notes}\nspec: {governance: {immutable: [{name: note, keys: [corp.example/note], of: [annotations]}]}}\n";
    std::fs::write(&file, policy).unwrap();
    let file = file.to_str().unwrap();
    let is_warned = |further: &[&str]| {
        let (success, told) = plane.kubectl_with_stderr(&[&["apply", "-f", file], further].concat());
        assert!(success, "{told}");
        told.contains("notes/note: annotation-only writes are not judged")
    };
    nodegate.eventually("warned", || is_warned(&["--dry-run=server"])).await;
    assert!(is_warned(&[]));
    let condition = || {
        let path = "jsonpath={.status.conditions[?(@.type==\"AnnotationsNotJudged\")].message}";
        plane.kubectl(&["get", "nodepolicy", "notes", "-o", path], None).unwrap()
    };
    nodegate.eventually("in the status", || condition().contains("note; set webhooks.governAnnotations=true")).await;
    let is_logged = || {
        let log = nodegate.log();
        log.lines().any(|line| {
            line.contains("\"WARN\"") && line.contains("only annotations are not judged") && line.contains("notes/note")
        })
    };
    nodegate.eventually("logged", is_logged).await;
    let annotate = |value: &str| json!({"metadata": {"annotations": {"corp.example/note": value}}});
    admin.merge("noted-2", annotate("b")).await.unwrap();

    nodegate.register(&Setup { render: &["--govern-annotations"], ..Setup::default() });
    nodegate.eventually("resolved", || condition().is_empty() && !is_warned(&["--dry-run=server"])).await;
    assert_eq!(admin.merge("noted-2", annotate("c")).await.unwrap_err().code, 403);
    admin.delete("noted-2").await;
}

#[tokio::test]
async fn an_entry_that_forgets_the_control_plane_does_not_keep_its_taints_on_or_off() {
    let cluster = exclusive();
    let setup = Setup { policies: &["tests/cluster/forgotten.yaml"], ..Setup::default() };
    let _nodegate = Nodegate::start(cluster.plane, &setup);
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("forgotten-1").await;
    // The API server itself adds `not-ready` to this CREATE.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "forgotten-1"}});
    let created = admin.create(&node).await.unwrap();
    assert!(created["spec"]["taints"].to_string().contains("node.kubernetes.io/not-ready"), "{created:#}");
    let taints = |taints| json!({"spec": {"taints": taints}});
    assert_eq!(admin.merge("forgotten-1", taints(json!(null))).await.unwrap_err().code, 403);
    let controller =
        Requester::user(cluster.plane, "system:serviceaccount:kube-system:node-controller", &["system:masters"]).await;
    controller.merge("forgotten-1", taints(json!(null))).await.unwrap();
    let unreachable = taints(json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]));
    assert_eq!(admin.merge("forgotten-1", unreachable.clone()).await.unwrap_err().code, 403);
    controller.merge("forgotten-1", unreachable).await.unwrap();
    admin.delete("forgotten-1").await;
}
