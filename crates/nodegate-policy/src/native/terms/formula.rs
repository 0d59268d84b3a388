//! Conditions as CEL text that can be nested anywhere.

use crate::decide::left_at_join::LEFT_AT_JOIN;
use crate::keys::compile_budget::CompileBudget;
use crate::keys::pattern::{KeySet, SYSTEM_NAMES, glob, is_glob};

/// A condition in the API server's CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::native) enum Formula {
    /// It always holds.
    Always,
    /// It never holds.
    Never,
    /// Text that can be an operand of `!`, `&&`, `||` and `?:` as it stands.
    When(String),
}

impl Formula {
    /// Holds if all do.
    pub(in crate::native) fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::joined(parts, &Self::Always, &Self::Never, " && ")
    }

    /// Holds if one does.
    pub(in crate::native) fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::joined(parts, &Self::Never, &Self::Always, " || ")
    }

    fn joined(parts: impl IntoIterator<Item = Self>, neutral: &Self, decisive: &Self, operator: &str) -> Self {
        let mut texts: Vec<String> = Vec::new();
        for part in parts {
            match part {
                part if part == *decisive => return part,
                Self::When(text) => texts.push(text),
                _ => {}
            }
        }
        match texts.len() {
            0 => neutral.clone(),
            1 => Self::When(texts.remove(0)),
            _ => Self::When(format!("({})", texts.join(operator))),
        }
    }

    /// Holds if this does not.
    pub(in crate::native) fn not(self) -> Self {
        match self {
            Self::Always => Self::Never,
            Self::Never => Self::Always,
            Self::When(text) => Self::When(match text.strip_prefix('!') {
                Some(inner) => inner.to_owned(),
                None => format!("!{text}"),
            }),
        }
    }

    /// The text.
    pub(in crate::native) fn text(self) -> String {
        match self {
            Self::Always => "true".to_owned(),
            Self::Never => "false".to_owned(),
            Self::When(text) => text,
        }
    }
}

impl From<bool> for Formula {
    fn from(holds: bool) -> Self {
        if holds { Self::Always } else { Self::Never }
    }
}

/// A string literal. JSON's escapes are CEL's as well.
pub(in crate::native) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A list of string literals.
pub(in crate::native) fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(quote).collect();
    format!("[{}]", quoted.join(", "))
}

/// Whether `subject` is one of exact texts or matches one of the globs.
pub(in crate::native) fn is_one_of<'a>(subject: &str, texts: impl IntoIterator<Item = &'a str>) -> Formula {
    let (globs, exact): (Vec<&str>, Vec<&str>) = texts.into_iter().partition(|text| is_glob(text));
    let exact = match exact.as_slice() {
        [] => Formula::Never,
        [one] => Formula::When(format!("({subject} == {})", quote(one))),
        many => Formula::When(format!("({subject} in {})", list(many.iter().copied()))),
    };
    let globs = globs.into_iter().map(|text| match text.strip_suffix('*').filter(|prefix| is_plain(prefix)) {
        Some("") => Formula::Always,
        Some(prefix) => Formula::When(format!("{subject}.startsWith({})", quote(prefix))),
        None => match re2(text) {
            Some(pattern) => Formula::When(format!("{subject}.matches({})", quote(&pattern))),
            None => Formula::Never,
        },
    });
    Formula::any([exact].into_iter().chain(globs))
}

/// Whether `subject`, a user or a group, is one of exact names or matches one of the globs, as [`Identities`] reads them.
///
/// [`Identities`]: crate::Identities
pub(in crate::native) fn is_identity<'a>(subject: &str, texts: impl IntoIterator<Item = &'a str>) -> Formula {
    let (anybody, people): (Vec<&str>, Vec<&str>) =
        texts.into_iter().partition(|text| !is_glob(text) || text.starts_with(SYSTEM_NAMES));
    let given = Formula::When(format!("{subject}.startsWith({})", quote(SYSTEM_NAMES))).not();
    let people = Formula::all([is_one_of(subject, people), given]);
    Formula::any([is_one_of(subject, anybody), people])
}

fn is_plain(text: &str) -> bool {
    !is_glob(text) && !text.contains('\\')
}

/// The regular expression of a glob in RE2's dialect. nodegate itself matches it against bytes, which is the same for
/// ASCII.
fn re2(text: &str) -> Option<String> {
    let pattern = glob(text, &CompileBudget::default()).ok()?;
    Some(format!("(?s){}", pattern.regex().strip_prefix("(?-u)")?))
}

