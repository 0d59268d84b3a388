//! Converts an expression over a write for the API server's own CEL, in which labels, annotations, taints and some fields of
//! `request` may be absent.

use super::Expression;
use super::tokens::Token;

/// The replacements for `object` and parts of it.
#[derive(Clone, Copy, Debug)]
pub struct ObjectNames<'n> {
    /// The object.
    pub object: &'n str,
    /// Its labels, empty where it has none.
    pub labels: &'n str,
    /// Its annotations, empty where it has none.
    pub annotations: &'n str,
    /// Its taints, empty where it has none.
    pub taints: &'n str,
}

impl Expression {
    /// The text with `object` written as `names` say. `None` where a variable is used in a way that has no such
    /// equivalent (as a whole, or by a computed field).
    #[must_use]
    pub fn in_native_write(&self, names: &ObjectNames<'_>) -> Option<String> {
        let source = self.source();
        let tokens = Token::all(&self.compiled);
        let mut text = String::with_capacity(source.len());
        let mut copied = 0;
        for at in 0..tokens.len() {
            let reader = Reader { tokens: &tokens, at };
            if reader.is_selected() {
                continue;
            }
            let (instead, last) = match tokens[at].name() {
                Some("object") => reader.object(names)?,
                Some("oldObject") => reader.old_object()?,
                Some("request") => reader.request()?,
                // The variable of a loop would shadow the replacement.
                Some("variables") => return None,
                Some("optional") if !reader.is_symbol(Some(at + 1), ".") => return None,
                _ => continue,
            };
            text.push_str(source.get(copied..tokens[at].at)?);
            text.push_str(&instead);
            copied = tokens[last].at + tokens[last].text.len();
        }
        text.push_str(source.get(copied..)?);
        // A comment at the end must not include the following text.
        Some(if source.contains("//") { format!("({text}\n)") } else { format!("({text})") })
    }
}

/// A variable and its position among the tokens.
struct Reader<'t> {
    tokens: &'t [Token<'t>],
    at: usize,
}

/// `.name` or `.?name`, and the index of the token with the name.
struct Field<'t> {
    name: &'t str,
    optional: bool,
    last: usize,
}

impl<'t> Reader<'t> {
    fn is_symbol(&self, at: Option<usize>, symbol: &str) -> bool {
        let token = at.and_then(|at| self.tokens.get(at));
        token.is_some_and(|token| token.text == symbol)
    }

    /// Whether this is a field and not a variable.
    fn is_selected(&self) -> bool {
        let before = |back: usize| self.at.checked_sub(back);
        self.is_symbol(before(1), ".") || (self.is_symbol(before(2), ".") && self.is_symbol(before(1), "?"))
    }

