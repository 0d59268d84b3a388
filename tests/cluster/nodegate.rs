//! The real `nodegate serve`, registered at the real API server by what `nodegate render` prints.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::control_plane::{ControlPlane, free_port, run};
use crate::eventually::{eventually, eventually_blocking, holds};

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "nodegate", "namespace": "nodegate"},
    "spec": {"type": "ExternalName", "externalName": "localhost"}}"#;

/// A running `nodegate serve` and its registration. Both are gone when this is dropped.
pub(crate) struct Nodegate<'a> {
    plane: &'a ControlPlane,
    child: Child,
    directory: TempDir,
    listen: u16,
    probe: u16,
    manifests: String,
    /// The namespace of its saved state, when it runs with the cluster.
    pub(crate) namespace: String,
}

/// How to start and register it.
#[derive(Clone, Default)]
pub(crate) struct Setup<'a> {
    /// The program, if it is not the one that is tested.
    pub(crate) program: Option<&'a str>,
    /// Policy files or directories, from the repository's root.
    pub(crate) policies: &'a [&'a str],
    /// Documents of the state directory: node and `state.json`.
    pub(crate) state: &'a [(&'a str, &'a str)],
    /// Further arguments of `serve`.
    pub(crate) serve: &'a [&'a str],
    /// Further arguments of `render webhooks`.
    pub(crate) render: &'a [&'a str],
    /// Run with the cluster, in a namespace of its own.
    pub(crate) cluster: bool,
    /// Run with the cluster, in the namespace of a nodegate before or beside this one.
    pub(crate) namespace: Option<&'a str>,
    /// With nothing but the service account's own rights, which somebody must have given it.
    pub(crate) own_rights: bool,
    /// Certificates from the Secret that nodegate keeps, caBundle written by it.
    pub(crate) own_certificates: bool,
    /// Register it at this port instead of its own: something stands before it.
    pub(crate) behind: Option<u16>,
    /// The port of the webhook, where somebody has to know it before it is started.
    pub(crate) listen: Option<u16>,
    /// Register it by the Service `nodegate/nodegate`, which is made and leads to this machine.
    pub(crate) service: bool,
    /// How long the Lease holds, in seconds; zero for the usual three.
    pub(crate) lease_seconds: u64,
    /// Further environment variables of the server.
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// Leave the webhook out: only the controller runs.
    pub(crate) unregistered: bool,
    /// A program that starts the server, with its arguments.
    pub(crate) starter: &'a [&'a str],
    /// The file that gets the server's log instead of one of its own.
    pub(crate) log_to: Option<&'a str>,
    /// Where the server finds the API server, if something stands before that.
    pub(crate) api_server: Option<&'a str>,
    /// For how long the API server waits for an answer; zero for as long as `render` says.
    pub(crate) timeout_seconds: u32,
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command
        .env_clear()
        .envs(std::env::vars().filter(|(name, _)| !name.starts_with("NODEGATE_") && name != "PERSIST_LABEL_PREFIX"));
    command
}

fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Makes a namespace, if it is not there.
fn make_namespace(plane: &ControlPlane, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let made = plane.ask(Method::POST, "/api/v1/namespaces", Some(&object));
    assert!(made.is_ok() || made.as_ref().is_err_and(|error| error.contains("already exists")), "{made:?}");
}

/// The objects of a registration, each with its path at the API server.
fn objects(manifests: &str) -> Vec<(String, Value)> {
    let path = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap();
        match object["kind"].as_str().unwrap() {
            "Service" => format!("/api/v1/namespaces/nodegate/services/{name}"),
            kind => format!("/apis/admissionregistration.k8s.io/v1/{}s/{name}", kind.to_lowercase()),
        }
    };
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifests).unwrap();
    objects.into_iter().map(|object| (path(&object), object)).collect()
}

/// Arguments to run with the cluster as a service account in `namespace`, which is made. Short times, so that tests need not wait.
pub(crate) fn with_cluster(plane: &ControlPlane, namespace: &str, own_rights: bool) -> Vec<String> {
    make_namespace(plane, namespace);
    let user = format!("system:serviceaccount:{namespace}:nodegate");
    let groups: &[&str] =
        if own_rights { &["system:serviceaccounts", "system:authenticated"] } else { &["system:masters"] };
    let kubeconfig = plane.kubeconfig_file(namespace, Some((&user, groups)));
    let arguments =
        ["--kubeconfig", &kubeconfig.display().to_string(), "--namespace", namespace, "--lease-seconds", "3"];
    let arguments = arguments.into_iter().chain(["--resync-interval-seconds", "5"]);
    arguments.map(str::to_owned).collect()
}

