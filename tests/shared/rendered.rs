//! Parts of documents that are rendered, and committed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

/// A document with what is between `<!-- NAME: SECTION -->` and `<!-- end of NAME -->` anew, and the sections that it has.
pub(crate) fn sections(text: &str, name: &str, render: impl Fn(&str) -> String) -> (String, BTreeSet<String>) {
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- end of {name} -->"));
    let (mut new, mut rest, mut sections) = (String::new(), text, BTreeSet::new());
    while let Some((before, after)) = rest.split_once(&begin) {
        let (section, after) = after.split_once(" -->\n").expect("a marker ends its line");
        let (_, after) = after.split_once(&end).expect("each marker has its end");
        assert!(sections.insert(section.to_owned()), "{section} is there twice");
        write!(new, "{before}{begin}{section} -->\n{}{end}", render(section)).unwrap();
        rest = after;
    }
    (new + rest, sections)
}

/// Asserts that the table of a committed document, between `<!-- NAME: table -->` and `<!-- end of NAME -->`, is what was rendered;
/// with `NODEGATE_GENERATE` set, writes it.
pub(crate) fn table_is_committed(file: &str, name: &str, table: &str) {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let (new, found) = sections(&text, name, |_| table.to_owned());
    assert_eq!(Vec::from_iter(found), ["table"]);
    is_committed(file, &new);
}

/// Asserts that a committed file is what was rendered; with `NODEGATE_GENERATE` set, writes it.
pub(crate) fn is_committed(file: &str, rendered: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("NODEGATE_GENERATE").is_some() {
        std::fs::write(&path, rendered).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == rendered, "{file} is not what the code renders; run `just generate` and commit it");
}

/// The value with 1.0 and 1 as the same number, as in JSON.
pub(crate) fn same_numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(same_numbers).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), same_numbers(value))).collect(),
        other => other.clone(),
    }
}
