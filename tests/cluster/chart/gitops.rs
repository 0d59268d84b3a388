//! Argo CD and Flux compare a release with what the chart renders: the examples let them ignore all that nodegate changes, and nothing else.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::uninstall::Release;
use super::{Objects, items};
use crate::control_plane::exclusive;
use crate::keeping::until_led;
use crate::nodegate::Nodegate;

/// A field of an object: its kind, its name, and a JSON pointer (RFC 6901).
type Field = (String, String, String);

/// What an example gives the chart, and what it ignores.
struct Example {
    values: Value,
    ignored: BTreeSet<Field>,
}

/// The last object of an example.
fn object(file: &str) -> Value {
    let path = format!("{}/examples/gitops/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_multiple::<Value>(&fs::read_to_string(path).unwrap()).unwrap().pop().unwrap()
}

fn fields(of: &Value, pointers: &Value) -> Vec<Field> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items(pointers).iter().map(|pointer| (text(&of["kind"]), text(&of["name"]), text(pointer))).collect()
}

fn argo_cd() -> Example {
    let spec = &object("argocd.yaml")["spec"];
    let ignored = items(&spec["ignoreDifferences"]).iter().flat_map(|entry| fields(entry, &entry["jsonPointers"]));
    Example { values: spec["source"]["helm"]["valuesObject"].clone(), ignored: ignored.collect() }
}

fn flux() -> Example {
    let spec = &object("flux.yaml")["spec"];
    let ignored = items(&spec["driftDetection"]["ignore"]).iter();
    let ignored = ignored.flat_map(|entry| fields(&entry["target"], &entry["paths"]));
    Example { values: spec["values"].clone(), ignored: ignored.collect() }
}

/// The JSON pointers at which `live` lacks what is rendered, or has another value. What it has besides is not compared.
fn differences(rendered: &Value, live: &Value, at: &str, found: &mut Vec<String>) {
    match (rendered, live) {
        (Value::Object(rendered), Value::Object(live)) => {
            for (key, value) in rendered {
                let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                differences(value, live.get(key).unwrap_or(&Value::Null), &at, found);
            }
        }
        (Value::Array(rendered), Value::Array(live)) if rendered.len() == live.len() => {
            for (index, (rendered, live)) in rendered.iter().zip(live).enumerate() {
                differences(rendered, live, &format!("{at}/{index}"), found);
            }
        }
        // A field that is empty need not be there.
        (Value::Object(empty), Value::Null) if empty.is_empty() => {}
        (Value::Array(empty), Value::Null) if empty.is_empty() => {}
        (rendered, live) if rendered == live => {}
        _ => found.push(at.to_owned()),
    }
}

#[tokio::test]
async fn a_release_at_work_differs_from_what_is_rendered_exactly_where_the_examples_say() {
    let examples = [argo_cd(), flux()];
    assert_eq!(examples[0].values, examples[1].values, "both examples install the same");
    let cluster = exclusive();
    let plane = cluster.plane;
    let mut values = examples[0].values.clone();
    let Some(release) = Release::install(plane, values.clone()) else { return };
    let nodegate = Nodegate::start_unregistered(plane, &release.setup());
    until_led(&nodegate).await;
    let validating = "validatingwebhookconfiguration/nodegate";
    let policy = ["get", validating, "-o", "jsonpath={.webhooks[0].failurePolicy}"];
    nodegate.eventually("it serves, so it denies", || plane.kubectl(&policy, None).unwrap() == "Fail").await;
    let bundles = ["get", validating, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}"];
    assert!(!plane.kubectl(&bundles, None).unwrap().is_empty(), "its CA is there, too");

    values["crds"] = serde_json::json!({"install": false});
    let rendered = Objects::render_for(plane, &values).unwrap();
    let mut found = BTreeSet::new();
    for object in &rendered.0 {
        let live = plane.kubectl(&["get", "-o", "json", "-f", "-"], Some(&object.to_string())).unwrap();
        let list: Value = serde_json::from_str(&live).unwrap();
        // What is read from standard input is printed as a list.
        let live = list["items"].get(0).unwrap_or(&list);
        let mut pointers = Vec::new();
        differences(object, live, "", &mut pointers);
        let [kind, name] = [&object["kind"], &object["metadata"]["name"]].map(|text| text.as_str().unwrap().to_owned());
        found.extend(pointers.into_iter().map(|pointer| (kind.clone(), name.clone(), pointer)));
    }
    for example in &examples {
        assert_eq!(found, example.ignored, "what differs (left), and what is ignored (right)");
    }
    release.uninstall();
}
