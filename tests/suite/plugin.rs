//! `kubectl nodegate`: the same program, found by kubectl under the name `kubectl-nodegate`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program under the plugin's name.
pub(crate) fn plugin_in(directory: &Path) -> PathBuf {
    let plugin = directory.join("kubectl-nodegate");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nodegate"), &plugin).unwrap();
    plugin
}

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

/// Exit code and errors of the program as kubectl runs it, or as `nodegate`.
fn run(as_plugin: bool, kubeconfig: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    std::fs::write(&file, kubeconfig).unwrap();
    let program = if as_plugin { plugin_in(directory.path()) } else { env!("CARGO_BIN_EXE_nodegate").into() };
    let mut command = Command::new(program);
    command.args(arguments).env("KUBECONFIG", &file).current_dir(env!("CARGO_MANIFEST_DIR"));
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
    assert!(root.contains("Usage: kubectl nodegate <COMMAND>") && root.contains("  kubectl nodegate demo\n"), "{root}");
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
        // By its own name, the program never uses a current context.
        let (code, said) = run(false, KUBECONFIG, arguments);
        assert!(code == Some(2) && said.contains("selected") && !said.contains("context"), "{arguments:?}: {said}");
        let (code, said) = run(false, KUBECONFIG, &[arguments, &["--context", "dev", "--namespace", "x"]].concat());
        assert!(code == Some(2) && said.contains("--context dev requires --kubeconfig"), "{arguments:?}: {said}");
    }
}

#[test]
fn an_explicit_kubeconfig_takes_precedence() {
    let (code, said) = run(true, KUBECONFIG, &["report", "--violations", "--kubeconfig", "absent"]);
    assert!(code == Some(2) && said.contains("--kubeconfig absent") && !said.contains("note: using"), "{said}");
}

#[test]
fn commands_that_write_need_an_explicit_cluster() {
    for arguments in [&["apply"] as &[&str], &["history", "n", "--revert", "1"]] {
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
        let (_, said) = run(true, "no configuration: [", arguments);
        assert!(!said.contains("kubectl's"), "{arguments:?}: {said}");
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
fn the_name_of_a_context_is_escaped_for_the_terminal() {
    let hostile = KUBECONFIG.replace("dev", "\"dev\\e[2J\\n\"");
    let (_, said) = run(true, &hostile, &["report", "--violations"]);
    assert!(said.starts_with("note: using kubectl's context dev\\u001b[2J\\u000a and namespace labels\n"), "{said}");
}
