//! `docs/migrating/`: the commands run, and the tests that the table names exist.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{success, text};

#[test]
fn the_commands_of_the_tutorial_run() {
    let tutorial = include_str!("../../../docs/migrating/ocp-kubelet-extra-labels.md");
    let blocks: Vec<&str> =
        tutorial.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```\n").next()).collect();
    assert!(blocks.len() >= 5, "only {} blocks", blocks.len());
    let directory = tempfile::tempdir().unwrap();
    let binaries = Path::new(env!("CARGO_BIN_EXE_nodegate")).parent().unwrap();
    let script = format!("set -eu\n{}\n", blocks.join("\n"));
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", binaries.display()))
        .output()
        .unwrap();
    let printed = success(&output);
    let expected = tutorial.split("\n```text\n").nth(1).and_then(|rest| rest.split("\n```\n").next()).unwrap();
    assert!(printed.contains(&format!("\n{expected}\n")), "{printed}{}", text(&output.stderr));
    for file in [
        "mc-firstboot.yaml",
        "mc-labels.yaml",
        "node.ign",
        "user-data",
        "root/etc/systemd/system/nodegate-firstboot.service",
    ] {
        assert!(fs::metadata(directory.path().join(file)).unwrap().len() > 100, "{file}");
    }
}

#[test]
fn the_tests_that_the_table_names_exist() {
    let table = include_str!("../../../docs/migrating/README.md");
    let named: Vec<&str> = table.split("| `firstboot::").skip(1).filter_map(|rest| rest.split('`').next()).collect();
    assert!(named.len() >= 14, "{named:?}");
    for name in named {
        let (module, test) = name.split_once("::").unwrap();
        let file = format!("{}/tests/suite/firstboot/{module}.rs", env!("CARGO_MANIFEST_DIR"));
        let source = fs::read_to_string(&file).unwrap();
        assert!(source.contains(&format!("#[test]\nfn {test}()")), "{file} has no test {test}");
    }
}
