//! A folder of `src/` is a layer; ARCHITECTURE.md's table says what each may use. Between packages, cargo decides.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Layer, and the layers of this package it may use. Has to be the table in ARCHITECTURE.md.
const MAY_USE: [(&str, &[&str]); 20] = [
    ("api_server", &[]),
    ("kube_error", &[]),
    ("object_watch", &[]),
    ("http_client", &[]),
    ("state", &["kube_error", "object_watch", "watch", "telemetry", "text"]),
    ("files", &["watch"]),
    ("inventory", &["http_client", "kube_error", "object_watch", "metrics", "telemetry", "text"]),
    ("admission", &["state", "inventory", "metrics", "text", "traces"]),
    ("tls", &["watch"]),
    (
        "controller",
        &[
            "api_server",
            "kube_error",
            "object_watch",
            "state",
            "inventory",
            "files",
            "tls",
            "watch",
            "metrics",
            "telemetry",
            "text",
            "traces",
        ],
    ),
    ("scheduling", &[]),
    ("probe", &[]),
    ("firstboot", &[]),
    ("metrics", &[]),
    ("health", &["metrics"]),
    ("telemetry", &["api_server", "text"]),
    ("text", &[]),
    ("traces", &["http_client", "metrics", "telemetry", "text"]),
    ("watch", &[]),
    (
        "cli",
        &[
            "api_server",
            "http_client",
            "kube_error",
            "state",
            "files",
            "inventory",
            "admission",
            "tls",
            "controller",
            "scheduling",
            "probe",
            "firstboot",
            "metrics",
            "health",
            "telemetry",
            "text",
            "traces",
        ],
    ),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Each source file with its layer and its lines without comments.
fn layered() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    files
        .into_iter()
        .map(|path| {
            let first = path.strip_prefix(&root).unwrap().components().next().unwrap();
            let layer = first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            (layer, path, code.join("\n"))
        })
        .collect()
}

#[test]
fn no_layer_uses_one_it_may_not() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut faults = Vec::new();
    for (layer, path, code) in layered() {
        if layer == "main" || layer == "lib" {
            continue;
        }
        let Some(may_use) = allowed.get(layer.as_str()) else {
            faults.push(format!("{}: the layer {layer} is not in the table", path.display()));
            continue;
        };
        for (other, _) in MAY_USE.iter().filter(|(other, _)| *other != layer && !may_use.contains(other)) {
            let direct = format!("crate::{other}");
            let uses = code
                .match_indices(&direct)
                .any(|(at, _)| !code[at + direct.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'));
            if uses {
                faults.push(format!("{}: {layer} may not use {other}", path.display()));
            }
        }
        // `use crate::{a, b}` would hide what is used from this test.
        if code.contains("crate::{") {
            faults.push(format!("{}: write one `use crate::layer::…` for each layer", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What the two pure packages may depend on is in their manifests, what they may use of std in `crates/clippy.toml`.
#[test]
fn decisions_and_expressions_depend_on_no_runtime_no_client_and_no_files() {
    const IMPURE: [&str; 13] = [
        "async-std",
        "axum",
        "hyper",
        "kube-client",
        "kube-runtime",
        "mio",
        "notify",
        "reqwest",
        "rustls",
        "smol",
        "socket2",
        "tokio",
        "tower",
    ];
    for package in ["nodegate-policy", "nodegate-cel"] {
        let tree = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "--locked",
                "--prefix",
                "none",
                "--edges",
                "normal",
                "--format",
                "{p}",
                "-p",
                package,
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let text = String::from_utf8(tree.stdout).unwrap();
        assert!(text.starts_with(package), "{text}{}", String::from_utf8_lossy(&tree.stderr));
        let impure: Vec<&str> = text.lines().filter(|line| IMPURE.contains(&line.split(' ').next().unwrap())).collect();
        assert!(impure.is_empty(), "{package} depends on {impure:?}");
    }
}

#[test]
fn the_expression_engine_knows_no_nodes() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/nodegate-cel/src"), &mut files);
    let production = files.into_iter().filter(|path| !path.components().any(|part| part.as_os_str() == "tests"));
    let mut faults = Vec::new();
    for path in production {
        let text = fs::read_to_string(&path).unwrap();
        let words = ["kubelet", "taint", "Node", "a node", "nodegate "].into_iter().filter(|word| text.contains(word));
        faults.extend(words.map(|word| format!("{}: {word}", path.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn architecture_has_the_same_table() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();
    for (layer, may_use) in MAY_USE {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{layer}/`")) || line.starts_with(&format!("| `{layer}.rs`")))
            .unwrap_or_else(|| panic!("{layer} has no row"));
        let last = row.trim_end_matches('|').rsplit('|').next().unwrap().trim();
        let listed: Vec<&str> = last.split(", ").filter(|name| *name != "–").collect();
        assert_eq!(listed, may_use, "{layer}");
    }
}
