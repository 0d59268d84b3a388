//! The formats of answers: JSON, and lines of `key=value`.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use nodegate_policy::api::names::check_label_key;

/// The labels of one node as the inventory wrote them.
pub(super) type Written = BTreeMap<String, String>;

/// The answer about one node: a JSON object of strings, one such object in `labels`, or lines of `key=value …`.
///
/// # Errors
/// Returns a sentence if the text is none of these. Nothing of it is used then.
pub(super) fn of_node(body: &[u8]) -> Result<Written, String> {
    match text(body)? {
        Text::Json(mut object) => {
            if object.len() == 1
                && let Some(Json::Object(labels)) = object.get_mut("labels")
            {
                return strings(std::mem::take(labels));
            }
            strings(object)
        }
        Text::Lines(text) => {
            let mut labels = Written::new();
            for (number, line) in lines(text) {
                for label in labels_of(line) {
                    let (key, value) = pair(label).ok_or_else(|| not_a_label(number))?;
                    labels.insert(key.to_owned(), value.to_owned());
                }
            }
            Ok(labels)
        }
    }
}

/// The answer about all nodes: a JSON object with an object of strings for each node, or lines of `node key=value …`.
///
/// # Errors
/// Returns a sentence if the text is none of these. Nothing of it is used then.
pub(super) fn of_all(body: &[u8]) -> Result<BTreeMap<String, Written>, String> {
    let mut all = BTreeMap::new();
    match text(body)? {
        Text::Json(object) => {
            for (node, labels) in object {
                let Json::Object(labels) = labels else {
                    return Err("it is a JSON object, but not one with an object of labels for each node".to_owned());
                };
                all.insert(node, strings(labels)?);
            }
        }
        Text::Lines(text) => {
            for (number, line) in lines(text) {
                let mut words = line.split_whitespace();
                let node = words.next().unwrap_or_default();
                if node.contains('=') {
                    return Err(format!("line {number} begins with a label and not with the name of a node"));
                }
                let labels: &mut Written = all.entry(node.to_owned()).or_default();
                for word in words {
                    let (key, value) = pair(word).ok_or_else(|| not_a_label(number))?;
                    labels.insert(key.to_owned(), value.to_owned());
                }
            }
        }
    }
    Ok(all)
}

enum Text<'t> {
    Json(serde_json::Map<String, Json>),
    Lines(&'t str),
}

fn text(body: &[u8]) -> Result<Text<'_>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "it is not UTF-8".to_owned())?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.starts_with('{') {
        let object = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        return Ok(Text::Json(object));
    }
    if text.starts_with(['[', '"', '<']) {
        return Err("it is neither a JSON object nor lines of key=value".to_owned());
    }
    // `{}` says that there are no labels; an empty body may be the end of a broken program.
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(Text::Lines(text)) }
}

/// The lines with their numbers, without blank ones and comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The labels of a line: one with spaces around `=`, or several with spaces between them.
fn labels_of(line: &str) -> Vec<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.iter().all(|word| pair(word).is_some()) { words } else { vec![line] }
}

/// A label; `None` if the text before `=` can be no key. Values are checked one by one later.
fn pair(text: &str) -> Option<(&str, &str)> {
    let (key, value) = text.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    check_label_key(key).is_ok().then_some((key, value))
}

fn not_a_label(number: usize) -> String {
    format!("line {number} is not a label in the form key=value")
}

fn strings(object: serde_json::Map<String, Json>) -> Result<Written, String> {
    let text = |(key, value): (String, Json)| match value {
        Json::String(value) => Ok((key, value)),
        _ => Err("it is a JSON object, but some of its values are not strings".to_owned()),
    };
    object.into_iter().map(text).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn written(labels: &[(&str, &str)]) -> Written {
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_answer_about_a_node_has_one_of_three_forms() {
        let rack = written(&[("rack.example.com/row", "7"), ("tier", "")]);
        for body in [
            r#"{"rack.example.com/row": "7", "tier": ""}"#,
            r#" {"labels": {"rack.example.com/row": "7", "tier": ""}} "#,
            "# from the CMDB\r\n\r\nrack.example.com/row = 7\r\ntier=\r\n",
            "\u{feff}rack.example.com/row=7\ntier=",
            "rack.example.com/row=7  tier=",
        ] {
            assert_eq!(of_node(body.as_bytes()), Ok(rack.clone()), "{body}");
        }
        assert_eq!(of_node(b"{}"), Ok(Written::new()));
        assert_eq!(of_node(b"# nothing\n"), Ok(Written::new()));
        assert_eq!(of_node(br#"{"labels": "x"}"#), Ok(written(&[("labels", "x")])), "a label of that name");
    }

    #[test]
    fn other_texts_are_refused_as_a_whole() {
        for (body, why) in [
            (&b""[..], "it is empty"),
            (b"\r\n \n", "it is empty"),
            (b"\xff\xfe", "not UTF-8"),
            (b"<html><a href=\"x\">", "neither"),
            (b"[1]", "neither"),
            (b"{\"a\": \"b\"", "not JSON"),
            (b"{\"a\": 1}", "not strings"),
            (b"{\"a\": null}", "not strings"),
            (b"{\"labels\": {\"a\": {}}}", "not strings"),
            (b"Internal error", "line 1"),
            (b"a=b\n--- trace=1\n", "line 2"),
        ] {
            let error = of_node(body).unwrap_err();
            assert!(error.contains(why), "{body:?}: {error}");
        }
        let deep = "{\"a\":".repeat(100_000);
        assert!(of_node(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_batch_names_each_node() {
        let all =
            BTreeMap::from([("n1".to_owned(), written(&[("a", "1"), ("b", "2")])), ("n2".to_owned(), written(&[]))]);
        for body in
            ["{\"n1\": {\"a\": \"1\", \"b\": \"2\"}, \"n2\": {}}", "# x\nn1 a=1 b=2\r\nn2\n", "n1 a=1\nn1  b=2\nn2"]
        {
            assert_eq!(of_all(body.as_bytes()), Ok(all.clone()), "{body}");
        }
        assert_eq!(of_all(b"{}"), Ok(BTreeMap::new()));
        for (body, why) in
            [(&b"{\"n1\": \"x\"}"[..], "for each node"), (b"a=b", "begins with a label"), (b"n1 oops", "line 1")]
        {
            assert!(of_all(body).unwrap_err().contains(why), "{body:?}");
        }
    }
}
