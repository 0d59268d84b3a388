//! Where a quote is that is not closed. The parser notices it only at the next quote, or at the end of the text.

use super::place::SourcePosition;
use crate::api::problem::Problem;

/// Maximum length of a line, in bytes, and…
const LINE_MAX: usize = 4096;
/// …maximum number of quotes, for a text to be searched: each quote is looked for in its whole line. People's files have less, and
/// whoever may send a review can send a text with more.
const QUOTES_MAX: usize = 10_000;

/// The error of a quote that is not closed, if the parser stopped because of one: at the quote, not where the parser stopped.
pub(super) fn open_quote(text: &str, stopped: SourcePosition, message: &str) -> Option<(SourcePosition, Problem)> {
    let is_told = message.contains("quote");
    if text.split('\n').any(|line| line.len() > LINE_MAX) {
        return None;
    }
    let (mut from, mut line) = (0, 1);
    for _ in 0..QUOTES_MAX {
        let start = next_quote(text, from)?;
        let Some(end) = end_of(text, start) else {
            return is_told.then(|| problem_at(text, start)).flatten();
        };
        let is_later = text.get(start..end)?.contains('\n');
        line += text.get(from..end)?.matches('\n').count();
        let is_reason = is_told || line == usize::try_from(stopped.line).ok()?;
        if is_later && is_reason && !ends_a_value(text, end) {
            return problem_at(text, start);
        }
        from = end + 1;
    }
    None
}

fn problem_at(text: &str, start: usize) -> Option<(SourcePosition, Problem)> {
    let place = SourcePosition::of_bytes(text, start..start + 1)?;
    Some((place, Problem::new("invalid YAML: this quote is not closed", "write the same quote at the end of the text")))
}

/// The next quote that begins a value or a key. Quotes in comments and inside of unquoted values do not.
fn next_quote(text: &str, from: usize) -> Option<usize> {
    let mut line = text.get(..from)?.rfind('\n').map_or(0, |end| end + 1);
    let mut at = from;
    loop {
        let rest = text.get(at..)?;
        let length = rest.find('\n').unwrap_or(rest.len());
        let is_at = |found: usize| {
            let before = text.get(line..found).unwrap_or_default();
            let begins = before.trim_end().is_empty() || before.trim_end().ends_with([':', '-', '?', ',', '[', '{']);
            begins && text.get(found..).is_some_and(|rest| rest.starts_with(['"', '\'']))
        };
        let comment = rest.get(..length)?.match_indices('#').map(|(hash, _)| at + hash);
        let comment = comment.into_iter().find(|hash| {
            text.get(line..*hash).is_some_and(|before| before.is_empty() || before.ends_with([' ', '\t']))
        });
        let end = comment.unwrap_or(at + length);
        let found = text.get(at..end)?.match_indices(['"', '\'']).map(|(quote, _)| at + quote).find(|at| is_at(*at));
        if found.is_some() || at + length == text.len() {
            return found;
        }
        at += length + 1;
        line = at;
    }
}

/// Where the text in quotes that begins at `start` ends.
fn end_of(text: &str, start: usize) -> Option<usize> {
    let quote = *text.as_bytes().get(start)?;
    let mut bytes = text.bytes().enumerate().skip(start + 1).peekable();
    while let Some((at, byte)) = bytes.next() {
        let is_escape = if quote == b'"' {
            byte == b'\\'
        } else {
            byte == quote && bytes.peek().is_some_and(|(_, next)| *next == quote)
        };
        if is_escape {
            bytes.next();
        } else if byte == quote {
            return Some(at);
        }
    }
    None
}

/// Whether what follows the closing quote at `end` may follow a value or a key.
fn ends_a_value(text: &str, end: usize) -> bool {
    let rest = text.get(end + 1..).and_then(|rest| rest.lines().next()).unwrap_or_default().trim_start();
    rest.is_empty() || rest.starts_with(['#', ',', ']', '}', ':'])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::api::source::parse_documents;

    /// The line and the column of a quote that is not closed.
    fn open(text: &str) -> (u32, u32) {
        let error = parse_documents(text).unwrap_err();
        assert!(error.to_string().contains("this quote is not closed"), "{text}: {error}");
        let place = error.place.unwrap();
        assert!(["\"", "'"].contains(&&text[place.start()..place.end()]), "{text}");
        (place.line, place.column)
    }

    #[test]
    fn an_open_quote_is_found_before_lines_whose_quotes_match() {
        for (text, place) in [
            ("a: 1\nb: \"x\nc: \"y\"\n", (2, 4)),
            ("a: 1\nb: \"x\nc: \"y\"\nd: \"z\"\n", (2, 4)),
            ("r:\n  - n: 'a\n    l: {a: 'b'}\n  - n: c # it's\n", (2, 8)),
            ("r:\n  - n: \"a\n    l: {a: \"b\", c: \"d\"}\n  - n: 'e'\n", (2, 8)),
            ("a: it's # \"\nb: \"x\nc: \"y\" # isn't\n", (2, 4)),
            ("a: \"x\n  y\"\nb: 'z\nc: w\n", (3, 4)),
            ("a: \"\\\"x\nb: \"y\"\n", (1, 4)),
            ("a: 'it''s\nb: 'y'\n", (1, 4)),
            ("a: {b: \"x\", c: \"y}\nd: \"z\"\n", (1, 16)),
        ] {
            assert_eq!(open(text), place, "{text}");
        }
    }

    #[test]
    fn a_text_that_nobody_wrote_is_not_searched() {
        let open = |before: &str| parse_documents(&format!("{before}b: \"x\nc: \"y\"\n")).unwrap_err().to_string();
        assert!(open("a: 'x' # y\n").contains("not closed"));
        assert!(!open(&format!("a: {}\n", "x".repeat(5_000))).contains("not closed"), "a long line");
        let many: String = (0..11_000).map(|at| format!("k{at}: 'x'\n")).collect();
        assert!(!open(&many).contains("not closed"), "very many quotes");
    }

    #[test]
    fn other_errors_are_not_blamed_on_quotes() {
        for text in ["a: \"x\n  y\"\nb: [1\n", "a: 'x'\nb: @y\n", "a: |\n  'tis\nb: [1\n", "a: \"x\" y\n"] {
            let error = parse_documents(text).unwrap_err().to_string();
            assert!(!error.contains("not closed"), "{text}: {error}");
        }
    }
}
