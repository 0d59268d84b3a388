//! `serve` before its cluster is there: an API server that does not answer yet, and a namespace that nobody has made.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::control_plane::{ControlPlane, exclusive, free_port};
use crate::authority::Authority;
use crate::eventually::{eventually_blocking, for_a_while_blocking, holds};

/// The real API server behind a port where nothing listens at first.
struct Door {
    port: u16,
    server: String,
}

impl Door {
    fn closed(plane: &ControlPlane) -> Self {
        Self { port: free_port(), server: plane.server.trim_start_matches("https://").to_owned() }
    }

    /// Lets everybody through, until the test process ends.
    fn open(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        let server = self.server.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
    }
}

/// A `serve` with a cluster that need not be there.
struct Serve {
    child: Child,
    directory: TempDir,
    probe: u16,
}

impl Serve {
    fn start(plane: &ControlPlane, server: &str, namespace: &str, further: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = fs::read_to_string(plane.kubeconfig_file("start", None)).unwrap();
        let kubeconfig = kubeconfig.replace(&plane.server, server);
        fs::write(directory.path().join("kubeconfig"), kubeconfig).unwrap();
        let probe = free_port();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_nodegate"), "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--probe-listen", &format!("127.0.0.1:{probe}"), "--namespace", namespace, "--kubeconfig"]);
        command.arg(directory.path().join("kubeconfig")).args(further);
        let inherited = std::env::vars().filter(|(name, _)| !name.starts_with("NODEGATE_") && name != "RUST_LOG");
        command.env_clear().envs(inherited).env("NODEGATE_DRAIN_DELAY", "0s").current_dir(&directory);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { child, directory, probe }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.probe)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        eventually_blocking(what, || {
            let is_so = is_so(self);
            assert!(is_so || self.child.try_wait().unwrap().is_none(), "{what}: it ended\n{}", self.log());
            holds(is_so, || self.log())
        });
    }

    fn says(&self, path: &str, status: &str, words: &str) -> bool {
        self.get(path).is_some_and(|answer| answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(words))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_waits_for_the_api_server_and_for_its_namespace_and_logs_what_is_missing() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let door = Door::closed(plane);
    let namespace = format!("start-{}", door.port);
    let mut serve = Serve::start(plane, &format!("https://127.0.0.1:{}", door.port), &namespace, &[]);
    serve.until("the log says why it waits", |serve| serve.log().contains("Connection refused"));
    serve.until("it lives", |serve| serve.says("/healthz", "200", ""));
    assert!(serve.says("/readyz", "503", "the cluster has not been reached"));
    // It tries again and again meanwhile, where nobody listens, and says so once.
    for_a_while_blocking(Duration::from_secs(3));
    assert_eq!(serve.log().matches("Connection refused").count(), 1, "{}", serve.log());

    door.open();
    let command = format!("kubectl create namespace {namespace}");
    serve.until("the log says how the namespace is made", |serve| serve.log().contains(&command));
    assert!(serve.says("/readyz", "503", "the cluster has not been reached"));
    assert!(serve.says("/healthz", "200", ""));
    plane.kubectl(&["create", "namespace", &namespace], None).unwrap();
    serve.until("it goes on by itself", |serve| serve.says("/readyz", "200", "ok"));
    let log = serve.log();
    assert_eq!(log.matches(&command).count(), 1, "{log}");
    for debugged in ["Status {", "ApiError", "ServiceError", "Some(", "Kube error"] {
        assert!(!log.contains(debugged), "{debugged} in\n{log}");
    }
}

#[test]
fn an_expired_external_certificate_is_reported_by_an_event() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let namespace = format!("start-{}", free_port());
    plane.kubectl(&["create", "namespace", &namespace], None).unwrap();
    let certs = tempfile::tempdir().unwrap();
    let expired =
        Authority::new("others").sign("localhost", |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1));
    fs::write(certs.path().join("tls.crt"), expired.certificate).unwrap();
    fs::write(certs.path().join("tls.key"), expired.key).unwrap();
    let directory = certs.path().display().to_string();
    let configuration = format!("expired-{namespace}");
    let further = ["--cert-dir", &directory, "--webhook-configuration", &configuration];
    let mut serve = Serve::start(plane, &plane.server, &namespace, &further);
    serve.until("not ready", |serve| serve.says("/readyz", "503", "the certificate expired at 2021-01-01T00:00:00Z"));
    let events = || {
        let fields = "jsonpath={range .items[*]}{.regarding.name} {.reason} {.note}{\"\\n\"}{end}";
        plane.kubectl(&["get", "events.events.k8s.io", "-n", "default", "-o", fields], None).unwrap()
    };
    serve.until("the event", |_| {
        events()
            .lines()
            .any(|event| event.starts_with(&format!("{configuration} CertificateExpired ")) && event.contains("2021"))
    });
}
