//! The table of the chart's values, from its `values.yaml` and the comments there.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::shared::rendered;

const FILE: &str = "charts/nodegate/values.yaml";

/// A key of `values.yaml`.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The path, with dots.
    path: String,
    /// The default; nothing for a key with others below it.
    default: Option<String>,
    /// The comment above the key, without an example of several lines.
    comment: String,
}

/// The text of the comment lines above a key. What is indented more than its text is an example, which `values.yaml` shows better.
fn text_of(comment: &[&str]) -> String {
    let lines = comment.iter().filter(|line| !line.starts_with("  "));
    let joined = lines.map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    joined.strip_suffix(" Example:").unwrap_or(&joined).to_owned()
}

/// The keys of `values.yaml` in its order. A value that begins on its key's line is a default, so is a list below it.
fn entries(text: &str) -> Vec<Entry> {
    let values: Value = serde_saphyr::from_str(text).unwrap();
    let mut found = Vec::new();
    let (mut comment, mut parents): (Vec<&str>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim());
        if let Some(text) = line.strip_prefix('#') {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
            continue;
        }
        parents.retain(|(of, _)| *of < indent);
        // What follows a list's key belongs to its default.
        let inside = parents.last().is_some_and(|(_, parent)| value(&values, parent).is_array());
        if line.is_empty() || inside {
            comment.clear();
            continue;
        }
        let key = line.split(':').next().unwrap();
        let path = parents.last().map_or_else(|| key.to_owned(), |(_, parent)| format!("{parent}.{key}"));
        let default = value(&values, &path);
        let is_section = line.ends_with(':') && default.is_object();
        let default = (!is_section).then(|| default.to_string());
        found.push(Entry { path: path.clone(), default, comment: text_of(&std::mem::take(&mut comment)) });
        parents.push((indent, path));
    }
    found
}

fn value<'a>(values: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(values, |value, key| &value[key])
}

/// The rows: sections have only a comment.
fn table(text: &str) -> String {
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    for Entry { path, default, comment } in entries(text) {
        let default = default.map(|default| format!("`{}`", default.replace('|', "\\|"))).unwrap_or_default();
        let comment = comment.replace('|', "\\|").replace('<', "&lt;");
        writeln!(table, "| `{path}` | {default} | {comment} |").unwrap();
    }
    table
}

#[test]
fn the_table_of_the_charts_values_has_their_defaults_and_comments() {
    let text = fs::read_to_string(format!("{}/{FILE}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    rendered::table_is_committed("docs/reference/chart-values.md", "values", &table(&text));
    // No section that the chart takes, by its schema, is missing.
    let schema =
        fs::read_to_string(format!("{}/charts/nodegate/values.schema.json", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let entries = entries(&text);
    for key in schema["properties"].as_object().unwrap().keys() {
        assert!(entries.iter().any(|entry| entry.path == *key), "{FILE} lacks {key}");
    }
}

#[test]
fn comments_are_of_the_key_below_them_and_examples_of_several_lines_are_left_out() {
    let text = "# Pods.\nreplicas: 3\n\n# Of all.\n# Two lines. Example:\n#   a: b\nall: {}\nsection:\n  # In it: a|b.\n  inner: \"\"\n\n# Lost\n\nlist:\n  # Of its item.\n  - key: a\n    effect: b\nlast: [1]\n";
    let entry = |path: &str, default: Option<&str>, comment: &str| Entry {
        path: path.to_owned(),
        default: default.map(str::to_owned),
        comment: comment.to_owned(),
    };
    let expected = [
        entry("replicas", Some("3"), "Pods."),
        entry("all", Some("{}"), "Of all. Two lines."),
        entry("section", None, ""),
        entry("section.inner", Some("\"\""), "In it: a|b."),
        entry("list", Some("[{\"effect\":\"b\",\"key\":\"a\"}]"), ""),
        entry("last", Some("[1]"), ""),
    ];
    assert_eq!(entries(text), expected);
    assert!(table(text).contains("| `section.inner` | `\"\"` | In it: a\\|b. |\n"));
}
