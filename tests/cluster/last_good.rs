//! `NodePolicy` objects with faults: refused when they are written, and without effect where they are stored all the same.

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, eventually_state, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::eventually_blocking;

const DRY_RUN: &[&str] = &["apply", "--dry-run=server", "-f", "-"];

fn policy(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn tiers(gives: &str) -> Value {
    json!({
        "rules": [{"name": "given", "labels": {gives: "x"}, "removeAfter": "1s",
                   "taints": [{"key": "guarded", "value": "yes", "effect": "NoSchedule"}]}],
        "governance": {"allowed": [{"name": "tiers", "key": "tier", "values": ["gold"]}]},
    })
}

/// What its schema allows and what cannot be compiled, twice.
fn faulty() -> Value {
    let mut spec = tiers("from-object");
    spec["rules"][0]["match"] = json!({"expression": "node.metadata.name =="});
    spec["governance"]["naming"] = json!([{"keys": ["*"], "regex": "("}]);
    spec
}

fn object(plane: &ControlPlane, name: &str) -> Value {
    serde_json::from_str(&plane.kubectl(&["get", "nodepolicy", name, "-o", "json"], None).unwrap()).unwrap()
}

/// Takes the entry for policies out of the registration, as where it was never applied.
pub(super) async fn leave_policies_unjudged(plane: &ControlPlane, nodegate: &Nodegate<'_>) {
    const REGISTRATION: &str = "validatingwebhookconfiguration/nodegate";
    let names = plane.kubectl(&["get", REGISTRATION, "-o", "jsonpath={.webhooks[*].name}"], None).unwrap();
    let place = names.split(' ').position(|name| name == "policies.nodegate.dev").expect("it is registered");
    let patch = json!([{"op": "remove", "path": format!("/webhooks/{place}")}]).to_string();
    plane.kubectl(&["patch", REGISTRATION, "--type=json", "-p", &patch], None).unwrap();
    let probe =
        policy("probe", &json!({"rules": [{"name": "r", "match": {"expression": "1 +"}, "labels": {"a": "b"}}]}));
    nodegate.eventually("unregistered", || plane.kubectl(DRY_RUN, Some(&probe)).is_ok()).await;
}

/// Waits until the API server asks nodegate about policies.
async fn until_policies_are_judged(plane: &ControlPlane, nodegate: &Nodegate<'_>) {
    let probe =
        policy("probe", &json!({"rules": [{"name": "r", "match": {"expression": "1 +"}, "labels": {"a": "b"}}]}));
    nodegate.eventually("asked", || plane.kubectl(DRY_RUN, Some(&probe)).is_err()).await;
}

#[tokio::test]
async fn an_invalid_update_changes_nothing_even_after_restarts_until_it_is_fixed_or_deleted() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    admin.delete("guarded-1").await;
    let nodegate = Nodegate::start(plane, &Setup { cluster: true, ..Setup::default() });
    let namespace = nodegate.namespace.clone();
    until_led(&nodegate).await;
    leave_policies_unjudged(plane, &nodegate).await;
    let apply = |spec: &Value| plane.kubectl(&["apply", "-f", "-"], Some(&policy("tiers", spec))).unwrap();
    apply(&tiers("from-object"));
    let in_force = || object(plane, "tiers")["status"]["generationInForce"].clone();
    nodegate.eventually("in force", || in_force() == 1).await;
    admin.create(&node("guarded-1", json!({"tier": "gold"}))).await.unwrap();
    let is_guarded = |node: &Value| {
        label(node, "from-object") == Some("x") && taints(node).contains(&"guarded=yes:NoSchedule".to_owned())
    };
    admin.eventually("guarded-1", "guarded", is_guarded).await;
    let revisions = || {
        let list = ["get", "controllerrevisions", "-n", &namespace, "-o", "jsonpath={.items[*].revision}"];
        plane.kubectl(&list, None).unwrap()
    };
    nodegate.eventually("recorded", || revisions() == "1").await;
    let refused = async || admin.label("guarded-1", "tier", json!("tin")).await.unwrap_err().code == 403;
    assert!(refused().await);

    apply(&faulty());
    let status = || object(plane, "tiers")["status"].clone();
    nodegate.eventually("told", || status()["observedGeneration"] == 2).await;
    assert_eq!((in_force(), status()["conditions"][0]["status"].clone()), (json!(1), json!("False")));
    let table = plane.kubectl(&["get", "npol"], None).unwrap();
    for part in
        ["MESSAGE", "generation 2 has 2 errors; generation 1 stays in force: ", "spec.rules[0].match.expression"]
    {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    let has_event = || {
        let events = plane.kubectl(&["get", "events.v1.events.k8s.io", "-A", "-o", "json"], None).unwrap();
        let events: Value = serde_json::from_str(&events).unwrap();
        events["items"].as_array().unwrap().iter().any(|event| {
            (&event["reason"], &event["regarding"]["kind"], &event["regarding"]["name"])
                == (&json!("Faulty"), &json!("NodePolicy"), &json!("tiers"))
        })
    };
    nodegate.eventually("told by an event", has_event).await;
    let metric = |nodegate: &Nodegate<'_>, line: &str| nodegate.probe("/metrics").unwrap_or_default().contains(line);
    assert!(metric(&nodegate, "\nnodegate_policy_faulty{policy=\"tiers\"} 1\n"));
    // One resync would begin the grace of a second, and the work after that would remove what it gave.
    nodegate.until_resynced(1).await;
    assert!(is_guarded(&admin.get("guarded-1").await));
    assert!(refused().await);

    drop(nodegate);
    let nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..Setup::default() });
    assert!(refused().await, "a replica that starts knows the last good generation:\n{}", nodegate.log());
    until_led(&nodegate).await;
    admin.merge_status("guarded-1", json!({"metadata": {"labels": {"from-object": null}}})).await.unwrap();
    admin.eventually("guarded-1", "repaired", is_guarded).await;
    let maps = config_maps(plane, &namespace).await;
    let is_told = |state: &Value| {
        let mut history = state["history"].as_array().into_iter().flatten();
        history.any(|change| change["key"] == "from-object" && change["how"] == "controller")
    };
    eventually_state(&maps, "guarded-1", "its repair is told", is_told).await;
    nodegate.until_resynced(1).await;
    assert!(is_guarded(&admin.get("guarded-1").await) && refused().await);
    assert_eq!(in_force(), 1);

    apply(&tiers("mended"));
    admin
        .eventually("guarded-1", "mended", |node| {
            label(node, "mended") == Some("x") && label(node, "from-object").is_none()
        })
        .await;
    nodegate.eventually("accepted", || in_force() == 3).await;
    assert!(metric(&nodegate, "\nnodegate_policy_faulty{policy=\"tiers\"} 0\n"));
    assert!(refused().await);

    // Deleting is deleting.
    plane.kubectl(&["delete", "nodepolicy", "tiers"], None).unwrap();
    nodegate.eventually("gone", || !metric(&nodegate, "policy_faulty{")).await;
    admin.label("guarded-1", "tier", json!("tin")).await.unwrap();
    admin.delete("guarded-1").await;
}

