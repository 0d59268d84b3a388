//! Places in a text.

use std::fmt;
use std::sync::Arc;

use serde_saphyr::Location;

/// A position in a text; line and column start at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
    // Files have at most 16 MiB, and a large one has very many positions.
    start: u32,
    end: u32,
}

impl From<Location> for SourcePosition {
    fn from(location: Location) -> Self {
        let byte = |n: Option<u64>| n.map(narrow).unwrap_or_default();
        let (start, length) = (byte(location.span().byte_offset()), byte(location.span().byte_len()));
        Self {
            line: narrow(location.line()),
            column: narrow(location.column()),
            start,
            end: start.saturating_add(length),
        }
    }
}

/// The text of a file, for messages that show a part of it. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceText(Arc<str>);

impl SourceText {
    /// The whole text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SourceText {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for SourceText {
    /// Omits the text, which is long and is shown where it matters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceText({} bytes)", self.0.len())
    }
}

impl SourcePosition {
    /// The position of these bytes.
    pub(super) fn new(line: u32, column: u32, bytes: std::ops::Range<usize>) -> Self {
        Self { line, column, start: narrow(bytes.start), end: narrow(bytes.end) }
    }

    /// The position of these bytes of a text. `None` if a character does not begin where they do.
    pub fn of_bytes(text: &str, bytes: std::ops::Range<usize>) -> Option<Self> {
        let before = text.get(..bytes.start)?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (before.matches('\n').count() + 1, before.get(line_start..)?.chars().count() + 1);
        Some(Self::new(narrow(line), narrow(column), bytes))
    }

    /// The first byte of what is at this position.
    #[must_use]
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// The byte behind it. The same as the first one if it is unknown.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// The position of the bytes `at` of `value`, the string that is written here in `text`: it may be quoted, folded or
    /// indented there. `None` if that is not certain.
    pub(crate) fn inside(self, text: &str, value: &str, at: std::ops::Range<usize>) -> Option<Self> {
        let written = text.get(self.start()..self.end())?;
        let characters = [plain(written), single_quoted(written), double_quoted(written)];
        let places = characters.into_iter().flatten().find_map(|written| align(value, &written))?;
        let place = |at: usize| Some(self.start() + places.get(value.get(..at)?.chars().count())?);
        let (start, end) = (place(at.start)?, place(at.end)?);
        let before = text.get(self.start()..start)?;
        let (line, column) = match before.rsplit_once('\n') {
            None => (self.line, self.column + narrow(before.chars().count())),
            Some((lines, last)) => {
                (self.line + narrow(lines.matches('\n').count() + 1), 1 + narrow(last.chars().count()))
            }
        };
        Some(Self::new(line, column, start..end))
    }

    /// The position of the byte that a parser names by its line and column.
    pub(super) fn in_text(self, text: &str) -> Self {
        let line_start = match self.line {
            0 | 1 => 0,
            line => text.match_indices('\n').nth(line as usize - 2).map_or(text.len(), |(at, _)| at + 1),
        };
        let rest = text.get(line_start..).unwrap_or_default();
        let line = rest.split('\n').next().unwrap_or_default();
        let column = line.char_indices().nth((self.column as usize).saturating_sub(1));
        let start = line_start + column.map_or(line.len(), |(at, _)| at);
        Self::new(self.line, self.column, start..start)
    }
}

fn narrow(n: impl TryInto<u32>) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

/// The characters of a scalar with their bytes.
type Characters = Vec<(char, usize)>;

/// The characters of a plain or block scalar.
fn plain(written: &str) -> Option<Characters> {
    Some(written.char_indices().map(|(at, c)| (c, at)).collect())
}

fn single_quoted(written: &str) -> Option<Characters> {
    let inner = written.strip_prefix('\'')?.strip_suffix('\'')?;
    let mut characters = Vec::new();
    let mut rest = inner.char_indices();
    while let Some((at, c)) = rest.next() {
        characters.push((c, at + 1));
        if c == '\'' {
            rest.next();
        }
    }
    Some(characters)
}

fn double_quoted(written: &str) -> Option<Characters> {
    let inner = written.strip_prefix('"')?.strip_suffix('"')?;
    let mut characters = Vec::new();
    let mut rest = inner.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        if c != '\\' {
            characters.push((c, at + 1));
            continue;
        }
        let (_, escape) = rest.next()?;
        let digits = match escape {
            'n' => Err(Some('\n')),
            't' => Err(Some('\t')),
            'r' => Err(Some('\r')),
            '"' | '\\' | '/' | ' ' => Err(Some(escape)),
            // The end of the line and the indentation of the next one are not part of the value.
            '\n' => {
                while rest.next_if(|(_, c)| matches!(c, ' ' | '\t')).is_some() {}
                Err(None)
            }
            'x' => Ok(2),
            'u' => Ok(4),
            'U' => Ok(8),
            _ => return None,
        };
        match digits {
            Err(character) => characters.extend(character.map(|c| (c, at + 1))),
            Ok(digits) => {
                let code: String = rest.by_ref().take(digits).map(|(_, c)| c).collect();
                characters.push((char::from_u32(u32::from_str_radix(&code, 16).ok()?)?, at + 1));
            }
        }
    }
    Some(characters)
}

