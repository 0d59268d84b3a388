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
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200b}' | '\u{2028}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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

/// Files in which everything that somebody else may choose is hostile, and could look like a line of its own.
fn hostile_files(at: &Path) {
    let odd = format!("{HOSTILE}\nFORGED\u{200b}");
    let text = json!(odd);
    let claims = json!({"manager": odd, "operation": "Update", "time": odd,
        "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}, (format!("f:{odd}")): {}}}}});
    let taints =
        json!([{"key": odd, "value": odd, "effect": odd}, {"key": "own", "value": odd, "effect": "NoSchedule"}]);
    let node = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": odd, "creationTimestamp": "2026-11-20T10:00:00Z", "managedFields": [claims],
            "labels": {"team": odd, (odd.clone()): odd, "tier": odd, "own": odd}, "annotations": {(odd.clone()): odd, "note": odd}},
        "spec": {"taints": taints}, "status": {"capacity": {"cpu": "1", (odd.clone()): "1"}}})
    };
    let rules = json!([{"name": odd, "priority": 1, "labels": {"tier": "gold"}, "annotations": {"note": odd}},
        {"name": "second", "labels": {"tier": "tin"}},
        {"name": "third", "match": {"selector": {"matchLabels": {"team": "x"}}}, "labels": {"own": "x"}},
        {"name": "fourth", "trustKubelet": true, "match": {"expression": "node.metadata.labels['team'] == string(1/0)"}, "labels": {"size": "x"}}]);
    let governance = json!({"allowed": [{"name": odd, "key": "team", "values": ["x"]}], "naming": [{"keys": ["*"], "of": "value", "pattern": "kebab-case"}]});
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "p"},
        "spec": {"rules": rules, "governance": governance}});
    let change = |id: u32, field: &str| json!({"id": id, "time": odd, "by": odd, "byRequester": id == 1, "how": odd, "field": field, "key": odd, "old": odd, "new": odd});
    let owned = json!({"labels": {"own": odd, (odd.clone()): odd}, "taints": [{"key": "own", "value": "x", "effect": "NoSchedule"}]});
    let state = |name: &str| {
        json!({"nodeName": name, "nodeUID": odd, "labels": {"own": odd}, "owned": owned, "history":
        [change(1, "label"), change(2, "taint"), change(3, &odd), change(4, "node")]})
    };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": odd, "namespace": odd, "ownerReferences": [{"kind": odd, "name": odd, "controller": true}]},
        "spec": {"nodeName": "n", "nodeSelector": {"tier": odd, "x": odd}}});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": odd, "namespace": odd},
        "spec": {"template": {"spec": {"nodeSelector": {"tier": "gold"}, "tolerations": [{"operator": "Exists"}]}}}});
    let case = json!({"name": odd, "node": {"name": "n"}, "expect": {"labels": {"tier": odd}}});
    let test = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "PolicyTest", "policies": ["policy.json"], "cases": [case]});
    let prices = format!("currency: {text}\ninstanceTypes: {{}}\nperHour: {{cpu: 1, memoryGib: 1, gpu: 1}}\n");
    std::fs::create_dir(at.join("state")).unwrap();
    std::fs::write(at.join("state/n.json"), state("n").to_string()).unwrap();
    for (name, value) in [
        ("nodes.json", json!({"kind": "List", "items": [node("n"), node(&odd)]})),
        ("twice.json", json!({"kind": "List", "items": [node(&odd), node(&odd)]})),
        ("wrong.json", json!({"kind": odd})),
        ("unreadable.json", json!({"kind": "Node", "metadata": {"name": odd, "labels": {"a": 1}}})),
        ("policy.json", policy),
        ("pods.json", json!({"kind": "List", "items": [pod, set]})),
        ("test.json", test),
    ] {
        std::fs::write(at.join(name), ascii(&value)).unwrap();
    }
    std::fs::write(at.join("prices.yaml"), prices).unwrap();
    let directory = at.join(odd.replace('/', ""));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("test.yaml"), std::fs::read(at.join("test.json")).unwrap()).unwrap();
    std::fs::copy(at.join("policy.json"), directory.join("policy.json")).unwrap();
}

