//! The definitions (CRDs) of the kinds of other projects that the chart may use.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::items;

/// The projects' own definitions, without descriptions. `just definitions` writes them.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/definitions.json");
/// The directories that `just definitions` names, in its order, and what is taken from each.
const SOURCES: [(&str, &[&str]); 2] = [
    (
        "NODEGATE_PROMETHEUS_OPERATOR",
        &[
            "monitoring.coreos.com_podmonitors",
            "monitoring.coreos.com_prometheusrules",
            "monitoring.coreos.com_servicemonitors",
        ],
    ),
    ("NODEGATE_CERT_MANAGER", &["cert-manager.io_certificates", "cert-manager.io_issuers"]),
];

/// All of them as one List.
pub(super) fn definitions() -> String {
    fs::read_to_string(FILE).unwrap()
}

/// Their names.
pub(super) fn names() -> Vec<String> {
    let list: Value = serde_json::from_str(&definitions()).unwrap();
    items(&list["items"]).iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn without_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A field may have that name, too; then it is a schema, and no text.
            fields.retain(|name, value| name != "description" || !value.is_string());
            fields.values_mut().for_each(without_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(without_descriptions),
        _ => {}
    }
}

fn read(directory: &str, name: &str) -> Value {
    let text = fs::read_to_string(Path::new(directory).join(format!("{name}.yaml"))).unwrap();
    let mut definition: Value = serde_saphyr::from_str(&text).unwrap();
    without_descriptions(&mut definition);
    definition
}

#[test]
fn the_definitions_of_other_projects_are_those_of_the_kinds_that_the_chart_uses() {
    if std::env::var_os(SOURCES[0].0).is_some() {
        let found = SOURCES.iter().flat_map(|(variable, names)| {
            let directory =
                std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `just definitions`"));
            names.iter().map(move |name| read(&directory, name))
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": found.collect::<Vec<_>>()});
        fs::write(FILE, format!("{list}\n")).unwrap();
    }
    let expected = SOURCES.iter().flat_map(|(_, names)| *names).map(|name| {
        let (group, plural) = name.split_once('_').unwrap();
        format!("{plural}.{group}")
    });
    assert_eq!(names(), expected.collect::<Vec<_>>());
}
