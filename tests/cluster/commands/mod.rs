//! Commands that read a cluster, at a real API server.

mod cleanup;
mod explain;
mod failures;
mod history;
mod init;
mod journey;
mod migrate;
mod plan;
mod record;
mod report;
mod verify;
mod walk;

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
    pub(crate) fn with(self, code: i32) -> String {
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
pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code().unwrap_or(-1), output: text(&output.stdout), errors: text(&output.stderr) }
}
