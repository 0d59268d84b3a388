//! Regular expressions with the same meaning in the API server, which uses Go's RE2 dialect.

/// Whether a pattern has the same meaning in both dialects for ASCII texts: it uses only common syntax.
pub(in crate::native) fn is_same_to_re2(pattern: &str) -> bool {
    let mut rest = pattern;
    // Go multiplies the counts of nested repetitions and refuses more than 1,000.
    let mut repeated: u64 = 1;
    let mut after_repetition = false;
    while let Some(first) = rest.chars().next() {
        let next = rest.get(1..).and_then(|rest| rest.chars().next());
        let mut repetition = matches!(first, '*' | '+' | '?');
        let shared = match (first, next) {
            ('\\', Some(escaped)) => {
                rest = rest.get(1..).unwrap_or_default();
                "dwsDWS.-/+*?()|[]{}^$\\".contains(escaped)
            }
            ('\\', None) => false,
            ('(', Some('?')) => {
                let plain = rest.starts_with("(?:");
                rest = rest.get(2..).unwrap_or_default();
                plain
            }
            ('{', _) => {
                repetition = true;
                let count = count(rest);
                repeated = repeated.saturating_mul(count.unwrap_or_default().max(1));
                rest = rest.find('}').and_then(|end| rest.get(end..)).unwrap_or_default();
                count.is_some() && repeated <= REPEATED_MAX
            }
            // Go does not support repeated repetitions, except lazy ones.
            ('*' | '+', _) if after_repetition => false,
            ('?', Some('*' | '+' | '?' | '{')) if after_repetition => false,
            ('&' | '~', _) => false,
            ('-', Some('-')) => false,
            ('[', Some('[' | ':')) => false,
            (other, _) => other.is_ascii_graphic() || other == ' ',
        };
        if !shared || (first == '{' && after_repetition) {
            return false;
        }
        after_repetition = repetition;
        rest = rest.get(1..).unwrap_or_default();
    }
    true
}

/// Maximum number of repetitions that Go accepts.
const REPEATED_MAX: u64 = 1000;

/// The larger number of `{n}`, `{n,}` or `{n,m}` at the start of a text.
fn count(text: &str) -> Option<u64> {
    let (inner, _) = text.strip_prefix('{')?.split_once('}')?;
    let (from, to) = inner.split_once(',').unwrap_or((inner, ""));
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let from: u64 = number(from)?;
    if to.is_empty() { Some(from) } else { number(to).map(|to: u64| to.max(from)) }
}

#[cfg(test)]
mod tests {
    use super::is_same_to_re2;

    #[test]
    fn only_patterns_that_mean_the_same_are_exported() {
        for pattern in ["a|b", r"rack-[0-9]{2}\.[a-z]+", "(?:x|y)*", r"\d+", "a{2,}?b{3,5}", "a*?"] {
            assert!(is_same_to_re2(pattern), "{pattern}");
        }
        for pattern in [
            "(?x) a",
            "(?<n>a)",
            "[a-z&&[^b]]",
            r"\p{Greek}",
            r"\bx",
            "é",
            "[[:alpha:]]",
            "\\",
            "a**",
            "a{2}{3}",
            "a{2}*",
            "a{,3}",
            "a{1001}",
            "(a{100}){11}",
            "(?i)a",
            "a*??",
        ] {
            assert!(!is_same_to_re2(pattern), "{pattern}");
        }
    }
}