impl<'a> Nodegate<'a> {
    /// Starts the server, waits until it is ready, and registers it.
    pub(crate) fn start(plane: &'a ControlPlane, setup: &Setup<'_>) -> Self {
        let mut started = Self::start_unregistered(plane, setup);
        if !setup.unregistered {
            started.register(setup);
        }
        started
    }

    /// Starts the server and waits until it is ready.
    pub(crate) fn start_unregistered(plane: &'a ControlPlane, setup: &Setup<'_>) -> Self {
        let mut started = Self::spawn(plane, setup);
        started.wait_until_ready();
        started
    }

    /// Starts the server, which may never be ready.
    pub(crate) fn spawn(plane: &'a ControlPlane, setup: &Setup<'_>) -> Self {
        let directory = TempDir::with_prefix("nodegate-").unwrap();
        let (listen, probe) = (setup.listen.unwrap_or_else(free_port), free_port());
        let state = directory.path().join("state");
        std::fs::create_dir(&state).unwrap();
        for (node, text) in setup.state {
            std::fs::write(state.join(format!("{node}.json")), text).unwrap();
        }
        let log = setup.log_to.map_or_else(|| directory.path().join("log"), PathBuf::from);
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new("setpriv");
        let program = setup.program.unwrap_or(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["--pdeathsig", "KILL", "--"]).args(setup.starter).args([program, "serve"]);
        command.env_clear().envs(
            std::env::vars().filter(|(name, _)| !name.starts_with("NODEGATE_") && name != "PERSIST_LABEL_PREFIX"),
        );
        command.env("RUST_LOG", "nodegate=debug");
        if setup.behind.is_none() {
            // Nothing is in front of it, and a test that ends it does not wait.
            command.env("NODEGATE_DRAIN_DELAY", "0s");
        }
        command
            .arg("--listen")
            .arg(format!("127.0.0.1:{listen}"))
            .arg("--probe-listen")
            .arg(format!("127.0.0.1:{probe}"));
        command.arg("--state-dir").arg(state);
        if !setup.own_certificates {
            command.arg("--cert-dir").arg(directory.path().join("certs"));
        }
        for policy in setup.policies {
            command.arg("--policy").arg(from_root(policy));
        }
        let namespace = setup.namespace.map_or_else(|| format!("nodegate-{listen}"), str::to_owned);
        if setup.cluster || setup.namespace.is_some() {
            let mut arguments = with_cluster(plane, &namespace, setup.own_rights);
            if setup.lease_seconds > 0 {
                let at = arguments.iter().position(|argument| argument == "--lease-seconds").unwrap();
                arguments[at + 1] = setup.lease_seconds.to_string();
            }
            if let Some(server) = setup.api_server {
                let at = arguments.iter().position(|argument| argument == "--kubeconfig").unwrap();
                let kubeconfig = std::fs::read_to_string(&arguments[at + 1]).unwrap().replace(&plane.server, server);
                let file = directory.path().join("kubeconfig");
                std::fs::write(&file, kubeconfig).unwrap();
                arguments[at + 1] = file.display().to_string();
            }
            command.args(arguments);
        }
        command.envs(setup.environment.iter().copied());
        let child = command
            .args(setup.serve)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { plane, child, directory, listen, probe, manifests: String::new(), namespace }
    }

