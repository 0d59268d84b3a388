//! Quotes texts from outside in messages.

use std::fmt;

/// As much of a text as a message repeats, in bytes: the length of the longest key of a label.
const QUOTED_MAX: usize = 253 + 1 + 63;

/// A text in quotes, for messages. Control characters are escaped.
///
/// # Guarantees
/// A long text is truncated before it is escaped. Otherwise a text of megabytes would make a message that is six times as long,
/// and every copy of that message would take memory.
#[derive(Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.floor_char_boundary(QUOTED_MAX)];
        write!(f, "{shown:?}")?;
        if shown.len() < self.0.len() { f.write_str("…") } else { Ok(()) }
    }
}

impl fmt::Debug for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_quoted_as_far_as_the_longest_key_and_truncated_before_it_is_escaped() {
        assert_eq!(Quoted("a\n\"b\"").to_string(), r#""a\n\"b\"""#);
        let longest = "x".repeat(QUOTED_MAX);
        assert_eq!(Quoted(&longest).to_string(), format!("{longest:?}"));
        let long = Quoted(&"\u{7f}".repeat(1 << 20)).to_string();
        assert_eq!(long.len(), 2 + r"\u{7f}".len() * QUOTED_MAX + "…".len());
        assert!(Quoted(&"ä".repeat(QUOTED_MAX)).to_string().ends_with("ä\"…"));
    }
}
