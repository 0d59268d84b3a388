//! The named patterns of `governance.naming`.

/// A named convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamingConvention {
    /// Lower-case words joined by single hyphens; dots separate levels, as in `hardware.tier`.
    KebabCase,
    /// No upper-case letter.
    LowerCase,
    /// A key with a prefix, as in `example.com/rack`.
    Namespaced,
}

impl NamingConvention {
    /// All of them, by name.
    pub(crate) const NAMED: [(&str, Self); 3] =
        [("kebab-case", Self::KebabCase), ("lower-case", Self::LowerCase), ("namespaced", Self::Namespaced)];

    /// Whether a text follows the convention. The prefix of a key is a DNS name and is checked only by [`Self::Namespaced`].
    pub(crate) fn is_kept_by(self, text: &str, is_key: bool) -> bool {
        let name = own_part(text, is_key);
        match self {
            Self::KebabCase => name.is_empty() || name.split(['-', '.']).all(is_word),
            Self::LowerCase => !name.contains(|letter: char| letter.is_ascii_uppercase()),
            Self::Namespaced => text.contains('/'),
        }
    }

    /// The convention in words, for messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::KebabCase => "kebab-case (lower-case words joined by '-' or '.')",
            Self::LowerCase => "lower-case",
            Self::Namespaced => "namespaced (a prefix such as example.com/ before the name)",
        }
    }

    /// The text in the form of the convention, if there is an obvious one.
    pub(crate) fn instead_of(self, text: &str, is_key: bool) -> Option<String> {
        let name = own_part(text, is_key);
        let prefix = &text[..text.len() - name.len()];
        let mended = match self {
            Self::KebabCase => name.to_ascii_lowercase().replace('_', "-"),
            Self::LowerCase => name.to_ascii_lowercase(),
            Self::Namespaced => return None,
        };
        let mended = format!("{prefix}{mended}");
        self.is_kept_by(&mended, is_key).then_some(mended)
    }
}

fn own_part(text: &str, is_key: bool) -> &str {
    match text.split_once('/') {
        Some((_, name)) if is_key => name,
        _ => text,
    }
}

fn is_word(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conventions_apply_to_the_name_and_suggest_a_valid_one() {
        for (kept, text) in [
            (true, "hardware.tier"),
            (true, "example.com/rack-row-7"),
            (true, "node-type"),
            (false, "Node-Type"),
            (false, "node_type"),
            (false, "node--type"),
            (false, "example.com/Rack"),
        ] {
            assert_eq!(NamingConvention::KebabCase.is_kept_by(text, true), kept, "{text}");
        }
        assert_eq!(
            NamingConvention::KebabCase.instead_of("example.com/Rack_Row", true).as_deref(),
            Some("example.com/rack-row")
        );
        assert_eq!(NamingConvention::KebabCase.instead_of("a--b", true), None);
        assert!(
            NamingConvention::LowerCase.is_kept_by("a_b", true) && !NamingConvention::LowerCase.is_kept_by("aB", false)
        );
        assert!(
            NamingConvention::Namespaced.is_kept_by("a.io/b", true)
                && !NamingConvention::Namespaced.is_kept_by("b", true)
        );
    }
}