    /// Whether the server has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn wait_until_ready(&mut self) {
        eventually_blocking("nodegate is ready", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("nodegate ended with {status}:\n{}", self.log());
            }
            let is_ready = self.probe("/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"));
            holds(is_ready, || self.log())
        });
    }

    pub(crate) fn register(&mut self, setup: &Setup<'_>) {
        let mut render = binary();
        let port = setup.behind.unwrap_or(self.listen);
        let url = format!("https://127.0.0.1:{port}");
        let target = if setup.service { ["--service", "nodegate/nodegate"] } else { ["--url", &url] };
        render.args(["render", "webhooks"]).args(target).args(setup.render);
        if !setup.own_certificates {
            render.arg("--ca-file").arg(self.directory.path().join("certs/ca.crt"));
        }
        for policy in setup.policies {
            render.arg("--policy").arg(from_root(policy));
        }
        self.manifests = run(&mut render, None).unwrap();
        if setup.timeout_seconds > 0 {
            let lines = self.manifests.lines().map(|line| match line.split_once("timeoutSeconds: ") {
                Some((indent, _)) => format!("{indent}timeoutSeconds: {}\n", setup.timeout_seconds),
                None => format!("{line}\n"),
            });
            self.manifests = lines.collect();
        }
        if setup.service {
            // A Service of type ExternalName is called at the port of the registration.
            self.manifests = format!("{}---\n{SERVICE}", self.manifests.replace("port: 443", &format!("port: {port}")));
            make_namespace(self.plane, "nodegate");
        }
        for (path, object) in objects(&self.manifests) {
            // What somebody else had applied is taken over, as by kubectl.
            let path = format!("{path}?fieldManager=test&force=true");
            self.plane.ask(Method::PATCH, &path, Some(&object)).unwrap();
        }
        self.wait_until_called();
    }

    /// The API server learns of a configuration by watch: asks with dry runs until it calls us.
    pub(crate) fn wait_until_called(&self) {
        let probe = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "registration-probe"}});
        let (mutate, validate) = (self.requests("mutate"), self.requests("validate"));
        eventually_blocking("the API server calls nodegate", || {
            self.plane.ask(Method::POST, "/api/v1/nodes?dryRun=All", Some(&probe)).unwrap_or_default();
            let is_called = self.requests("mutate") > mutate && self.requests("validate") > validate;
            holds(is_called, || self.state())
        });
    }

    /// Waits until nodes that are created count as younger than the registration: times of objects have whole seconds.
    pub(crate) async fn until_nodes_are_younger(&self) {
        let path = "jsonpath={.metadata.creationTimestamp}";
        let made = self.plane.kubectl(&["get", "mutatingwebhookconfiguration", "nodegate", "-o", path], None).unwrap();
        let made: jiff::Timestamp = made.parse().unwrap();
        eventually("a new second begins", async || jiff::Timestamp::now().as_second() > made.as_second()).await;
    }

    /// Waits until something is so, by what this server does or knows.
    pub(crate) async fn eventually(&self, what: &str, is_so: impl Fn() -> bool) {
        eventually(what, async || holds(is_so(), || self.state())).await;
    }

    /// Its metrics and its log, to be shown if a test fails.
    fn state(&self) -> String {
        format!("{}\n{}", self.probe("/metrics").unwrap_or_default(), self.log())
    }

    /// Waits until the leader has reconciled each of so many nodes once more, where nothing happens to them: it does that at every
    /// resync, to one after the other. One more, because it may be busy with one of them now.
    pub(crate) async fn until_resynced(&self, nodes: u64) {
        let before = self.reconciles().unwrap();
        let are_done = || self.reconciles().is_some_and(|now| now > before + nodes);
        self.eventually("every node is reconciled again", are_done).await;
    }

    /// How often a node was reconciled so far.
    fn reconciles(&self) -> Option<u64> {
        let metrics = self.probe("/metrics")?;
        let begin = r#"nodegate_reconciles_total{result="success"} "#;
        metrics.lines().find_map(|line| line.strip_prefix(begin)?.parse().ok())
    }

    /// How many reviews of an endpoint were answered so far.
    pub(crate) fn requests(&self, endpoint: &str) -> u64 {
        let metrics = self.probe("/metrics").unwrap_or_default();
        let lines = metrics.lines().filter(|line| {
            line.starts_with("nodegate_admission_requests_total{") && line.contains(&format!("\"{endpoint}\""))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map(|count| count as u64).sum()
    }

    /// How many nodes have saved state.
    pub(crate) fn records(&self) -> usize {
        let metrics = self.probe("/metrics").unwrap_or_default();
        metrics.lines().find_map(|line| line.strip_prefix("nodegate_saved_states ")?.parse().ok()).unwrap_or_default()
    }

    /// The memory that it takes now, in bytes.
    pub(crate) fn resident_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        size.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    }

    /// The most memory it has taken since its start, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        crate::shared::memory::peak_memory(self.child.id())
    }

    /// An answer of the probe address, head included.
    pub(crate) fn probe(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.probe)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Where its metrics are.
    pub(crate) fn probe_address(&self) -> String {
        format!("127.0.0.1:{}", self.probe)
    }

    /// What the server logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The ports of the webhook and of the probe address.
    pub(crate) fn ports(&self) -> (u16, u16) {
        (self.listen, self.probe)
    }

    /// The CA of its certificate in files.
    pub(crate) fn ca(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("certs/ca.crt")).unwrap()
    }

    /// Ends the server as Kubernetes ends a pod, and waits for it.
    pub(crate) fn terminate(&mut self) {
        self.signal("-TERM");
        eventually_blocking("it ends", || holds(self.has_ended(), || self.log()));
    }

    /// Sends the server a signal.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name}");
    }

    /// Ends the server as a crash would; the registration stays.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Nodegate<'_> {
    fn drop(&mut self) {
        if !self.manifests.is_empty() {
            for (path, _) in objects(&self.manifests) {
                let _ = self.plane.ask(Method::DELETE, &path, None);
            }
        }
        self.kill();
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("nodegate's log:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}
