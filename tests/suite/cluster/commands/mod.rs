//! Commands that read a cluster, at a real API server.

mod cleanup;
mod explain;
mod history;
mod init;
mod journey;
mod plan;
mod report;

use std::process::{Command, Stdio};

use super::control_plane::ControlPlane;

/// The outcome of a command: exit code, output and errors.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Ran {
    /// The output, if the exit code is `code`.
    pub(super) fn with(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}{}", self.output, self.errors);
        self.output
    }
}

/// Runs `nodegate` against the cluster as this user, or as an administrator.
pub(crate) fn run(plane: &ControlPlane, user: Option<&str>, arguments: &[&str]) -> Ran {
    let impersonated: Option<(&str, &[&str])> = user.map(|user| (user, &["system:authenticated"] as &[&str]));
    let file = plane.kubeconfig_file(&format!("commands-{}", user.unwrap_or("admin")), impersonated);
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(arguments).arg("--kubeconfig").arg(file).stdin(Stdio::null());
    finish(&mut command)
}

/// Runs a command to its end.
pub(super) fn finish(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code().unwrap_or(-1), output: text(&output.stdout), errors: text(&output.stderr) }
}

/// Asserts that the command cannot run without permission, and not without an API server.
pub(super) fn needs_a_cluster_and_permission(plane: &ControlPlane, arguments: &[&str]) {
    let nobody = run(plane, Some("nobody"), arguments);
    assert!(nobody.code == 2 && nobody.errors.contains("forbidden"), "{}", nobody.errors);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    let nowhere = finish(command.args(arguments).arg("--kubeconfig").arg(file).stdin(Stdio::null()));
    assert!(nowhere.code == 2 && nowhere.errors.contains("refused"), "{}", nowhere.errors);
}
