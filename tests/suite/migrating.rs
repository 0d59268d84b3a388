//! `docs/migrating/README.md`: the tutorials, and the tables of what each older tool does.

use std::fs;
use std::path::Path;

use crate::security::fault;

/// The heading of each table, and the fewest rows that it has to have.
const TABLES: [(&str, usize); 5] = [
    ("k8s-auto-labeller", 24),
    ("Node label operator (kopf)", 40),
    ("Node labeling Job of the Fako cluster", 75),
    ("Node preparation Job of llm-d-lab", 24),
    ("OpenShift scripts for extra kubelet labels", 19),
];

/// Pages that end with a table of their own, and have none here.
const WITH_A_TABLE: [&str; 5] = [
    "from-kyverno.md",
    "from-label-scripts.md",
    "from-nfd.md",
    "from-node-pool-labels.md",
    "from-node-ready-controllers.md",
];

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/migrating/README.md")).unwrap()
}

/// What is wrong with a test's name; one that begins with `cluster` is in `tests/cluster/`, any other in `tests/suite/`.
fn fault_of(name: &str) -> Option<String> {
    let (directory, name) = name.strip_prefix("cluster::").map_or(("suite", name), |name| ("cluster", name));
    let (module, test) = name.rsplit_once("::")?;
    let module = format!("tests/{directory}/{}", module.replace("::", "/"));
    let files = [format!("{module}.rs"), format!("{module}/mod.rs")];
    let file = files.iter().find(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join(file).is_file());
    file.map_or_else(|| Some(format!("there is no file {files:?}")), |file| fault(file, test))
}

#[test]
fn every_row_names_what_it_is_here_and_a_test_that_exists() {
    let page = page();
    assert!(fault_of("migrating::page").is_some() && fault_of("cluster::nowhere::page").is_some());
    for (heading, fewest) in TABLES {
        let section = page.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("no table: {heading}"));
        let section = section.split("\n## ").next().unwrap();
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert!(rows.len() >= fewest, "{heading}: {} rows", rows.len());
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [what, here, test] = cells[..] else { panic!("{heading}: {row}") };
            let name = test.strip_prefix('`').and_then(|test| test.strip_suffix('`'));
            assert!(!what.is_empty() && !here.is_empty(), "{heading}: {row}");
            let name = name.unwrap_or_else(|| panic!("{heading}: {test} is not in backticks"));
            assert_eq!(fault_of(name), None, "{heading}");
        }
    }
}

#[test]
fn every_tutorial_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let names = fs::read_dir(folder.join("migrating")).unwrap().map(|entry| entry.unwrap().file_name());
    let tutorials: Vec<String> =
        names.map(|name| name.into_string().unwrap()).filter(|name| name != "README.md").collect();
    assert_eq!(tutorials.len(), TABLES.len() + WITH_A_TABLE.len());
    let (page, contents) = (page(), fs::read_to_string(folder.join("README.md")).unwrap());
    for tutorial in tutorials {
        assert!(page.contains(&format!("]({tutorial}) |")), "docs/migrating/README.md lacks {tutorial}");
        assert!(contents.contains(&format!("](migrating/{tutorial})")), "docs/README.md lacks {tutorial}");
    }
}
