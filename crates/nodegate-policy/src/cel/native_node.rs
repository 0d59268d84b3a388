//! Converts an expression over `node` for the API server's own CEL, which has `object` instead.

use super::Expression;
use super::tokens::Token;

impl Expression {
    /// The text with `node` written as `object`, and its labels, annotations and taints as these variables, which are there
    /// and empty where the object has none, as they are here. `None` where `node` is used in a way that has no
    /// such equivalent (as a whole, or by a computed field).
    #[must_use]
    pub fn in_native_node(&self, labels: &str, annotations: &str, taints: &str) -> Option<String> {
        let source = self.source();
        let tokens = Token::all(&self.compiled);
        let mut text = String::with_capacity(source.len());
        let mut copied = 0;
        for (at, token) in tokens.iter().enumerate() {
            let selected = at > 0 && is_symbol(&tokens[at - 1], ".")
                || at > 1 && is_symbol(&tokens[at - 2], ".") && is_symbol(&tokens[at - 1], "?");
            if selected || token.name() != Some("node") {
                continue;
            }
            let (instead, last) = replacement(&tokens[at..], [labels, annotations, taints])?;
            text.push_str(source.get(copied..token.at)?);
            text.push_str(&instead);
            copied = tokens[at + last].at + tokens[at + last].text.len();
        }
        text.push_str(source.get(copied..)?);
        Some(text)
    }
}

fn is_symbol(token: &Token<'_>, symbol: &str) -> bool {
    token.text == symbol
}

/// The replacement for the longest known path at the start of `tokens`, and the index of its last token.
fn replacement(tokens: &[Token<'_>], [labels, annotations, taints]: [&str; 3]) -> Option<(String, usize)> {
    let plain = |at: usize| if is_symbol(tokens.get(at)?, ".") { tokens.get(at + 1)?.name() } else { None };
    let optional = |at: usize| {
        let dots = is_symbol(tokens.get(at)?, ".") && is_symbol(tokens.get(at + 1)?, "?");
        if dots { tokens.get(at + 2)?.name() } else { None }
    };
    let first = plain(1)?;
    let filled = |second: &str| match (first, second) {
        ("metadata", "labels") => Some(labels),
        ("metadata", "annotations") => Some(annotations),
        ("spec", "taints") => Some(taints),
        _ => None,
    };
    match (plain(3), optional(3)) {
        (Some(second), _) => match filled(second) {
            Some(variable) => Some((variable.to_owned(), 4)),
            None => Some((format!("object.{first}"), 2)),
        },
        (_, Some(second)) => match filled(second) {
            Some(variable) => Some((format!("optional.of({variable})"), 5)),
            None => Some((format!("object.{first}"), 2)),
        },
        // A whole `metadata` or `spec` always has labels or taints here, but not in the API server.
        _ if first == "metadata" || first == "spec" => None,
        _ => Some((format!("object.{first}"), 2)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cel::{Scope, Yields};

    fn renamed(source: &str) -> Option<String> {
        Expression::compile(source, Scope::Node, Yields::Bool).unwrap().in_native_node("L", "A", "T")
    }

    #[test]
    fn a_node_is_written_as_the_object_with_labels_annotations_and_taints_filled_in() {
        for (source, instead) in [
            (r#"node.status.nodeInfo.architecture == "arm64""#, r#"object.status.nodeInfo.architecture == "arm64""#),
            (
                r#""a" in node.metadata.labels && node.spec.?providerID.hasValue()"#,
                r#""a" in L && object.spec.?providerID.hasValue()"#,
            ),
            (
                r#"node.metadata.?labels[?"a"].orValue("node.x") == "b""#,
                r#"optional.of(L)[?"a"].orValue("node.x") == "b""#,
            ),
            (r#"has(node.metadata.annotations) && "a" in node.metadata.annotations"#, r#"has(A) && "a" in A"#),
            (r#"node.spec.taints.exists(t, t.key == "x")"#, r#"T.exists(t, t.key == "x")"#),
            // Fields named `node` are not the variable.
            (
                r#"dyn(node.status).node == "x" || dyn(node.status).?node.hasValue()"#,
                r#"dyn(object.status).node == "x" || dyn(object.status).?node.hasValue()"#,
            ),
        ] {
            assert_eq!(renamed(source).as_deref(), Some(instead), "{source}");
        }
    }

    #[test]
    fn what_has_no_equivalent_is_told() {
        assert_eq!(renamed(r#"node["metadata"].name == "a""#), None);
        assert_eq!(renamed(r#"has(node.metadata) && size(node.spec) > 0"#), None);
        assert_eq!(renamed(r#"dyn(node.metadata.`labels` in [{"a": "b"}])"#), None);
    }
}
