//! With `validatingFailurePolicy: Fail` nobody is refused before a pod serves, and everybody is judged afterwards.

use std::time::Duration;

use nodegate_policy::PendingTaints;
use serde_json::{Value, json};

use super::rights::permit;
use super::uninstall::Release;
use super::{NAMESPACE, Objects, items, value_sets};
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::{eventually, for_a_while};
use crate::keeping::{node, until_led};
use crate::nodegate::{Nodegate, Setup};
use crate::requester::Requester;

const ANNOTATION: &str = "nodegate.dev/failure-policy";
const VALIDATING: &str = "validatingwebhookconfiguration/nodegate";

/// The webhook entries of a configuration with the failure policies that its annotation names.
pub(super) fn become_of(configuration: &Value) -> Vec<Value> {
    let mut entries = configuration["webhooks"].as_array().unwrap().clone();
    if let Some(annotation) = configuration["metadata"]["annotations"][ANNOTATION].as_str() {
        let (name, policy) = annotation.split_once('=').unwrap();
        entries.iter_mut().find(|entry| entry["name"] == name).unwrap()["failurePolicy"] = json!(policy);
    }
    entries
}

#[test]
fn fail_is_two_entries_and_tolerates_what_new_nodes_carry() {
    let tolerated = |objects: &Objects| -> Vec<String> {
        let no_schedule = |toleration: &&Value| toleration["effect"] == "NoSchedule";
        let tolerations = items(&objects.pod()["spec"]["tolerations"]).iter().filter(no_schedule);
        tolerations.map(|toleration| toleration["key"].as_str().unwrap().to_owned()).collect()
    };
    let policies = |objects: &Objects| -> Vec<Value> {
        objects.webhooks("ValidatingWebhookConfiguration").iter().map(|entry| entry["failurePolicy"].clone()).collect()
    };
    let pending = PendingTaints::default();
    let pending = pending.all().iter().map(|id| id.key.as_str());
    let always: Vec<&str> = pending.chain(["node-role.kubernetes.io/control-plane"]).collect();
    let new = ["node.kubernetes.io/not-ready", "node.kubernetes.io/network-unavailable"];

    let Some(ignore) = Objects::render(&value_sets()["defaults"]) else { return };
    assert_eq!(policies(&ignore), ["Ignore", "Ignore"], "of nodes, and of policies");
    assert!(always.iter().all(|key| tolerated(&ignore).contains(&(*key).to_owned())), "{:?}", tolerated(&ignore));
    // Otherwise a pod would rather wait on a broken node, which is empty, than run on a sound one.
    assert!(!new.iter().any(|key| tolerated(&ignore).contains(&(*key).to_owned())), "{:?}", tolerated(&ignore));

    let Some(fail) = Objects::render(&value_sets()["fail"]) else { return };
    assert_eq!(policies(&fail), ["Ignore", "Ignore", "Ignore"], "nobody serves yet");
    let becomes = become_of(fail.only("ValidatingWebhookConfiguration"));
    // Policies can always be mended.
    assert_eq!([0, 1, 2].map(|entry| &becomes[entry]["failurePolicy"]), ["Fail", "Ignore", "Ignore"]);
    assert_eq!(fail.webhooks("MutatingWebhookConfiguration")[0]["failurePolicy"], "Ignore");
    assert!(
        always.iter().chain(&new).all(|key| tolerated(&fail).contains(&(*key).to_owned())),
        "{:?}",
        tolerated(&fail)
    );
}

#[test]
fn without_the_controller_the_failure_policy_is_rendered_as_fail() {
    let values = json!({"webhooks": {"validatingFailurePolicy": "Fail"}, "controller": {"enabled": false}});
    let Some(objects) = Objects::render(&values) else { return };
    let configuration = objects.only("ValidatingWebhookConfiguration");
    assert_eq!(configuration["webhooks"][0]["failurePolicy"], "Fail");
    assert!(configuration["metadata"]["annotations"][ANNOTATION].is_null());
}

