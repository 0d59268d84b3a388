//! What commands print for other programs conforms to its schema.

use std::fmt::Write as _;

use serde_json::Value;

use crate::shared::output::{assert_conforms, schema};
use crate::shared::rendered;

/// The commands that a text of `--help` lists, in its order.
pub(crate) fn commands(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.split("Usage:").nth(1).and_then(|rest| rest.split("\nOptions:").next()).unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| name.starts_with(|letter: char| letter.is_ascii_lowercase()) && *name != "help")
}

#[test]
fn a_missing_an_unknown_and_a_wrong_field_do_not_conform() {
    let whole = serde_json::json!({"node": "n", "entries": [], "missing": []});
    assert_conforms("explain", &whole);
    for (field, value) in [("node", Value::Null), ("more", "x".into()), ("entries", "x".into())] {
        let mut other = whole.clone();
        match value {
            Value::Null => drop(other.as_object_mut().unwrap().remove(field)),
            value => other[field] = value,
        }
        assert!(std::panic::catch_unwind(|| assert_conforms("explain", &other)).is_err(), "{field}");
    }
}

const PAGE: &str = "docs/reference/json.md";
/// What `render schema` calls it, and the command.
const DOCUMENTED: [(&str, &str); 14] = [
    ("plan", "nodegate plan -o json"),
    ("init", "nodegate init -o json"),
    ("init-from", "nodegate init --from-kyverno FILE -o json"),
    ("explain", "nodegate explain NODE -o json"),
    ("why-not", "nodegate explain NODE --why-not KEY -o json"),
    ("report", "nodegate report -o json"),
    ("violations", "nodegate report --violations -o json"),
    ("history", "nodegate history NODE -o json"),
    ("migrate-status", "nodegate migrate status -o json"),
    ("probe", "nodegate probe -o json"),
    ("cleanup", "nodegate cleanup -o json"),
    ("certs", "nodegate certs show -o json"),
    ("templates", "nodegate export autoscaler -o json"),
    ("templates-check", "nodegate export autoscaler --check -o json"),
];

/// The fields of an object and of the objects in it, as rows of a table.
fn rows(schema: &Value, path: &str, rows: &mut String) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().unwrap() {
        let path = format!("{path}{name}");
        let items = &field["items"];
        let (list, inner) = if items.is_object() { ("list of ", items) } else { ("", field) };
        let kind = match inner["type"].as_str().unwrap() {
            "object" => "objects",
            "string" => "strings",
            "integer" | "number" => "numbers",
            "boolean" => "booleans",
            other => panic!("{path}: no word for {other}"),
        };
        let kind = if list.is_empty() { kind.trim_end_matches('s') } else { kind };
        let optional = if required.contains(&name.as_str()) { "" } else { ", optional" };
        let meaning = field["description"].as_str().unwrap_or_else(|| panic!("{path} has no description"));
        assert!(!meaning.contains('|'), "{path}: {meaning}");
        let meaning = meaning.replace('\n', " ");
        writeln!(rows, "| `{path}` | {list}{kind}{optional} | {meaning} |").unwrap();
        if inner["properties"].is_object() {
            let step = if list.is_empty() { "." } else { "[]." };
            self::rows(inner, &format!("{path}{step}"), rows);
        }
    }
}

fn page() -> String {
    let mut page = "# JSON output\n\n\
        What commands print with `-o json`, field by field; `-o yaml` has the same fields. `just generate` writes this page; do not edit it.\n\n\
        Programs can rely on these fields: later versions may add fields and values, but never rename or remove any. Fields that are not\n\
        marked as optional are always present. `nodegate render schema` prints the same as a JSON Schema, for example\n\
        `nodegate render schema plan`.\n"
        .to_owned();
    for (name, command) in DOCUMENTED {
        let schema = schema(name);
        let (list, schema, path) = match schema.get("items") {
            Some(items) => ("A list. ", items, "[]."),
            None => ("", &schema, ""),
        };
        let meaning = schema["description"].as_str().unwrap();
        write!(page, "\n## `{command}`\n\n{list}{meaning} Schema: `nodegate render schema {name}`.\n\n").unwrap();
        page.push_str("| field | type | meaning |\n|---|---|---|\n");
        rows(schema, path, &mut page);
    }
    page
}

#[test]
fn the_page_about_json_output_is_what_the_schemas_say() {
    rendered::is_committed(PAGE, &page());
}
