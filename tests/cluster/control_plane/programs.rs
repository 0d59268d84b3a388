//! The programs of a control plane, and how they are run.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory with the control plane's programs: `KUBEBUILDER_ASSETS`, or the one that `tests/control-plane/build` fills.
pub(crate) fn assets() -> &'static Path {
    static ASSETS: LazyLock<PathBuf> = LazyLock::new(|| {
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control-plane/build");
        let given = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        given.unwrap_or_else(|| run(Command::new(build).arg("--print-dir"), None).unwrap().trim().into())
    });
    &ASSETS
}

/// A loopback port that is free, and that nobody takes until the caller listens on it: it is below those that Linux gives to connections and to
/// listeners on port 0 (`net.ipv4.ip_local_port_range`, from 32768 on), and none is returned twice. Processes begin at different ports.
pub(crate) fn free_port() -> u16 {
    const PORTS: Range<u32> = 12_000..32_000;
    const APART: u32 = 499;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    (0..PORTS.end - PORTS.start)
        .map(|_| {
            let tried = TRIED.fetch_add(1, Ordering::Relaxed);
            let from_start = std::process::id().wrapping_mul(APART).wrapping_add(tried) % (PORTS.end - PORTS.start);
            u16::try_from(PORTS.start + from_start).unwrap()
        })
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a port is free")
}

/// Starts a program that ends with this thread's process; output goes to `log`.
pub(crate) fn spawn(program: &Path, arguments: &[String], log: &Path) -> Result<Child, String> {
    let log = fs::File::create(log).map_err(|error| error.to_string())?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|error| error.to_string())?)
        .stderr(log)
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// `kubectl` of the control plane's version if it was built, else the one in `PATH`.
pub(crate) fn kubectl_program() -> PathBuf {
    let built = assets().join("kubectl");
    if built.is_file() { built } else { PathBuf::from("kubectl") }
}

/// `kubectl` with a kubeconfig.
pub(crate) fn kubectl_command(kubeconfig: &Path) -> Command {
    let mut command = Command::new(kubectl_program());
    command.arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
    command
}

/// Runs a command to its end: its output, or everything it said when it failed.
pub(crate) fn run(command: &mut Command, input: Option<&str>) -> Result<String, String> {
    command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).map_err(|error| error.to_string())?;
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(format!("{}{}", text(output.stdout), text(output.stderr)))
    }
}
