//! What each command does when something fails: a file is missing, there are no nodes, no cluster answers, nobody reads the
//! output, or it is ended half-way. A new command needs a row in each table, or a reason why it has none.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;

use super::eventually::{eventually_blocking, holds};
use crate::shared::commands::{OF_A_CLUSTER, POLICY};

const TEST: &str = "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\npolicies: [policy.yaml]\ncases: [{name: c, node: {name: n}, expect: {labels: {tier: gold}}}]\n";
/// A cluster of which no API server answers.
const NOWHERE: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n";

/// A directory with what the commands below read.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"tier": "tin", "team": "ml"}}});
    let pooled = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "p", "labels": {"eks.amazonaws.com/nodegroup": "gpu"}}});
    let owned = json!({"nodeName": "n", "nodeUID": "u", "owned": {"labels": {"tier": "tin"}}, "history":
        [{"id": 1, "time": "2026-01-01T00:00:00Z", "by": "alice", "how": "user", "field": "label", "key": "tier", "new": "tin"}]});
    for name in ["state", "nothing", "sysfs/bus"] {
        fs::create_dir_all(at.join(name)).unwrap();
    }
    for (name, text) in [
        ("policy.yaml", POLICY.to_owned()),
        ("test.yaml", TEST.to_owned()),
        ("node.json", node.to_string()),
        ("pooled.json", pooled.to_string()),
        ("empty.json", json!({"kind": "List", "items": []}).to_string()),
        ("state/n.json", owned.to_string()),
        ("nowhere", NOWHERE.to_owned()),
        ("file", String::new()),
        ("kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet --v=2\n".to_owned()),
    ] {
        fs::write(at.join(name), text).unwrap();
    }
    directory
}

/// The words of a command line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn command(at: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(words(line)).current_dir(at).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(at: &Path, line: &str) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(at, line).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Asserts that each command is in the table, unless it is among `others`.
fn assert_complete<'a>(lines: impl IntoIterator<Item = &'a str>, others: &[&str]) {
    let help = run(Path::new("."), "--help").1;
    let all: BTreeSet<&str> = crate::output::commands(&help).collect();
    let here: BTreeSet<&str> =
        lines.into_iter().filter_map(|line| words(line).first().copied()).chain(others.iter().copied()).collect();
    assert_eq!(here, all, "commands of the table (left) and of --help (right)");
}

/// What is written into a directory, with the files in it.
fn files(at: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![at.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            found.insert(path.strip_prefix(at).unwrap().display().to_string());
            waiting.extend(path.is_dir().then_some(path));
        }
    }
    found
}

