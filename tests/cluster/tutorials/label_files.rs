//! Flat label files as k8s-auto-labeller's users write them, and as they should not.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::fleet::Nodes;
use crate::control_plane::exclusive;
use crate::keeping::{node, until_led};
use crate::nodegate::{Nodegate, Setup};
use crate::requester::{Requester, label};

/// Writes files below `labels`, and plans a node with all labels of `sources` by them.
fn plan(directory: &Path, files: &[(&str, &[u8])], sources: &[&str]) -> Output {
    for (path, text) in files {
        let path = directory.join("labels").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let labels: serde_json::Map<String, Value> = sources.iter().map(|key| ((*key).to_owned(), json!("1"))).collect();
    fs::write(directory.join("node.json"), node("edge-1", Value::Object(labels)).to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["plan", "-label-dir", "labels", "--exit-code", "node.json"]).current_dir(directory).env_clear();
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn comments_blank_lines_spaces_line_ends_of_windows_and_a_byte_order_mark_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 5] = [
        ("a/windows", b"\xef\xbb\xbf# devices\r\n\r\n  vendor.example/one  \r\nvendor.example/two\r\n"),
        ("a/first-line", b"\xef\xbb\xbfvendor.example/one\n"),
        ("a/only-comments", b"# nothing yet\n\n"),
        ("a/twice", b"vendor.example/one\nvendor.example/one"),
        ("README.md", b"No label key at all."),
    ];
    let output = plan(directory.path(), &files, &["vendor.example/one"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    for name in ["windows", "first-line", "twice"] {
        assert!(printed.contains(&format!("+ label a/{name}=true (rule labels-dir/")), "{name}: {printed}");
    }
    assert!(!printed.contains("only-comments"), "{printed}");
}

#[test]
fn every_line_and_file_that_is_no_label_is_an_error_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 5] = [
        ("a/lines", b"vendor.example/one\nno label key\nvendor.example/=x\n"),
        ("a/binary", b"\xff\xfe\0"),
        ("a/not a key", b"vendor.example/one\n"),
        ("Not_A_Domain/b", b"vendor.example/one\n"),
        ("outside", b"vendor.example/one\n"),
    ];
    fs::create_dir_all(directory.path().join("labels/a/directory")).unwrap();
    std::os::unix::fs::symlink("nowhere", directory.path().join("labels/a/dangling")).unwrap();
    let output = plan(directory.path(), &files, &["vendor.example/one"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for place in [
        "labels/a/lines:2: ",
        "labels/a/lines:3: ",
        "labels/a/binary: ",
        "labels/a/not a key: the path is not a valid label key",
        "labels/Not_A_Domain: the directory's name is not a valid label prefix",
        "labels/outside: is a file; label files must be one level deeper",
        "labels/a/directory: ",
        "labels/a/dangling: ",
    ] {
        assert_eq!(errors.matches(place).count(), 1, "{place}: {errors}");
    }
    assert!(!errors.contains("lines:1"), "{errors}");
    assert!(output.stdout.is_empty(), "nothing is planned by half of the files");
}

#[test]
fn flags_with_one_dash_work_with_a_space_and_with_an_equals_sign() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("labels/a")).unwrap();
    fs::write(directory.path().join("labels/a/b"), "vendor.example/one\n").unwrap();
    for flags in ["-label-dir labels -kubeconfig nowhere", "-label-dir=labels -kubeconfig=nowhere"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.arg("plan").args(flags.split(' ')).args(["--namespace", "nodegate"]).current_dir(directory.path());
        let output = command.env_clear().stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && errors.contains("nowhere"), "{flags}: {errors}");
        assert!(!errors.contains("Usage"), "{flags}: {errors}");
    }
}

#[tokio::test]
async fn changes_of_files_reach_existing_nodes_without_a_restart() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _nodes = Nodes::new(plane, &["edge-1"]);
    let admin = Requester::admin(plane).await;
    admin.create(&node("edge-1", json!({"vendor.example/one": "1"}))).await.unwrap();
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Whole at any moment: it is read whenever something changes.
    let write = |path: &str, text: &str| {
        let (next, path) = (elsewhere.path().join("next"), directory.path().join(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&next, text).unwrap();
        fs::rename(next, path).unwrap();
    };
    write("a/first", "vendor.example/other\n");
    let labels_dir = ["--labels-dir", directory.path().to_str().unwrap()];
    let nodegate = Nodegate::start(plane, &Setup { serve: &labels_dir, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    assert_eq!(label(&admin.get("edge-1").await, "a/first"), None);

    write("a/first", "vendor.example/other\nvendor.example/one\n");
    admin.eventually("edge-1", "a changed file", |node| label(node, "a/first") == Some("true")).await;
    write("b.example/second", "vendor.example/one\n");
    admin.eventually("edge-1", "a new namespace", |node| label(node, "b.example/second") == Some("true")).await;
    let reloads = |result: &str| {
        let metrics = nodegate.probe("/metrics").unwrap_or_default();
        let begin = format!("nodegate_policy_reloads_total{{result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&begin)?.parse::<u64>().ok())
    };
    let loaded = reloads("success");
    // The broken file keeps all others as they were. Its second fault is told once the other file has been read, too.
    write("a/third", "not a key\n");
    nodegate.eventually("the broken file is refused", || reloads("failure") == Some(1)).await;
    write("b.example/second", "vendor.example/other\n");
    write("a/third", "not a key\nnor this\n");
    nodegate.eventually("it is refused again", || reloads("failure") == Some(2)).await;
    assert_eq!(reloads("success"), loaded, "nothing else is in force");
    assert_eq!(label(&admin.get("edge-1").await, "b.example/second"), Some("true"));
    fs::remove_file(directory.path().join("a/third")).unwrap();
    admin.eventually("edge-1", "a source removed from a file", |node| label(node, "b.example/second").is_none()).await;
    fs::remove_file(directory.path().join("a/first")).unwrap();
    admin.eventually("edge-1", "a removed file", |node| label(node, "a/first").is_none()).await;
}
