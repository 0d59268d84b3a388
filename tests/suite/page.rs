//! `nodegate report --html`: what the page has, and how a browser shows it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use jiff::{Timestamp, ToSpan as _};
use serde_json::{Value, json};

use crate::required::{Run, required};

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: fleet}
spec:
  rules:
    - {name: gpu, match: {names: ["gpu-*"]}, labels: {node.example.com/tier: gpu, node.example.com/pool: training}}
    - {name: cpu, match: {names: ["cpu-*"]}, labels: {node.example.com/tier: standard, node.example.com/pool: general}}
    - {name: spot, match: {names: ["cpu-2*"]}, priority: 10, labels: {node.example.com/tier: economy}}
    - {name: same-pool, match: {names: ["cpu-1?"]}, labels: {node.example.com/pool: batch}, priority: -1}
  governance:
    required: [{name: owner, keys: [team.owner]}, {name: rack, keys: [topology.example.com/rack], mode: warn}]
    allowed: [{name: teams, key: team.owner, values: [search, ads, research], mode: audit}]
"#;

const PRICES: &str = "{currency: EUR, instanceTypes: {c-16: 0.42, g-8: 24.5}, resources: {}}";

fn numbered(prefix: &str, count: usize) -> impl Iterator<Item = (usize, String)> {
    let prefix = prefix.to_owned();
    (1..=count).map(move |at| (at, format!("{prefix}-{at:02}")))
}

fn node(name: &str, labels: Value, (cpu, memory, gpus): (&str, &str, &str)) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": labels},
        "status": {"capacity": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus}}})
}

/// A fleet in which something is wrong of every kind.
fn fleet() -> Vec<Value> {
    let mut nodes = Vec::new();
    for (at, name) in numbered("cpu", 28) {
        let tier = if at >= 20 { "economy" } else { "standard" };
        let mut labels = json!({"node.example.com/tier": tier, "node.example.com/pool": "general",
            "node.kubernetes.io/instance-type": "c-16", "topology.example.com/rack": format!("r{}", at % 4),
            "team.owner": (["search", "ads", "research"][at % 3])});
        let labels_of = labels.as_object_mut().unwrap();
        match at {
            3 | 7 | 22 => drop(labels_of.remove("team.owner")),
            5 => labels_of["team.owner"] = json!("nobody"),
            11 | 12 => labels_of["node.example.com/tier"] = json!("gpu"),
            14 => drop(labels_of.remove("topology.example.com/rack")),
            _ => {}
        }
        nodes.push(node(&name, labels, ("16", "64Gi", "0")));
    }
    for (at, name) in numbered("gpu", 12) {
        let labels = json!({"node.example.com/tier": "gpu", "node.example.com/pool": "training", "team.owner": "research",
            "node.kubernetes.io/instance-type": if at > 9 { "unknown" } else { "g-8" }});
        nodes.push(node(&name, labels, ("192", "2048Gi", "8")));
    }
    for (_, name) in numbered("edge", 4) {
        nodes.push(node(&name, json!({"team.owner": "search", "topology.example.com/rack": "e"}), ("4", "16Gi", "0")));
    }
    nodes
}

fn pods() -> Value {
    let pod = |at: usize, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("index-{at}"), "namespace": "search"},
            "spec": {"nodeName": node, "nodeSelector": {"node.example.com/tier": "standard"}, "containers": []},
            "status": {"phase": "Running"}})
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [pod(1, "cpu-11"), pod(2, "cpu-12"), pod(3, "cpu-13")]})
}

/// The saved state of a node with changes of the last week.
fn state(name: &str, number: usize) -> Value {
    let now = Timestamp::now();
    let change = |id: usize, hours: usize, how: &str, by: &str, old: Value, new: Value| {
        let time = now.checked_sub(i64::try_from(hours).unwrap().hours()).unwrap();
        let mut change =
            json!({"id": id, "time": time, "how": how, "by": by, "field": "label", "key": "node.example.com/tier"});
        for (field, value) in [("old", old), ("new", new)] {
            if !value.is_null() {
                change[field] = value;
            }
        }
        change
    };
    let mut history = vec![change(1, 160 - number * 3, "admission", "nodegate", Value::Null, json!("standard"))];
    if number.is_multiple_of(3) {
        history.push(change(2, 60 + number, "user", "kubectl-label", json!("standard"), json!("gpu")));
        history.push(change(3, 60 + number, "controller", "nodegate", json!("gpu"), json!("standard")));
    }
    if number.is_multiple_of(5) {
        history.push(change(4, 20, "restored", "nodegate", Value::Null, json!("standard")));
    }
    json!({"nodeName": name, "nodeUID": name, "history": history})
}

/// A directory with everything that the command takes.
fn prepared() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("policy.yaml", POLICY);
    write("prices.yaml", PRICES);
    write("nodes.json", &json!({"apiVersion": "v1", "kind": "List", "items": fleet()}).to_string());
    write("pods.json", &pods().to_string());
    fs::create_dir(directory.path().join("state")).unwrap();
    for (at, name) in numbered("cpu", 28) {
        write(&format!("state/{name}.json"), &state(&name, at).to_string());
    }
    directory
}