#[tokio::test]
async fn a_stored_policy_that_takes_too_much_ends_no_replica_and_the_last_good_generation_stays() {
    const RISE_MAX: u64 = 96 << 20;
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    admin.delete("guarded-2").await;
    let nodegate = Nodegate::start(plane, &Setup { cluster: true, ..Setup::default() });
    let namespace = nodegate.namespace.clone();
    until_led(&nodegate).await;
    leave_policies_unjudged(plane, &nodegate).await;
    let put = |spec: &Value| {
        // `apply` would store it twice. The leader may write the status meanwhile, and then the object is read again.
        eventually_blocking("the policy is stored", || {
            let verb = if plane.kubectl(&["get", "npol", "tiers"], None).is_ok() { "replace" } else { "create" };
            let stored = plane.kubectl(&[verb, "-f", "-"], Some(&policy("tiers", spec)));
            if let Err(error) = &stored {
                assert!(error.contains("(Conflict)"), "{error}");
            }
            stored
        })
    };
    put(&tiers("from-object"));
    nodegate.eventually("in force", || object(plane, "tiers")["status"]["generationInForce"] == 1).await;
    admin.create(&node("guarded-2", json!({"tier": "gold"}))).await.unwrap();
    let refused = async || admin.label("guarded-2", "tier", json!("tin")).await.unwrap_err().code == 403;
    assert!(refused().await);
    let idle = nodegate.peak_memory();

    let naming = json!({"keys": ["a"], "regex": "[a-z0-9]{2,1000}[a-z]{1,400}", "of": "value"});
    for (generation, entries, why) in [(2, 8_000, "at most 50,000"), (3, 4_000, "32 MiB when compiled")] {
        let mut hostile = tiers("from-object");
        hostile["governance"]["naming"] = vec![naming.clone(); entries].into();
        put(&hostile);
        let is_told = || {
            let status = object(plane, "tiers")["status"].clone();
            let is_seen = status["observedGeneration"] == generation && status["generationInForce"] == 1;
            is_seen && status.to_string().contains(why)
        };
        nodegate.eventually("told", is_told).await;
        assert!(refused().await, "{}", nodegate.log());
    }
    let rise = nodegate.peak_memory().saturating_sub(idle);
    assert!(rise <= RISE_MAX, "{} MiB", rise >> 20);

    // It ends no replica that starts, either.
    drop(nodegate);
    let nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..Setup::default() });
    assert!(refused().await, "{}", nodegate.log());
    until_led(&nodegate).await;
    let peak = nodegate.peak_memory();
    assert!(refused().await && peak <= idle + RISE_MAX, "{} MiB", peak >> 20);
    plane.kubectl(&["delete", "nodepolicy", "tiers"], None).unwrap();
    admin.delete("guarded-2").await;
    drop(nodegate);
}

