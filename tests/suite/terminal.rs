//! Nothing that somebody wrote into a node, a file or a file's name makes a terminal do anything.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Clears the screen, sets the title, goes back on the line, by C0, DEL and C1, and turns the direction of writing.
const HOSTILE: &str = "evil\u{1b}[2J\u{1b}]0;title\u{7}\r\u{9b}31m\u{7f}\u{202e}txt\u{2066}\u{2028}end";

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  rules: [{name: note, labels: {a: b}, annotations: {note: given}}]
  governance:
    allowed: [{key: size, values: [small]}]
    expressions: [{name: told, expression: '!has(object.metadata.annotations.told)', messageExpression: 'object.metadata.annotations.told'}]
"#;

fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n') || matches!(c, '\u{2028}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What the real binary prints, on both outputs.
fn printed(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (code, out, error) = (output.status.code(), text(output.stdout), text(output.stderr));
    for text in [&out, &error] {
        assert!(!text.contains(is_unsafe), "{arguments:?}: {text:?}");
    }
    (code, out, error)
}

/// JSON of ASCII alone, as the API server may write it: YAML takes no control characters as they are.
fn ascii(value: &Value) -> String {
    let escape =
        |c: char| if c.is_ascii() && c != '\u{7f}' { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    value.to_string().chars().map(escape).collect()
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn text_of_a_node_is_escaped_for_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let policy = write(directory.path(), "policy.yaml", POLICY);
    let forged = format!("{HOSTILE}\nnode-2   no changes");
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "annotations": {"note": forged, "told": HOSTILE}, "labels": {"size": HOSTILE, "a": HOSTILE}}});
    let file = write(directory.path(), "node.json", &ascii(&node));
    let (code, table, _) = printed(&["plan", "--policy", &policy, &file]);
    assert_eq!(code, Some(0));
    assert!(table.contains("was evil\\u001b[2J") && table.contains("\\u009b31m\\u007f\\u202etxt"), "{table}");
    assert!(!table.lines().any(|line| line.starts_with("node-2")), "{table}");
    // Programs read what was written.
    let (_, text, _) = printed(&["plan", "--policy", &policy, "-o", "json", &file]);
    let read: Value = serde_json::from_str(&text).unwrap();
    assert!(read.to_string().contains(json!(HOSTILE).to_string().trim_matches('"')), "{read}");
    let (_, text, _) = printed(&["plan", "--policy", &policy, "-o", "yaml", &file]);
    assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), read);
    let at = directory.path().join("first").display().to_string();
    let (code, left_out, error) = printed(&["init", "--dir", &at, &file]);
    assert!(code == Some(2) && left_out.contains("evil\\u{1b}[2J"), "{left_out}{error}");
    let review = json!({"kind": "AdmissionReview", "request": {"userInfo": {"username": HOSTILE}, "object": node, "oldObject": node}});
    printed(&["plan", "--policy", &policy, &write(directory.path(), "review.json", &ascii(&review))]);
}

#[test]
fn file_names_and_errors_are_escaped_for_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let name = HOSTILE.replace(['\u{2028}', '/'], "");
    let hostile = directory.path().join(&name);
    std::fs::create_dir(&hostile).unwrap();
    let node = write(directory.path(), "node.yaml", "{kind: Node, metadata: {name: n}}");
    let folder = hostile.to_str().unwrap();
    let (code, _, error) = printed(&["plan", "--policy", folder, &node]);
    assert!(code == Some(2) && error.contains("\\u001b[2J"), "{error}");
    let policy = write(&hostile, "p.yaml", &POLICY.replace("note: given", "note: given, \"x\\e[2J\": y"));
    assert_eq!(printed(&["plan", "--policy", &policy, &node]).0, Some(2));
    assert_eq!(printed(&["plan", "--policy", &write(directory.path(), "ok.yaml", POLICY), folder]).0, Some(2));
    std::fs::create_dir(hostile.join(&name)).unwrap();
    std::fs::write(hostile.join(&name).join(&name), "not a key\u{1b}[2J\n").unwrap();
    let (code, _, error) = printed(&["plan", "--labels-dir", folder, &node]);
    assert!(code == Some(2) && error.contains("\\u001b[2J"), "{error}");
    std::fs::write(hostile.join(format!("{name}.json")), "no state").unwrap();
    let ok = write(directory.path(), "ok.yaml", POLICY);
    printed(&["plan", "--policy", &ok, "--state-dir", folder, &node]);
    printed(&["test", folder]);
    // As a shell's glob gives it where an option is expected.
    let (code, _, error) = printed(&["plan", "--policy", &ok, &node, &format!("--{name}")]);
    assert!(code == Some(2) && error.contains("--evil"), "{error}");
}