#[test]
fn no_command_prints_what_others_chose_raw_or_as_a_line_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    hostile_files(directory.path());
    let odd = format!("{HOSTILE}\nFORGED\u{200b}");
    let lines: &[&[&str]] = &[
        &["plan", "nodes.json", "--policy", "policy.json", "--pods", "pods.json"],
        &["plan", "nodes.json", "--policy", "policy.json", "--by", "node", "--state-dir", "state"],
        &["plan", "nodes.json", "--create", "--as", "$"],
        &["explain", "n", "--nodes", "nodes.json", "--policy", "policy.json", "--state-dir", "state"],
        &["explain", "$", "--nodes", "nodes.json", "--policy", "policy.json"],
        &["explain", "$", "--nodes", "wrong.json"],
        &["explain", "m", "--nodes", "nodes.json"],
        &["explain", "n", "tier", "--nodes", "nodes.json", "--policy", "policy.json"],
        &["explain", "n", "$", "--nodes", "nodes.json", "--policy", "policy.json", "--state-dir", "state"],
        &["explain", "n", "--why-not", "tier", "--nodes", "nodes.json", "--policy", "policy.json"],
        &["explain", "n", "--why-not", "own", "--nodes", "nodes.json", "--policy", "policy.json"],
        &["explain", "n", "--why-not", "size", "--nodes", "nodes.json", "--policy", "policy.json"],
        &["explain", "$", "--why-not", "$", "--nodes", "nodes.json", "--policy", "policy.json"],
        &["report", "nodes.json", "--policy", "policy.json", "--stranded-pods", "--pods", "pods.json"],
        &["report", "nodes.json", "--policy", "policy.json", "--by", "team", "--cost", "--prices", "prices.yaml"],
        &["report", "nodes.json", "--policy", "policy.json", "--by", "team", "--cost", "-o", "csv"],
        &["report", "--violations", "nodes.json", "--policy", "policy.json"],
        &["history", "n", "--state-dir", "state"],
        &["history", "--all", "--state-dir", "state"],
        &["history", "$", "--state-dir", "state"],
        &["history", "n", "--state-dir", "$"],
        &["cleanup", "--nodes", "nodes.json", "--state-dir", "state"],
        &["cleanup", "--nodes", "nodes.json", "--state-dir", "state", "--node", "$"],
        &["test", "test.json"],
        &["test", "$"],
        &["init", "nodes.json", "--dir", "first"],
        &["init", "twice.json", "--dir", "first"],
        &["init", "nodes.json", "--name", "$"],
        &["check", "policy.json"],
        &["check", "$"],
        &["plan", "wrong.json"],
        &["plan", "unreadable.json"],
        &["report", "unreadable.json"],
        &["plan", "nodes.json", "--pods", "wrong.json"],
        &["certs", "show", "--cert-dir", "$"],
        &["man", "$/man1"],
        &["export", "admission-policies", "--policy", "policy.json"],
        &["render", "webhooks", "--url", "https://x:1", "--ca-file", "$"],
        &["plan", "nodes.json", "--kubeconfig", "$", "--namespace", "x"],
        &["plan", "--kubeconfig", "$", "--namespace", "x"],
        &["plan", "--kubeconfig", "$"],
        &["report", "--context", "$"],
        &["serve", "--policy", "$/absent"],
        &["$"],
    ];
    let mut hostile = 0;
    for line in lines {
        let arguments = line.iter().map(|word| word.replace('$', &odd.replace('/', "")));
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_nodegate")]).args(arguments).current_dir(directory.path());
        let output = command.output().unwrap();
        assert_ne!(output.status.code(), Some(124), "{line:?} does not end");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.is_empty() && !text.contains(is_unsafe), "{line:?}: {text:?}");
        let forged = text.lines().any(|line| line.starts_with("FORGED"));
        // The parser of arguments repeats what was given on the command line; CSV has line breaks between quotes.
        let is_as_given = text.contains("For more information, try '--help'.") || line.contains(&"csv");
        assert!(!forged || is_as_given, "{line:?}: {text}");
        hostile += usize::from(text.contains("FORGED"));
    }
    assert!(hostile > 30, "only {hostile} commands printed the hostile text");
}

