//! `nodegate migrate OLD NEW` beside a running `serve`: all phases, consumers, and a command that is killed.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, node, until_led, until_published};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, label};
use super::{Ran, run};
use crate::eventually::eventually;

const OLD: &str = "walked.example/tier";
const NEW: &str = "arrived.example/tier";
const SERVE: Setup<'static> = Setup {
    program: None,
    policies: &[],
    state: &[],
    serve: &["--max-removals", "100"],
    render: &[],
    cluster: true,
    namespace: None,
    own_rights: false,
    own_certificates: false,
    behind: None,
    listen: None,
    service: false,
    lease_seconds: 0,
    environment: &[],
    unregistered: false,
    starter: &[],
    log_to: None,
    api_server: None,
    timeout_seconds: 0,
};

fn migrate(plane: &ControlPlane, namespace: &str, more: &[&str]) -> Ran {
    run(plane, None, &[&["migrate", OLD, NEW, "--namespace", namespace], more].concat())
}

/// The command while it runs. It is killed when this is dropped, and if the test has failed, what it said is shown.
struct Begun(Option<Child>);

impl Begun {
    /// Starts it, and does not wait for it.
    fn new(plane: &ControlPlane, namespace: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["migrate", OLD, NEW, "--confirm", "--namespace", namespace, "--kubeconfig"]);
        command.arg(plane.kubeconfig_file("commands-admin", None));
        Self(Some(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Waits for its end.
    fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let _ = child.kill();
        let output = child.wait_with_output();
        if std::thread::panicking() {
            eprintln!("the command: {output:?}");
        }
    }
}

/// The policy of the migration, if it exists.
fn policy(plane: &ControlPlane) -> Option<Value> {
    let list: Value =
        serde_json::from_str(&plane.kubectl(&["get", "nodepolicies", "-o", "json"], None).unwrap()).unwrap();
    list["items"].as_array().unwrap().first().cloned()
}

async fn nodes(admin: &Requester, prefix: &str, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
    for name in &names {
        admin.delete(name).await;
        admin.create(&node(name, json!({OLD: "gold"}))).await.unwrap();
    }
    names
}

async fn values(admin: &Requester, names: &[String]) -> Vec<(Option<String>, Option<String>)> {
    let mut all = Vec::new();
    for name in names {
        let node = admin.get(name).await;
        all.push((label(&node, OLD).map(str::to_owned), label(&node, NEW).map(str::to_owned)));
    }
    all.dedup();
    all
}

fn both() -> Vec<(Option<String>, Option<String>)> {
    vec![(Some("gold".to_owned()), Some("gold".to_owned()))]
}

fn moved() -> Vec<(Option<String>, Option<String>)> {
    vec![(None, Some("gold".to_owned()))]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_walks_through_its_phases_and_stops_at_consumers() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    let nodegate = Nodegate::start(plane, &SERVE);
    until_led(&nodegate).await;
    let (names, namespace) = (nodes(&admin, "walk", 4).await, nodegate.namespace.as_str());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone", "namespace": namespace},
        "spec": {"nodeSelector": {OLD: "gold"}, "containers": [{"name": "c", "image": "x"}]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&pod.to_string())).unwrap();

    // Without --confirm it writes nothing.
    let preview = migrate(plane, namespace, &[]).with(0);
    assert!(preview.contains("with phase dualWrite, then cutover, then done"), "{preview}");
    assert!(preview.contains("Pod") && policy(plane).is_none(), "{preview}");

    migrate(plane, namespace, &["--confirm", "--to", "cutover"]).with(0);
    assert_eq!(values(&admin, &names).await, both());
    // The preset was in force because there was no policy. It still is.
    let written = policy(plane).unwrap();
    let spec = json!({"presets": ["baseline"], "migrations": [{"from": OLD, "to": NEW, "phase": "cutover"}]});
    assert_eq!(written["spec"], spec, "{written:#}");

    let refused = migrate(plane, namespace, &["--confirm"]);
    assert_eq!((refused.code, &*refused.output), (2, ""), "{}", refused.errors);
    for expected in
        [&format!("Pod {namespace}/alone"), "--despite-consumers", "is in phase cutover; run the command again"]
    {
        assert!(refused.errors.contains(expected), "{expected}: {}", refused.errors);
    }
    assert_eq!(values(&admin, &names).await, both());

    // The migration belongs to one policy.
    let other = run(plane, None, &["migrate", OLD, "other.example/tier", "--confirm", "--namespace", namespace]);
    assert!(other.code == 2 && other.errors.contains("change the phase in that policy"), "{}", other.errors);

    plane.kubectl(&["delete", "pod", "alone", "-n", namespace, "--force", "--grace-period=0"], None).unwrap();
    migrate(plane, namespace, &["--confirm"]).with(0);
    assert_eq!(values(&admin, &names).await, moved());
    let again = migrate(plane, namespace, &["--confirm"]).with(0);
    assert!(again.contains("phase done"), "{again}");
    let back = migrate(plane, namespace, &["--confirm", "--to", "dualWrite"]);
    assert!(back.code == 2 && back.errors.contains("to go back, set the phase in NodePolicy"), "{}", back.errors);
    for name in &names {
        admin.delete(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_killed_anywhere_goes_on_from_the_phase_in_force() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.install_definition();
    let mut nodegate = Nodegate::start(plane, &Setup { unregistered: true, ..SERVE.clone() });
    until_led(&nodegate).await;
    let (names, namespace) = (nodes(&admin, "walk-k", 6).await, nodegate.namespace.clone());

    // The command has to know which policies are in force.
    until_published(&config_maps(plane, &namespace).await).await;
    // Nobody puts the policy in force, so the command waits until it is ended.
    nodegate.kill();
    let mut waiting = Begun::new(plane, &namespace);
    eventually("the policy is written", async || {
        assert_eq!(waiting.child().try_wait().unwrap(), None, "it has ended");
        policy(plane)
    })
    .await;
    let sent = Command::new("kill").args(["-TERM", &waiting.child().id().to_string()]).status().unwrap();
    let ended = waiting.end();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(sent.success() && ended.status.code() == Some(2), "{said}");
    assert!(
        said.contains("terminated; the migration of") && said.contains("run the command again to continue"),
        "{said}"
    );

    let nodegate = Nodegate::start(plane, &Setup { unregistered: true, namespace: Some(&namespace), ..SERVE.clone() });
    until_led(&nodegate).await;
    for delay in [100, 400, 800, 1_600, 2_500] {
        let command = Begun::new(plane, &namespace);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        drop(command);
        // In every phase each node has one of the keys, with its value.
        for (old, new) in values(&admin, &names).await {
            assert_eq!(new.or(old).as_deref(), Some("gold"));
        }
    }
    migrate(plane, &namespace, &["--confirm"]).with(0);
    assert_eq!(values(&admin, &names).await, moved());
    for name in &names {
        admin.delete(name).await;
    }
}