/// What the account may do with validating webhook configurations, as verbs; every rule names the object.
fn verbs(objects: &Objects) -> Vec<Value> {
    let role = objects.named("ClusterRole", &json!("nodegate")).unwrap();
    let rules = items(&role["rules"]).iter();
    let rules = rules.filter(|rule| items(&rule["resources"]).contains(&json!("validatingwebhookconfigurations")));
    let rules: Vec<&Value> = rules.inspect(|rule| assert_eq!(rule["resourceNames"], json!(["nodegate"]))).collect();
    rules.into_iter().flat_map(|rule| items(&rule["verbs"]).to_vec()).collect()
}

#[test]
fn the_account_may_write_the_validating_configuration_only_if_guard_or_failure_policy_need_it() {
    let mut own_secret = value_sets()["own secret"].clone();
    let Some(guarded) = Objects::render(&own_secret) else { return };
    assert_eq!(verbs(&guarded), ["get", "list", "watch", "patch"], "its annotations are the guard's parameters");
    own_secret["guard"] = json!({"enabled": false});
    let reads = ["get", "list", "watch"];
    let Some(ignore) = Objects::render(&own_secret) else { return };
    assert_eq!(verbs(&ignore), reads, "whether it asks for changes of annotations");
    assert!(!ignore.container()["args"].to_string().contains("--keep-failure-policy"));
    for webhooks in [true, false] {
        let mut values = own_secret.clone();
        values["webhooks"] = json!({"validatingFailurePolicy": "Fail", "enabled": webhooks});
        let objects = Objects::render(&values).unwrap();
        let expected: &[&str] = if webhooks { &["get", "list", "watch", "patch"] } else { &reads };
        assert_eq!(verbs(&objects), expected);
        assert_eq!(objects.container()["args"].to_string().contains("--keep-failure-policy"), webhooks);
    }
}

/// Waits until the first validating entry has this failure policy.
async fn until_policy(plane: &ControlPlane, nodegate: &Nodegate<'_>, wanted: &str) {
    nodegate.eventually(&format!("it becomes {wanted}"), || policy(plane) == wanted).await;
}

fn policy(plane: &ControlPlane) -> String {
    plane.kubectl(&["get", VALIDATING, "-o", "jsonpath={.webhooks[0].failurePolicy}"], None).unwrap()
}

fn reset(plane: &ControlPlane) {
    let patch = r#"[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]"#;
    plane.kubectl(&["patch", VALIDATING, "--type=json", "-p", patch], None).unwrap();
}

/// Waits until the API server, which learns of a configuration by watch, refuses an administrator's label.
async fn until_refused(admin: &Requester, name: &str, key: &str) -> String {
    let mut turn = 0;
    eventually(&format!("{key} is refused"), async || {
        turn += 1;
        match admin.label(name, key, json!(format!("t{turn}"))).await {
            Err(refusal) => Ok(refusal.message),
            Ok(node) => Err(format!("{node:#}")),
        }
    })
    .await
}

#[tokio::test]
async fn an_installed_chart_blocks_no_write_before_a_pod_serves_and_an_upgrade_is_followed() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let Some(release) = Release::install(plane, json!({"webhooks": {"validatingFailurePolicy": "Fail"}})) else {
        return;
    };
    let admin = Requester::admin(plane).await;
    admin.delete("armed-1").await;
    admin.create(&node("armed-1", json!({}))).await.unwrap();
    admin.label("armed-1", "team", json!("before")).await.expect("nobody serves, so nobody refuses");

    let setup = release.setup();
    let nodegate = Nodegate::start_unregistered(plane, &setup);
    until_led(&nodegate).await;
    until_policy(plane, &nodegate, "Fail").await;
    // No pod is behind the Service here: that is as if all were away.
    let refusal = until_refused(&admin, "armed-1", "team").await;
    assert!(refusal.contains("failed calling webhook \"validate.nodegate.dev\""), "{refusal}");
    reset(plane);
    until_policy(plane, &nodegate, "Fail").await;
    release.upgrade();
    until_policy(plane, &nodegate, "Fail").await;
    let set = nodegate.log().lines().filter(|line| line.contains("failurePolicy is set to Fail")).count();
    assert_eq!(set, 3, "once, after it was reset by hand, and after Helm reset it:\n{}", nodegate.log());
    let refused = nodegate.log().lines().filter(|line| line.contains("orbidden")).count();
    assert_eq!(refused, 0, "{}", nodegate.log());

    release.uninstall();
    admin.label("armed-1", "team", json!("after")).await.expect("nobody is asked");
    admin.delete("armed-1").await;
}