/// The byte at which each character of `value` is written, and the byte behind the last one. A run of white space may be
/// written as another one: folded, or with an indentation.
fn align(value: &str, written: &Characters) -> Option<Vec<usize>> {
    let mut places = Vec::with_capacity(value.len() + 1);
    let mut value = value.chars().peekable();
    let mut written = written.iter().copied().peekable();
    let mut end = 0;
    while let Some(c) = value.next() {
        let Some((there, at)) = written.next() else {
            // The last newline of a block is not always there.
            places.push(end);
            if c.is_whitespace() && value.all(|c| c.is_whitespace()) {
                break;
            }
            return None;
        };
        places.push(at);
        end = at + there.len_utf8();
        if !c.is_whitespace() {
            if there != c {
                return None;
            }
            continue;
        }
        if !there.is_whitespace() {
            return None;
        }
        while let Some((there, at)) = written.next_if(|(there, _)| there.is_whitespace()) {
            end = at + there.len_utf8();
        }
        // All characters of the run are shown where the next word begins.
        while value.next_if(|c| c.is_whitespace()).is_some() {
            places.push(end);
        }
    }
    places.push(end);
    written.all(|(c, _)| c.is_whitespace()).then_some(places)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::api::source::{FieldPath, Node, parse_documents};

    /// The position of `wanted` in the value of `e`, and what is written there.
    fn found(text: &str, wanted: &str) -> Option<(u32, u32, String)> {
        let tree = parse_documents(text).unwrap().remove(0);
        let field = tree.field("e").unwrap();
        let Node::Scalar(serde_json::Value::String(value)) = &field.tree.value else { panic!("{text}") };
        let at = value.find(wanted).unwrap();
        let place = field.tree.place.inside(text, value, at..at + wanted.len())?;
        Some((place.line, place.column, text[place.start()..place.end()].to_owned()))
    }

    #[test]
    fn a_part_of_a_value_is_found_however_the_value_is_written() {
        for (text, line, column, written) in [
            ("e: a == wrong\n", 1, 9, "wrong"),
            ("e: 'it''s wrong'\n", 1, 11, "wrong"),
            ("e: \"\\\"q\\\" \\u0061 wrong\"\n", 1, 18, "wrong"),
            ("e: \"a \\\n   b wrong\"\n", 2, 6, "wrong"),
            ("e: ä wrong\n", 1, 6, "wrong"),
            ("x: 1\ne: |\n  \"first\"\n\n    wrong\n", 5, 5, "wrong"),
            ("e: >-\n    first\n    second wrong\n", 3, 12, "wrong"),
            ("e: >\n  first\n\n  wrong", 4, 3, "wrong"),
            ("e: first\n  wrong # comment\n", 2, 3, "wrong"),
            ("{\"e\": \"a wrong\"}", 1, 10, "wrong"),
        ] {
            assert_eq!(found(text, "wrong"), Some((line, column, written.to_owned())), "{text}");
        }
        assert_eq!(found("a: &x wrong\ne: *x\n", "wrong"), None, "the text is elsewhere");
        assert_eq!(found("e: \"\\a wrong\"\n", "wrong"), None, "an escape that is not known here");
    }

    #[test]
    fn a_position_by_line_and_column_has_its_byte() {
        let at =
            |line, column| SourcePosition { line, column, ..SourcePosition::default() }.in_text("aä\nbc\n").start();
        assert_eq!([at(1, 1), at(1, 3), at(2, 2), at(3, 1), at(9, 9)], [0, 3, 5, 7, 7]);
    }

    #[test]
    fn a_path_leads_to_a_key_or_to_a_value() {
        let tree = parse_documents("r:\n  - name: x\n    l: {k: v}\n  - {l: 1}\n").unwrap().remove(0);
        let rule = FieldPath::root().key("r").index(0);
        let at = |place: SourcePosition| (place.line, place.column);
        assert_eq!(at(tree.locate(&rule.key("l").key("k")).0), (3, 9));
        assert_eq!(at(tree.locate_value(&rule.key("l").key("k")).0), (3, 12));
        assert_eq!(at(tree.locate_value(&rule.key("l")).0), (3, 5), "the key of a mapping");
        assert_eq!(at(tree.locate_value(&rule).0), (2, 11), "the name of an item");
        assert_eq!(at(tree.locate_value(&rule.key("absent")).0), (2, 11), "the item that lacks a field");
        assert_eq!(at(tree.locate_value(&FieldPath::root().key("r").index(1)).0), (4, 5), "an item without a name");
    }
}
