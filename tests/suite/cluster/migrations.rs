//! Migrations at a real API server: each phase, and a server that is killed in each of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

const OLD: &str = "moving.example/tier";
const NEW: &str = "moved.example/tier";

/// Sets the phase of the migration.
fn enter(plane: &ControlPlane, phase: &str) {
    let spec = json!({"migrations": [{"from": OLD, "to": NEW, "phase": phase}]});
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "move"}, "spec": spec});
    plane.kubectl(&["apply", "-f", "-"], Some(&policy.to_string())).unwrap();
}

/// Both values of a node.
fn values(node: &Value) -> (Option<&str>, Option<&str>) {
    (label(node, OLD), label(node, NEW))
}

async fn eventually(admin: &Requester, name: &str, expected: (Option<&str>, Option<&str>)) -> Value {
    admin.eventually(name, &format!("{expected:?}"), |node| values(node) == expected).await
}

/// Waits until a policy that was applied is in force at the webhook.
async fn until_denied(admin: &Requester, name: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    for number in 0.. {
        // A value that the node has already is no change.
        match admin.label(name, OLD, json!(format!("bronze-{number}"))).await {
            Err(refusal) => {
                assert_eq!(refusal.code, 403, "{}", refusal.message);
                return refusal.message;
            }
            Ok(_) => assert!(Instant::now() < deadline, "the old key is never refused"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    unreachable!("numbers do not end")
}

fn held_back(nodegate: &Nodegate<'_>) -> bool {
    nodegate.probe("/metrics").is_some_and(|text| {
        text.lines().any(|line| line.starts_with("nodegate_removals_held_back_nodes") && !line.ends_with(" 0"))
    })
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn a_label_moves_through_all_phases() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.remove_definition();
    plane.install_definition();
    for name in ["moving-1", "moving-2", "moving-3"] {
        admin.delete(name).await;
    }
    admin.create(&node("moving-1", json!({OLD: "gold"}))).await.unwrap();
    admin.create(&node("moving-2", json!({NEW: "tin"}))).await.unwrap();
    enter(plane, "dualWrite");
    let nodegate =
        Nodegate::start(plane, &Setup { cluster: true, serve: &["--max-removals", "1"], ..Setup::default() });
    until_led(&nodegate).await;

    // Existing nodes get the other key, in both directions, and a new one has it when its CREATE returns.
    eventually(&admin, "moving-1", (Some("gold"), Some("gold"))).await;
    eventually(&admin, "moving-2", (Some("tin"), Some("tin"))).await;
    let kubelet = Requester::kubelet(plane, "moving-3").await;
    let created = kubelet.create(&node("moving-3", json!({OLD: "iron"}))).await.unwrap();
    assert_eq!(values(&created), (Some("iron"), Some("iron")));
    // A change is followed within its own write, and who changes the copy gets the value back.
    let changed = admin.label("moving-1", OLD, json!("silver")).await.unwrap();
    assert_eq!(values(&changed), (Some("silver"), Some("silver")));
    let reverted = admin.label("moving-1", NEW, json!("mine")).await.unwrap();
    assert_eq!(values(&reverted), (Some("silver"), Some("silver")));

    enter(plane, "cutover");
    let message = until_denied(&admin, "moving-1").await;
    assert!(
        message.contains(&format!("it is replaced by {NEW:?} (policy move, rule migration:{OLD}:{NEW})")),
        "{message}"
    );
    let changed = admin.label("moving-1", NEW, json!("copper")).await.unwrap();
    assert_eq!(values(&changed), (Some("copper"), Some("copper")));
    let forged = kubelet.merge_status("moving-3", json!({"metadata": {"labels": {OLD: "x"}}})).await.unwrap_err();
    assert_eq!(forged.code, 403, "{}", forged.message);
    // A kubelet that comes back with the old key is not locked out.
    admin.delete("moving-3").await;
    let created = kubelet.create(&node("moving-3", json!({OLD: "iron"}))).await.unwrap();
    assert_eq!(values(&created), (Some("iron"), Some("iron")));
    kubelet.merge_status("moving-3", json!({"status": {"phase": "Running"}})).await.unwrap();

    // Three nodes would lose the old key, and one may: nothing is removed until somebody confirms it.
    enter(plane, "done");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !held_back(&nodegate) {
        assert!(Instant::now() < deadline, "the removals are not held back:\n{}", nodegate.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for name in ["moving-1", "moving-2", "moving-3"] {
        assert!(label(&admin.get(name).await, OLD).is_some(), "{name}");
    }
    run(plane, None, &["apply", "--confirm", "--namespace", &nodegate.namespace]).with(0);
    for (name, value) in [("moving-1", "copper"), ("moving-2", "tin"), ("moving-3", "iron")] {
        eventually(&admin, name, (None, Some(value))).await;
    }
    let refused = admin.label("moving-1", OLD, json!("gold")).await.unwrap_err();
    assert!(refused.code == 403 && refused.message.contains(NEW), "{}", refused.message);
    for name in ["moving-1", "moving-2", "moving-3"] {
        admin.delete(name).await;
    }
    plane.remove_definition();
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn a_server_that_is_killed_in_any_phase_goes_on_where_it_stopped() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.remove_definition();
    plane.install_definition();
    let names: Vec<String> = (0..8).map(|number| format!("moving-k{number}")).collect();
    for name in &names {
        admin.delete(name).await;
        admin.create(&node(name, json!({OLD: "gold"}))).await.unwrap();
    }
    enter(plane, "dualWrite");
    // Without the webhook, everything is the controller's to write, slowly enough to be killed in between.
    let serve: &[&str] = &["--max-removals", "100", "--writes-per-second", "20"];
    let setup = Setup { cluster: true, unregistered: true, serve, ..Setup::default() };
    let mut nodegate = Nodegate::start(plane, &setup);
    let namespace = nodegate.namespace.clone();
    for (phase, expected) in [
        ("dualWrite", (Some("gold"), Some("gold"))),
        ("cutover", (Some("gold"), Some("gold"))),
        ("done", (None, Some("gold"))),
    ] {
        enter(plane, phase);
        for delay in [50, 200] {
            until_led(&nodegate).await;
            tokio::time::sleep(Duration::from_millis(delay)).await;
            nodegate.kill();
            for name in &names {
                // At every moment one of the keys is there, and both have the one value.
                let node = admin.get(name).await;
                let (old, new) = values(&node);
                assert_eq!((old.or(new), new.or(old)), (Some("gold"), Some("gold")), "{phase}");
            }
            nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup.clone() });
        }
        for name in &names {
            eventually(&admin, name, expected).await;
        }
    }
    // The new key is nobody's copy anymore: it stays when the migration is deleted.
    plane.kubectl(&["delete", "nodepolicy", "move"], None).unwrap();
    run(plane, None, &["apply", "--confirm", "--namespace", &namespace]);
    for name in &names {
        assert_eq!(values(&admin.get(name).await), (None, Some("gold")), "{name}");
        admin.delete(name).await;
    }
    plane.remove_definition();
}
