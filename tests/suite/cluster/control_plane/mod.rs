//! A real kube-apiserver and etcd on free loopback ports: two pairs for the whole test run, because a test that has one to
//! itself waits most of the time.
//!
//! The processes are started through `setpriv --pdeathsig` from a thread that lives as long as the
//! test process, so the kernel ends them with it, however it ends.

mod empty;
mod programs;
mod taken;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};

use empty::{Empty, Servers};
#[allow(unused_imports, reason = "benches do not need all of them")]
pub(crate) use programs::{assets, free_port, kubectl_program, run};
use programs::{kubectl_command, spawn, tail};
#[allow(unused_imports, reason = "benches do not need all of them")]
pub(crate) use taken::{Exclusive, exclusive, undisturbed};

const ADMIN_TOKEN: &str = "admin-token";
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// How long tests wait until an admission policy acts. An API server that was interrupted may look for policies again only
/// after a minute.
#[allow(dead_code, reason = "benches install none")]
pub(crate) const POLICIES_ACT: Duration = Duration::from_secs(120);

/// The running control plane.
pub(crate) struct ControlPlane {
    /// `https://127.0.0.1:PORT` of the API server.
    pub(crate) server: String,
    directory: PathBuf,
    api: Mutex<Child>,
    etcd: u32,
    etcd_url: String,
    api_arguments: Vec<String>,
    requests: mpsc::Sender<SpawnRequest>,
    /// What it had when nobody had used it.
    empty: OnceLock<Empty>,
}

/// Children must be started by the thread that lives as long as the process.
type SpawnRequest = (&'static str, Vec<String>, PathBuf, mpsc::Sender<Result<Child, String>>);

/// A directory for a control plane of this process in Cargo's own for tests. Those of processes that are gone are removed:
/// control planes end with their process, so nobody is left to do it then.
fn own_directory(at: usize) -> std::io::Result<PathBuf> {
    const PREFIX: &str = "control-plane-";
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(parent)?;
    for entry in fs::read_dir(parent)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.strip_prefix(PREFIX).is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another one may be at it.
            fs::remove_dir_all(parent.join(&name)).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
        }
    }
    let directory = parent.join(format!("{PREFIX}{}", std::process::id())).join(at.to_string());
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

