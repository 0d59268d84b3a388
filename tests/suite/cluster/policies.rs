//! `NodePolicy` objects at a real API server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{node, until_led};
use super::last_good::leave_policies_unjudged;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

fn policy(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn rule(when: &str, gives: &str) -> Value {
    // Only nodes of this test: another one that failed may have left its own.
    json!({"rules": [{"name": "r", "match": {"names": ["object-*"],
                                             "selector": {"matchExpressions": [{"key": when, "operator": "DoesNotExist"}]}},
                      "labels": {gives: "given"}}]})
}

fn object(plane: &ControlPlane, name: &str) -> Value {
    serde_json::from_str(&plane.kubectl(&["get", "nodepolicy", name, "-o", "json"], None).unwrap()).unwrap()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

async fn eventually_status(plane: &ControlPlane, name: &str, kind: &str, status: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let object = object(plane, name);
        let holds = condition(&object, kind).is_some_and(|condition| condition["status"] == status);
        if holds && object["status"]["observedGeneration"] == object["metadata"]["generation"] {
            return object;
        }
        assert!(Instant::now() < deadline, "{name} never got {kind}={status}:\n{object:#}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
#[ignore = "needs a control plane: just cluster-tests"]
async fn objects_are_in_force_while_they_exist_and_an_invalid_one_does_not_affect_others() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    admin.delete("object-1").await;
    // No policy file: the preset stands in until there is an object.
    let nodegate = Nodegate::start(plane, &Setup { cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("object-1", json!({}))).await.unwrap();
    plane.install_definition();
    // Written where the webhook is not asked about policies; else they would be refused.
    leave_policies_unjudged(plane, &nodegate).await;
    let apply = |name: &str, spec: &Value| plane.kubectl(&["apply", "-f", "-"], Some(&policy(name, spec)));
    apply("good", &rule("absent", "from-object")).unwrap();
    admin.eventually("object-1", "labelled", |node| label(node, "from-object") == Some("given")).await;
    let good = eventually_status(plane, "good", "Accepted", "True").await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while object(plane, "good")["status"]["matchedNodes"] != 1 {
        assert!(Instant::now() < deadline, "{:#}", object(plane, "good")["status"]);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(good["metadata"]["generation"], 1);

    // What the schema and its CEL can tell is refused at once.
    let nothing = apply("bad", &json!({"rules": [{"name": "r"}]})).unwrap_err();
    assert!(nothing.contains("the rule sets nothing"), "{nothing}");
    let twice =
        apply("bad", &json!({"rules": [{"name": "r", "labels": {"a": "b"}}, {"name": "r", "labels": {"a": "b"}}]}));
    assert!(twice.unwrap_err().contains("Duplicate value"));
    // What it cannot tell is told by the status, with the path.
    apply("bad", &json!({"rules": [{"name": "r", "match": {"expression": "1 +"}, "labels": {"a": "b"}}]})).unwrap();
    let bad = eventually_status(plane, "bad", "Accepted", "False").await;
    let message = condition(&bad, "Accepted").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("spec.rules[0].match.expression"), "{message}");
    // Two that go in a circle together: the newer one is left out.
    apply("newer", &rule("from-object", "absent")).unwrap();
    let newer = eventually_status(plane, "newer", "Accepted", "False").await;
    assert!(condition(&newer, "Accepted").unwrap()["message"].as_str().unwrap().contains("together"));

    // Nothing is written when nothing has changed.
    let version = object(plane, "good")["metadata"]["resourceVersion"].clone();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(object(plane, "good")["metadata"]["resourceVersion"], version);

    // An edit is taken up, a deletion too: what it gave goes.
    plane.kubectl(&["delete", "nodepolicy", "newer", "bad"], None).unwrap();
    apply("good", &rule("absent", "renamed")).unwrap();
    admin.eventually("object-1", "edited", |node| label(node, "renamed") == Some("given")).await;
    let table = plane.kubectl(&["get", "npol"], None).unwrap();
    assert!(table.contains("ACCEPTED") && table.contains("NODES"), "{table}");
    admin.delete("object-1").await;
}
