//! Control planes, each in use by one test at a time, which begins with an empty one.
//!
//! Under cargo-nextest each test is a process, and its place in the group `control-planes` (`.config/nextest.toml`) is the
//! number of its control plane. The first test at a place starts it, and it ends with the run. Otherwise, and in benchmarks,
//! there is one for the process.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use super::empty::{Empty, Servers};
use super::{ADMIN_TOKEN, ControlPlane, assets, free_port};

/// Exclusive use of a control plane: webhook configurations are cluster-wide.
pub(crate) struct Exclusive {
    pub(crate) plane: &'static ControlPlane,
    _only: MutexGuard<'static, ()>,
}

/// The control plane of this test, started if nobody did before, and empty.
pub(crate) fn exclusive() -> Exclusive {
    static IN_USE: Mutex<()> = Mutex::new(());
    static PLANE: LazyLock<(ControlPlane, Empty)> = LazyLock::new(|| {
        on_a_thread(|| async { at(Place::of_this_process()).await }).expect("the control plane starts")
    });
    let only = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let (plane, empty) = &*PLANE;
    let restored = on_a_thread(|| async { empty.restore(&plane.servers().await?).await });
    restored.expect("the control plane can be made empty");
    Exclusive { plane, _only: only }
}

/// Runs this to its end although the caller may be in a runtime already.
pub(super) fn on_a_thread<T: Send, F: Future<Output = Result<T, String>>>(
    work: impl FnOnce() -> F + Send,
) -> Result<T, String> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(work())
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Which control plane, and the process that it ends with.
struct Place {
    owner: u32,
    number: usize,
}

impl Place {
    fn of_this_process() -> Self {
        let Ok(place) = env::var("NEXTEST_TEST_GROUP_SLOT") else {
            return Self { owner: std::process::id(), number: 0 };
        };
        let number = place.parse().unwrap_or_else(|_| {
            panic!(
                "this test uses a control plane, so .config/nextest.toml has to put it into the group control-planes"
            )
        });
        Self { owner: std::os::unix::process::parent_id(), number }
    }

    /// Its directory, in Cargo's own for tests.
    fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("control-plane-{}-{}", self.owner, self.number))
    }
}

/// What a test has to know of a control plane that another one started.
#[derive(Serialize, Deserialize)]
struct Started {
    server: String,
    etcd: String,
    empty: Empty,
}

async fn at(place: Place) -> Result<(ControlPlane, Empty), String> {
    let directory = place.directory();
    let file = directory.join("started.json");
    if let Ok(text) = fs::read_to_string(&file) {
        let started: Started = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let plane = ControlPlane::new(started.server, started.etcd, directory);
        // Whoever had it before may have been ended half-way.
        plane.start_api_server();
        // If it was ended too, it is started with the API server.
        let _ = Command::new("kill").args(["-CONT", &plane.process("etcd").to_string()]).stderr(Stdio::null()).status();
        plane.wait_until_ready()?;
        return Ok((plane, started.empty));
    }
    if !assets().join("kube-apiserver").is_file() {
        return Err(format!("there is no kube-apiserver in {}; build it: just control-plane", assets().display()));
    }
    let say = |error: io::Error| format!("{}: {error}", directory.display());
    end_keeper(&directory);
    fs::remove_dir_all(&directory).or_else(absent_is_fine).map_err(say)?;
    fs::create_dir_all(&directory).map_err(say)?;
    let plane = start(&place, directory.clone())?;
    plane.wait_until_ready()?;
    let empty = Empty::of(&plane.servers().await?).await?;
    let started = Started { server: plane.server.clone(), etcd: plane.etcd.clone(), empty };
    fs::write(&file, serde_json::to_string(&started).map_err(|error| error.to_string())?).map_err(say)?;
    Ok((plane, started.empty))
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Ends one that was left without having started its control plane: the test was ended too early.
fn end_keeper(directory: &Path) {
    if let Ok(process) = fs::read_to_string(directory.join("keep.pid")) {
        let _ = Command::new("kill").args(["-KILL", process.trim()]).stderr(Stdio::null()).status();
    }
}

/// Starts etcd and an API server, which may not be ready yet.
fn start(place: &Place, directory: PathBuf) -> Result<ControlPlane, String> {
    let at = |name: &str| directory.join(name).display().to_string();
    let [etcd, etcd_peer, api] = [free_port(), free_port(), free_port()];
    write_credentials(&directory)?;
    let etcd_url = format!("http://127.0.0.1:{etcd}");
    let peer_url = format!("http://127.0.0.1:{etcd_peer}");
    let etcd_arguments = [
        format!("--data-dir={}", at("etcd")),
        format!("--listen-client-urls={etcd_url}"),
        format!("--advertise-client-urls={etcd_url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster=default={peer_url}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=error".to_owned(),
    ];
    let api_arguments = [
        format!("--etcd-servers={etcd_url}"),
        format!("--secure-port={api}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", at("apiserver")),
        format!("--service-account-key-file={}", at("sa.pub")),
        format!("--service-account-signing-key-file={}", at("sa.key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--token-auth-file={}", at("tokens.csv")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--allow-privileged=true".to_owned(),
    ];
    for (program, arguments) in [("etcd", &etcd_arguments[..]), ("kube-apiserver", &api_arguments)] {
        let text: String = arguments.iter().map(|argument| format!("{argument}\n")).collect();
        fs::write(directory.join(format!("{program}.arguments")), text).map_err(|error| error.to_string())?;
    }
    // In a session of its own, so that it does not end with this test.
    let keep = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control-plane/keep");
    let mut keeper = Command::new("setsid");
    keeper.args(["--fork", keep]).arg(assets()).arg(&directory).arg(place.owner.to_string());
    let status = keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.map_err(|error| format!("setsid: {error}"))?;
    Ok(ControlPlane::new(format!("https://127.0.0.1:{api}"), etcd_url, directory))
}

fn write_credentials(directory: &Path) -> Result<(), String> {
    let key = rcgen::KeyPair::generate().map_err(|error| error.to_string())?;
    let files = [
        ("sa.key", key.serialize_pem()),
        ("sa.pub", key.public_key_pem()),
        ("tokens.csv", format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n")),
    ];
    files.iter().try_for_each(|(name, text)| fs::write(directory.join(name), text).map_err(|error| error.to_string()))
}

impl ControlPlane {
    pub(super) async fn servers(&self) -> Result<Servers, String> {
        let etcd = kube::Config::new(self.etcd.parse().map_err(|error| format!("{}: {error}", self.etcd))?);
        let etcd = kube::Client::try_from(etcd).map_err(|error| error.to_string())?;
        Ok(Servers { etcd, api: self.client(None).await })
    }
}
