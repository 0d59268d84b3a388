//! `NodePolicy` objects at a real API server.

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{node, until_led};
use super::last_good::leave_policies_unjudged;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::eventually::{eventually, holds};

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
    eventually(&format!("{name} has {kind}={status}"), async || {
        let object = object(plane, name);
        let is_so = condition(&object, kind).is_some_and(|condition| condition["status"] == status);
        let is_current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
        if is_so && is_current { Ok(object) } else { Err(format!("{object:#}")) }
    })
    .await
}

/// Waits until the status of a policy tells that it has given something to one node. Only a survey of all nodes finds that out.
async fn until_matched(plane: &ControlPlane, name: &str) {
    eventually(&format!("{name} gives something to a node"), async || {
        let status = object(plane, name)["status"].clone();
        holds(status["matchedNodes"] == 1, || format!("{status:#}"))
    })
    .await;
}

#[tokio::test]
async fn a_policy_may_read_what_none_before_has_read_of_the_nodes_that_are_there() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    let nodegate = Nodegate::start(plane, &Setup { cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    leave_policies_unjudged(plane, &nodegate).await;
    let mut seen = node("object-1", json!({}));
    seen["status"]["images"] = json!([{"names": ["registry.example.com/a"], "sizeBytes": 1}, {"names": ["b"]}]);
    seen["status"]["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": 10250}});
    admin.create(&seen).await.unwrap();
    let policy_of = |name: &str, expression: &str| {
        let rule =
            json!({"name": "r", "match": {"expression": expression}, "labels": {name: "given"}, "removeAfter": "1s"});
        policy(name, &json!({"rules": [rule]}))
    };
    for (name, expression) in [
        ("images", "size(node.status.images) == 2"),
        ("port", "node.status.daemonEndpoints.kubeletEndpoint.Port == 10250"),
    ] {
        plane.kubectl(&["apply", "-f", "-"], Some(&policy_of(name, expression))).unwrap();
        admin.eventually("object-1", name, |node| label(node, name) == Some("given")).await;
    }
    // They are read no more; what another policy gives for them stays.
    plane.kubectl(&["delete", "nodepolicy", "images"], None).unwrap();
    let is_right = |node: &Value| label(node, "images").is_none() && label(node, "port") == Some("given");
    admin.eventually("object-1", "the label of the deleted policy goes", is_right).await;
    admin.delete("object-1").await;
}

#[tokio::test]
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
    until_matched(plane, "good").await;
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

    // Nothing is written when nothing has changed: a survey that finds out something about another one, too.
    let other = json!({"rules": [{"name": "r", "match": {"names": ["other-*"]}, "labels": {"other": "given"}}]});
    apply("other", &other).unwrap();
    eventually_status(plane, "other", "Accepted", "True").await;
    let version = object(plane, "good")["metadata"]["resourceVersion"].clone();
    admin.create(&node("other-1", json!({}))).await.unwrap();
    until_matched(plane, "other").await;
    assert_eq!(object(plane, "good")["metadata"]["resourceVersion"], version);
    admin.delete("other-1").await;

    // An edit is taken up, a deletion too: what it gave goes.
    plane.kubectl(&["delete", "nodepolicy", "newer", "bad"], None).unwrap();
    apply("good", &rule("absent", "renamed")).unwrap();
    admin.eventually("object-1", "edited", |node| label(node, "renamed") == Some("given")).await;
    let table = plane.kubectl(&["get", "npol"], None).unwrap();
    assert!(table.contains("ACCEPTED") && table.contains("NODES"), "{table}");
    admin.delete("object-1").await;
}