/// What was applied, and goes when this is dropped, so that nothing is refused in the next test.
struct Applied<'a>(&'a ControlPlane, String);

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        let kinds = ["mutatingwebhookconfiguration/nodegate", VALIDATING];
        for kind in kinds {
            let _ = self.0.kubectl(&["delete", "--ignore-not-found", kind], None);
        }
        let _ = self.0.kubectl(&["delete", "--ignore-not-found", "-f", "-"], Some(&self.1));
    }
}

/// The chart's webhook configurations, called at a port of this machine.
fn register(plane: &ControlPlane, objects: &Objects, port: u16) {
    let kinds = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
    let called = kinds.map(|kind| {
        let mut configuration = objects.only(kind).clone();
        for entry in configuration["webhooks"].as_array_mut().unwrap() {
            let client = entry["clientConfig"].as_object_mut().unwrap();
            let path = client.remove("service").unwrap()["path"].as_str().unwrap().to_owned();
            client.insert("url".to_owned(), json!(format!("https://127.0.0.1:{port}{path}")));
        }
        configuration
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": called}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&list)).unwrap();
}

#[tokio::test]
async fn with_a_certificate_in_files_it_fails_closed_when_callers_trust_that_certificate() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let fail = |ca: &str| {
        let tls = json!({"existingSecret": "mine", "caBundle": ca});
        Objects::render(&json!({"webhooks": {"validatingFailurePolicy": "Fail"}, "tls": tls}))
    };
    let another = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap().cert.pem();
    let Some(mut objects) = fail(&another) else { return };
    let applied = Applied(plane, permit(plane, &objects));
    let serve = &["--keep-failure-policy"];
    let setup = Setup { namespace: Some(NAMESPACE), own_rights: true, serve, ..Setup::default() };
    let mut nodegate = Nodegate::start_unregistered(plane, &setup);
    until_led(&nodegate).await;
    let admin = Requester::admin(plane).await;
    admin.delete("armed-2").await;
    admin.create(&node("armed-2", json!({}))).await.unwrap();

    register(plane, &objects, nodegate.ports().0);
    let is_waiting = || nodegate.log().contains("caBundle of validate.nodegate.dev does not contain the CA");
    nodegate.eventually("it waits for the CA", is_waiting).await;
    assert_eq!(policy(plane), "Ignore");
    admin.label("armed-2", "team", json!("before")).await.expect("callers do not trust nodegate, so nobody is asked");

    objects = fail(&nodegate.ca()).unwrap();
    register(plane, &objects, nodegate.ports().0);
    until_policy(plane, &nodegate, "Fail").await;
    let refusal = until_refused(&admin, "armed-2", "node.kubernetes.io/kind").await;
    assert!(refusal.contains("reserved"), "it is judged: {refusal}");
    admin.label("armed-2", "team", json!("judged")).await.expect("it is no reserved label");
    let refused = nodegate.log().lines().filter(|line| line.contains("orbidden")).count();
    assert_eq!(refused, 0, "{}", nodegate.log());

    // A configuration that does not ask for it is left alone.
    plane.kubectl(&["annotate", VALIDATING, &format!("{ANNOTATION}-")], None).unwrap();
    reset(plane);
    // It says nothing of a configuration that is as it should be.
    for_a_while(Duration::from_secs(2)).await;
    assert_eq!(policy(plane), "Ignore");
    plane.kubectl(&["annotate", VALIDATING, &format!("{ANNOTATION}=validate.nodegate.dev=Fail")], None).unwrap();
    until_policy(plane, &nodegate, "Fail").await;
    nodegate.kill();
    until_refused(&admin, "armed-2", "team").await;

    admin.delete("armed-2").await;
    drop(applied);
}
