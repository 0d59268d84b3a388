//! The rules for Prometheus, their runbooks and the dashboard for Grafana.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub(crate) const ALERTS: &str = "charts/nodegate/files/alerts.yaml";
pub(crate) const DASHBOARD: &str = "charts/nodegate/files/dashboard.json";

pub(crate) fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap()
}

/// All rules, of all groups.
pub(crate) fn rules() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read(ALERTS)).unwrap();
    rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field}: {value}"))
}

/// The panels with queries.
pub(crate) fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row").cloned().collect()
}

/// All expressions: those of rules and of panels.
pub(crate) fn expressions() -> BTreeSet<String> {
    let of_rules = rules().iter().map(|rule| text(rule, "expr").to_owned()).collect::<Vec<_>>();
    let of_panels = panels().into_iter().flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    of_rules.into_iter().chain(of_panels.map(|target| text(&target, "expr").to_owned())).collect()
}
