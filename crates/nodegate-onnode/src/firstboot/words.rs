//! Words of a command in a unit, as systemd splits them (`src/basic/extract-word.c`, with the flags of `ExecStart=`).

use std::ops::Range;

/// What separates words.
pub(super) const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// One word.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Where it is in the text, with its quotes.
    pub(super) raw: Range<usize>,
    /// What it means without quotes and escapes. An escape can stand for any byte.
    pub(super) value: Vec<u8>,
}

/// A quote that is not closed, or a backslash with nothing after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unbalanced;

/// The next word at or after this position.
pub(super) fn next(text: &str, from: usize) -> Result<Option<Word>, Unbalanced> {
    let Some(skipped) = text[from..].find(|c| !WHITESPACE.contains(&c)) else { return Ok(None) };
    let start = from + skipped;
    let mut value = Vec::new();
    let mut quote = None;
    let mut at = start;
    while let Some(c) = text[at..].chars().next() {
        at += c.len_utf8();
        match c {
            '\\' => at += escape(&text[at..], &mut value)?,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            _ if quote.is_none() && WHITESPACE.contains(&c) => {
                return Ok(Some(Word { raw: start..at - c.len_utf8(), value }));
            }
            _ => value.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    if quote.is_some() { Err(Unbalanced) } else { Ok(Some(Word { raw: start..at, value })) }
}

/// Adds what the escape stands for, and returns the length of what follows the backslash. An unknown escape stands for itself.
fn escape(rest: &str, value: &mut Vec<u8>) -> Result<usize, Unbalanced> {
    let first = rest.chars().next().ok_or(Unbalanced)?;
    let plain = match first {
        'a' => Some(0x07),
        'b' => Some(0x08),
        'f' => Some(0x0c),
        'n' => Some(b'\n'),
        'r' => Some(b'\r'),
        't' => Some(b'\t'),
        'v' => Some(0x0b),
        's' => Some(b' '),
        '\\' => Some(b'\\'),
        '"' => Some(b'"'),
        '\'' => Some(b'\''),
        _ => None,
    };
    if let Some(byte) = plain {
        value.push(byte);
        return Ok(1);
    }
    if let Some(length) = numeric(first, rest, value) {
        return Ok(length);
    }
    value.push(b'\\');
    value.extend(first.encode_utf8(&mut [0; 4]).bytes());
    Ok(first.len_utf8())
}

/// `\x20`, `\u00e9`, `\U0001f680` and `\040`. NUL is not allowed.
fn numeric(first: char, rest: &str, value: &mut Vec<u8>) -> Option<usize> {
    let (start, digits, radix) = match first {
        'x' => (1, 2, 16),
        'u' => (1, 4, 16),
        'U' => (1, 8, 16),
        '0'..='7' => (0, 3, 8),
        _ => return None,
    };
    let text = rest.get(start..start + digits).filter(|text| text.chars().all(|c| c.is_digit(radix)))?;
    let code = u32::from_str_radix(text, radix).ok().filter(|code| *code > 0)?;
    if matches!(first, 'u' | 'U') {
        value.extend(char::from_u32(code)?.encode_utf8(&mut [0; 4]).bytes());
    } else {
        value.push(u8::try_from(code).ok()?);
    }
    Some(start + digits)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<String>, Unbalanced> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(word) = next(text, at)? {
            at = word.raw.end;
            found.push(String::from_utf8_lossy(&word.value).into_owned());
        }
        Ok(found)
    }

    #[test]
    fn words_are_split_as_systemd_does() {
        for (text, expected) in [
            ("", &[] as &[&str]),
            ("  a \t b ", &["a", "b"]),
            (r#"a "b c" 'd "e'"#, &["a", "b c", "d \"e"]),
            (r#"--a="b c"d"#, &["--a=b cd"]),
            (r#""" x"#, &["", "x"]),
            (r"a\x20b \u00e9 \U0001f680 \101 \s", &["a b", "é", "🚀", "A", " "]),
            (r"\z \x0g \000 \x00 \777", &[r"\z", r"\x0g", r"\000", r"\x00", r"\777"]),
            (r#""a\"b" 'a\'b' a\\b"#, &["a\"b", "a'b", "a\\b"]),
            ("%H $A ${B} $$C", &["%H", "$A", "${B}", "$$C"]),
        ] {
            assert_eq!(all(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn an_open_quote_and_a_lone_backslash_are_faults() {
        for text in ["a \"b", "'", "a \\", "\"a\\\"", "a'b c"] {
            assert_eq!(all(text), Err(Unbalanced), "{text}");
        }
    }
}
