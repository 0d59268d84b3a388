//! Inventories without a cluster: one request answers for all nodes.

use std::path::Path;

use serde_json::{Value, json};

use super::authority;
use super::authority::Authority;
use super::cmdb::{Cmdb, Fault, NAME, Proxy};
use super::eventually::{eventually_blocking, holds};
use super::serve::Serve;

fn policies(directory: &Path, url: &str) {
    let text = format!(
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: fleet}}\nspec:\n  inventory:\n    \
         - {{name: cmdb, url: \"{url}\", refresh: 1s, allow: [\"rack.example.com/*\"]}}\n"
    );
    std::fs::write(directory.join("policy.yaml"), text).unwrap();
}

/// The patch of a CREATE of this node by an administrator.
pub(super) fn patch(serve: &Serve, node: &str) -> String {
    patch_for(serve, node, &json!({"username": "admin"}))
}

/// The patch of a CREATE of this node by a user.
pub(super) fn patch_for(serve: &Serve, node: &str, user: &Value) -> String {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "name": node, "userInfo": user,
        "kind": {"group": "", "version": "v1", "kind": "Node"}, "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "object": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}}});
    let ca = std::fs::read(serve.path("certs/ca.crt")).unwrap();
    let answer = authority::post(&serve.address, &ca, "/mutate", &review.to_string()).unwrap();
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let patch = body["response"]["patch"].as_str().unwrap_or_default();
    use base64::Engine as _;
    String::from_utf8(base64::prelude::BASE64_STANDARD.decode(patch).unwrap()).unwrap()
}

pub(super) fn until(what: &str, serve: &Serve, is_so: impl Fn() -> bool) {
    eventually_blocking(what, || holds(is_so(), || serve.log()));
}

#[test]
fn a_batch_answers_for_all_nodes_and_a_fault_keeps_the_last_answers() {
    let cmdb = Cmdb::start();
    cmdb.answer("/nodes", Some("# the fleet\r\nn1 rack.example.com/row=7\r\nn2 rack.example.com/row=8 other=x\r\n"));
    let arguments = ["--policy", "DIR/policy.yaml", "--inventory-credentials", "DIR/credentials"];
    let serve = Serve::start(&arguments, &[("NO_PROXY", "*")], |directory| {
        policies(directory, &format!("https://127.0.0.1:{}/nodes", cmdb.port));
        cmdb.credentials(&directory.join("credentials"), "cmdb");
    });
    until("the first answer", &serve, || patch(&serve, "n1").contains("\"7\""));
    let second = patch(&serve, "n2");
    assert!(second.contains("\"8\"") && !second.contains("other"), "{second}");
    assert_eq!(patch(&serve, "n3"), "", "nothing is known about it");
    assert!(serve.log().contains("a label of an inventory is not used"), "{}", serve.log());
    let line = |name: &str| {
        serve.get("/metrics").lines().any(|line| line.starts_with("nodegate_inventory_") && line.contains(name))
    };
    assert!(line("dropped_labels_total{policy=\"fleet\",inventory=\"cmdb\"}"), "{}", serve.get("/metrics"));
    assert!(line("nodes{policy=\"fleet\",inventory=\"cmdb\"} 2"), "{}", serve.get("/metrics"));

    for (fault, why) in [
        (Fault::Status(503), "503"),
        (Fault::Body("{\"n1\": \"x\"}"), "for each node"),
        (Fault::Body("{\"n1\": {\"a\": \"b\"}}"), "none of its labels can be used"),
    ] {
        cmdb.fail(fault.clone());
        until("it fails", &serve, || {
            line("failing{policy=\"fleet\",inventory=\"cmdb\"} 1") && serve.log().contains(why)
        });
        assert!(patch(&serve, "n1").contains("\"7\""), "{fault:?}");
        cmdb.fail(Fault::None);
        until("it answers", &serve, || line("failing{policy=\"fleet\",inventory=\"cmdb\"} 0"));
    }
    // A value that cannot be used leaves the previous one.
    cmdb.answer("/nodes", Some("{\"n1\": {\"rack.example.com/row\": \"a b\", \"rack.example.com/unit\": \"3\"}}"));
    until("the other value", &serve, || patch(&serve, "n1").contains("\"3\""));
    assert!(patch(&serve, "n1").contains("\"7\""));
    // Credentials are read again.
    std::fs::write(serve.path("credentials/cmdb/token"), "wrong").unwrap();
    until("the token is wrong", &serve, || serve.log().contains("401"));
    cmdb.credentials(&serve.path("credentials"), "cmdb");
    cmdb.answer("/nodes", Some("{\"n1\": {\"rack.example.com/row\": \"9\"}}"));
    until("the token is right", &serve, || patch(&serve, "n1").contains("\"9\""));
    assert_eq!(patch(&serve, "n2"), "", "no node of that name exists, and the inventory does not list it");
}