/// Each path that a command reads, as one that is not there.
const MISSING: &[&str] = &[
    "plan absent",
    "plan node.json --policy absent",
    "plan node.json --labels-dir absent",
    "plan node.json --state-dir absent",
    "plan node.json --pods absent",
    "plan --kubeconfig absent --namespace x",
    "test absent",
    "init absent",
    "init --kubeconfig absent",
    "init --from-kyverno absent",
    "init --from-nfd absent",
    "check absent",
    "explain n --nodes absent",
    "explain n --nodes node.json --policy absent",
    "explain n --nodes node.json --labels-dir absent",
    "explain n --nodes node.json --state-dir absent",
    "explain n --kubeconfig absent --namespace x",
    "render webhooks --url https://x:1 --ca-file absent",
    "render webhooks --url https://x:1 --ca-file file --policy absent",
    "export admission-policies --policy absent",
    "export admission-policies --labels-dir absent",
    "export autoscaler absent",
    "export autoscaler pooled.json --policy absent",
    "export autoscaler pooled.json --labels-dir absent",
    "export autoscaler pooled.json --state-dir absent",
    "export autoscaler pooled.json --groups absent",
    "export autoscaler pooled.json --groups absent --format asg-tags",
    "export autoscaler --kubeconfig absent --namespace x",
    "apply --kubeconfig absent --namespace x",
    "apply --kubeconfig nowhere --namespace x --policy absent",
    "apply --kubeconfig nowhere --namespace x --labels-dir absent",
    "report absent",
    "report node.json --policy absent",
    "report node.json --labels-dir absent",
    "report node.json --state-dir absent",
    "report node.json --stranded-pods --pods absent",
    "report node.json --cost --by tier --prices absent",
    "report --violations absent",
    "report --violations node.json --policy absent",
    "report --kubeconfig absent --namespace x",
    "history n --state-dir absent",
    "history n --kubeconfig absent --namespace x",
    "migrate old new --kubeconfig absent --namespace x",
    "migrate status --kubeconfig absent --namespace x",
    "cleanup --nodes absent --state-dir state",
    "cleanup --nodes node.json --state-dir absent",
    "cleanup --kubeconfig absent --namespace x",
    "serve --policy absent",
    "serve --labels-dir absent",
    "serve --kubeconfig absent --namespace x",
    "verify --kubeconfig absent --namespace x",
    "pools adopt gpu --node n --kubeconfig absent --namespace x",
    "pools forget --node n --kubeconfig absent --namespace x",
    "probe --sysfs absent",
    "probe --pci-ids absent",
    "firstboot install --print --unit-file absent",
    "certs show --cert-dir absent",
];

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    // The others read no files, or create them, or need a terminal first.
    assert_complete(MISSING.iter().copied(), &["demo", "completions", "man", "top"]);
    let directory = directory();
    let before = files(directory.path());
    for line in MISSING {
        let (code, output, errors) = run(directory.path(), line);
        assert_eq!((code, &*output), (Some(2), ""), "{line}: {errors}");
        assert!(errors.starts_with("error: ") && errors.contains("absent"), "{line}: {errors}");
        assert_eq!(files(directory.path()), before, "{line}");
    }
    for line in [
        "certs create --cert-dir file",
        "man file/man1",
        "init node.json --dir file/policy",
        "verify --record file --kubeconfig nowhere --namespace x",
    ] {
        let (code, output, errors) = run(directory.path(), line);
        assert!(code == Some(2) && output.is_empty() && errors.contains("file"), "{line}: {errors}");
    }
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error() {
    // `serve` waits for the API server, and `top` needs a terminal first; the others use no cluster.
    assert_complete(
        OF_A_CLUSTER.iter().copied(),
        &["serve", "top", "demo", "test", "check", "render", "certs", "completions", "man", "probe", "firstboot"],
    );
    let directory = directory();
    let before = files(directory.path());
    for line in OF_A_CLUSTER {
        let (code, output, errors) = run(directory.path(), &format!("{line} --kubeconfig nowhere --namespace x"));
        assert_eq!((code, &*output), (Some(2), ""), "{line}: {errors}");
        assert!(errors.contains("Connection refused"), "{line}: {errors}");
        assert_eq!(errors.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{line}: {errors}");
        assert_eq!(files(directory.path()), before, "{line}");
    }
}

#[test]
fn no_nodes_and_no_files_are_an_error_and_no_success() {
    for (line, expected) in [
        ("plan empty.json", "empty.json: contains no Node"),
        ("plan nothing", "nothing: contains no .yaml, .yml or .json file"),
        ("plan node.json --policy nothing", "nothing"),
        ("init empty.json", "empty.json: contains no Node"),
        ("init --from-kyverno nothing", "nothing: contains no .yaml, .yml or .json file"),
        ("init --from-nfd node.json", "this is a Node of"),
        ("explain n --nodes empty.json", "empty.json: contains no Node"),
        ("report empty.json", "empty.json: contains no Node"),
        ("report --violations empty.json", "empty.json: contains no Node"),
        ("report --violations nothing", "nothing: contains no .yaml, .yml or .json file"),
        ("cleanup --nodes empty.json --state-dir state", "empty.json: contains no Node"),
        ("test nothing", "nothing: contains no PolicyTest"),
        ("check nothing", "nothing"),
        ("check file", "file"),
        ("history n --state-dir nothing", "no saved state for node n"),
        ("export admission-policies --policy nothing", "nothing"),
        ("export autoscaler empty.json", "empty.json: contains no Node"),
        ("export autoscaler node.json", "no pool was found"),
        ("export autoscaler pooled.json --groups empty.json", "empty.json: contains no NodePool"),
        (
            "export autoscaler pooled.json --format vmss-tags --groups empty.json",
            "expected the output of `az vmss list`",
        ),
        ("render webhooks --url https://x:1 --ca-file file", "file"),
        ("probe --sysfs nothing", "it has no directory bus, so it is not a sysfs"),
        ("probe --sysfs sysfs --feature-file f --expire-after 100000000h", "--expire-after is too long"),
    ] {
        let directory = directory();
        let (code, output, errors) = run(directory.path(), line);
        assert_eq!((code, &*output), (Some(2), ""), "{line}: {errors}");
        assert!(errors.contains(expected), "{line}: {errors}");
    }
}

/// Command lines that print something, with their exit codes.
const PRINTING: &[(&str, i32)] = &[
    ("--help", 0),
    ("demo", 0),
    ("plan node.json --policy policy.yaml", 0),
    ("plan node.json --policy policy.yaml -o json --exit-code", 1),
    ("test test.yaml", 0),
    ("init node.json", 0),
    ("check policy.yaml", 0),
    ("explain n --nodes node.json --policy policy.yaml", 0),
    ("explain n --nodes node.json --why-not tier -o yaml", 0),
    ("render crd", 0),
    ("render schema", 0),
    ("render guard", 0),
    ("export admission-policies --policy policy.yaml --self-user me", 0),
    ("export autoscaler pooled.json --policy policy.yaml", 0),
    ("export autoscaler pooled.json --policy policy.yaml --format asg-tags", 0),
    ("report node.json --policy policy.yaml", 0),
    ("report node.json --cost --by tier -o csv", 0),
    ("report --violations node.json --policy policy.yaml", 0),
    ("history n --state-dir state", 0),
    ("cleanup --nodes node.json --state-dir state --exit-code", 1),
    ("certs create --cert-dir certs", 0),
    ("completions bash", 0),
    ("probe --sysfs sysfs -o json", 0),
    ("firstboot install --print --unit-file kubelet.service", 0),
    ("export firstboot --labels a=b --format talos", 0),
    ("man pages", 0),
];

#[test]
fn a_closed_pipe_is_no_error_and_keeps_the_exit_code() {
    // `apply`, `migrate`, `verify` and `pools` need a cluster, `top` a terminal, and `serve` prints nothing.
    let others = ["serve", "apply", "migrate", "verify", "pools", "top"];
    assert_complete(PRINTING.iter().map(|(line, _)| *line).filter(|line| !line.starts_with('-')), &others);
    for (line, code) in PRINTING {
        let directory = directory();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(directory.path(), line).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*said), (Some(*code), ""), "{line}");
    }
    // Both outputs are closed, as of a terminal that was closed.
    for (line, code) in [("plan node.json --policy policy.yaml", 0), ("plan absent", 2), ("plan --nonsense", 2)] {
        let directory = directory();
        let [one, other] = [(); 2].map(|()| std::io::pipe().unwrap().1);
        let output = command(directory.path(), line).stdout(one).stderr(other).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for (line, _) in PRINTING.iter().filter(|(line, _)| !line.starts_with('-')) {
        let directory = directory();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(directory.path(), line).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.starts_with("error: could not write to standard output: No space left"), "{line}: {said}");
    }
}