/// What a command prints on a terminal, with these environment variables.
fn on_a_terminal(at: &Path, line: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new("script");
    command.args([
        "--quiet",
        "--return",
        "--command",
        &format!("{} {line}", env!("CARGO_BIN_EXE_nodegate")),
        "/dev/null",
    ]);
    for variable in ["CI", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command.env("TERM", "xterm").envs(environment.iter().copied()).current_dir(at);
    String::from_utf8(command.stdin(std::process::Stdio::null()).output().unwrap().stdout)
        .unwrap()
        .replace("\r\n", "\n")
}

#[test]
fn changes_and_outcomes_have_colors_on_terminals_only() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    write(at, "policy.yaml", POLICY);
    let node = json!({"kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"a": HOSTILE, "old": "x"}}});
    write(at, "node.json", &ascii(&node));
    std::fs::create_dir(at.join("state")).unwrap();
    write(at, "state/n.json", r#"{"nodeName": "n", "nodeUID": "u", "owned": {"labels": {"old": "x"}}}"#);
    let case = |name: &str, value: &str| {
        format!("  - {{name: {name}, node: {{name: n}}, expect: {{labels: {{a: {value}}}}}}}\n")
    };
    let test = "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\npolicies: [policy.yaml]\ncases:\n";
    write(at, "test.yaml", &format!("{test}{}{}", case("right", "b"), case("wrong", "c")));
    let (green, yellow, red, reset) = ("\u{1b}[32m", "\u{1b}[33m", "\u{1b}[31m", "\u{1b}[0m");
    let plan = "plan node.json --policy policy.yaml --state-dir state";
    let styled = on_a_terminal(at, plan, &[]);
    for expected in [
        format!("{yellow}~ label a=b, was evil\\u001b[2J"),
        format!("{red}- label old=x (not assigned by any rule anymore, removed after 60 s){reset}: n\n"),
        format!("{green}+ annotation note=given (rule p/note){reset}: n\n"),
    ] {
        assert!(styled.contains(&expected), "{expected:?} in {styled:?}");
    }
    let by_node = on_a_terminal(at, &format!("{plan} --by node"), &[]);
    assert!(by_node.contains(&format!("  {green}+ annotation note=given (rule p/note){reset}\n")), "{by_node:?}");
    let test = on_a_terminal(at, "test test.yaml", &[]);
    let expected = format!("test.yaml\n  {green}ok  {reset}  right\n  {red}FAIL{reset}  wrong\n");
    assert!(test.starts_with(&expected) && test.contains(&format!("{red}1 passed, 1 failed{reset}\n")), "{test:?}");

    // The colors say nothing that the text does not say, and nothing else differs.
    for (line, styled) in [(plan, styled), ("test test.yaml", test)] {
        let mut plain = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let plain = plain.args(line.split(' ')).current_dir(at).output().unwrap();
        let plain = String::from_utf8(plain.stdout).unwrap();
        assert!(!plain.contains('\u{1b}'), "a pipe: {plain:?}");
        assert_eq!([green, yellow, red, reset].iter().fold(styled, |text, code| text.replace(code, "")), plain);
        for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            assert_eq!(on_a_terminal(at, line, &[environment]), plain, "{environment:?}");
        }
        assert!(!on_a_terminal(at, &format!("{line} -o json"), &[]).contains('\u{1b}'));
    }
}