    fn field(&self, after: usize) -> Option<Field<'t>> {
        if !self.is_symbol(Some(after + 1), ".") {
            return None;
        }
        let optional = self.is_symbol(Some(after + 2), "?");
        let last = after + if optional { 3 } else { 2 };
        Some(Field { name: self.tokens.get(last)?.name()?, optional, last })
    }

    /// Whether the path that ends with the token `last` is the argument of `has(…)`.
    fn is_asked_for(&self, last: usize) -> bool {
        let has = self.at.checked_sub(2).and_then(|at| self.tokens.get(at)?.name()) == Some("has");
        has && self.is_symbol(self.at.checked_sub(1), "(") && self.is_symbol(Some(last + 1), ")")
    }

    /// Whether the variable itself is compared with null.
    fn is_compared_with_null(&self) -> bool {
        let null = |at: usize| self.tokens.get(at).and_then(|token| token.name()) == Some("null");
        let compares = |at: Option<usize>| self.is_symbol(at, "==") || self.is_symbol(at, "!=");
        let after = compares(Some(self.at + 1)) && null(self.at + 2);
        after || (compares(self.at.checked_sub(1)) && self.at.checked_sub(2).is_some_and(null))
    }

    fn object(&self, names: &ObjectNames<'_>) -> Option<(String, usize)> {
        let itself = || Some((names.object.to_owned(), self.at));
        let Some(first) = self.field(self.at) else { return self.is_compared_with_null().then(itself)? };
        if first.name != "metadata" && first.name != "spec" {
            return itself();
        }
        // A whole `metadata` or `spec` always has labels or taints here, but not in the API server.
        let second = self.field(first.last)?;
        let filled = match (first.name, second.name) {
            ("metadata", "labels") => names.labels,
            ("spec", "taints") => names.taints,
            ("metadata", "annotations") => names.annotations,
            _ => return itself(),
        };
        Some(match (self.is_asked_for(second.last), first.optional || second.optional) {
            (true, _) => ("object.metadata".to_owned(), second.last),
            (_, true) => (format!("optional.of({filled})"), second.last),
            _ => (filled.to_owned(), second.last),
        })
    }

    fn old_object(&self) -> Option<(String, usize)> {
        let itself = || Some(("oldObject".to_owned(), self.at));
        let Some(first) = self.field(self.at) else { return self.is_compared_with_null().then(itself)? };
        if first.optional {
            return None;
        }
        if first.name != "metadata" && first.name != "spec" {
            return itself();
        }
        let second = self.field(first.last)?;
        let filled = match (first.name, second.name) {
            ("metadata", "labels") => "oldObject.metadata.?labels.orValue({})",
            ("metadata", "annotations") => "oldObject.metadata.?annotations.orValue({})",
            ("spec", "taints") => "oldObject.spec.?taints.orValue([])",
            _ => return itself(),
        };
        Some(match (self.is_asked_for(second.last), second.optional) {
            (true, _) => ("oldObject.metadata".to_owned(), second.last),
            (_, true) => (format!("optional.of({filled})"), second.last),
            _ => (filled.to_owned(), second.last),
        })
    }

    /// The API server omits empty fields of `request`.
    fn request(&self) -> Option<(String, usize)> {
        let itself = || Some(("request".to_owned(), self.at));
        let first = self.field(self.at).filter(|field| !field.optional)?;
        let second = (first.name == "userInfo").then(|| self.field(first.last));
        let (instead, field) = match (first.name, second) {
            ("operation" | "dryRun", _) => return itself(),
            ("name" | "subResource", _) => (format!("request.?{}.orValue(\"\")", first.name), first),
            (_, Some(Some(second))) => {
                let empty = match second.name {
                    "groups" => "[]",
                    "extra" => "{}",
                    _ => return itself(),
                };
                (format!("request.userInfo.?{}.orValue({empty})", second.name), second)
            }
            _ => return None,
        };
        (!field.optional && !self.is_asked_for(field.last)).then_some((instead, field.last))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cel::{Scope, Yields};

    fn rewritten(source: &str) -> Option<String> {
        let names = ObjectNames { object: "o", labels: "L", annotations: "A", taints: "T" };
        Expression::compile(source, Scope::Write, Yields::Bool).unwrap().in_native_write(&names)
    }

    #[test]
    fn what_is_always_there_here_is_filled_in_there() {
        for (source, instead) in [
            (r#""object.x" in object.metadata.labels"#, r#"("object.x" in L)"#),
            (
                r#"oldObject == null || oldObject.metadata.labels["a"] == object.metadata.?labels[?"a"].orValue("")"#,
                r#"(oldObject == null || oldObject.metadata.?labels.orValue({})["a"] == optional.of(L)[?"a"].orValue(""))"#,
            ),
            (
                r#"object.?spec.?taints.orValue([]).size() > 0 && has(object.spec.taints)"#,
                r#"(optional.of(T).orValue([]).size() > 0 && has(object.metadata))"#,
            ),
            (
                r#"request.subResource == "status" && "a" in request.userInfo.groups && object.status.phase == """#,
                r#"(request.?subResource.orValue("") == "status" && "a" in request.userInfo.?groups.orValue([]) && o.status.phase == "")"#,
            ),
            (
                r#""gpu" in request.userInfo.extra["pool"] && request.userInfo.extra.?arn.hasValue()"#,
                r#"("gpu" in request.userInfo.?extra.orValue({})["pool"] && request.userInfo.?extra.orValue({}).?arn.hasValue())"#,
            ),
            ("object.metadata.annotations.all(k, k != \"x\") // ok", "(A.all(k, k != \"x\") // ok\n)"),
            (
                r#"has(object.metadata.annotations) && "a" in oldObject.metadata.annotations"#,
                r#"(has(object.metadata) && "a" in oldObject.metadata.?annotations.orValue({}))"#,
            ),
            (
                r#"object.metadata.?labels[?"a"] != optional.none() || optional.of("b").hasValue()"#,
                r#"(optional.of(L)[?"a"] != optional.none() || optional.of("b").hasValue())"#,
            ),
        ] {
            assert_eq!(rewritten(source).as_deref(), Some(instead), "{source}");
        }
    }

    #[test]
    fn what_has_no_equivalent_is_told() {
        for source in [
            r#"object["metadata"].name == "a""#,
            "object == oldObject",
            "has(object.metadata) && size(oldObject.spec) > 0",
            r#"["a"].all(variables, variables in object.metadata.labels)"#,
            r#"["a"].all(optional, optional in object.metadata.?labels.orValue({}))"#,
            r#"has(request.subResource) && object.metadata.name == "a""#,
        ] {
            assert_eq!(rewritten(source), None, "{source}");
        }
    }
}
