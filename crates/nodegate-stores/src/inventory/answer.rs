//! The formats of answers: JSON, and lines of `key=value`.
//!
//! An answer is read node by node, and what is too long is cut while it is read. So a bad answer needs little more memory than
//! its own text.

use std::borrow::Cow;
use std::collections::BTreeMap;

use nodegate_policy::api::names::check_label_key;

use super::json;
use super::written::{NODES_MAX, WRITTEN_MAX, Written, add, kept, too_many_labels, too_many_nodes};

/// The answer about one node: a JSON object of strings, one such object in `labels`, or lines of `key=value …`.
///
/// # Errors
/// Returns a sentence if the text is none of these. Nothing of it is used then.
pub(super) fn of_node(body: &[u8]) -> Result<Written, Cow<'static, str>> {
    match text(body)? {
        Text::Json(text) => json::of_node(text),
        Text::Lines(text) => {
            let mut labels = Written::new();
            for (number, line) in lines(text) {
                for label in labels_of(line) {
                    add(&mut labels, pair(label).ok_or_else(|| not_a_label(number))?)?;
                }
            }
            // Comments alone may be what is left of a broken program.
            if labels.is_empty() { Err("it has no label; {} says that there is none".into()) } else { Ok(labels) }
        }
    }
}

/// The answer about all nodes: a JSON object with an object of strings for each node, or lines of `node key=value …`. Passes
/// each node to `each`. In JSON, a node may come twice; the last one counts.
///
/// # Errors
/// Returns a sentence if the text is none of these. Then nothing of it may be used, also not what was passed before.
pub(super) fn of_all(body: &[u8], mut each: impl FnMut(String, Written)) -> Result<(), Cow<'static, str>> {
    let text = match text(body)? {
        Text::Json(text) => return json::of_all(text, each),
        Text::Lines(text) => text,
    };
    let mut nodes: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for (number, line) in lines(text) {
        let (node, labels) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if node.contains('=') {
            return Err(format!("line {number} begins with a label and not with the name of a node").into());
        }
        let of_node = nodes.entry(node).or_default();
        if of_node.len() == WRITTEN_MAX {
            return Err(too_many_labels());
        }
        of_node.push((number, labels));
        if nodes.len() > NODES_MAX {
            return Err(too_many_nodes());
        }
    }
    if nodes.is_empty() {
        return Err("it names no node; {} says that there is none".into());
    }
    for (node, lines) in nodes {
        let mut labels = Written::new();
        for (number, line) in lines {
            for word in line.split_whitespace() {
                add(&mut labels, pair(word).ok_or_else(|| not_a_label(number))?)?;
            }
        }
        each(kept(node), labels);
    }
    Ok(())
}

