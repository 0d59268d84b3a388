//! `kubectl nodegate`: the same program, found by kubectl under the name `kubectl-nodegate`.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use crate::shared::commands::plugin_in;

/// A configuration of kubectl with two contexts, of which no server answers.
const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: dev
contexts:
  - {name: dev, context: {cluster: c, user: u, namespace: labels}}
  - {name: prod, context: {cluster: c, user: u}}
users: [{name: u}]
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]
";

/// Exit code and errors of the program as kubectl runs it, or as `nodegate`, which gets no `KUBECONFIG` if there is no text.
fn run(as_plugin: bool, kubeconfig: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    std::fs::write(&file, kubeconfig).unwrap();
    let program = if as_plugin { plugin_in(directory.path()) } else { env!("CARGO_BIN_EXE_nodegate").into() };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("KUBECONFIG").current_dir(env!("CARGO_MANIFEST_DIR"));
    if as_plugin || !kubeconfig.is_empty() {
        command.env("KUBECONFIG", &file);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn help(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(plugin_in(directory.path())).args(arguments).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_and_usage_say_kubectl_nodegate() {
    let root = help(&["--help"]);
    assert!(
        root.contains("Usage: kubectl nodegate [OPTIONS] <COMMAND>") && root.contains("  kubectl nodegate demo\n"),
        "{root}"
    );
    let render = help(&["render", "webhooks", "--help"]);
    assert!(render.contains("Usage: kubectl nodegate render webhooks "), "{render}");
    let (code, said) = run(true, KUBECONFIG, &["check"]);
    assert!(code == Some(2) && said.contains("Usage: kubectl nodegate check <FILE>..."), "{said}");
    let (_, said) = run(false, KUBECONFIG, &["check"]);
    assert!(said.contains("Usage: nodegate check <FILE>..."), "{said}");
}

#[test]
fn commands_that_read_use_kubectls_current_context_and_say_so() {
    for arguments in
        [&["report", "--violations"] as &[&str], &["init"], &["plan"], &["explain", "n"], &["history", "n"]]
    {
        for (more, context, namespace) in [
            (&[] as &[&str], "dev", "labels"),
            (&["--namespace", "mine"], "dev", "mine"),
            (&["--context", "prod"], "prod", "default"),
        ] {
            let (code, said) = run(true, KUBECONFIG, &[arguments, more].concat());
            let note = format!("note: using kubectl's context {context} and namespace {namespace}\n");
            assert!(said.starts_with(&note) && said.contains("refused"), "{arguments:?} {more:?}: {said}");
            assert_eq!(code, Some(2), "{said}");
        }
        // By its own name, the program uses a current context only if KUBECONFIG names a file.
        let (code, said) = run(false, KUBECONFIG, &[arguments, &["-n", "x"]].concat());
        let note = "note: using kubectl's context dev and namespace x\n";
        assert!(code == Some(2) && said.starts_with(note) && said.contains("refused"), "{arguments:?}: {said}");
        let (code, said) = run(false, "", arguments);
        assert!(code == Some(2) && said.contains("selected") && !said.contains("context"), "{arguments:?}: {said}");
        let (code, said) = run(false, "", &[arguments, &["--context", "dev", "--namespace", "x"]].concat());
        assert!(code == Some(2) && said.contains("--context dev requires --kubeconfig"), "{arguments:?}: {said}");
    }
}

#[test]
fn the_api_server_is_reached_without_the_proxy_of_the_environment() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let explain = |kubeconfig: String, proxy: &str| {
        let file = directory.path().join("config");
        std::fs::write(&file, kubeconfig).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["explain", "n", "--namespace", "x", "--kubeconfig"]).arg(&file);
        command.env("HTTPS_PROXY", proxy).env("https_proxy", proxy).env_remove("NO_PROXY").env_remove("no_proxy");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    std::thread::spawn(move || {
        for mut stream in server.incoming().map_while(Result::ok) {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).unwrap();
            let body =
                r#"{"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "asked", "code": 403}"#;
            let length = body.len();
            write!(stream, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
                .unwrap();
        }
    });
    let direct = KUBECONFIG.replace("https://127.0.0.1:1", &url);
    for proxy in ["http://127.0.0.1:1", "https://127.0.0.1:1", "socks5://127.0.0.1:1", "no URL"] {
        let (code, said) = explain(direct.clone(), proxy);
        assert!(code == Some(2) && said.contains("asked"), "{proxy}: {said}");
    }
    let (code, said) = explain(direct.replace("server:", "proxy-url: 'http://u:secret@127.0.0.1:1', server:"), "");
    assert!(code == Some(2) && said.contains("the cluster has proxy-url") && !said.contains("secret"), "{said}");
}

#[test]
fn an_explicit_kubeconfig_takes_precedence() {
    let (code, said) = run(true, KUBECONFIG, &["report", "--violations", "--kubeconfig", "absent"]);
    assert!(code == Some(2) && said.contains("--kubeconfig absent") && !said.contains("note: using"), "{said}");
}

#[test]
fn commands_that_read_look_up_the_namespace_also_with_a_kubeconfig() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    std::fs::write(&file, KUBECONFIG).unwrap();
    let file = file.to_str().unwrap();
    for arguments in [&["report", "--violations"] as &[&str], &["report"], &["plan"], &["explain", "n"], &["verify"]] {
        for (more, namespace) in [(&[] as &[&str], "labels"), (&["--context", "prod"], "default")] {
            let (code, said) = run(false, "", &[arguments, &["--kubeconfig", file], more].concat());
            let note = format!("note: using namespace {namespace}\n");
            assert!(code == Some(2) && said.starts_with(&note) && said.contains("refused"), "{arguments:?}: {said}");
        }
        let (code, said) = run(false, "", &[arguments, &["--kubeconfig", file, "--context", "absent"]].concat());
        assert!(code == Some(2) && said.contains("absent") && !said.contains("note:"), "{arguments:?}: {said}");
    }
    let (code, said) = run(false, "", &["apply", "--kubeconfig", file]);
    assert!(code == Some(2) && said.contains("requires --namespace"), "{said}");
}

#[test]
fn commands_that_write_need_an_explicit_cluster() {
    let adopt = &["pools", "adopt", "gpu", "--node", "n"];
    for arguments in [&["apply"] as &[&str], &["history", "n", "--revert", "1"], adopt] {
        let (code, said) = run(true, KUBECONFIG, arguments);
        assert!(code == Some(2) && said.contains("no cluster is selected"), "{arguments:?}: {said}");
        let (code, said) = run(true, KUBECONFIG, &[arguments, &["--context", "prod"]].concat());
        assert!(code == Some(2) && said.contains("--context prod requires --namespace"), "{arguments:?}: {said}");
        let (code, said) = run(true, KUBECONFIG, &[arguments, &["--context", "prod", "--namespace", "x"]].concat());
        assert!(said.starts_with("note: using kubectl's context prod and namespace x\n"), "{arguments:?}: {said}");
        assert!(code == Some(2) && said.contains("refused"), "{arguments:?}: {said}");
    }
}

#[test]
fn nodes_in_files_need_no_context() {
    let nodes = "examples/fako/nodes";
    for arguments in [&["init", nodes] as &[&str], &["report", "--violations", nodes], &["plan", nodes]] {
        for as_plugin in [true, false] {
            let (_, said) = run(as_plugin, "no configuration: [", arguments);
            assert!(!said.contains("kubectl's"), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn a_configuration_without_such_a_context_is_an_error() {
    for (kubeconfig, arguments, expected) in [
        (
            KUBECONFIG,
            &["--context", "x"] as &[&str],
            "kubectl's configuration has no context \"x\"; `kubectl config get-contexts`",
        ),
        (
            "{apiVersion: v1, kind: Config}",
            &[],
            "kubectl has no current context; set one with `kubectl config use-context NAME`",
        ),
        ("{apiVersion: v1, kind: Config, current-context: ''}", &[], "kubectl has no current context"),
        ("no configuration: [", &[], "could not read kubectl's configuration"),
    ] {
        let (code, said) = run(true, kubeconfig, &[&["report", "--violations"], arguments].concat());
        assert!(code == Some(2) && said.contains(expected), "{said}");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_has_its_cause_once() {
    for arguments in [&["explain", "n"] as &[&str], &["report", "--violations"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let output = command.args(arguments).env("KUBECONFIG", "/absent/config").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = "could not read kubectl's configuration: /absent/config: No such file or directory";
        assert!(output.status.code() == Some(2) && said.contains(expected), "{said}");
        assert!(said.matches("No such file").count() == 1 && said.contains("set --kubeconfig to a file"), "{said}");
    }
}

#[test]
fn the_name_of_a_context_is_escaped_for_the_terminal() {
    let hostile = KUBECONFIG.replace("dev", "\"dev\\e[2J\\n\"");
    let (_, said) = run(true, &hostile, &["report", "--violations"]);
    assert!(said.starts_with("note: using kubectl's context dev\\u001b[2J\\u000a and namespace labels\n"), "{said}");
}