/// Ends a process as Kubernetes and shells' background jobs are ended, and returns what it has printed.
fn ended(child: Child) -> Output {
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    child.wait_with_output().unwrap()
}

#[test]
fn a_command_that_is_ended_while_it_reads_has_printed_and_written_nothing() {
    for line in [
        "plan - --policy policy.yaml",
        "init -",
        "explain n --nodes -",
        "export autoscaler -",
        "report -",
        "report --violations -",
        "cleanup --nodes - --state-dir state",
    ] {
        let directory = directory();
        let before = files(directory.path());
        let mut child = command(directory.path(), line).stdin(Stdio::piped()).spawn().unwrap();
        // More than a pipe holds, so that it has begun to read when this returns.
        let half = format!("{{\"kind\": \"List\", \"items\": [{}", " ".repeat(100_000));
        child.stdin.as_mut().unwrap().write_all(half.as_bytes()).unwrap();
        let stdin = child.stdin.take();
        let output = ended(child);
        drop(stdin);
        assert_eq!((output.status.signal(), &*output.stdout), (Some(15), &b""[..]), "{line}");
        assert_eq!(files(directory.path()), before, "{line}");
    }
}

/// Runs a command that the kernel ends when it writes a byte beyond this size into a file.
fn cut_off(at: &Path, line: &str, size: usize) -> Option<i32> {
    let mut command = Command::new("prlimit");
    command.arg(format!("--fsize={size}")).arg("--core=0").arg(env!("CARGO_BIN_EXE_nodegate")).args(words(line));
    command.current_dir(at).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    command.status().unwrap().signal()
}