#[test]
fn a_url_for_each_node_needs_a_cluster() {
    let cmdb = Cmdb::start();
    let serve = Serve::start(&["--policy", "DIR/policy.yaml"], &[("NO_PROXY", "*")], |directory| {
        policies(directory, &format!("https://127.0.0.1:{}/nodes/{{node}}", cmdb.port));
    });
    until("it is said", &serve, || {
        serve.log().contains("which needs a cluster; without one, use a URL without {node}")
    });
    assert_eq!(patch(&serve, "n1"), "");
    assert!(cmdb.requests().is_empty());
}

#[test]
fn a_client_certificate_is_shown_through_a_proxy_and_read_again() {
    let (cmdb, clients) = (Cmdb::start(), Authority::new("clients"));
    let proxy = Proxy::start(cmdb.port);
    cmdb.ask_for_certificates(&clients.pem);
    cmdb.answer("/nodes", Some("n1 rack.example.com/row=7\n"));
    let address = format!("https://{NAME}:{}/nodes", cmdb.port);
    let credentials = |directory: &Path, identity: Option<&authority::Identity>| {
        cmdb.credentials(directory, "cmdb");
        let own = directory.join("cmdb");
        std::fs::write(own.join("url"), &address).unwrap();
        for (name, content) in
            [("tls.crt", identity.map(|one| &one.certificate)), ("tls.key", identity.map(|one| &one.key))]
        {
            match content {
                Some(content) => std::fs::write(own.join(name), content).unwrap(),
                None => std::fs::remove_file(own.join(name)).unwrap(),
            }
        }
    };
    let (ours, theirs) = (clients.client("nodegate"), Authority::new("others").client("nodegate"));
    let through = format!("http://127.0.0.1:{}", proxy.port);
    let arguments = ["--policy", "DIR/policy.yaml", "--inventory-credentials", "DIR/credentials"];
    let serve = Serve::start(&arguments, &[("HTTPS_PROXY", &through), ("NO_PROXY", "")], |directory| {
        policies(directory, &address);
        credentials(&directory.join("credentials"), Some(&ours));
    });
    until("the first answer", &serve, || patch(&serve, "n1").contains("\"7\""));
    assert_eq!(proxy.connects()[0], format!("CONNECT {NAME}:{} HTTP/1.1", cmdb.port));

    let is_failing =
        || serve.get("/metrics").contains("nodegate_inventory_failing{policy=\"fleet\",inventory=\"cmdb\"} 1");
    for (identity, row) in [(None, "8"), (Some(&theirs), "9")] {
        credentials(&serve.path("credentials"), identity);
        until("it is refused", &serve, is_failing);
        cmdb.answer("/nodes", Some(&format!("n1 rack.example.com/row={row}\n")));
        assert!(!patch(&serve, "n1").contains(row), "the last answer stays in force");
        credentials(&serve.path("credentials"), Some(&ours));
        until("it is let in again", &serve, || patch(&serve, "n1").contains(row));
    }
}