#[tokio::test]
async fn a_policy_that_does_not_compile_is_refused_with_every_error_and_its_field() {
    let cluster = exclusive();
    let plane = cluster.plane;
    plane.install_definition();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy("of-a-file", &json!({}))).unwrap();
    let (files, render): ([&str; 1], &[&str]) = ([file.to_str().unwrap()], &["--failure-policy", "Fail"]);
    let setup = Setup { cluster: true, policies: &files, render, ..Setup::default() };
    let mut nodegate = Nodegate::start(plane, &setup);
    until_policies_are_judged(plane, &nodegate).await;
    let apply = |name: &str, spec: &Value| plane.kubectl(&["apply", "-f", "-"], Some(&policy(name, spec)));
    let dry_run = |name: &str, spec: &Value| plane.kubectl(DRY_RUN, Some(&policy(name, spec)));

    let refused = dry_run("tiers", &faulty()).unwrap_err();
    for part in
        ["The NodePolicy \"tiers\" is invalid", "spec.rules[0].match.expression", "spec.governance.naming[0].regex"]
    {
        assert!(refused.contains(part), "{part} in\n{refused}");
    }
    assert!(!refused.contains("of-a-file"), "{refused}");
    // A typo in a field that the schema does not know is refused by the API server and kubectl themselves.
    let mut typo = tiers("from-object");
    typo["rules"][0]["match"] = json!({"selector": {"matchLabel": {"a": "b"}}});
    assert!(dry_run("tiers", &typo).unwrap_err().contains("matchLabel"));
    let taken = dry_run("of-a-file", &tiers("x")).unwrap_err();
    assert!(taken.contains("metadata.name") && taken.contains("give each policy a unique name"), "{taken}");
    dry_run("tiers", &tiers("from-object")).unwrap();

    // Together with the others: a cycle is refused, another value for a key is told.
    apply("tiers", &tiers("from-object")).unwrap();
    nodegate.eventually("in force", || nodegate.log().contains("of-a-file, tiers")).await;
    let cycle = json!({"rules": [
        {"name": "a", "match": {"selector": {"matchExpressions": [{"key": "q", "operator": "DoesNotExist"}]}}, "labels": {"p": "x"}},
    ]});
    apply("half", &cycle).unwrap();
    nodegate.eventually("in force", || nodegate.log().contains("half, of-a-file, tiers")).await;
    let other_half = json!({"rules": [
        {"name": "b", "match": {"selector": {"matchExpressions": [{"key": "p", "operator": "DoesNotExist"}]}}, "labels": {"q": "x"}},
    ]});
    let refused = apply("other-half", &other_half).unwrap_err();
    assert!(refused.contains("together with other policies"), "{refused}");
    let conflict = json!({"rules": [{"name": "c", "labels": {"p": "y"}}]});
    let another = directory.path().join("conflict.json");
    std::fs::write(&another, policy("conflict", &conflict)).unwrap();
    let (done, told) = plane.kubectl_with_stderr(&["apply", "--dry-run=server", "-f", another.to_str().unwrap()]);
    assert!(done && told.contains("rule conflict/c takes precedence over rule half/a"), "{told}");

    // What is stored with faults all the same can be labelled, and end.
    nodegate.kill();
    apply("tiers", &faulty()).expect("while nodegate is away policies can be mended, also under Fail");
    drop(nodegate);
    let nodegate = Nodegate::start(plane, &setup);
    until_policies_are_judged(plane, &nodegate).await;
    plane.kubectl(&["label", "nodepolicy", "tiers", "team=a"], None).unwrap();
    nodegate.eventually("its status written", || object(plane, "tiers")["status"]["observedGeneration"] == 2).await;
    plane.kubectl(&["delete", "nodepolicy", "--all"], None).unwrap();
}
