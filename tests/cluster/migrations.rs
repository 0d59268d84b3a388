//! Migrations at a real API server: each phase, and a server that is killed in each of them.

use std::time::Duration;

use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, eventually_state, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::eventually::eventually;

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

async fn until_values(admin: &Requester, name: &str, expected: (Option<&str>, Option<&str>)) -> Value {
    admin.eventually(name, &format!("{expected:?}"), |node| values(node) == expected).await
}

/// Waits until a policy that was applied is in force at the webhook.
async fn until_denied(admin: &Requester, name: &str) -> String {
    let mut number = 0;
    eventually("the old key is refused", async || {
        // A value that the node has already is no change.
        number += 1;
        match admin.label(name, OLD, json!(format!("bronze-{number}"))).await {
            Err(refusal) => {
                assert_eq!(refusal.code, 403, "{}", refusal.message);
                Ok(refusal.message)
            }
            Ok(node) => Err(format!("{node:#}")),
        }
    })
    .await
}

async fn until_held_back(nodegate: &Nodegate<'_>, expected: bool) {
    let held_back = || {
        let text = nodegate.probe("/metrics").unwrap_or_default();
        text.lines().any(|line| line.starts_with("nodegate_removals_held_back_nodes") && !line.ends_with(" 0"))
    };
    nodegate.eventually(&format!("removals are held back: {expected}"), || held_back() == expected).await;
}

#[tokio::test]
async fn a_label_moves_through_all_phases() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
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
    until_values(&admin, "moving-1", (Some("gold"), Some("gold"))).await;
    until_values(&admin, "moving-2", (Some("tin"), Some("tin"))).await;
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
    until_held_back(&nodegate, true).await;
    for name in ["moving-1", "moving-2", "moving-3"] {
        assert!(label(&admin.get(name).await, OLD).is_some(), "{name}");
    }
    run(plane, None, &["apply", "--confirm", "--namespace", &nodegate.namespace]).with(0);
    for (name, value) in [("moving-1", "copper"), ("moving-2", "tin"), ("moving-3", "iron")] {
        until_values(&admin, name, (None, Some(value))).await;
    }
    until_held_back(&nodegate, false).await;
    // A kubelet that still sends the old key gets the new one instead. So there is nothing to remove.
    admin.delete("moving-3").await;
    let created = kubelet.create(&node("moving-3", json!({OLD: "lead"}))).await.unwrap();
    assert_eq!(values(&created), (None, Some("lead")));
    let refused = admin.label("moving-1", OLD, json!("gold")).await.unwrap_err();
    assert!(refused.code == 403 && refused.message.contains(NEW), "{}", refused.message);
    for name in ["moving-1", "moving-2", "moving-3"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn a_server_that_is_killed_in_any_phase_goes_on_where_it_stopped() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
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
    let maps = config_maps(plane, &namespace).await;
    for (phase, expected, recorded) in [
        ("dualWrite", (Some("gold"), Some("gold")), Some(("copies", NEW))),
        ("cutover", (Some("gold"), Some("gold")), Some(("takenOver", OLD))),
        ("done", (None, Some("gold")), None),
    ] {
        enter(plane, phase);
        for delay in [0, 50, 200, 500] {
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
            until_values(&admin, name, expected).await;
            // The labels are the same in dualWrite and in cutover; the record tells which phase the controller has reached.
            eventually_state(&maps, name, phase, |state| match recorded {
                Some((field, key)) => state["owned"][field].as_array().is_some_and(|keys| keys.contains(&json!(key))),
                None => state["owned"]["labels"].get(OLD).is_none() && state["nodeName"] == json!(name),
            })
            .await;
        }
    }
    // The new key is nobody's copy anymore: it stays when the migration is deleted.
    plane.kubectl(&["delete", "nodepolicy", "move"], None).unwrap();
    // Until the deletion is seen, the policies in force are not those that the command finds.
    eventually("the deletion is seen", async || {
        let ran = run(plane, None, &["apply", "--confirm", "--namespace", &namespace]);
        assert!(ran.code == 0 || ran.errors.contains("differ from the ones in force"), "{}", ran.errors);
        if ran.code == 0 { Ok(()) } else { Err(ran.errors) }
    })
    .await;
    for name in &names {
        assert_eq!(values(&admin.get(name).await), (None, Some("gold")), "{name}");
        admin.delete(name).await;
    }
}