enum Text<'t> {
    Json(&'t str),
    Lines(&'t str),
}

/// The text of an answer, without a byte order mark and space around it.
///
/// # Errors
/// Returns a sentence if there is none.
pub(super) fn plain(body: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(body).map_err(|_| "it is not UTF-8")?;
    let text = text.trim_start_matches('\u{feff}').trim();
    // `{}` says that there are no labels; an empty body may be the end of a broken program.
    if text.is_empty() { Err("it is empty") } else { Ok(text) }
}

fn text(body: &[u8]) -> Result<Text<'_>, &'static str> {
    let text = plain(body)?;
    if text.starts_with('{') {
        return Ok(Text::Json(text));
    }
    if text.starts_with(['[', '"', '<']) {
        return Err("it is neither a JSON object nor lines of key=value");
    }
    Ok(Text::Lines(text))
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

fn not_a_label(number: usize) -> Cow<'static, str> {
    format!("line {number} is not a label in the form key=value").into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::written::KEPT_MAX;
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
        assert_eq!(of_node(br#"{"labels": "x"}"#), Ok(written(&[("labels", "x")])), "a label of that name");
    }

    #[test]
    fn other_texts_are_refused_as_a_whole() {
        for (body, why) in [
            (&b""[..], "it is empty"),
            (b"\r\n \n", "it is empty"),
            (b"# nothing\n\n#\n", "it has no label"),
            (b"{\"labels\": {}, \"a\": \"b\"}", "not strings"),
            (b"{\"a\": {}}", "not strings"),
            (b"{\"a\": \"b\"} {}", "not JSON"),
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

    fn all_of(body: &str) -> Result<BTreeMap<String, Written>, Cow<'static, str>> {
        let mut all = BTreeMap::new();
        of_all(body.as_bytes(), |node, labels| drop(all.insert(node, labels))).map(|()| all)
    }

    #[test]
    fn what_is_too_long_is_cut_and_still_invalid_and_too_much_is_refused() {
        let long = "é".repeat(100_000);
        for body in
            [format!("{{\"a\": \"{long}\"}}"), format!("{{\"labels\": {{\"a\": \"{long}\"}}}}"), format!("a={long}")]
        {
            let value = &of_node(body.as_bytes()).unwrap()["a"];
            assert_eq!(value.len(), KEPT_MAX);
        }
        let all = all_of(&format!("{{\"{long}\": {{\"{long}\": \"b\"}}}}")).unwrap();
        assert!(
            all.iter().all(|(node, labels)| node.len() == KEPT_MAX && labels.keys().all(|key| key.len() == KEPT_MAX))
        );
        let pairs = |number: usize, form: fn(usize) -> String| (0..number).map(form).collect::<Vec<_>>();
        let json = |number| format!("{{{}}}", pairs(number, |number| format!("\"k{number}\": \"\"")).join(","));
        let lines = |number| pairs(number, |number| format!("k{number}=")).join("\n");
        assert_eq!(of_node(json(WRITTEN_MAX).as_bytes()).unwrap().len(), WRITTEN_MAX);
        assert_eq!(of_node(lines(WRITTEN_MAX).as_bytes()).unwrap().len(), WRITTEN_MAX);
        for body in [json(WRITTEN_MAX + 1), lines(WRITTEN_MAX + 1)] {
            assert!(of_node(body.as_bytes()).unwrap_err().contains("more than 1024 labels"));
        }
        for body in [format!("{{\"n\": {}}}", json(WRITTEN_MAX + 1)), "n a=b\n".repeat(WRITTEN_MAX + 1)] {
            assert!(all_of(&body).unwrap_err().contains("more than 1024 labels"));
        }
        let nodes = pairs(NODES_MAX + 1, |number| format!("\"n{number}\": {{}}"));
        for body in [format!("{{{}}}", nodes.join(",")), pairs(NODES_MAX + 1, |number| format!("n{number}")).join("\n")]
        {
            assert!(all_of(&body).unwrap_err().contains("more than 100000 nodes"));
        }
    }

    #[test]
    fn a_batch_names_each_node() {
        let all =
            BTreeMap::from([("n1".to_owned(), written(&[("a", "1"), ("b", "2")])), ("n2".to_owned(), written(&[]))]);
        for body in
            ["{\"n1\": {\"a\": \"1\", \"b\": \"2\"}, \"n2\": {}}", "# x\nn1 a=1 b=2\r\nn2\n", "n1 a=1\nn1  b=2\nn2"]
        {
            assert_eq!(all_of(body), Ok(all.clone()), "{body}");
        }
        assert_eq!(all_of("{}"), Ok(BTreeMap::new()));
        for (body, why) in [
            ("{\"n1\": \"x\"}", "for each node"),
            ("{\"n1\": {\"a\": 1}}", "not strings"),
            ("{\"n1\": {\"a\": {}}}", "not strings"),
            ("{\"n1\": {\"a\"", "not JSON"),
            ("a=b", "begins with a label"),
            ("n1 oops", "line 1"),
            ("# none\n", "it names no node"),
        ] {
            let error = all_of(body).unwrap_err();
            assert!(error.contains(why), "{body:?}: {error}");
        }
    }
}
