//! `nodegate history` in a cluster.

use serde_json::{Value, json};

use super::super::control_plane::exclusive;
use super::super::keeping::{config_maps, eventually_state, is_pending, leading, node, setup};
use super::super::requester::Requester;
use super::run;
use crate::shared::output::assert_conforms;

#[tokio::test]
async fn history_shows_what_admission_gave_what_was_restored_and_that_a_node_was_gone() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let nodegate = leading(plane, &setup()).await;
    admin.delete("kept-past").await;
    let kubelet = Requester::kubelet(plane, "kept-past").await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    let recorded = |how: &'static str, key: &'static str| {
        move |state: &Value| {
            let all = state["history"].as_array().cloned().unwrap_or_default();
            all.iter().any(|change| change["how"] == how && change["key"] == key)
        }
    };
    kubelet.create(&node("kept-past", json!({"kubernetes.io/arch": "amd64"}))).await.unwrap();
    admin.eventually("kept-past", "not pending", |node| !is_pending(node)).await;
    admin.label("kept-past", "persist.demo/a", json!("b")).await.unwrap();
    eventually_state(&maps, "kept-past", "has recorded the label", recorded("user", "persist.demo/a")).await;
    kubelet.merge_status_as("kept-past", json!({"metadata": {"labels": {"free": "x"}}}), "kubelet").await.unwrap();
    eventually_state(&maps, "kept-past", "has recorded the kubelet's", recorded("kubelet", "free")).await;
    admin.delete("kept-past").await;
    eventually_state(&maps, "kept-past", "has recorded the deletion", recorded("deleted", "")).await;
    kubelet.create(&node("kept-past", json!({"kubernetes.io/arch": "amd64"}))).await.unwrap();
    eventually_state(&maps, "kept-past", "has recorded what was restored", recorded("restored", "persist.demo/a"))
        .await;

    let arguments = ["history", "kept-past", "--namespace", &nodegate.namespace];
    let ran = run(plane, None, &[&arguments as &[&str], &["-o", "json"]].concat());
    let entries: Value = serde_json::from_str(&ran.with(0)).unwrap();
    assert_conforms("history", &entries);
    let line = |entry: &Value| {
        let text = |field: &str| entry[field].as_str().unwrap_or("-").to_owned();
        format!("{} {} {}", text("how"), text("field"), text("key"))
    };
    let lines: Vec<String> = entries.as_array().unwrap().iter().map(line).collect();
    let at = |wanted: &str| {
        let found = lines.iter().position(|line| line == wanted);
        found.unwrap_or_else(|| panic!("{wanted} is not in the history: {lines:#?}"))
    };
    let joined =
        ["admission label hardware.tier", "admission taint fleet", "controller label node-role.kubernetes.io/worker"];
    let later = at("user label persist.demo/a");
    assert!(joined.iter().all(|line| at(line) < later), "{lines:#?}");
    assert!(later < at("kubelet label free") && at("kubelet label free") < at("deleted node -"), "{lines:#?}");
    assert_eq!(
        (at("returned node -"), at("restored label persist.demo/a")),
        (at("deleted node -") + 1, at("returned node -") + 2)
    );
    let all = run(plane, None, &["history", "--all", "--since", "10m", "--namespace", &nodegate.namespace]).with(0);
    assert!(all.contains("kept-past") && all.contains(" restored "), "{all}");
    let revert =
        run(plane, None, &[&arguments as &[&str], &["--revert", &(at("deleted node -") + 1).to_string()]].concat());
    assert!(revert.code == 2 && revert.errors.contains("is not the change of a key"), "{}", revert.errors);
    let absent = run(plane, None, &["history", "kept-nobody", "--namespace", &nodegate.namespace]);
    assert!(absent.code == 2 && absent.errors.contains("no saved state for node kept-nobody"), "{}", absent.errors);
    admin.delete("kept-past").await;
}
