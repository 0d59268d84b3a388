//! A real kube-apiserver and etcd on free loopback ports.
//!
//! `tests/control-plane/keep` keeps them running until whoever they belong to ends. Other programs are started through `setpriv
//! --pdeathsig` from a thread that lives as long as the test process, so the kernel ends them with it, however it ends.

#[allow(dead_code, reason = "benches use none")]
mod backup;
mod empty;
pub(crate) mod programs;
mod started;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hyper::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};

#[allow(unused_imports, reason = "benches do not need all of them")]
pub(crate) use programs::{assets, free_port, kubectl_program, run};
use programs::{kubectl_command, spawn, tail};
use started::on_a_thread;
#[allow(unused_imports, reason = "benches do not need all of them")]
pub(crate) use started::{Exclusive, exclusive};

const ADMIN_TOKEN: &str = "admin-token";
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The running control plane.
pub(crate) struct ControlPlane {
    /// `https://127.0.0.1:PORT` of the API server.
    pub(crate) server: String,
    /// `http://127.0.0.1:PORT` of etcd.
    etcd: String,
    /// What its programs write, and who keeps them running (`tests/control-plane/keep`).
    directory: PathBuf,
}

/// Starts a program from a thread that lives as long as the process, so that it ends with the process and not before.
fn spawn_here(program: &'static str, arguments: Vec<String>, log: PathBuf) -> Child {
    type Request = (&'static str, Vec<String>, PathBuf, mpsc::Sender<Result<Child, String>>);
    static REQUESTS: LazyLock<Mutex<mpsc::Sender<Request>>> = LazyLock::new(|| {
        let (requests, wanted) = mpsc::channel::<Request>();
        thread::spawn(move || {
            while let Ok((program, arguments, log, answer)) = wanted.recv() {
                let _ = answer.send(spawn(&assets().join(program), &arguments, &log));
            }
        });
        Mutex::new(requests)
    });
    let (answer, started) = mpsc::channel();
    REQUESTS.lock().unwrap().send((program, arguments, log, answer)).unwrap();
    started.recv().unwrap().unwrap()
}

impl ControlPlane {
    fn new(server: String, etcd: String, directory: PathBuf) -> Self {
        Self { server, etcd, directory }
    }

    /// Sends a signal to one of the programs that are kept running.
    fn signal(&self, program: &str, name: &str) {
        let process = self.process(program).to_string();
        let sent = Command::new("kill").args([name, &process]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name} {process}, which is {program}");
    }

    fn process(&self, program: &str) -> u32 {
        let file = self.directory.join(format!("{program}.pid"));
        fs::read_to_string(&file).unwrap().trim().parse().unwrap()
    }

    /// Ends the API server as a crash would, and after `outage` starts it again at the same address.
    pub(crate) fn restart_api_server(&self, outage: Duration) {
        let ended = self.stop_api_server();
        thread::sleep(outage);
        self.start_api_server();
        self.wait_for_another(ended);
    }

    /// Ends the API server, which is not started again before [`Self::start_api_server`]; the process that it was.
    fn stop_api_server(&self) -> u32 {
        let ended = self.process("kube-apiserver");
        fs::write(self.directory.join("stopped"), "").unwrap();
        self.signal("kube-apiserver", "-KILL");
        ended
    }

    /// Waits until another process than this one answers.
    fn wait_for_another(&self, ended: u32) {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.process("kube-apiserver") == ended {
            assert!(Instant::now() < deadline, "the API server is not started again");
            thread::sleep(Duration::from_millis(20));
        }
        self.wait_until_ready().unwrap();
    }

    /// Has the API server started if it was stopped.
    fn start_api_server(&self) {
        let _ = fs::remove_file(self.directory.join("stopped"));
    }

    /// Starts one more API server before the same etcd, with further arguments; it ends when it is dropped. This one goes
    /// on undisturbed.
    pub(crate) fn another_api_server(&self, arguments: &[String]) -> ApiServer {
        let port = free_port();
        let directory = self.directory.join(format!("api-server-{port}"));
        fs::create_dir(&directory).unwrap();
        let usual = fs::read_to_string(self.directory.join("kube-apiserver.arguments")).unwrap();
        // The last one of a flag counts.
        let own = [format!("--secure-port={port}"), format!("--cert-dir={}", directory.display())];
        let all = usual.lines().map(str::to_owned).chain(own).chain(arguments.iter().cloned()).collect();
        let process = spawn_here("kube-apiserver", all, directory.join("kube-apiserver.log"));
        let plane = Self::new(format!("https://127.0.0.1:{port}"), self.etcd.clone(), directory);
        plane.wait_until_ready().unwrap();
        ApiServer { plane, _process: Component(process) }
    }

    /// Installs the `NodePolicy` definition and waits until it is served.
    pub(crate) fn install_definition(&self) {
        let crd = concat!(env!("CARGO_MANIFEST_DIR"), "/webhook-config/nodepolicies.yaml");
        self.kubectl(&["apply", "--server-side", "-f", crd], None).unwrap();
        self.until_established(&["crd/nodepolicies.nodegate.dev"]);
        let deadline = Instant::now() + Duration::from_secs(30);
        // Right after a definition of this name was deleted, its objects may not be served yet.
        while let Err(error) = self.kubectl(&["get", "nodepolicies.nodegate.dev"], None) {
            assert!(Instant::now() < deadline, "{error}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until definitions are served, which `kubectl` finds by these arguments. Right after one was made it has no conditions
    /// yet, which `kubectl wait` takes for an error.
    pub(crate) fn until_established(&self, definitions: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(90);
        let wait = [&["wait", "--for=condition=Established", "--timeout=5s"], definitions].concat();
        while let Err(error) = self.kubectl(&wait, None) {
            assert!(Instant::now() < deadline, "{error}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Has etcd stand still for a while, as on a disk that hangs.
    pub(crate) fn stall_etcd(&self, length: Duration) {
        self.signal("etcd", "-STOP");
        thread::sleep(length);
        self.signal("etcd", "-CONT");
        self.wait_until_ready().unwrap();
    }

    /// What the API server logged since it was started last.
    pub(crate) fn api_server_log(&self) -> String {
        fs::read_to_string(self.directory.join("kube-apiserver.log")).unwrap()
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
        let all = own.into_iter().chain(arguments.iter().map(|text| (*text).to_owned())).collect();
        Component(spawn_here(program, all, self.directory.join(format!("{program}.log"))))
    }

    /// Starts a program that is no part of Kubernetes, as an administrator of the cluster; it ends when what is returned is dropped. What
    /// it writes is added to `log`.
    #[allow(dead_code, reason = "benches use none")]
    pub(crate) fn program(&self, program: &Path, log: &Path, with: impl FnOnce(&mut Command)) -> Component {
        let name = program.file_name().unwrap().to_str().unwrap();
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig_file(name, None));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        with(&mut command);
        Component(command.spawn().unwrap())
    }

    /// Applies the definitions of kinds in a directory, and waits until they are served.
    #[allow(dead_code, reason = "benches use none")]
    pub(crate) fn define(&self, directory: &Path) {
        for definition in fs::read_dir(directory).unwrap() {
            let file = definition.unwrap().path();
            let file = file.to_str().unwrap();
            self.kubectl(&["apply", "--server-side", "-f", file], None).unwrap();
            self.until_established(&["-f", file]);
        }
    }

    fn wait_until_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if self.ask(Method::GET, "/readyz", None).is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let (api, etcd) = (self.directory.join("kube-apiserver.log"), self.directory.join("etcd.log"));
        Err(format!("not ready after {START_TIMEOUT:?}:\n{}\n{}", tail(&api), tail(&etcd)))
    }

    /// A kubeconfig for an administrator, or for somebody they impersonate.
    pub(crate) fn kubeconfig(&self, impersonate: Option<(&str, &[&str])>) -> Kubeconfig {
        serde_json::from_value(json_kubeconfig(&self.server, &admin(impersonate))).unwrap()
    }

    /// The same as a file, for `kubectl` and `helm`.
    pub(crate) fn kubeconfig_file(&self, name: &str, impersonate: Option<(&str, &[&str])>) -> PathBuf {
        let path = self.directory.join(format!("{name}.kubeconfig"));
        let text = serde_json::to_string(&json_kubeconfig(&self.server, &admin(impersonate))).unwrap();
        // Whole at any moment: other tests read it meanwhile.
        let mut file = tempfile::NamedTempFile::new_in(&self.directory).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.persist(&path).unwrap();
        path
    }

    /// The same for an administrator through something that stands before the API server.
    pub(crate) fn kubeconfig_file_through(&self, name: &str, server: &str) -> PathBuf {
        let through = Self::new(server.to_owned(), self.etcd.clone(), self.directory.clone());
        through.kubeconfig_file(&format!("{name}-through"), None)
    }

    /// A client of an administrator, or of somebody they impersonate.
    pub(crate) async fn client(&self, impersonate: Option<(&str, &[&str])>) -> kube::Client {
        self.client_with(admin(impersonate)).await
    }

    /// A client with the credentials of a kubeconfig's `user`.
    pub(crate) async fn client_with(&self, user: serde_json::Value) -> kube::Client {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = serde_json::from_value(json_kubeconfig(&self.server, &user)).unwrap();
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        // No CA is asked, so those of the machine need not be read for each client.
        config.root_cert = Some(Vec::new());
        kube::Client::try_from(config).unwrap()
    }

    /// Asks the API server as an administrator, without the cost of starting kubectl. An object that is sent is applied
    /// (PATCH), or created (POST).
    pub(crate) fn ask(&self, method: Method, path: &str, object: Option<&serde_json::Value>) -> Result<String, String> {
        let kind = if method == Method::PATCH { "application/apply-patch+yaml" } else { "application/json" };
        let body = object.map(serde_json::Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder().method(method).uri(path).header("Content-Type", kind).body(body).unwrap();
        on_a_thread(|| async {
            self.client(None).await.request_text(request).await.map_err(|error| format!("{path}: {error}"))
        })
    }

    /// The processes of the API server and of etcd.
    #[allow(dead_code, reason = "only benches ask for it")]
    pub(crate) fn processes(&self) -> [u32; 2] {
        ["kube-apiserver", "etcd"].map(|program| self.process(program))
    }

    /// Runs `kubectl` as an administrator; `input` goes to its standard input.
    pub(crate) fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
        run(kubectl_command(&self.kubeconfig_file("admin", None)).args(arguments), input)
    }

    /// What it says of its version.
    pub(crate) fn version(&self) -> serde_json::Value {
        serde_json::from_str(&self.kubectl(&["get", "--raw", "/version"], None).unwrap()).unwrap()
    }

    /// The second number of its version.
    pub(crate) fn minor_version(&self) -> u32 {
        self.version()["minor"].as_str().unwrap().parse().unwrap()
    }

    /// Whether it has mutating admission policies, which came with Kubernetes 1.36.
    pub(crate) fn has_mutating_policies(&self) -> bool {
        let known = self.ask(Method::GET, "/apis/admissionregistration.k8s.io/v1", None).unwrap();
        known.contains("mutatingadmissionpolicies")
    }

    /// Those of these kinds that it has.
    pub(crate) fn known_kinds(&self, kinds: &str) -> String {
        let has_mutating = self.has_mutating_policies();
        let is_known = |kind: &&str| has_mutating || !kind.starts_with("mutatingadmissionpolic");
        kinds.split(',').map(str::trim).filter(is_known).collect::<Vec<_>>().join(",")
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
pub(crate) struct ApiServer {
    plane: ControlPlane,
    _process: Component,
}

impl std::ops::Deref for ApiServer {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

/// A running program that uses the control plane, or is a part of it.
pub(crate) struct Component(Child);

impl Drop for Component {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The credentials of an administrator, or of somebody they impersonate.
fn admin(impersonate: Option<(&str, &[&str])>) -> serde_json::Value {
    let mut user = serde_json::json!({"token": ADMIN_TOKEN});
    if let Some((name, groups)) = impersonate {
        user["as"] = name.into();
        user["as-groups"] = groups.into();
    }
    user
}

fn json_kubeconfig(server: &str, user: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
    })
}