impl ControlPlane {
    fn start(at: usize, requests: mpsc::Sender<SpawnRequest>) -> Result<Self, String> {
        let directory = own_directory(at).map_err(|error| error.to_string())?;
        let at = |name: &str| directory.join(name);
        let [etcd, etcd_peer, api] = [free_port(), free_port(), free_port()];
        write_credentials(&directory)?;
        let etcd_url = format!("http://127.0.0.1:{etcd}");
        let peer_url = format!("http://127.0.0.1:{etcd_peer}");
        let etcd_arguments = [
            format!("--data-dir={}", at("etcd").display()),
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
            format!("--cert-dir={}", at("apiserver").display()),
            format!("--service-account-key-file={}", at("sa.pub").display()),
            format!("--service-account-signing-key-file={}", at("sa.key").display()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--token-auth-file={}", at("tokens.csv").display()),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        let mut children = vec![spawn(&assets().join("etcd"), &etcd_arguments, &at("etcd.log"))?];
        children.push(spawn(&assets().join("kube-apiserver"), &api_arguments, &at("kube-apiserver.log"))?);
        let api_child = children.pop().expect("it was pushed just now");
        let plane = Self {
            server: format!("https://127.0.0.1:{api}"),
            directory: directory.clone(),
            api: Mutex::new(api_child),
            etcd: children[0].id(),
            etcd_url,
            api_arguments: api_arguments.to_vec(),
            requests,
            empty: OnceLock::new(),
        };
        if let Err(error) = plane.wait_until_ready() {
            for child in children.iter_mut().chain([&mut *plane.api.lock().unwrap()]) {
                let _ = child.kill();
                let _ = child.wait();
            }
            return Err(error);
        }
        Ok(plane)
    }

    /// Makes it what it was right after its start, whatever was left behind: the first time, remembers what that is.
    fn make_empty(&self) -> Result<(), String> {
        // The caller may be in a runtime already.
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|error| error.to_string())?.block_on(async {
                let etcd = kube::Config::new(self.etcd_url.parse().map_err(|error| format!("{error}"))?);
                let etcd = kube::Client::try_from(etcd).map_err(|error| error.to_string())?;
                match self.empty.get() {
                    Some(empty) => empty.restore(&Servers { etcd, api: self.client(None).await }).await,
                    None => Empty::of(&etcd).await.map(|empty| drop(self.empty.set(empty))),
                }
            })
        };
        thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err("it panicked".to_owned()))
    }

    /// Ends the API server as a crash would, and after `outage` starts it again at the same address.
    pub(crate) fn restart_api_server(&self, outage: Duration) {
        let mut api = self.api.lock().unwrap();
        let _ = api.kill();
        let _ = api.wait();
        thread::sleep(outage);
        *api = self.spawn("kube-apiserver", self.api_arguments.clone());
        drop(api);
        self.wait_until_ready().unwrap();
    }

    /// Starts one more API server before the same etcd, with further arguments; it ends when it is dropped. This one goes
    /// on undisturbed.
    pub(crate) fn another_api_server(&self, arguments: &[String]) -> ApiServer {
        let port = free_port();
        let directory = self.directory.join(format!("api-server-{port}"));
        fs::create_dir(&directory).unwrap();
        // The last one of a flag counts.
        let own = [format!("--secure-port={port}"), format!("--cert-dir={}", directory.display())];
        let api_arguments: Vec<String> = self.api_arguments.iter().chain(&own).chain(arguments).cloned().collect();
        let api = self.spawn_logged("kube-apiserver", api_arguments.clone(), directory.join("kube-apiserver.log"));
        let started = ApiServer(Self {
            server: format!("https://127.0.0.1:{port}"),
            directory,
            api: Mutex::new(api),
            etcd: self.etcd,
            etcd_url: self.etcd_url.clone(),
            api_arguments,
            requests: self.requests.clone(),
            empty: OnceLock::new(),
        });
        started.0.wait_until_ready().unwrap();
        started
    }

    /// Installs the `NodePolicy` definition and waits until it is served.
    pub(crate) fn install_definition(&self) {
        let crd = concat!(env!("CARGO_MANIFEST_DIR"), "/webhook-config/nodepolicies.yaml");
        self.kubectl(&["apply", "--server-side", "-f", crd], None).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        // Right after it was made it has no conditions yet, which `kubectl wait` takes for an error.
        let wait = ["wait", "--for=condition=Established", "--timeout=5s", "crd/nodepolicies.nodegate.dev"];
        while let Err(error) = self.kubectl(&wait, None) {
            assert!(Instant::now() < deadline, "{error}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Removes it, and all policies with it.
    pub(crate) fn remove_definition(&self) {
        self.kubectl(&["delete", "crd", "nodepolicies.nodegate.dev", "--ignore-not-found"], None).unwrap();
    }

    /// Has etcd stand still for a while, as on a disk that hangs.
    pub(crate) fn stall_etcd(&self, length: Duration) {
        let signal = |name: &str| {
            let sent = Command::new("kill").args([name, &self.etcd.to_string()]).status();
            assert!(sent.is_ok_and(|status| status.success()), "kill {name}");
        };
        signal("-STOP");
        thread::sleep(length);
        signal("-CONT");
        self.wait_until_ready().unwrap();
    }

    /// What the API server logged since it was started last.
    pub(crate) fn api_server_log(&self) -> String {
        fs::read_to_string(self.directory.join("kube-apiserver.log")).unwrap()
    }

    fn spawn(&self, program: &'static str, arguments: Vec<String>) -> Child {
        self.spawn_logged(program, arguments, self.directory.join(format!("{program}.log")))
    }

    fn spawn_logged(&self, program: &'static str, arguments: Vec<String>, log: PathBuf) -> Child {
        let (answer, started) = mpsc::channel();
        self.requests.send((program, arguments, log, answer)).unwrap();
        started.recv().unwrap().unwrap()
    }

    /// Starts kube-scheduler or kube-controller-manager, which ends when this is dropped.
    pub(crate) fn component(&self, program: &'static str, arguments: &[&str]) -> Component {
        let own = [
            format!("--kubeconfig={}", self.kubeconfig_file("admin", None).display()),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", free_port()),
            format!("--cert-dir={}", self.directory.join(program).display()),
        ];
        Component(self.spawn(program, own.into_iter().chain(arguments.iter().map(|text| (*text).to_owned())).collect()))
    }

    fn wait_until_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        let kubeconfig = self.kubeconfig_file("admin", None);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.api.lock().unwrap().try_wait() {
                let (api, etcd) = (self.directory.join("kube-apiserver.log"), self.directory.join("etcd.log"));
                return Err(format!("kube-apiserver ended with {status}:\n{}\n{}", tail(&api), tail(&etcd)));
            }
            let ready = kubectl_command(&kubeconfig).args(["get", "--raw", "/readyz"]).output();
            if ready.is_ok_and(|output| output.status.success()) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(200));
        }
        Err(format!("not ready after {START_TIMEOUT:?}:\n{}", tail(&self.directory.join("kube-apiserver.log"))))
    }

    /// A kubeconfig for an administrator, or for somebody he impersonates.
    pub(crate) fn kubeconfig(&self, impersonate: Option<(&str, &[&str])>) -> Kubeconfig {
        serde_json::from_value(json_kubeconfig(&self.server, impersonate)).unwrap()
    }

    /// The same as a file, for `kubectl` and `helm`.
    pub(crate) fn kubeconfig_file(&self, name: &str, impersonate: Option<(&str, &[&str])>) -> PathBuf {
        let path = self.directory.join(format!("{name}.kubeconfig"));
        let text = serde_json::to_string(&json_kubeconfig(&self.server, impersonate)).unwrap();
        // Whole at any moment: other tests read it meanwhile.
        let mut file = tempfile::NamedTempFile::new_in(&self.directory).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.persist(&path).unwrap();
        path
    }

    /// A client of an administrator, or of somebody he impersonates.
    pub(crate) async fn client(&self, impersonate: Option<(&str, &[&str])>) -> kube::Client {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = kube::Config::from_custom_kubeconfig(self.kubeconfig(impersonate), &KubeConfigOptions::default())
            .await
            .unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// The processes of the API server and of etcd.
    #[allow(dead_code, reason = "only benches ask for it")]
    pub(crate) fn processes(&self) -> [u32; 2] {
        [self.api.lock().unwrap().id(), self.etcd]
    }

    /// Runs `kubectl` as an administrator; `input` goes to its standard input.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
        run(kubectl_command(&self.kubeconfig_file("admin", None)).args(arguments), input)
    }

    /// The token of the administrator.
    pub(crate) fn admin_token(&self) -> &'static str {
        ADMIN_TOKEN
    }

    /// Runs kubectl as the administrator: whether it did what it should, and what it told people.
    pub(crate) fn kubectl_with_stderr(&self, arguments: &[&str]) -> (bool, String) {
        let output = kubectl_command(&self.kubeconfig_file("admin", None)).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// One more API server; it ends when this is dropped.
pub(crate) struct ApiServer(ControlPlane);

impl std::ops::Deref for ApiServer {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.0
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let api = self.0.api.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = api.kill();
        let _ = api.wait();
    }
}

/// A running part of the control plane.
pub(crate) struct Component(Child);

impl Drop for Component {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json_kubeconfig(server: &str, impersonate: Option<(&str, &[&str])>) -> serde_json::Value {
    let mut user = serde_json::json!({"token": ADMIN_TOKEN});
    if let Some((name, groups)) = impersonate {
        user["as"] = name.into();
        user["as-groups"] = groups.into();
    }
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
    })
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
