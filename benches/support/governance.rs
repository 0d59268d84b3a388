//! Governance of every kind, for measuring.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// `count` governance entries of all kinds, `expressions` of them CEL; the reviewed write violates none of them.
pub(crate) fn governance(count: usize, expressions: usize) -> Value {
    let mut sections: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for at in 0..count - expressions {
        let (section, entry) = match at % 6 {
            0 => ("reserved", json!({"namespaces": [format!("reserved-{at}.example")], "allow": {"groups": ["x"]}})),
            1 => ("required", json!({"keys": [format!("required-{at}")]})),
            2 => ("allowed", json!({"key": format!("allowed-{at}"), "values": ["a", "b"]})),
            3 => (
                "immutable",
                json!({"keys": [format!("immutable-{at}.example/*")], "match": {"selector": {"matchLabels": {"pool": "gpu"}}}}),
            ),
            4 => ("dependencies", json!({"when": {format!("when-{at}"): "*"}, "require": {format!("then-{at}"): "*"}})),
            _ => ("naming", json!({"keys": [format!("naming-{at}.example/*"), "team"], "pattern": "kebab-case"})),
        };
        sections.entry(section).or_default().push(entry);
    }
    for at in 0..expressions {
        let expression = format!(
            "object.metadata.labels[?\"key-{at}\"].orValue(\"\") != \"bad\" && object.spec.taints.all(t, t.key != \"bad-{at}\")"
        );
        sections.entry("expressions").or_default().push(json!({"expression": expression}));
    }
    json!(sections)
}
