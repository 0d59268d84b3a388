//! What manifests alone cannot say of the packages' borders: what comes in through others, and which words a package knows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The names of the packages that a package depends on, and the packages that these depend on, to this depth.
fn dependencies(package: &str, depth: &str) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--prefix", "none", "--edges", "normal", "--format", "{p}"])
        .args(["--depth", depth, "-p", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(tree.stdout).unwrap();
    assert!(text.starts_with(package), "{text}{}", String::from_utf8_lossy(&tree.stderr));
    text.lines().skip(1).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// What std offers beside these is in `crates/nodegate-cel/clippy.toml`.
#[test]
fn decisions_expressions_and_what_runs_on_nodes_depend_on_no_runtime_no_client_and_no_tls() {
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
    for package in ["nodegate-policy", "nodegate-cel", "nodegate-onnode"] {
        let impure: Vec<String> =
            dependencies(package, "99").into_iter().filter(|name| IMPURE.contains(&name.as_str())).collect();
        assert!(impure.is_empty(), "{package} depends on {impure:?}");
    }
}

/// Without the packages that have clients, the webhook cannot make a writer of saved state, or write anything else.
#[test]
fn the_webhook_and_the_decisions_have_no_client_of_the_api_server() {
    let direct = dependencies("nodegate-webhook", "1");
    assert!(direct.iter().any(|name| name == "nodegate-stores"), "{direct:?}");
    let clients: Vec<&String> = direct
        .iter()
        .filter(|name| ["kube", "k8s-openapi", "reqwest", "nodegate-controller"].contains(&name.as_str()))
        .collect();
    assert!(clients.is_empty(), "nodegate-webhook depends on {clients:?}");
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

/// Everything else would write through links, or leave half a file behind. The demo writes to a directory of its own.
#[test]
fn files_are_written_only_where_they_are_replaced_whole() {
    const WRITERS: [&str; 4] = [
        "src/cli/shared/whole_file.rs",
        "src/tls/certificates/directory.rs",
        "src/cli/look/demo/mod.rs",
        "src/cli/look/demo/steps.rs",
    ];
    const WRITES: [&str; 6] =
        ["fs::write(", "fs::copy(", "File::create", "File::options", "OpenOptions", "NamedTempFile::new"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    for package in fs::read_dir(root.join("crates")).unwrap() {
        sources(&package.unwrap().path().join("src"), &mut files);
    }
    let mut faults = Vec::new();
    for path in files.iter().filter(|path| !path.ends_with("tests.rs")) {
        if WRITERS.iter().any(|writer| path.ends_with(writer)) {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let production = text.split("#[cfg(test)]").next().unwrap();
        let writes = WRITES.into_iter().filter(|write| production.contains(write));
        faults.extend(writes.map(|write| format!("{}: {write}", path.display())));
    }
    assert!(files.len() > 100 && faults.is_empty(), "{}", faults.join("\n"));
}

/// Parts of the program that logs are filtered by are named by text: a part that has moved would be filtered no more.
#[test]
fn the_parts_that_logs_are_filtered_by_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for file in ["missing_rights.rs", "telemetry.rs"] {
        let text = fs::read_to_string(root.join("crates/nodegate-base/src").join(file)).unwrap();
        let production = text.split("#[cfg(test)]").next().unwrap();
        for part in production.split('"').filter(|part| part.starts_with("nodegate") && part.contains("::")) {
            let mut names = part.split("::");
            let package = match names.next().unwrap() {
                "nodegate" => root.join("src"),
                package => root.join("crates").join(package.replace('_', "-")).join("src"),
            };
            let module = names.fold(package, |path, name| path.join(name));
            assert!(module.is_dir() || module.with_extension("rs").is_file(), "{file}: there is no {part}");
            found += 1;
        }
    }
    assert!(found >= 5, "only {found} parts were found");
}
