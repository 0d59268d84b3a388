//! Inventories at a real API server: what they give, and that their faults change nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::control_plane::exclusive;
use super::keeping::{is_pending, leading, node};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::cmdb::{Cmdb, Fault};

const ROW: &str = "rack.example.com/row";
const ROLE: &str = "node-role.kubernetes.io/rack";

/// A policy with one inventory, and the credentials for it.
struct Place(TempDir);

impl Place {
    fn new(cmdb: &Cmdb) -> Self {
        let place = Self(TempDir::with_prefix("nodegate-inventory-").unwrap());
        cmdb.credentials(&place.0.path().join("credentials"), "cmdb");
        std::fs::create_dir(place.0.path().join("policies")).unwrap();
        place.write(&url(cmdb), "");
        place
    }

    fn write(&self, url: &str, more: &str) {
        let allow = "[\"rack.example.com/*\", node-role.kubernetes.io/rack]";
        let text = format!(
            "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: fleet}}\nspec:\n  inventory:\n    \
             - {{name: cmdb, url: \"{url}\", refresh: 1s, allow: {allow}{more}}}\n"
        );
        // Replaced as a whole, or a half-written file would be read.
        let file = self.0.path().join("policies/fleet.yaml");
        std::fs::write(file.with_extension("new"), text).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

fn url(cmdb: &Cmdb) -> String {
    format!("https://127.0.0.1:{}/nodes/{{node}}", cmdb.port)
}

fn row(row: &str) -> String {
    json!({ROW: row, ROLE: ""}).to_string()
}

/// What nodegate may change on a node.
fn state(node: &Value) -> (Value, Vec<String>) {
    (node["metadata"]["labels"].clone(), taints(node))
}

fn metric(nodegate: &Nodegate<'_>, name: &str) -> Option<String> {
    let text = nodegate.probe("/metrics")?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next().map(str::to_owned)
}

fn is_failing(nodegate: &Nodegate<'_>) -> bool {
    metric(nodegate, "nodegate_inventory_failing{").as_deref() == Some("1")
}

async fn until(what: &str, nodegate: &Nodegate<'_>, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}\n{}", nodegate.probe("/metrics").unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn faults_of_an_inventory_leave_every_node_as_it_was() {
    let cluster = exclusive();
    let (plane, admin, cmdb) = (cluster.plane, Requester::admin(cluster.plane).await, Cmdb::start());
    let place = Place::new(&cmdb);
    let (policies, credentials) = (place.path("policies"), place.path("credentials"));
    let (policies, serve) = ([policies.as_str()], ["--inventory-credentials", &credentials]);
    let environment = [("NO_PROXY", "*")];
    let setup =
        Setup { policies: &policies, serve: &serve, environment: &environment, cluster: true, ..Setup::default() };
    let nodegate = leading(plane, &setup).await;
    let names = ["inventory-1", "inventory-2", "inventory-3"];
    for name in names {
        admin.delete(name).await;
        cmdb.answer(&format!("/nodes/{name}"), Some(&row("7")));
        Requester::kubelet(plane, name).await.create(&node(name, json!({"own": "x"}))).await.unwrap();
    }
    let mut before = Vec::new();
    for name in names {
        let given = admin
            .eventually(name, "the answer arrives", |node| {
                label(node, ROW) == Some("7") && label(node, ROLE) == Some("")
            })
            .await;
        before.push(state(&given));
    }
    until("ETags are used", &nodegate, || {
        cmdb.requests().iter().any(|head| head.to_lowercase().contains("if-none-match"))
    })
    .await;

    let elsewhere = Cmdb::start();
    let to = |path: &str| Fault::Redirect(path.to_owned());
    let other = format!("https://127.0.0.1:{}/nodes/x", elsewhere.port);
    let faults = [
        (Fault::Down, "could not connect"),
        (Fault::Slow, "did not answer within 10 seconds"),
        (Fault::Status(500), "500"),
        (Fault::Status(401), "401"),
        (Fault::Status(204), "204"),
        (Fault::Body("<html>rack.example.com/row=9</html>"), "neither a JSON object nor lines"),
        (Fault::Body("{\"rack.example.com/row\": 9}"), "not strings"),
        (Fault::Body("{\"error\": \"maintenance\"}"), "none of its labels can be used"),
        (Fault::Body(""), "it is empty"),
        (Fault::Huge, "larger than 64 KiB"),
        (to(&other), "another scheme, host or port"),
        (to("http://127.0.0.1/nodes/x"), "another scheme, host or port"),
        (to("/loop"), "too often"),
    ];
    for (fault, why) in faults {
        cmdb.fail(fault.clone());
        until(&format!("{fault:?} is noticed"), &nodegate, || is_failing(&nodegate) && nodegate.log().contains(why))
            .await;
        unchanged(&admin, &names, &before, &format!("{fault:?}")).await;
        cmdb.fail(Fault::None);
        until(&format!("{fault:?} is over"), &nodegate, || !is_failing(&nodegate)).await;
    }
    assert!(elsewhere.requests().is_empty(), "nobody followed the redirect");
    assert!(cmdb.sent() < 64 * 1024 * 1024, "{} bytes were sent of bodies that nobody reads", cmdb.sent());

    for (which, why) in [("expired", "expired"), ("of another CA", "invalid peer certificate")] {
        cmdb.certificate(which);
        until(which, &nodegate, || is_failing(&nodegate) && nodegate.log().contains(why)).await;
        unchanged(&admin, &names, &before, which).await;
        cmdb.certificate("good");
        until(which, &nodegate, || !is_failing(&nodegate)).await;
    }

    for (url, why) in [
        ("https://cmdb.invalid/nodes/{node}", "the credentials of inventory cmdb are for https://127.0.0.1"),
        ("https://127.0.0.1:1/nodes/{node}", "the credentials of inventory cmdb are for https://127.0.0.1"),
    ] {
        place.write(url, "");
        until(url, &nodegate, || is_failing(&nodegate) && nodegate.log().contains(why)).await;
        unchanged(&admin, &names, &before, url).await;
    }
    // Without credentials, the name of the host is looked up.
    std::fs::remove_dir_all(place.0.path().join("credentials/cmdb")).unwrap();
    place.write("https://cmdb.invalid/nodes/{node}", "");
    until("DNS", &nodegate, || is_failing(&nodegate) && nodegate.log().contains("could not connect: failed to lookup"))
        .await;
    unchanged(&admin, &names, &before, "DNS").await;

    // What follows shows that the test would have noticed a change.
    cmdb.credentials(&place.0.path().join("credentials"), "cmdb");
    cmdb.answer("/nodes/inventory-1", Some(&row("8")));
    place.write(&url(&cmdb), "");
    admin.eventually("inventory-1", "a new answer is followed", |node| label(node, ROW) == Some("8")).await;
    for name in names {
        admin.delete(name).await;
    }
}

async fn unchanged(admin: &Requester, names: &[&str], before: &[(Value, Vec<String>)], when: &str) {
    for (name, before) in names.iter().zip(before) {
        assert_eq!(&state(&admin.get(name).await), before, "{name}: {when}");
    }
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn a_node_waits_for_a_required_answer_and_answers_outlive_nodegate() {
    let cluster = exclusive();
    let (plane, admin, cmdb) = (cluster.plane, Requester::admin(cluster.plane).await, Cmdb::start());
    let place = Place::new(&cmdb);
    place.write(&url(&cmdb), ", require: true");
    let (policies, credentials) = (place.path("policies"), place.path("credentials"));
    let (policies, serve) = ([policies.as_str()], ["--inventory-credentials", &credentials, "--max-removals", "1"]);
    let environment = [("NO_PROXY", "*")];
    let setup =
        Setup { policies: &policies, serve: &serve, environment: &environment, cluster: true, ..Setup::default() };
    let mut nodegate = leading(plane, &setup).await;
    let names = ["required-1", "required-2"];
    for name in names {
        admin.delete(name).await;
        let created = Requester::kubelet(plane, name).await.create(&node(name, json!({}))).await.unwrap();
        assert!(is_pending(&created), "nothing has answered: {created:#}");
    }
    // A 404 is no answer, so the taint stays.
    until("it is asked", &nodegate, || cmdb.requests().len() > 4).await;
    assert!(is_pending(&admin.get("required-1").await));
    until("404 about all nodes is reported", &nodegate, || {
        is_failing(&nodegate) && nodegate.log().contains("404 about all nodes")
    })
    .await;
    for name in names {
        cmdb.answer(&format!("/nodes/{name}"), Some(&row("7")));
        admin
            .eventually(name, "the answer completes it", |node| label(node, ROLE) == Some("") && !is_pending(node))
            .await;
    }
    let arguments = ["explain", names[0], ROW, "--namespace", &nodegate.namespace];
    let kubeconfig = plane.kubeconfig_file("explain-inventory", None);
    let explained = std::process::Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(text.contains("inventory (fleet/inventory:cmdb)"), "{text}{}", String::from_utf8_lossy(&explained.stderr));

    // All answers become empty at once: that is an answer, but the limit on removals holds.
    let before = [state(&admin.get(names[0]).await), state(&admin.get(names[1]).await)];
    names.iter().for_each(|name| cmdb.answer(&format!("/nodes/{name}"), Some("{}")));
    until("the limit holds", &nodegate, || nodegate.log().contains("would lose labels or taints")).await;
    unchanged(&admin, &names, &before, "empty answers").await;
    names.iter().for_each(|name| cmdb.answer(&format!("/nodes/{name}"), Some(&row("9"))));
    for name in names {
        admin.eventually(name, "the next answer", |node| label(node, ROW) == Some("9")).await;
    }

    // A new replica knows the last answers before it has asked: the inventory is down.
    nodegate.terminate();
    drop(nodegate);
    cmdb.fail(Fault::Down);
    let namespace = admin_namespace(plane);
    unreadable_answers_stop_apply(plane, &namespace, policies[0]);
    let nodegate = leading(plane, &Setup { namespace: Some(&namespace), cluster: false, ..setup }).await;
    for name in names {
        assert_eq!(label(&admin.get(name).await, ROW), Some("9"), "{name}");
        admin.delete(name).await;
        let created = Requester::kubelet(plane, name).await.create(&node(name, json!({}))).await.unwrap();
        assert_eq!(label(&created, ROW), Some("9"), "it is there when the node is created: {created:#}");
        admin.eventually(name, "the role follows", |node| label(node, ROLE) == Some("") && !is_pending(node)).await;
        admin.delete(name).await;
    }
    drop(nodegate);
}

/// Damages stored answers, runs `apply`, and repairs them.
fn unreadable_answers_stop_apply(plane: &super::control_plane::ControlPlane, namespace: &str, policies: &str) {
    let get = |path: &str| {
        let labels = ["-l", "nodegate.dev/content=inventory", "-o", path];
        plane.kubectl(&[&["get", "configmaps", "-n", namespace] as &[&str], &labels].concat(), None).unwrap()
    };
    let (name, stored) = (get("jsonpath={.items[0].metadata.name}"), get("jsonpath={.items[0].binaryData.*}"));
    let write = |answers: &str| {
        let patch = json!({"binaryData": {"answers.json.gz": answers}}).to_string();
        plane.kubectl(&["patch", "configmap", &name, "-n", namespace, "--type", "merge", "-p", &patch], None).unwrap();
    };
    write("bm8=");
    let mut apply = std::process::Command::new(env!("CARGO_BIN_EXE_nodegate"));
    apply.args(["apply", "--policy", policies, "--namespace", namespace, "--kubeconfig"]);
    let output = apply.arg(plane.kubeconfig_file("apply-inventory", None)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("could not read the answers of inventories in ConfigMap {name}: ")), "{said}");
    assert_eq!(output.status.code(), Some(2), "{said}");
    write(&stored);
}

/// The namespace that holds the answers.
fn admin_namespace(plane: &super::control_plane::ControlPlane) -> String {
    let arguments = [
        "get",
        "configmaps",
        "-A",
        "-l",
        "nodegate.dev/content=inventory",
        "-o",
        "jsonpath={.items[-1:].metadata.namespace}",
    ];
    plane.kubectl(&arguments, None).unwrap()
}
