//! The real `nodegate serve`: start, certificates, bad input, end.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::admission;
use super::authority::{self, Authority, Identity};
use super::eventually::{eventually_blocking, holds};
use super::shared::memory::peak_memory;

/// A running server; it ends when this is dropped.
pub(crate) struct Serve {
    child: Child,
    directory: TempDir,
    pub(crate) probe: String,
    pub(crate) address: String,
}

pub(crate) fn command() -> Command {
    command_by(&[])
}

/// nodegate, started by another command.
fn command_by(starter: &[String]) -> Command {
    const PROGRAM: &str = env!("CARGO_BIN_EXE_nodegate");
    let mut command = Command::new(starter.first().map_or(PROGRAM, String::as_str));
    command.args(starter.iter().map(String::as_str).chain([PROGRAM]).skip(1));
    let inherited = std::env::vars().filter(|(name, _)| !name.starts_with("NODEGATE_") && !name.starts_with("OTEL_"));
    command
        .env_clear()
        .envs(inherited)
        .env_remove("PERSIST_LABEL_PREFIX")
        .env_remove("LOG_LEVEL")
        .env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

pub(crate) fn policy(name: &str, label: &str) -> String {
    format!(
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: {name}}}\nspec:\n  rules:\n    - name: r\n      labels: {{{label}: \"1\"}}\n"
    )
}

impl Serve {
    /// Starts on free ports; `prepare` fills the directory that the arguments may name as `DIR`.
    pub(crate) fn start(arguments: &[&str], environment: &[(&str, &str)], prepare: impl FnOnce(&Path)) -> Self {
        Self::start_by(&[], arguments, environment, prepare)
    }

    /// The same, started by another command, which becomes the server's process.
    pub(crate) fn start_by(
        starter: &[&str],
        arguments: &[&str],
        environment: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let here = |argument: &&str| argument.replace("DIR", &directory.path().display().to_string());
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = command_by(&starter.iter().map(here).collect::<Vec<_>>());
        command.args(["serve", "--listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0", "--cert-dir"]);
        command.arg(directory.path().join("certs")).arg("--state-dir").arg(directory.path().join("state"));
        command.args(arguments.iter().map(here));
        let child = command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut serve = Self { child, directory, probe: String::new(), address: String::new() };
        let ready = eventually_blocking("ready", || {
            assert!(serve.child.try_wait().unwrap().is_none(), "{}", serve.log());
            let is_ready = |line: &Value| line["message"] == "ready" || line["message"] == "listening";
            serve.lines().into_iter().find(is_ready).ok_or_else(|| serve.log())
        });
        serve.probe = ready["probe_address"].as_str().unwrap().to_owned();
        serve.address = ready["address"].as_str().unwrap().to_owned();
        serve
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// The log's lines, which are JSON when nobody watches.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.probe).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn peak_memory(&self) -> u64 {
        peak_memory(self.child.id())
    }

    pub(crate) fn metric(&self, line: &str) -> Option<()> {
        self.get("/metrics").lines().any(|there| there == line).then_some(())
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(
            Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap().success()
        );
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        eventually_blocking("the end", || self.child.try_wait().unwrap().ok_or_else(|| self.log()))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn without_policies_it_serves_baseline_and_exits_cleanly_on_sigterm() {
    let mut serve = Serve::start(&[], &[], |_| {});
    assert!(serve.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(serve.get("/readyz").starts_with("HTTP/1.1 200"));
    let metrics = serve.get("/metrics");
    assert!(metrics.contains("nodegate_policies 2") && metrics.contains("nodegate_synced 1"), "{metrics}");
    serve.signal("TERM");
    assert!(serve.end().success());
    assert!(serve.lines().iter().any(|line| line["message"] == "drained"), "{}", serve.log());
}

#[test]
fn it_says_on_which_node_it_runs_if_it_is_told() {
    let node = |arguments: &[&str], variables: &[(&str, &str)]| {
        let metrics = Serve::start(arguments, variables, |_| {}).get("/metrics");
        metrics.lines().find(|line| line.starts_with("nodegate_replica_node{")).map(str::to_owned)
    };
    assert_eq!(node(&[], &[("NODEGATE_NODE_NAME", "n1")]).unwrap(), "nodegate_replica_node{node=\"n1\"} 1");
    assert_eq!(node(&["--node-name", ""], &[]), None);
}

#[test]
fn while_it_drains_it_is_not_ready_but_still_accepts() {
    let mut serve = Serve::start(&["--drain-delay", "2s"], &[], |_| {});
    serve.signal("TERM");
    eventually_blocking("not ready", || serve.get("/readyz").starts_with("HTTP/1.1 503"));
    assert!(serve.get("/readyz").contains("shutting down"));
    TcpStream::connect(&serve.address).expect("still accepting during the delay");
    serve.signal("TERM");
    assert!(serve.end().success(), "send a second signal to exit immediately");
}

#[test]
fn while_it_drains_callers_are_asked_to_reconnect_after_each_response() {
    let serve = Serve::start(&["--drain-delay", "60s"], &[], |_| {});
    let ca = fs::read(serve.path("certs/ca.crt")).unwrap();
    let mut stream = authority::connect(&serve.address, &ca, None).unwrap();
    let mut head = move || {
        stream.write_all(b"GET /mutate HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (mut answer, mut length) = (vec![0; 4096], 0);
        while !answer[..length].windows(4).any(|four| four == b"\r\n\r\n") {
            let read = stream.read(&mut answer[length..]).unwrap();
            assert!(read > 0, "the connection ended without an answer");
            length += read;
        }
        let head = String::from_utf8_lossy(&answer[..length]).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 405"), "{head}");
        head.contains("\r\nconnection: close\r\n")
    };
    assert!([head(), head()] == [false, false], "a connection is kept open for the next request");
    serve.signal("TERM");
    eventually_blocking("not ready", || serve.get("/readyz").starts_with("HTTP/1.1 503"));
    assert!(head(), "a request of a caller that kept its connection would be lost when it is closed");
}

#[test]
fn a_denial_says_whether_its_caller_was_authenticated() {
    let authority = Authority::new("callers");
    let review = admission::edited(include_str!("../data/admission-reviews/admin-label-update.json"), |review| {
        review["request"]["object"]["metadata"]["labels"]["node.kubernetes.io/kind"] = "x".into();
    });
    let identity = authority.client("api-server");
    for (arguments, identity, caller) in [
        (&[] as &[&str], None, "unauthenticated"),
        (&["--client-ca-file", "DIR/ca.crt"], Some(&identity), "authenticated"),
    ] {
        let serve =
            Serve::start(arguments, &[], |directory| fs::write(directory.join("ca.crt"), &authority.pem).unwrap());
        let ca = fs::read(serve.path("certs/ca.crt")).unwrap();
        let answer = authority::post_as(&serve.address, &ca, identity, "/validate", &review).unwrap();
        assert!(answer.contains("\"allowed\":false"), "{answer}");
        let logged = serve.lines().into_iter().find(|line| line["message"] == "denied a write").unwrap();
        assert_eq!(logged["caller"], caller, "{logged}");
        let metrics = serve.get("/metrics");
        let counted = metrics.lines().find(|line| line.starts_with("nodegate_denials_total{")).unwrap();
        assert!(counted.contains(&format!("caller=\"{caller}\"")), "{counted}");
    }
}

#[test]
fn baseline_denies_warns_or_counts_as_its_mode_says() {
    let review = admission::edited(include_str!("../data/admission-reviews/admin-label-update.json"), |review| {
        review["request"]["object"]["metadata"]["labels"]["node.kubernetes.io/kind"] = "x".into();
    });
    for (arguments, mode, allowed, warned) in [
        (&[] as &[&str], "enforce", false, false),
        (&["--baseline-mode", "warn"], "warn", true, true),
        (&["--baseline-mode", "audit"], "audit", true, false),
    ] {
        let serve = Serve::start(arguments, &[], |_| {});
        let ca = fs::read(serve.path("certs/ca.crt")).unwrap();
        let answer = authority::post_as(&serve.address, &ca, None, "/validate", &review).unwrap();
        assert!(answer.contains(&format!("\"allowed\":{allowed}")), "{mode}: {answer}");
        assert_eq!(answer.contains("\"warnings\""), warned, "{mode}: {answer}");
        let metrics = serve.get("/metrics");
        let counted = metrics.lines().find(|line| line.starts_with("nodegate_violations_total{"));
        assert!(counted.is_some_and(|line| line.contains(&format!("mode=\"{mode}\""))), "{mode}: {metrics}");
    }
}

#[test]
fn callers_need_a_certificate_and_clients_of_the_probe_address_do_not() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let environment = [("NODEGATE_CLIENT_NAME", "api-server,api-server.example")];
    let serve = Serve::start(&["--client-ca-file", "DIR/mount/ca.crt"], &environment, |directory| {
        for (version, pem) in [("..v1", old.pem.clone()), ("..v2", format!("{}{}", old.pem, new.pem))] {
            fs::create_dir_all(directory.join("mount").join(version)).unwrap();
            fs::write(directory.join("mount").join(version).join("ca.crt"), pem).unwrap();
        }
        std::os::unix::fs::symlink("..v1", directory.join("mount/..data")).unwrap();
        std::os::unix::fs::symlink("..data/ca.crt", directory.join("mount/ca.crt")).unwrap();
    });
    let ask = |identity: Option<&Identity>| {
        authority::ask(&serve.address, &fs::read(serve.path("certs/ca.crt")).unwrap(), identity, "/mutate")
    };
    serve.metric(r#"nodegate_callers_refused_total{reason="no_certificate"} 0"#).expect("there from the start");
    assert!(ask(Some(&old.client("api-server.example"))).unwrap().starts_with("HTTP/1.1 405"));
    for (identity, reason) in [
        (None, "no_certificate"),
        (Some(old.client("kubelet")), "name_not_allowed"),
        (Some(new.client("api-server")), "unknown_ca"),
    ] {
        let error = ask(identity.as_ref()).expect_err(reason).to_string();
        assert!(error.contains("fatal alert"), "{error}");
        eventually_blocking(reason, || {
            serve.metric(&format!(r#"nodegate_callers_refused_total{{reason="{reason}"}} 1"#))
        });
        assert!(
            serve.lines().iter().any(|line| line["reason"] == reason && line["level"] == "WARN"),
            "{}",
            serve.log()
        );
    }
    assert!(serve.get("/readyz").starts_with("HTTP/1.1 200"));

    std::os::unix::fs::symlink("..v2", serve.path("mount/..data_tmp")).unwrap();
    fs::rename(serve.path("mount/..data_tmp"), serve.path("mount/..data")).unwrap();
    eventually_blocking("the swap is taken up", || {
        serve.metric(r#"nodegate_client_ca_reloads_total{result="success"} 1"#)
    });
    assert!(ask(Some(&new.client("api-server"))).unwrap().starts_with("HTTP/1.1 405"));
    fs::write(serve.path("mount/..v2/ca.crt"), "-----BEGIN CERTIFICATE-----\nMIIB").unwrap();
    eventually_blocking("the broken file is counted", || {
        serve.metric(r#"nodegate_client_ca_reloads_total{result="failure"} 1"#)
    });
    assert!(ask(Some(&new.client("api-server"))).unwrap().starts_with("HTTP/1.1 405"));
}

#[test]
fn an_expired_external_certificate_makes_it_unready_until_it_is_renewed() {
    let authority = Authority::new("others");
    let put = |directory: &Path, not_after: jiff::civil::Date| {
        let date = rcgen::date_time_ymd(
            i32::from(not_after.year()),
            u8::try_from(not_after.month()).unwrap(),
            u8::try_from(not_after.day()).unwrap(),
        );
        let identity = authority.sign("localhost", |params| params.not_after = date);
        fs::create_dir_all(directory.join("certs")).unwrap();
        fs::write(directory.join("certs/tls.key"), identity.key).unwrap();
        fs::write(directory.join("certs/tls.crt"), identity.certificate).unwrap();
    };
    let serve = Serve::start(&[], &[], |directory| put(directory, jiff::civil::date(2021, 1, 1)));
    eventually_blocking("not ready", || serve.get("/readyz").starts_with("HTTP/1.1 503"));
    assert!(serve.get("/readyz").contains("the certificate expired at 2021-01-01T00:00:00Z; renew it"));
    assert!(serve.get("/healthz").starts_with("HTTP/1.1 200"), "a restart would not help");
    let said = |level: &str, words: &str| {
        let lines = serve.lines();
        let mut lines = lines.iter().filter(|line| line["level"] == level);
        holds(lines.any(|line| line["message"].as_str().is_some_and(|message| message.contains(words))), || serve.log())
    };
    eventually_blocking("the error", || said("ERROR", "expired at 2021-01-01T00:00:00Z"));
    serve.metric("nodegate_certificate_expiring 1").unwrap();

    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let days = |count: i64| today.checked_add(jiff::Span::new().days(count)).unwrap();
    put(serve.directory.path(), days(10));
    eventually_blocking("ready again", || serve.get("/readyz").starts_with("HTTP/1.1 200"));
    eventually_blocking("the warning", || said("WARN", &format!("expires at {}", days(10))));
    serve.metric("nodegate_certificate_expiring 1").expect("still, for it ends soon");

    put(serve.directory.path(), days(100));
    eventually_blocking("all is well", || serve.metric("nodegate_certificate_expiring 0"));
    assert!(serve.get("/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_invalid_file_of_client_cas_makes_it_exit_with_2_and_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    let ca = Authority::new("callers");
    for (text, part) in [
        (None, "No such file"),
        (Some(String::new()), "contains no certificate"),
        (Some(ca.client("leaf").certificate), "certificate 1 (CN=leaf) is not a CA certificate"),
        (Some(Authority::valid("gone", (2020, 2021)).pem), "contains no CA certificate that is currently valid"),
        (Some(ca.pem[..ca.pem.len() / 2].to_owned()), "incomplete"),
    ] {
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let output =
            command().arg("serve").env("NODEGATE_CLIENT_CA_FILE", &file).current_dir(&directory).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("--client-ca-file: ") && said.contains("ca.pem") && said.contains(part),
            "{part}: {said}"
        );
        assert!(!directory.path().join("certs").exists());
    }
}

#[test]
fn an_invalid_policy_makes_it_exit_with_2_and_every_error() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.yaml"), policy("a", "not a key").replace("rules:", "rulez: []\n  rules:"))
        .unwrap();
    fs::write(directory.path().join("b.yaml"), "a: [1\n").unwrap();
    fs::write(
        directory.path().join("c.yaml"),
        policy("c", "node-role.kubernetes.io/x")
            .replace("      labels", "      match: {capacity: {cpu: lots}}\n      labels"),
    )
    .unwrap();
    let output = command().args(["serve", "--policy"]).arg(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    for part in [
        "a.yaml:5:3",
        "unknown field \"rulez\"",
        "help: did you mean \"rules\"?",
        "a.yaml:8:",
        "b.yaml:",
        "c.yaml:7:",
        "\"lots\" is not a comparison",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!directory.path().join("certs").exists());
}

#[test]
fn invalid_flags_make_it_exit_with_2() {
    for (arguments, environment, part) in [
        (&["serve", "--listen", "nowhere"] as &[&str], ("LOG_LEVEL", "INFO"), "--listen"),
        (&["serve", "--client-name", "api-server"], ("LOG_LEVEL", "INFO"), "--client-ca-file"),
        (&["serve"], ("NODEGATE_CLIENT_NAME", "api-server"), "--client-ca-file"),
        (&["serve", "--client-ca-file", "ca.pem", "--client-name", ""], ("LOG_LEVEL", "INFO"), "--client-name"),
        (&["serve", "--pending-taint", "often"], ("LOG_LEVEL", "INFO"), "auto"),
        (&["serve"], ("LOG_LEVEL", "LOUD"), "LOG_LEVEL"),
        (&["serve", "--policy", "/nonexistent.yaml"], ("LOG_LEVEL", "WARNING"), "/nonexistent.yaml"),
    ] {
        let output = command().args(arguments).env(environment.0, environment.1).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(part), "{part}");
    }
}