/// Whether any of these texts is a glob with another meaning in RE2.
pub(in crate::native) fn has_foreign_glob<'a>(texts: impl IntoIterator<Item = &'a str>) -> bool {
    texts.into_iter().any(|text| is_glob(text) && !text.is_ascii())
}

/// Whether the key in the variable `key` is in the set.
pub(in crate::native) fn in_keys(key: &str, keys: &KeySet) -> Formula {
    let (mut exact, mut others) = (Vec::new(), Vec::new());
    for written in keys.written() {
        match written.strip_suffix("/*") {
            _ if written == "*" => others.push(Formula::Always),
            Some(prefix) => others.push(Formula::When(format!("{key}.startsWith({})", quote(&format!("{prefix}/"))))),
            None => exact.push(written),
        }
    }
    Formula::any([is_one_of(key, exact)].into_iter().chain(others))
}

/// Whether the key in the variable `key` is reserved for nodegate.
pub(in crate::native) fn is_own(key: &str) -> Formula {
    let prefix = crate::keys::restriction::OWN_PREFIX;
    let (exact, below) = (quote(&format!("{prefix}/")), quote(&format!(".{prefix}/")));
    Formula::When(format!("({key}.startsWith({exact}) || {key}.contains({below}))"))
}

/// Whether the annotation in the variable `key` is one that the webhook leaves on a node that joins. The API server calls
/// policies again after the webhook, and then it must stay.
pub(in crate::native) fn is_left_at_join(key: &str) -> Formula {
    Formula::When(format!("(variables.create && {key} in {})", list(LEFT_AT_JOIN)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn conditions_simplify_and_nest() {
        let when = |text: &str| Formula::When(text.to_owned());
        assert_eq!(
            Formula::all([when("a"), Formula::Always, Formula::any([when("b"), when("c")])]).text(),
            "(a && (b || c))"
        );
        assert_eq!(Formula::all([when("a"), Formula::Never]), Formula::Never);
        assert_eq!(when("a").not().not(), when("a"));
        assert_eq!(Formula::any([]).not(), Formula::Always);
    }

    #[test]
    fn a_pattern_means_the_same_to_judge_and_to_the_api_server() {
        use crate::Identities;
        use crate::cel::{Budget, Excerpt, Expression, Paths, RequestVariables, Scope, Variables, Yields};

        let patterns = [
            "*",
            "**",
            "*-sre",
            "s*",
            "system*",
            "system:*",
            "system:serviceaccounts:*",
            "system:masters",
            "oncall",
            "on?all",
            "[s]ystem:*",
            "{system:masters,oncall}",
            "system:{masters,nodes}",
            "nodegate:*",
            "*:*",
            "",
        ];
        let names = [
            "oncall",
            "my-sre",
            "system:masters",
            "system:serviceaccounts:my-sre",
            "system:serviceaccounts",
            "system:",
            "systematic",
            "system:nodes",
            "nodegate:break-glass",
            "sre",
            "",
        ];
        let object = r#"{"metadata": {"name": "n"}}"#;
        let object = Excerpt::read(object, &Paths::Whole, &Budget::default()).unwrap().completed();
        let mut matched = 0;
        for (pattern, name) in patterns.iter().flat_map(|pattern| names.iter().map(move |name| (*pattern, *name))) {
            let text = is_identity("request.userInfo.username", [pattern]).text();
            let expression = Expression::compile(&text, Scope::Write, Yields::Bool).unwrap();
            let request = RequestVariables { username: name, ..RequestVariables::default() };
            let native = expression.evaluate_bool(&Variables::write(&object, None, Some(&request.value()))).unwrap();
            let judged = Identities::parse([pattern]).unwrap().contains(name);
            assert_eq!(native, judged, "{pattern:?} and {name:?}: {text}");
            matched += usize::from(judged);
        }
        assert!(matched > 30, "{matched}");
    }

    #[test]
    fn globs_become_re2() {
        assert_eq!(is_one_of("n", ["a", "gpu-*"]).text(), "((n == \"a\") || n.startsWith(\"gpu-\"))");
        assert_eq!(re2("a?[0-9].{x,y}*").unwrap(), r"(?s)^a.[0-9]\.(?:x|y).*$");
    }
}
