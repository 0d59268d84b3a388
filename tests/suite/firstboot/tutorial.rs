//! The commands of `docs/migrating/ocp-kubelet-extra-labels.md` run.

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