#[test]
fn files_of_a_command_that_is_ended_while_it_writes_are_whole_or_absent() {
    const SIGXFSZ: i32 = 25;
    for (line, sizes) in [
        ("init node.json", &[0_usize, 100, 1_000, 10_000] as &[usize]),
        ("init node.json --force", &[100, 1_000]),
        ("certs create --cert-dir certs", &[0, 100, 300, 500]),
    ] {
        for size in sizes {
            let directory = directory();
            let before = files(directory.path());
            assert_eq!(cut_off(directory.path(), line, *size), Some(SIGXFSZ), "{line}: {size}");
            let shown = files(directory.path()).into_iter().filter(|file| !file.contains("/."));
            let left: Vec<String> = shown.filter(|file| !before.contains(file)).collect();
            let folder = if line.starts_with("init") { "policy" } else { "certs" };
            assert_eq!(left, [folder], "{line}: {size}");
            // The next run is not disturbed by what is left.
            let (code, _, errors) = run(directory.path(), line);
            assert_eq!(code, Some(0), "{line}: {size}: {errors}");
            let hidden: Vec<String> = files(directory.path()).into_iter().filter(|file| file.contains("/.")).collect();
            assert!(line.starts_with("init") || hidden.is_empty(), "{line}: {size}: {hidden:?}");
        }
    }
    // What was there before stays as it was.
    let directory = directory();
    assert_eq!(run(directory.path(), "init node.json").0, Some(0));
    let before = fs::read_to_string(directory.path().join("policy/policy.yaml")).unwrap();
    assert_eq!(cut_off(directory.path(), "init node.json --force", 100), Some(SIGXFSZ));
    assert_eq!(fs::read_to_string(directory.path().join("policy/policy.yaml")).unwrap(), before);
}

#[test]
fn a_demo_that_is_ended_leaves_no_files() {
    let directory = directory();
    let mut demo = command(directory.path(), "demo --keep");
    let temporary = directory.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let child = demo.env("TMPDIR", &temporary).spawn().unwrap();
    eventually_blocking("it writes files", || {
        let files = files(&temporary);
        holds(files.iter().any(|file| file.ends_with("review.json")), || format!("{files:?}"))
    });
    let output = ended(child);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(files(&temporary), BTreeSet::new());
}

#[test]
fn a_wrong_argument_is_named_once_with_what_to_write() {
    for (arguments, said) in [
        (
            "report --kubeconfig /nope --namespace x",
            "error: --kubeconfig /nope: No such file or directory (os error 2)\n",
        ),
        (
            "migrate a b c",
            "error: migrate moves one key to another, and \"c\" is a third; run it once for each pair of keys\n",
        ),
        ("explain Foo/x", "not a node name; write at most 253 lower-case letters, digits, '-' or '.'"),
        ("history Foo/x", "not a node name;"),
        ("cleanup --node a,Foo/x", "not a node name;"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(arguments.split(' ')).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && errors.contains(said), "{arguments}: {errors}");
    }
}
