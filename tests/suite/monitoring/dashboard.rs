//! The dashboard, against Grafana's own types.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::run;
use crate::required::{Run, required};
use crate::shared::monitoring::{DASHBOARD, at, panels, read, text};

/// Grafana's types and the compiler, where `tests/grafana/install` has put them.
fn packages() -> Option<PathBuf> {
    let directory = run(Command::new(at("tests/grafana/install")).arg("--print-dir"), None).unwrap();
    let packages = Some(PathBuf::from(directory.trim())).filter(|directory| directory.is_dir());
    required(packages, Run::Full, "there are no types of Grafana; install them: tests/grafana/install")
}

/// What does not fit the types, one fault a line.
fn faults(packages: &Path, dashboard: &Path) -> String {
    let output = Command::new("node").arg(at("tests/grafana/check.mjs")).arg(packages).arg(dashboard).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn the_dashboard_is_what_grafanas_schema_describes() {
    let Some(packages) = packages() else { return };
    assert_eq!(faults(&packages, &at(DASHBOARD)), "");
    let wrong = tempfile::NamedTempFile::new().unwrap();
    for (right, mistake) in [
        (r#""displayMode": "list""#, r#""displayMode": "lst""#),
        (r#""graphMode""#, r#""graphMod""#),
        (r#""schemaVersion": 41,"#, ""),
        (r#""type": "stat""#, r#""type": "stats""#),
        (r#""legendFormat""#, r#""legend""#),
    ] {
        let dashboard = read(DASHBOARD);
        assert!(dashboard.contains(right), "{right}");
        fs::write(wrong.path(), dashboard.replacen(right, mistake, 1)).unwrap();
        assert!(faults(&packages, wrong.path()).contains("line "), "{mistake} is no fault");
    }
}

#[test]
fn every_panel_has_a_description_a_place_and_a_query() {
    let panels = panels();
    assert!(panels.len() > 30, "{}", panels.len());
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in &panels {
        assert!(!text(panel, "description").is_empty() && ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{panel}");
        let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        for (row, column) in (0..place("h")).flat_map(|row| (0..place("w")).map(move |column| (row, column))) {
            let cell = (place("y") + row, place("x") + column);
            assert!(cell.1 < 24 && cells.insert(cell), "{} overlaps another panel", text(panel, "title"));
        }
    }
}
