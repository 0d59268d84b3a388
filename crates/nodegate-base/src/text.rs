//! Escapes text from external sources (nodes, users, files) for a terminal.
//!
//! An escape sequence in an annotation or a file name must not move the cursor, and one text must not look like
//! another. Characters are escaped as in JSON (`\u001b`), so that JSON stays valid.

use std::borrow::Cow;
use std::fmt::Write as _;

pub use nodegate_policy::api::names::or_quotes;

/// Whether a terminal may interpret this character instead of showing it: control characters (C0, DEL, C1), line
/// separators, characters that change the writing direction (Unicode's `Bidi_Control`), and characters without a width
/// that nobody needs to tell words apart.
fn is_unsafe(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hides = matches!(c, '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || turns || hides
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Nobody escapes printable ASCII, and nearly every text has nothing else.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let Some(first) = text.find(&is_escaped) else { return Cow::Borrowed(text) };
    let mut safe = String::with_capacity(text.len() + 16);
    safe.push_str(&text[..first]);
    for c in text[first..].chars() {
        if is_escaped(c) {
            // All of them are below U+10000, so four digits suffice. Writing to a String cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Escapes text for a single line: newlines are escaped too.
pub fn on_a_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// Escapes text in which newlines are intended.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unsafe(c))
}

/// Escapes a log line, in which only the final newline is intended.
pub fn log_line(text: &str) -> Cow<'_, str> {
    match text.strip_suffix('\n').map(on_a_line) {
        Some(Cow::Borrowed(_)) => Cow::Borrowed(text),
        Some(Cow::Owned(safe)) => Cow::Owned(safe + "\n"),
        None => on_a_line(text),
    }
}

/// Truncates a text to this many bytes at a character boundary, with `…` as the last character.
pub fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max.saturating_sub('…'.len_utf8())));
        text.push('…');
    }
}

/// As [`cut`], to so many characters.
pub fn cut_to_characters(text: &mut String, max: usize) {
    let is_longer = text.chars().nth(max).is_some();
    if let Some((at, _)) = text.char_indices().nth(max.saturating_sub(1)).filter(|_| is_longer) {
        text.truncate(at);
        text.push('…');
    }
}

/// A line in lines of at most `width` characters, cut between words; those after the first are indented by `indent`. A longer
/// word stays whole, and so does a command in backticks, so that they can be copied.
pub fn wrapped(line: &str, width: usize, indent: usize) -> String {
    let start = line.len() - line.trim_start().len();
    let (mut text, mut column) = (line[..start].to_owned(), start);
    let mut words: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in line.trim_start().split(' ') {
        match words.last_mut().filter(|_| is_open) {
            Some(command) => *command = format!("{command} {word}"),
            None => words.push(word.to_owned()),
        }
        is_open ^= word.matches('`').count() % 2 == 1;
    }
    for (at, word) in words.iter().enumerate() {
        let length = word.chars().count();
        if at > 0 && column + 1 + length > width {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if at > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

/// Bytes as hexadecimal digits in lower case.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number of things: `1 node`, `2 nodes`.
pub fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_two_hexadecimal_digits() {
        assert_eq!(hexadecimal(&[0, 10, 255]), "000aff");
    }

    #[test]
    fn a_line_is_cut_between_words_and_a_long_word_stays_whole() {
        assert_eq!(wrapped("  ab cd ef", 8, 4), "  ab cd\n    ef");
        assert_eq!(wrapped("a bbbbbbbbbb c", 6, 1), "a\n bbbbbbbbbb\n c");
        assert_eq!(wrapped("a:   b c", 8, 5), "a:   b c", "columns stay");
        assert_eq!(wrapped("run `a b c` d", 8, 2), "run\n  `a b c`\n  d");
        assert_eq!((wrapped("", 8, 2), wrapped("ab cd", 5, 2)), (String::new(), "ab cd".to_owned()));
        assert_eq!(wrapped("äöü äöü", 7, 2), "äöü äöü", "characters count, not bytes");
    }

    #[test]
    fn a_text_is_truncated_at_a_character_boundary_and_ends_with_an_ellipsis() {
        for (text, max, expected) in
            [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc…"), ("aäöü", 6, "aä…"), ("äöüß", 6, "ä…")]
        {
            let mut shorter = text.to_owned();
            cut(&mut shorter, max);
            assert_eq!(shorter, expected, "{text}");
            assert!(shorter.len() <= max);
        }
        for (text, max, expected) in [("aäöü", 4, "aäöü"), ("aäöüß", 4, "aäö…"), ("abcdef", 5, "abcd…"), ("", 1, "")]
        {
            let mut shorter = text.to_owned();
            cut_to_characters(&mut shorter, max);
            assert_eq!(shorter, expected, "{text}");
        }
    }

    #[test]
    fn characters_that_a_terminal_interprets_are_escaped() {
        let hostile = "\u{1b}[2J\r\u{9b}31m\u{7f}\0\t\u{202e}gnp\u{2066}\u{200f}\u{2028}\n";
        assert_eq!(on_a_line(hostile), r"\u001b[2J\u000d\u009b31m\u007f\u0000\u0009\u202egnp\u2066\u200f\u2028\u000a");
        assert_eq!(lines(hostile), "\\u001b[2J\\u000d\\u009b31m\\u007f\\u0000\\u0009\\u202egnp\\u2066\\u200f\\u2028\n");
        let hidden = [0xad, 0x200b, 0x2060, 0x2064, 0xfeff, 0xfff9];
        let codes = (0..0x20).chain(0x7f..0xa0).chain(0x202a..0x202f).chain(0x2066..0x206a).chain(hidden);
        for c in codes.filter_map(char::from_u32) {
            assert_eq!(on_a_line(&c.to_string()), format!("\\u{:04x}", u32::from(c)));
        }
    }

    #[test]
    fn plain_text_is_unchanged() {
        let plain = "tier=gold, \u{201e}é\u{201c} → 日本語 \u{1f680}\n  second line\n";
        assert!(matches!(lines(plain), Cow::Borrowed(text) if text == plain));
        assert!(matches!(on_a_line("hardware.tier"), Cow::Borrowed(_)));
        assert!(matches!(log_line("INFO changed\n"), Cow::Borrowed(_)));
        assert_eq!(log_line("a\nb\r\n"), "a\\u000ab\\u000d\n");
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let hostile = "\u{1b}[2J \u{9b} \u{7f} \u{202e} \u{2028} \\ \" end";
        let json = serde_json::json!({ "a": hostile }).to_string();
        let safe = lines(&json);
        assert!(!safe.chars().any(is_unsafe), "{safe}");
        let read: serde_json::Value = serde_json::from_str(&safe).unwrap_or_default();
        assert_eq!(read["a"], hostile);
    }
}
