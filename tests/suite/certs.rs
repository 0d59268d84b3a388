//! `nodegate certs`: the certificates of a directory.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::shared::output::assert_conforms;

/// `create`, `show` or `renew`, and flags.
fn certs(at: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("certs").args(arguments).current_dir(at).output().unwrap()
}

fn printed(at: &Path, arguments: &[&str]) -> String {
    let output = certs(at, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(at: &Path, arguments: &[&str]) -> Value {
    let certificates = serde_json::from_str(&printed(at, &[arguments, &["-o", "json"]].concat())).unwrap();
    assert_conforms("certs", &certificates);
    certificates
}

/// What openssl says of a file.
fn openssl(at: &Path, file: &str) -> String {
    let arguments = ["x509", "-noout", "-fingerprint", "-sha256", "-in", file];
    let output = Command::new("openssl").args(arguments).current_dir(at).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().split_once("Fingerprint=").unwrap().1.to_owned()
}

#[test]
fn fingerprints_are_the_ones_that_openssl_prints() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let first = json(at, &["create"]);
    assert_eq!(json(at, &["create"]), first);
    let (leaf, ca) = (openssl(at, "certs/tls.crt"), openssl(at, "certs/ca.crt"));
    assert_eq!(
        (&first["certificate"]["sha256"], &first["authorities"][0]["sha256"]),
        (&leaf.clone().into(), &ca.clone().into())
    );
    assert_eq!((&first["owner"], &first["certificate"]["expired"]), (&"nodegate".into(), &false.into()));
    assert_eq!(first["certificate"]["names"], serde_json::json!(["localhost", "127.0.0.1", "::1"]));
    let table = printed(at, &["show"]);
    assert!(
        table.contains(&format!("\nsha256     {leaf}\n\nCA ")) && table.ends_with(&format!("\nsha256     {ca}\n")),
        "{table}"
    );
    assert!(printed(at, &["show", "-o", "yaml"]).contains("\nowner: nodegate\n"));
    let renewed = json(at, &["renew"]);
    assert_eq!(renewed["authorities"], first["authorities"]);
    assert_ne!(renewed["certificate"]["sha256"], first["certificate"]["sha256"]);
}

#[test]
fn certificates_of_another_issuer_are_shown_with_and_without_their_ca() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    json(at, &["create"]);
    std::fs::remove_file(at.join("certs/ca.key")).unwrap();
    let external = json(at, &["show"]);
    assert_eq!(json(at, &["create"]), external);
    assert_eq!((&external["owner"], external["authorities"].as_array().unwrap().len()), (&"external".into(), 1));
    let refused = certs(at, &["renew"]);
    assert!(
        refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("contains no ca.key")
    );
    let ca = std::fs::read_to_string(at.join("certs/ca.crt")).unwrap();
    std::fs::write(at.join("certs/ca.crt"), ca.replacen('M', "?", 1)).unwrap();
    let damaged = certs(at, &["show"]);
    let said = String::from_utf8(damaged.stderr).unwrap();
    assert!(damaged.status.code() == Some(2) && said.contains("certs/ca.crt: ") && damaged.stdout.is_empty(), "{said}");
    std::fs::remove_file(at.join("certs/ca.crt")).unwrap();
    assert_eq!(json(at, &["show"])["authorities"], serde_json::json!([]));
}

#[test]
fn a_certificate_of_version_1_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::create_dir(at.join("certs")).unwrap();
    let run = |arguments: &str| {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(at).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    run("req -new -newkey rsa:2048 -nodes -keyout certs/tls.key -subj /CN=x -out request");
    // Without extensions it has version 1.
    run("x509 -req -in request -signkey certs/tls.key -days 2 -out certs/tls.crt");
    let refused = certs(at, &["show"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("it has X.509 version 1, but TLS needs version 3") && said.contains("-addext"), "{said}");
}

#[test]
fn a_root_of_version_1_is_shown_and_as_the_ca_of_clients_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    json(at, &["create"]);
    let run = |arguments: &str| {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(at).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    run("req -new -newkey rsa:2048 -nodes -keyout root.key -subj /CN=old-root -out request");
    // Without extensions it has version 1.
    run("x509 -req -in request -signkey root.key -days 2 -out root.crt");
    let root = std::fs::read_to_string(at.join("root.crt")).unwrap();
    let ca = std::fs::read_to_string(at.join("certs/ca.crt")).unwrap();
    std::fs::write(at.join("certs/ca.crt"), ca + &root).unwrap();
    let shown = json(at, &["show"]);
    let subjects = shown["authorities"].as_array().unwrap().iter().map(|one| one["subject"].as_str().unwrap());
    assert!(subjects.clone().count() == 2 && subjects.clone().any(|name| name.contains("old-root")), "{shown}");
    let mut serve = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    serve.args(["serve", "--listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0", "--client-ca-file", "root.crt"]);
    let refused = serve.current_dir(at).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("root.crt") && said.contains("(CN=old-root) has X.509 version 1"), "{said}");
    assert!(said.contains("-addext basicConstraints") && !said.contains("subjectAltName"), "{said}");
}

#[test]
fn only_create_writes_into_an_empty_directory() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for arguments in [&[] as &[&str], &["show"], &["renew"]] {
        let refused = certs(at, arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && refused.stdout.is_empty(), "{said}");
        assert!(said.contains("create"), "{said}");
        assert!(!at.join("certs").exists(), "{arguments:?}");
    }
}
