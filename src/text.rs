//! Text that others wrote (nodes, users, files), as a terminal may show it.
//!
//! An escape sequence in an annotation or in a file's name must not move the cursor, and a text must not look like another
//! one. What is escaped is written as JSON writes it (`\u001b`), so that the same holds within JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal may do something else with this character than show it in its place: control characters (C0, DEL,
/// C1), separators of lines, and those that turn the direction of writing (Unicode's `Bidi_Control`).
fn is_unsafe(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || turns
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&is_escaped) else { return Cow::Borrowed(text) };
    let mut safe = String::with_capacity(text.len() + 16);
    safe.push_str(&text[..first]);
    for c in text[first..].chars() {
        if is_escaped(c) {
            // All of them are below U+10000, so four digits are enough. Writing to a text cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// The text on one line: newlines are escaped too.
pub fn on_a_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// The text with its newlines, which are the writer's own.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unsafe(c))
}

/// A line of log, of which only the last newline is the writer's own.
pub fn log_line(text: &str) -> Cow<'_, str> {
    match text.strip_suffix('\n').map(on_a_line) {
        Some(Cow::Borrowed(_)) => Cow::Borrowed(text),
        Some(Cow::Owned(safe)) => Cow::Owned(safe + "\n"),
        None => on_a_line(text),
    }
}

/// Cuts a text to so many bytes, at a character, with `…` as the last one.
pub fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max.saturating_sub('…'.len_utf8())));
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_a_character_and_says_so() {
        for (text, max, expected) in
            [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc…"), ("aäöü", 6, "aä…"), ("äöüß", 6, "ä…")]
        {
            let mut shorter = text.to_owned();
            cut(&mut shorter, max);
            assert_eq!(shorter, expected, "{text}");
            assert!(shorter.len() <= max);
        }
    }

    #[test]
    fn whatever_a_terminal_acts_upon_is_escaped() {
        let hostile = "\u{1b}[2J\r\u{9b}31m\u{7f}\0\t\u{202e}gnp\u{2066}\u{200f}\u{2028}\n";
        assert_eq!(on_a_line(hostile), r"\u001b[2J\u000d\u009b31m\u007f\u0000\u0009\u202egnp\u2066\u200f\u2028\u000a");
        assert_eq!(lines(hostile), "\\u001b[2J\\u000d\\u009b31m\\u007f\\u0000\\u0009\\u202egnp\\u2066\\u200f\\u2028\n");
        for c in (0..0x20).chain(0x7f..0xa0).chain(0x202a..0x202f).chain(0x2066..0x206a).filter_map(char::from_u32) {
            assert_eq!(on_a_line(&c.to_string()), format!("\\u{:04x}", u32::from(c)));
        }
    }

    #[test]
    fn what_is_text_stays_as_it_is() {
        let plain = "tier=gold, \u{201e}é\u{201c} → 日本語 \u{1f680}\n  second line\n";
        assert!(matches!(lines(plain), Cow::Borrowed(text) if text == plain));
        assert!(matches!(on_a_line("hardware.tier"), Cow::Borrowed(_)));
        assert!(matches!(log_line("INFO changed\n"), Cow::Borrowed(_)));
        assert_eq!(log_line("a\nb\r\n"), "a\\u000ab\\u000d\n");
    }

    #[test]
    fn json_stays_json_and_says_the_same() {
        let hostile = "\u{1b}[2J \u{9b} \u{7f} \u{202e} \u{2028} \\ \" end";
        let json = serde_json::json!({ "a": hostile }).to_string();
        let safe = lines(&json);
        assert!(!safe.chars().any(is_unsafe), "{safe}");
        let read: serde_json::Value = serde_json::from_str(&safe).unwrap_or_default();
        assert_eq!(read["a"], hostile);
    }
}
