//! The named patterns of `governance.naming`.

/// A convention that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Lower-case words joined by single hyphens; dots part a hierarchy, as in `hardware.tier`.
    KebabCase,
    /// No upper-case letter.
    LowerCase,
    /// A key with a prefix, as in `example.com/rack`.
    Namespaced,
}

impl Pattern {
    /// All of them, by name.
    pub(crate) const NAMED: [(&str, Self); 3] =
        [("kebab-case", Self::KebabCase), ("lower-case", Self::LowerCase), ("namespaced", Self::Namespaced)];

    /// Whether a text keeps the convention. Of a key, a prefix is a DNS name and has no say but in [`Self::Namespaced`].
    pub(crate) fn is_kept_by(self, text: &str, is_key: bool) -> bool {
        let name = own_part(text, is_key);
        match self {
            Self::KebabCase => name.is_empty() || name.split(['-', '.']).all(is_word),
            Self::LowerCase => !name.contains(|letter: char| letter.is_ascii_uppercase()),
            Self::Namespaced => text.contains('/'),
        }
    }

    /// What it asks for, in words.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::KebabCase => "kebab-case: lower-case words joined by '-' or '.'",
            Self::LowerCase => "lower-case",
            Self::Namespaced => "namespaced: a prefix such as example.com/ before the name",
        }
    }

    /// The text as the convention would have it, where that is plain.
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
    fn conventions_are_about_the_name_and_say_what_to_write_instead() {
        for (kept, text) in [
            (true, "hardware.tier"),
            (true, "example.com/rack-row-7"),
            (true, "node-type"),
            (false, "Node-Type"),
            (false, "node_type"),
            (false, "node--type"),
            (false, "example.com/Rack"),
        ] {
            assert_eq!(Pattern::KebabCase.is_kept_by(text, true), kept, "{text}");
        }
        assert_eq!(
            Pattern::KebabCase.instead_of("example.com/Rack_Row", true).as_deref(),
            Some("example.com/rack-row")
        );
        assert_eq!(Pattern::KebabCase.instead_of("a--b", true), None);
        assert!(Pattern::LowerCase.is_kept_by("a_b", true) && !Pattern::LowerCase.is_kept_by("aB", false));
        assert!(Pattern::Namespaced.is_kept_by("a.io/b", true) && !Pattern::Namespaced.is_kept_by("b", true));
    }
}
