//! The image in `NODEGATE_IMAGE`, which `just image` makes: what is in it, and that it starts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use super::layout::Image;
use super::sandbox::{Sandbox, USER, give_to_user, shared_directory};
use crate::eventually::eventually_blocking;

const POLICY: &str = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: p}\nspec: {rules: [{name: r, labels: {a: b}}]}\n";

fn image() -> Image {
    let archive = std::env::var_os("NODEGATE_IMAGE").expect("NODEGATE_IMAGE is not set: run `just image`");
    let image = Image::unpack(&PathBuf::from(archive));
    assert!(!image.platforms.is_empty());
    image
}

/// What a pod of `serve` mounts: a policy and a certificate.
fn mounted() -> TempDir {
    let directory = shared_directory();
    fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    let certificates = directory.path().join("certs");
    let mut certs = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    let made = certs.args(["certs", "create", "--cert-dir"]).arg(&certificates).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    give_to_user(directory.path());
    directory
}

#[test]
#[ignore = "needs the image: `just image`"]
fn it_has_the_program_its_license_and_two_directories_of_its_user_and_nothing_else() {
    for platform in image().platforms {
        let files: Vec<(&str, &str)> =
            platform.files.iter().map(|(path, owner)| (path.as_str(), owner.as_str())).collect();
        let expected = [
            ("LICENSE", "-rw-r--r-- 0/0"),
            ("nodegate", "-rwxr-xr-x 0/0"),
            ("tmp", "drwxr-xr-x 65532/65532"),
            ("var", "drwxr-xr-x 65532/65532"),
            ("var/lib", "drwxr-xr-x 65532/65532"),
            ("var/lib/nodegate", "drwxr-xr-x 65532/65532"),
        ];
        assert_eq!(files, expected, "{}", platform.architecture);
    }
}

#[test]
#[ignore = "needs the image: `just image`"]
fn it_says_how_it_is_started() {
    for platform in image().platforms {
        let config = &platform.config;
        assert_eq!(config["User"], json!(format!("{USER}:{USER}")));
        assert_eq!(config["Entrypoint"], json!(["/nodegate"]));
        assert_eq!(config["Cmd"], json!(["serve"]));
        assert_eq!(config["Labels"]["org.opencontainers.image.version"], json!(env!("CARGO_PKG_VERSION")));
        assert!(config["Labels"]["org.opencontainers.image.revision"].as_str().is_some_and(|hash| hash.len() == 40));
    }
}

#[test]
#[ignore = "needs the image: `just image`"]
fn it_serves_without_rights_network_or_a_place_to_write_and_ends_when_it_is_told_to() {
    for platform in image().platforms {
        let mounted = mounted();
        let sandbox = Sandbox::of(&platform).mount(mounted.path(), "/var/lib/nodegate");
        let running = sandbox.start(&["serve", "--policy", "policy.yaml"]);
        let answer = eventually_blocking("it is ready", || running.get(8080, "/readyz"));
        assert_eq!(answer, "HTTP/1.1 200 OK", "{}", platform.architecture);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(running.status(set), "0000000000000000", "{set}");
        }
        assert_eq!(running.status("NoNewPrivs"), "1");
        assert_eq!(running.status("NSpid").split_whitespace().last(), Some("1"));
        assert!(running.root_options().split(',').any(|option| option == "ro"), "{}", running.root_options());
        assert_eq!(running.interfaces(), ["lo"]);
        let output = running.end();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[ignore = "needs the image: `just image`"]
fn without_a_certificate_or_a_place_to_write_one_it_names_the_flag() {
    for platform in image().platforms {
        let output = Sandbox::of(&platform).run(&["serve"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{}: {error}", platform.architecture);
        assert!(error.contains("--cert-dir") && error.contains("Read-only file system"), "{error}");
    }
}

#[test]
#[ignore = "needs the image: `just image`"]
fn nodes_of_the_demo_join_a_server_of_the_image() {
    for platform in image().platforms {
        let output = Sandbox::of(&platform).scratch_space("/tmp").run(&["demo"]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{}: {printed}{}",
            platform.architecture,
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(printed.contains("hardware.tier=dual-gpu"), "{printed}");
    }
}
