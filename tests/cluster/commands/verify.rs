//! `nodegate verify` says what the API server would meet.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::nodegate::{Nodegate, Setup};
use super::{Ran, run};

const MUTATING: &str = "mutatingwebhookconfiguration/nodegate";

fn verify(plane: &ControlPlane) -> Ran {
    run(plane, None, &["verify", "--namespace", "nodegate"])
}

/// The result of each webhook.
fn results(output: &str) -> BTreeMap<&str, &str> {
    let mut found = BTreeMap::new();
    for line in output.lines().skip(1) {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        found.insert(cells[0], cells[2]);
    }
    found
}

/// Changes where and whom the API server calls for the mutating webhook.
fn change(plane: &ControlPlane, field: &str, value: &Value) {
    let patch = json!([{"op": "add", "path": format!("/webhooks/0/clientConfig/{field}"), "value": value}]).to_string();
    plane.kubectl(&["patch", MUTATING, "--type=json", "-p", &patch], None).unwrap();
}

#[test]
fn each_webhook_answers_or_it_is_said_why_not() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let nodegate = Nodegate::start(plane, &Setup::default());
    let before = nodegate.requests("mutate");
    let ran = verify(plane);
    let answers = results(&ran.output);
    assert_eq!(ran.code, 0, "{}{}", ran.output, ran.errors);
    let names = ["mutate.nodegate.dev", "policies.nodegate.dev", "validate.nodegate.dev"];
    assert_eq!(answers, names.map(|name| (name, "answers")).into());
    assert!(nodegate.requests("mutate") > before, "it is really called");

    let (listen, probe) = nodegate.ports();
    let url = |port: u16, path: &str| json!(format!("https://127.0.0.1:{port}{path}"));
    let right = (url(listen, "/mutate"), json!(BASE64.encode(nodegate.ca())));
    let another = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap().cert.pem();
    let another = json!(BASE64.encode(another));
    for (field, value, said) in [
        ("caBundle", &another, "UnknownIssuer"),
        ("url", &url(listen, "/nothing"), "it answered 404"),
        ("url", &url(probe, "/mutate"), "could not connect"),
        ("url", &url(1, "/mutate"), "could not connect: Connection refused"),
        ("url", &json!(format!("https://localhost:{listen}/mutate")), "answers"),
    ] {
        change(plane, field, value);
        let ran = verify(plane);
        let answers = results(&ran.output);
        assert!(answers["mutate.nodegate.dev"].contains(said), "{field} {value}: {}", ran.output);
        assert_eq!(answers["validate.nodegate.dev"], "answers", "{}", ran.output);
        assert_eq!(ran.code, i32::from(said != "answers"), "{}", ran.output);
        change(plane, "url", &right.0);
        change(plane, "caBundle", &right.1);
    }
    let patch = r#"[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]"#;
    plane.kubectl(&["patch", MUTATING, "--type=json", "-p", patch], None).unwrap();
    let ran = verify(plane);
    assert!(ran.code == 1 && ran.output.contains("its caBundle is empty"), "{}", ran.output);

    plane.kubectl(&["delete", MUTATING], None).unwrap();
    let ran = verify(plane);
    assert_eq!((ran.code, &*ran.output), (2, ""));
    assert!(ran.errors.contains("there is no MutatingWebhookConfiguration nodegate"), "{}", ran.errors);
    assert!(ran.errors.contains("--webhook-configuration"), "{}", ran.errors);
}

#[test]
fn the_webhooks_of_a_release_with_another_name_are_found() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _nodegate = Nodegate::start(plane, &Setup::default());
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let stored = plane.kubectl(&["get", kind, "nodegate", "-o", "json"], None).unwrap();
        let mut renamed: Value = serde_json::from_str(&stored).unwrap();
        renamed["metadata"] = json!({"name": "labels-nodegate"});
        plane.kubectl(&["create", "-f", "-"], Some(&renamed.to_string())).unwrap();
        plane.kubectl(&["delete", kind, "nodegate"], None).unwrap();
    }
    let ran = verify(plane);
    assert_eq!(ran.code, 0, "{}{}", ran.output, ran.errors);
    assert!(results(&ran.output).values().all(|result| *result == "answers"), "{}", ran.output);
}
