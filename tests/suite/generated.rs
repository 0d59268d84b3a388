//! Files that are rendered from the code and committed.

use std::process::Command;

use crate::shared::rendered;

fn is_what_renders(file: &str, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("render").args(arguments).output().unwrap();
    let rendered = String::from_utf8(output.stdout).unwrap();
    let committed = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_default();
    assert!(
        rendered == committed && output.status.success(),
        "{file} is not what the code renders; run `just generate` and commit it"
    );
}

#[test]
fn webhook_configurations_are_what_render_prints() {
    is_what_renders("webhook-config/webhooks.yaml", &["webhooks", "--service", "nodegate/nodegate"]);
    is_what_renders(
        "webhook-config/webhooks-fail.yaml",
        &[
            "webhooks",
            "--service",
            "nodegate/nodegate",
            "--failure-policy",
            "Fail",
            "--break-glass-group",
            "nodegate:break-glass",
        ],
    );
}

#[test]
fn the_guard_is_what_render_prints() {
    is_what_renders("webhook-config/guard.yaml", &["guard", "--service-account", "nodegate/nodegate"]);
}

/// The definition in one of the committed files, without the labels that the chart gives it.
fn definition(file: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
    let mut found = documents.into_iter().filter(|document| document["kind"] == "CustomResourceDefinition");
    let mut definition = found.next().unwrap_or_else(|| panic!("{file} has no definition"));
    definition["metadata"].as_object_mut().unwrap().remove("labels");
    rendered::same_numbers(&definition)
}

#[test]
fn the_crd_is_what_render_prints() {
    is_what_renders("webhook-config/nodepolicies.yaml", &["crd"]);
    is_what_renders("charts/nodegate/files/nodepolicies.yaml", &["crd"]);
    // The chart puts it into the manifests for those without Helm, which only the tests with helm compare as a whole.
    assert!(
        definition("deploy/kubernetes/nodegate.yaml") == definition("webhook-config/nodepolicies.yaml"),
        "deploy/kubernetes/nodegate.yaml has another definition; run `just generate` where there is helm or Go, and commit it"
    );
}

/// The properties of a schema without a description, by path.
fn undescribed(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if property["description"].as_str().is_none_or(str::is_empty) {
            found.push(path.clone());
        }
        undescribed(property, &path, found);
    }
    for inner in ["items", "additionalProperties"].into_iter().filter_map(|inner| schema.get(inner)) {
        undescribed(inner, &format!("{path}[]"), found);
    }
}

#[test]
fn editors_get_a_schema_for_each_kind_of_file_in_which_every_field_is_described() {
    for (arguments, kind, field) in [
        (&["schema"] as &[&str], "NodePolicy", "/properties/spec/properties/rules/items/properties/labels"),
        (&["schema", "PolicyTest"], "PolicyTest", "/properties/cases/items/properties/expect"),
        (&["schema", "init"], "init", "/properties/rules/items/properties/sets"),
        (&["schema", "explain"], "explain", "/properties/entries/items/properties/removedWhen"),
        (&["schema", "why-not"], "why-not", "/properties/rules/items/properties/conditions"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("render").args(arguments).output().unwrap();
        assert!(output.status.success());
        let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert_eq!(schema["title"], kind);
        assert!(schema.pointer(field).is_some(), "{kind} lacks {field}");
        let mut found = Vec::new();
        undescribed(&schema, "", &mut found);
        assert_eq!(found, [""; 0], "fields of {kind} without a description");
    }
}

#[test]
fn keys_of_programs_are_documented() {
    let mut table = "| key | field | who sets it | kind | source |\n|---|---|---|---|---|\n".to_owned();
    for (field, key, program) in nodegate_policy::programs::table() {
        table.push_str(&format!("| `{key}` | {field} | {} | {} | {} |\n", program.name, program.kind, program.source));
    }
    rendered::table_is_committed("docs/reference/keys-of-programs.md", "keys", &table);
}

#[test]
fn the_table_of_publishers_has_their_keys() {
    let rows = nodegate_policy::publishers().map(|row| format!("| {} |\n", row.join(" | ")));
    let table = "| in records | program | its keys |\n|---|---|---|\n".to_owned() + &rows.collect::<String>();
    rendered::table_is_committed("docs/reference/saved-state.md", "publishers", &table);
}