const ALL: [&str; 10] = [
    "--cost",
    "--by",
    "team.owner",
    "--by",
    "node.example.com/tier",
    "--by",
    "node.example.com/pool",
    "--prices",
    "prices.yaml",
    "--stranded-pods",
];

fn report(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["report", "nodes.json", "--policy", "policy.yaml", "--state-dir", "state"]);
    command.args(arguments).current_dir(directory).output().unwrap()
}

/// The page of everything.
fn whole_page(directory: &Path) -> String {
    let arguments = [&ALL as &[&str], &["--pods", "pods.json", "--html", "page.html"]].concat();
    let output = report(directory, &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    fs::read_to_string(directory.join("page.html")).unwrap()
}

#[test]
fn the_page_says_what_the_report_says() {
    let directory = prepared();
    let page = whole_page(directory.path());
    let text = regex::Regex::new("<[^>]*>").unwrap().replace_all(&page, "\u{1f}").replace('\u{1f}', " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "Fleet report: nodes.json",
        "policies: fleet ( sha256:",
        "44 nodes",
        "research 20",
        "(no label) 4",
        "fleet/owner enforce",
        "cpu-03, cpu-07, cpu-22",
        "~ label node.example.com/tier=standard, was gpu (rule fleet/cpu) 2 cpu-11, cpu-12",
        "fleet/cpu fleet/same-pool",
        "edge-01",
        "search/index-1 cpu-11",
        "(kubectl-label) user label node.example.com/tier &quot;standard&quot; → &quot;gpu&quot;",
        "169,550 EUR per month, plus 7 nodes without a price",
        "EUR per month by team.owner",
        // 9 nodes at 24.50 and 8 at 0.42 an hour; 3 have no price.
        "research 20 2,432 25,088.0 96 223.86 163,417.80 3",
        "Nothing to report No node waits at a gate. No kubelet claimed what it may not set.",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(!text.contains("without admission"), "files do not say that: {text}");
}

#[test]
fn the_page_loads_nothing_and_texts_of_others_stay_texts() {
    let directory = prepared();
    let hostile = r#"</code><script src="https://evil.example/x.js">"#;
    let mut nodes = fleet();
    nodes[0]["metadata"]["labels"]["node.example.com/tier"] = json!(format!("{hostile}\u{202e}\u{1b}[31m"));
    fs::write(
        directory.path().join("nodes.json"),
        json!({"kind": "List", "apiVersion": "v1", "items": nodes}).to_string(),
    )
    .unwrap();
    let mut hostile_state = state("cpu-02", 3);
    hostile_state["history"][1]["by"] = json!(hostile);
    fs::write(directory.path().join("state/cpu-02.json"), hostile_state.to_string()).unwrap();
    let page = whole_page(directory.path());
    assert!(page.contains("&lt;script src="), "it is shown");
    for forbidden in ["<script", "\u{202e}", "\u{1b}", "@import", "url(", "style=\""] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(!regex::Regex::new("<[a-z]+ [^>]*src=").unwrap().is_match(&page), "an element loads something");
    let links = regex::Regex::new(r#"(?:href|xlink:href)="([^"]*)""#).unwrap();
    assert!(links.captures_iter(&page).all(|link| link[1].starts_with('#')));
    assert!(page.contains(r#"http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-"#));
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let directory = prepared();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("old.html"), "old").unwrap();
    std::os::unix::fs::symlink("old.html", at("link.html")).unwrap();
    let linked = report(directory.path(), &["--html", "link.html"]);
    assert_eq!(linked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&linked.stderr).contains("--html link.html is a symbolic link"));
    assert!(at("link.html").is_symlink() && fs::read_to_string(at("old.html")).unwrap() == "old");
    let mode = || fs::metadata(at("old.html")).unwrap().permissions().mode() & 0o7777;
    assert!(mode() & 0o400 != 0 && mode() & 0o111 == 0, "{:o}", mode());
    // Who restricted the page keeps the restriction.
    fs::set_permissions(at("old.html"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(report(directory.path(), &["--html", "old.html"]).status.code(), Some(1));
    assert_eq!(mode(), 0o600);
    // But it becomes no program, and nobody gets the user's rights by it.
    fs::set_permissions(at("old.html"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(report(directory.path(), &["--html", "old.html"]).status.code(), Some(1));
    assert_eq!(mode(), 0o644);
    std::os::unix::fs::symlink("new.html", at("dangling.html")).unwrap();
    assert_eq!(report(directory.path(), &["--html", "dangling.html"]).status.code(), Some(2));
    assert!(at("dangling.html").is_symlink() && !at("new.html").exists());

    let before = fs::read_dir(directory.path()).unwrap().count();
    fs::write(at("wrong.yaml"), "{").unwrap();
    let wrong = report(directory.path(), &["--html", "old.html", "--policy", "wrong.yaml"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(fs::read_to_string(at("old.html")).unwrap().ends_with("</html>"));
    let nowhere = report(directory.path(), &["--html", "no/such/page.html"]);
    let errors = String::from_utf8_lossy(&nowhere.stderr);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(errors.contains("--html no/such/page.html") && errors.contains("No such file or directory"), "{errors}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), before + 1, "no temporary file stays");
}

/// `/dev/full` is a disk without space. A device is written to: replacing it would take it from every other program.
#[test]
fn a_full_disk_is_an_error_and_pipes_and_devices_are_written_to() {
    let directory = prepared();
    let full = report(directory.path(), &["--html", "/dev/full"]);
    let errors = String::from_utf8_lossy(&full.stderr);
    assert_eq!(full.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--html /dev/full: No space left on device"), "{errors}");
    assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    // The second one is a link to the pipe that is the standard output.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
    for target in ["-", "link"] {
        let page = report(directory.path(), &["--html", target]);
        assert_eq!(page.status.code(), Some(1), "{}", String::from_utf8_lossy(&page.stderr));
        assert!(String::from_utf8(page.stdout).unwrap().ends_with("</html>"), "{target}");
    }
    assert!(link.is_symlink());
}

#[test]
fn flags_that_print_something_else_are_refused() {
    let directory = prepared();
    for other in [&["-o", "json"] as &[&str], &["--violations"]] {
        let output = report(directory.path(), &[other, &["--html", "page.html"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains("cannot be used with"), "{errors}");
    }
    let output = report(directory.path(), &["--since", "7d"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--html <FILE>"));
    assert!(!directory.path().join("page.html").exists());
}

/// What `tests/browser/check.mjs` finds wrong with a page.
fn faults_in_a_browser(page: &Path, pictures: Option<OsString>) -> Option<String> {
    let missing = "there is no browser; set NODEGATE_BROWSER to the directory that tests/browser/install prints";
    let browser = required(std::env::var_os("NODEGATE_BROWSER"), Run::Full, missing)?;
    let mut command = Command::new("node");
    command.arg("tests/browser/check.mjs").arg(page).env("NODEGATE_BROWSER", browser);
    command.args(pictures);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("node");
    let (found, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.success(), found.is_empty(), "{found}{errors}");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{errors}");
    Some(found)
}

#[test]
fn a_browser_shows_it_in_light_and_dark_on_a_phone_by_keyboard_and_without_faults() {
    let directory = prepared();
    whole_page(directory.path());
    let found = faults_in_a_browser(&directory.path().join("page.html"), std::env::var_os("NODEGATE_PICTURES"));
    assert_eq!(found.unwrap_or_default(), "");
}

/// Names and values of the greatest length, many values, many nodes, many changes.
#[test]
fn a_browser_shows_a_page_of_extremes_without_faults() {
    let directory = prepared();
    let long = |length: usize| "w".repeat(length);
    let mut nodes = fleet();
    for at in 0..1500 {
        let name = format!("{at:04}{}", long(249));
        let labels = json!({"node.example.com/tier": format!("{}{at}", long(50)), (format!("{0}.{0}.{0}/{0}", long(63))): long(63),
            "team.owner": long(63)});
        nodes.push(node(&name, labels, ("1000000", "1000000Ti", "64")));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    fs::write(directory.path().join("nodes.json"), list.to_string()).unwrap();
    let policy = format!("{POLICY}    dependencies: []\n").replace("name: teams", &format!("name: {}", long(63)));
    fs::write(directory.path().join("policy.yaml"), policy).unwrap();
    let mut many = state("cpu-02", 3);
    let changes = many["history"].as_array().unwrap().clone();
    many["history"] = changes.iter().cycle().take(400).cloned().collect();
    many["history"][5]["by"] = json!(long(300));
    fs::write(directory.path().join("state/cpu-02.json"), many.to_string()).unwrap();
    let page = whole_page(directory.path());
    assert!(page.contains("prints all of them.") && page.contains("others)"), "tables and charts are limited");
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    let found = faults_in_a_browser(&directory.path().join("page.html"), None);
    assert_eq!(found.unwrap_or_default(), "");
}

#[test]
fn a_browser_shows_a_page_without_findings_without_faults() {
    let directory = prepared();
    fs::write(directory.path().join("nodes.json"), node("n", json!({}), ("4", "8Gi", "0")).to_string()).unwrap();
    let policy = "{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {name: nothing}, spec: {rules: []}}";
    fs::write(directory.path().join("policy.yaml"), policy).unwrap();
    let output = report(directory.path(), &["--html", "page.html", "--since", "30m"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(directory.path().join("page.html")).unwrap();
    for expected in [
        "No policy sets a label",
        "No violations were found.",
        "No changes were recorded between",
        "<strong>1</strong>node<",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    let found = faults_in_a_browser(&directory.path().join("page.html"), None);
    assert_eq!(found.unwrap_or_default(), "");
}
