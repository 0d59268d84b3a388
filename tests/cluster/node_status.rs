//! What Kubernetes says of a node in its status, in fields and conditions that nodegate knows only from expressions: the recipes that
//! read them do what they say.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::shared::guides::block_of;

/// The policy of a recipe, as a file, with rules that take away at once what they gave.
fn policy_of(directory: &tempfile::TempDir, recipe: &str) -> PathBuf {
    let (file, policy) = (format!("{recipe}.yaml"), block_of(&format!("docs/recipes/{recipe}.md"), "# policy.yaml\n"));
    assert_eq!(policy.matches("\n    - name: ").count(), 1, "{policy}");
    let file = directory.path().join(file);
    std::fs::write(&file, policy.replace("\n    - name: ", "\n    - removeAfter: 0s\n      name: ")).unwrap();
    file
}

#[tokio::test]
async fn a_condition_becomes_a_taint_and_a_declared_feature_a_label_for_as_long_as_they_are_there() {
    const PLANNED: &str = "maintenance.example.com/planned";
    const RESTARTS: &str = "features.example.com/restart-all-containers";
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let directory = tempfile::tempdir().unwrap();
    let files = ["planned-maintenance", "what-kubelets-can-do"].map(|recipe| policy_of(&directory, recipe));
    let policies = files.each_ref().map(|file| file.to_str().unwrap());
    let nodegate = Nodegate::start(plane, &Setup { policies: &policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let name = "status-1";
    admin.create(&node(name, json!({}))).await.unwrap();
    let is_tainted = |node: &Value| {
        node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == PLANNED))
    };

    let planned = |status: &str| json!({"status": {"conditions": [{"type": "MaintenancePlanned", "status": status}]}});
    admin.merge_status(name, planned("True")).await.unwrap();
    admin.eventually(name, "tainted while maintenance is planned", is_tainted).await;
    admin.merge_status(name, planned("False")).await.unwrap();
    admin.eventually(name, "not tainted afterwards", |node| !is_tainted(node)).await;

    let declared = |features: Value| json!({"status": {"declaredFeatures": features}});
    let stored = declared(json!(["RestartAllContainersOnContainerExits"]));
    admin.merge_status(name, stored).await.unwrap();
    if admin.get(name).await["status"]["declaredFeatures"].is_null() {
        assert!(plane.minor_version() < 37, "this version of Kubernetes has the field");
        return;
    }
    admin.eventually(name, "labelled", |node| label(node, RESTARTS) == Some("true")).await;
    admin.merge_status(name, declared(Value::Null)).await.unwrap();
    admin.eventually(name, "not labelled any more", |node| label(node, RESTARTS).is_none()).await;
}
