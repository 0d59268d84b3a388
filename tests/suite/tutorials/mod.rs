//! `docs/migrating/`: a user of each older tool follows its tutorial, command by command, at the real API server. The tool itself does
//! not run: what it leaves in a cluster is created as it leaves it.

mod fako;
mod fleet;
mod job;
mod k8s_auto_labeller;
mod kopf;
mod label_files;
mod llm_d_lab;
mod pod;
mod script;
mod tables;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cluster::control_plane::run;

const ALERTS: &str = "examples/monitoring/alerts.yaml";

/// Whether these programs can be run. Without them a test says so and passes; with `NODEGATE_REQUIRE_CLUSTER=1` it fails.
fn there(programs: &[&str]) -> bool {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/build");
    let built = run(Command::new(script).arg("--print-dir"), None).unwrap();
    let mut directories = vec![PathBuf::from(built.trim())];
    directories.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    let missing: Vec<&&str> =
        programs.iter().filter(|name| !directories.iter().any(|directory| directory.join(name).is_file())).collect();
    if !missing.is_empty() {
        let required = env::var_os("NODEGATE_REQUIRE_CLUSTER").is_some_and(|value| value == "1");
        assert!(!required, "there is no {missing:?}; build it: tests/tools/build");
        eprintln!("not tested, there is no {missing:?}: just tools");
    }
    missing.is_empty()
}

/// The metrics of nodegate that a file names.
fn metrics_named_in(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    words.filter(|word| word.starts_with("nodegate_")).map(str::to_owned).collect()
}

#[test]
fn the_alerts_are_rules_of_prometheus() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(ALERTS);
    let rules: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let alerts: Vec<&str> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .filter_map(|rule| rule["expr"].as_str().and(rule["alert"].as_str()))
        .collect();
    assert!(alerts.contains(&"NodeMissingLabels") && alerts.len() > 6, "{alerts:?}");
    let text = rules.to_string();
    assert!(
        text.contains("unless on (node) kube_node_labels{label_hardware_tier=~"),
        "the alert of the labeling Job: {text}"
    );
    // promtool takes long to build, so CI does without it.
    let directories = env::var_os("PATH").unwrap_or_default();
    let promtool = env::split_paths(&directories).map(|directory| directory.join("promtool"));
    if let Some(promtool) = promtool.into_iter().find(|program| program.is_file()) {
        run(Command::new(promtool).args(["check", "rules"]).arg(&path), None).unwrap();
    }
}

#[test]
fn every_panel_of_the_dashboard_shows_something() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 10, "{}", panels.len());
    for panel in panels {
        let mut targets = panel["targets"].as_array().unwrap().iter();
        let shows = |target: &Value| target["expr"].as_str().is_some_and(|text| text.contains("nodegate_"));
        assert!(targets.len() > 0 && targets.all(shows) && panel["title"].is_string(), "{panel}");
    }
}
