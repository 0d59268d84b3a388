//! Inventories at a real API server: what they give, and that their faults change nothing.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::control_plane::exclusive;
use super::keeping::{is_pending, leading, node};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::cmdb::{Cmdb, Fault};
use crate::eventually::for_a_while;

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

/// Waits until nodegate says why the inventory does not answer, in what it logs after `before`. A sentence that ends with `…`
/// has a variable end.
async fn until_told(nodegate: &Nodegate<'_>, before: &str, why: &str) {
    let line = match why.strip_suffix('…') {
        Some(begin) => format!("\"why\":\"{begin}"),
        None => format!("\"why\":{}", json!(why)),
    };
    let is_it = |logged: &str| {
        logged.contains("\"the inventory does not answer; its last answers stay in force\"") && logged.contains(&line)
    };
    let is_told = || nodegate.log().strip_prefix(before).is_some_and(|new| new.lines().any(is_it));
    nodegate.eventually(&format!("it says: {why}"), || is_failing(nodegate) && is_told()).await;
}

#[tokio::test]
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
    nodegate
        .eventually("ETags are used", || {
            cmdb.requests().iter().any(|head| head.to_lowercase().contains("if-none-match"))
        })
        .await;

    let elsewhere = Cmdb::start();
    let to = |path: &str| Fault::Redirect(path.to_owned());
    let other = format!("https://127.0.0.1:{}/nodes/x", elsewhere.port);
    let faults = [
        (Fault::Down, "could not connect: …"),
        (Fault::Slow, "it did not answer within 10 seconds"),
        (Fault::Status(500), "it answered 500 Internal Server Error"),
        (Fault::Status(401), "it answered 401 Unauthorized"),
        (Fault::Status(204), "it answered 204 No Content"),
        (
            Fault::Body("<html>rack.example.com/row=9</html>"),
            "its answer cannot be used: it is neither a JSON object nor lines of key=value",
        ),
        (
            Fault::Body("{\"rack.example.com/row\": 9}"),
            "its answer cannot be used: it is a JSON object, but some of its values are not strings",
        ),
        (
            Fault::Body("{\"error\": \"maintenance\"}"),
            "none of its labels can be used; \"error\": the key is not listed in allow",
        ),
        (Fault::Body(""), "its answer cannot be used: it is empty"),
        (Fault::Huge, "its answer is larger than 64 KiB"),
        (to(&other), "it redirects to another scheme, host or port"),
        (to("http://127.0.0.1/nodes/x"), "it redirects to another scheme, host or port"),
        (to("/loop"), "it redirects too often"),
    ];
    for (fault, why) in faults {
        let log = nodegate.log();
        cmdb.fail(fault.clone());
        until_told(&nodegate, &log, why).await;
        in_force(&admin, &names, &before, &format!("{fault:?}")).await;
        cmdb.fail(Fault::None);
        nodegate.eventually(&format!("{fault:?} is over"), || !is_failing(&nodegate)).await;
    }
    assert!(elsewhere.requests().is_empty(), "nobody followed the redirect");
    assert!(cmdb.sent() < 64 * 1024 * 1024, "{} bytes were sent of bodies that nobody reads", cmdb.sent());

    for (which, why) in [
        ("expired", "could not connect: invalid peer certificate: certificate expired…"),
        ("of another CA", "could not connect: invalid peer certificate: BadSignature"),
    ] {
        let log = nodegate.log();
        cmdb.certificate(which);
        until_told(&nodegate, &log, why).await;
        in_force(&admin, &names, &before, which).await;
        cmdb.certificate("good");
        nodegate.eventually(which, || !is_failing(&nodegate)).await;
    }

    let own = format!("https://127.0.0.1:{}/", cmdb.port);
    let refused = format!(
        "the credentials of inventory cmdb are for {own}, and the URL of the policy, or of a next page, is not below it, or has an encoded %, dot, slash or backslash in its path"
    );
    for other in ["https://cmdb.invalid/nodes/{node}", "https://127.0.0.1:1/nodes/{node}"] {
        let log = nodegate.log();
        place.write(other, "");
        until_told(&nodegate, &log, &refused).await;
        in_force(&admin, &names, &before, other).await;
        place.write(&url(&cmdb), "");
        nodegate.eventually(&format!("{other} is over"), || !is_failing(&nodegate)).await;
    }
    // Without credentials, the name of the host is looked up.
    std::fs::remove_dir_all(place.0.path().join("credentials/cmdb")).unwrap();
    let log = nodegate.log();
    place.write("https://cmdb.invalid/nodes/{node}", "");
    until_told(&nodegate, &log, "could not connect: failed to lookup address information: …").await;
    in_force(&admin, &names, &before, "DNS").await;

    // What follows shows that the test would have noticed a change.
    cmdb.credentials(&place.0.path().join("credentials"), "cmdb");
    cmdb.answer("/nodes/inventory-1", Some(&row("8")));
    place.write(&url(&cmdb), "");
    admin.eventually("inventory-1", "a new answer is followed", |node| label(node, ROW) == Some("8")).await;
    for name in names {
        admin.delete(name).await;
    }
}

/// The labels are what they were, and nodegate still keeps them: an answer that is lost would remove them only later.
async fn in_force(admin: &Requester, names: &[&str], before: &[(Value, Vec<String>)], when: &str) {
    unchanged(admin, names, before, when).await;
    for (name, before) in names.iter().zip(before) {
        let other = json!({"metadata": {"labels": {ROW: "other", ROLE: null}}});
        let kept = admin.merge(name, other).await.unwrap();
        assert_eq!(&state(&kept), before, "{name}: {when}");
    }
}

async fn unchanged(admin: &Requester, names: &[&str], before: &[(Value, Vec<String>)], when: &str) {
    for (name, before) in names.iter().zip(before) {
        assert_eq!(&state(&admin.get(name).await), before, "{name}: {when}");
    }
}

#[tokio::test]
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
    nodegate.eventually("it is asked", || cmdb.requests().len() > 4).await;
    assert!(is_pending(&admin.get("required-1").await));
    nodegate
        .eventually("404 about all nodes is reported", || {
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
    let held_back =
        "2 nodes would lose labels or taints that nodegate owns; one change may affect at most 1 node (--max-removals)";
    nodegate.eventually("the limit holds", || nodegate.log().contains(held_back)).await;
    // Nothing tells that the grace of what is held back has passed.
    for_a_while(Duration::from_secs(60)).await;
    nodegate.until_resynced(2).await;
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
