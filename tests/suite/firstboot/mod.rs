//! `nodegate firstboot` and `nodegate export firstboot`: from the files of a unit to the command line that a kubelet gets.

mod attacks;
mod exported;
mod links;
mod live;
mod machine;
mod table;
mod tutorial;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

pub(crate) const VARIABLE: &str = "FIRST_BOOT_ONLY_KUBELET_NODE_EXTRA_LABELS";

/// nodegate with nothing in its environment but a `PATH`.
fn nodegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(arguments).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a program that prints its arguments, each on a line after its name.
fn program(path: &Path) {
    executable(path, "#!/bin/sh\nfor word in \"${0##*/}\" \"$@\"; do printf '%s\\n' \"$word\"; done\n");
}

fn executable(path: &Path, script: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn success(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}
