//! What the chart renders, committed, so that a change of a template shows what it changes. `just generate` writes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{manifests, value_sets};

fn path(name: &str) -> PathBuf {
    let file = format!("{}.yaml", name.replace(' ', "-"));
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/chart").join(file)
}

/// Certificates are other ones each time, and files that an object only contains are compared elsewhere.
fn lasting(mut object: Value) -> Option<Value> {
    if object.is_null() || object["kind"] == "CustomResourceDefinition" {
        return None;
    }
    if object["kind"] == "Secret" {
        object["data"].as_object_mut()?.values_mut().for_each(|value| *value = json!("(another one each time)"));
    }
    for webhook in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(bundle) = webhook["clientConfig"].get_mut("caBundle") {
            *bundle = json!("(another one each time)");
        }
    }
    if object["kind"] == "PrometheusRule" {
        object["spec"]["groups"] = json!("(files/alerts.yaml)");
    }
    if object["kind"] == "ConfigMap" && object["metadata"]["name"].as_str()?.ends_with("-dashboard") {
        object["data"].as_object_mut()?.values_mut().for_each(|value| *value = json!("(files/dashboard.json)"));
    }
    Some(object)
}

/// What an object is called.
fn name_of(object: &Value) -> (String, String) {
    (object["kind"].to_string(), object["metadata"]["name"].to_string())
}

fn render(values: &Value) -> Option<Vec<Value>> {
    Some(serde_saphyr::from_multiple::<Value>(&manifests(values)?).unwrap().into_iter().filter_map(lasting).collect())
}

#[test]
fn the_chart_renders_what_is_committed() {
    let Some(defaults) = render(&json!({})) else { return };
    let write = std::env::var_os("NODEGATE_GENERATE").is_some();
    let mut expected = BTreeSet::new();
    for (name, values) in value_sets() {
        let rendered = render(&values).unwrap();
        // The whole of it once, and what other values change.
        let shown = rendered.iter().filter(|object| name == "defaults" || !defaults.contains(object));
        let documents: Vec<String> = shown.map(|object| serde_saphyr::to_string(object).unwrap()).collect();
        let present: BTreeSet<_> = rendered.iter().map(name_of).collect();
        let absent: BTreeSet<_> = defaults.iter().map(name_of).filter(|known| !present.contains(known)).collect();
        let absent: String = absent.iter().map(|(kind, name)| format!("# without {kind} {name}\n")).collect();
        let text = format!("# {values}\n{absent}---\n{}", documents.join("---\n"));
        if write {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), &text).unwrap();
        }
        let committed = fs::read_to_string(path(name)).unwrap_or_default();
        assert!(
            committed == text,
            "{} is not what the chart renders; run `just generate` and commit it",
            path(name).display()
        );
        expected.insert(path(name));
    }
    let present = fs::read_dir(path("x").parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(present.collect::<BTreeSet<_>>(), expected, "files (left) and value sets (right)");
}
