//! Starts the program of an image as a strict container runtime does: in its own root, which is read-only, without network,
//! without capabilities, as the image's user and as process 1. Bubblewrap does it without a daemon.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::layout::Platform;
use crate::eventually::eventually_blocking;

/// The user of the image.
pub(super) const USER: u32 = 65532;
/// Where an emulator for another architecture is mounted: one static file, which the image does not have.
const EMULATOR: &str = "/emulator";

/// A command that starts the image's program.
pub(super) struct Sandbox {
    bubblewrap: Command,
    info: TempDir,
    program: Vec<String>,
}

impl Sandbox {
    pub(super) fn of(platform: &Platform) -> Self {
        let info = shared_directory();
        let mut bubblewrap = Command::new("setpriv");
        if is_root() {
            bubblewrap.args(["--reuid=65532", "--regid=65532", "--clear-groups"]);
        }
        // Bubblewrap writes the id of the process that it starts to descriptor 3.
        bubblewrap.args(["bash", "-c", r#"exec bwrap "$@" 3>"$0""#]).arg(info.path().join("info"));
        bubblewrap.args(["--info-fd", "3", "--unshare-all", "--uid", "65532", "--gid", "65532", "--as-pid-1"]);
        bubblewrap.args(["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]);
        for variable in strings(&platform.config["Env"]) {
            let (name, value) = variable.split_once('=').unwrap();
            bubblewrap.args(["--setenv", name, value]);
        }
        bubblewrap.arg("--ro-bind").arg(&platform.root).arg("/").args(["--proc", "/proc", "--dev", "/dev"]);
        bubblewrap.args(["--chdir", platform.config["WorkingDir"].as_str().unwrap()]);
        let mut program = strings(&platform.config["Entrypoint"]);
        if let Some(emulator) = emulator(&platform.architecture) {
            fs::write(platform.root.join(EMULATOR.trim_start_matches('/')), "").unwrap();
            bubblewrap.arg("--ro-bind").arg(emulator).arg(EMULATOR);
            program.insert(0, EMULATOR.to_owned());
        }
        Self { bubblewrap, info, program }
    }

    /// Mounts a directory of this machine, read-only.
    pub(super) fn mount(mut self, directory: &Path, at: &str) -> Self {
        self.bubblewrap.arg("--ro-bind").arg(directory).arg(at);
        self
    }

    /// Mounts an empty file system in memory that the program may write to.
    pub(super) fn scratch_space(mut self, at: &str) -> Self {
        self.bubblewrap.args(["--tmpfs", at]);
        self
    }

    fn command(mut self, arguments: &[&str]) -> (Command, TempDir) {
        self.bubblewrap.arg("--").args(&self.program).args(arguments);
        self.bubblewrap.stdin(Stdio::null());
        (self.bubblewrap, self.info)
    }

    /// Runs the program to its end.
    pub(super) fn run(self, arguments: &[&str]) -> Output {
        let (mut command, _info) = self.command(arguments);
        command.output().unwrap()
    }

    /// Starts the program.
    pub(super) fn start(self, arguments: &[&str]) -> Running {
        let (mut command, info) = self.command(arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let process = eventually_blocking("bubblewrap starts the program", || {
            let text = fs::read_to_string(info.path().join("info")).ok()?;
            serde_json::from_str::<Value>(&text).ok()?["child-pid"].as_u64()
        });
        Running { child: Some(child), process: u32::try_from(process).unwrap(), _info: info }
    }
}

/// A running program; it ends when this is dropped.
pub(super) struct Running {
    child: Option<Child>,
    /// Its id on this machine.
    process: u32,
    _info: TempDir,
}

impl Running {
    /// A line of what the kernel says of the process, such as `CapEff`.
    pub(super) fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name} in {status}")).trim().to_owned()
    }

    /// How its root is mounted, such as `ro,nosuid`.
    pub(super) fn root_options(&self) -> String {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.process)).unwrap();
        let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[4] == "/");
        root.unwrap()[5].to_owned()
    }

    /// The names of its network interfaces.
    pub(super) fn interfaces(&self) -> Vec<String> {
        let table = fs::read_to_string(format!("/proc/{}/net/dev", self.process)).unwrap();
        table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
    }

    /// The first line of the answer to a GET, from within its network; nothing while nobody answers.
    pub(super) fn get(&self, port: u16, path: &str) -> Option<String> {
        let script = format!(
            r"exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3 && head -n 1 <&3"
        );
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.process.to_string(), "--user", "--preserve-credentials", "--net"]);
        let output = command.args(["bash", "-c", &script]).output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        (!line.is_empty()).then(|| line.trim().to_owned())
    }

    /// Sends SIGTERM, as a runtime does, and waits for the end.
    pub(super) fn end(mut self) -> Output {
        let process = Pid::from_raw(i32::try_from(self.process).unwrap()).unwrap();
        kill_process(process, Signal::TERM).unwrap();
        self.child.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Bubblewrap's process takes the program with it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A directory that the program's user may read and write.
pub(super) fn shared_directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    give_to_user(directory.path());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Makes the program's user the owner of a file, or of a directory with the files in it.
pub(super) fn give_to_user(path: &Path) {
    if is_root() {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give_to_user(&entry.unwrap().path()));
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// What runs programs of another architecture; nothing if it is this machine's.
fn emulator(architecture: &str) -> Option<PathBuf> {
    let machine = match architecture {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => panic!("no image is made for {other}"),
    };
    if std::env::consts::ARCH == machine {
        return None;
    }
    let emulator = PathBuf::from(format!("/usr/bin/qemu-{machine}-static"));
    assert!(emulator.exists(), "{} is missing: install Debian's package qemu-user-static", emulator.display());
    Some(emulator)
}
