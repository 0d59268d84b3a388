//! The definitions (CRDs) of the kinds of other projects that the chart and the examples use.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::items;

/// The projects' own definitions, without descriptions. `just definitions` writes them.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/definitions.json");
/// Where `just definitions` has put the files of the projects, each named after its group and plural.
const DIRECTORY: &str = "NODEGATE_DEFINITIONS";
const USED: [&str; 8] = [
    "monitoring.coreos.com_podmonitors",
    "monitoring.coreos.com_prometheusrules",
    "monitoring.coreos.com_servicemonitors",
    "cert-manager.io_certificates",
    "cert-manager.io_issuers",
    "argoproj.io_applications",
    "helm.toolkit.fluxcd.io_helmreleases",
    "source.toolkit.fluxcd.io_ocirepositories",
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
fn the_definitions_of_other_projects_are_those_of_the_kinds_that_the_chart_and_the_examples_use() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        let found = USED.map(|name| read(&directory, name));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": found});
        fs::write(FILE, format!("{list}\n")).unwrap();
    }
    let expected = USED.map(|name| {
        let (group, plural) = name.split_once('_').unwrap();
        format!("{plural}.{group}")
    });
    assert_eq!(names(), expected);
}
