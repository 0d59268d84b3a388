//! Splits the API server's response into single objects while it arrives, so that a list is never in memory as a
//! whole.

use std::collections::VecDeque;

/// Maximum size of an object, in bytes. The API server stores up to 1.5 MiB, which JSON escapes enlarge at most seven
/// times.
const OBJECT_MAX: usize = 32 * 1024 * 1024;
/// How much of a larger object is kept: enough to find its name.
const HEAD: usize = 4 * 1024;

/// The text of an object, or its beginning.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The complete text.
    Whole(Vec<u8>),
    /// Only the beginning, because the object exceeds the maximum size.
    Head(Vec<u8>),
}

/// A piece that is being received.
#[derive(Debug)]
struct Growing {
    bytes: Vec<u8>,
    cut: bool,
    max: usize,
}

impl Growing {
    fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), cut: false, max }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.cut {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > self.max {
            self.bytes.truncate(HEAD.min(self.max));
            self.bytes.shrink_to_fit();
            self.cut = true;
        }
    }

    fn take(&mut self) -> Piece {
        let bytes = std::mem::take(&mut self.bytes);
        if std::mem::take(&mut self.cut) { Piece::Head(bytes) } else { Piece::Whole(bytes) }
    }
}

/// A part of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Its `metadata`.
    Metadata(Piece),
    /// One of its `items`.
    Item(Piece),
}

/// The field of the list that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Metadata,
    Items,
    Other,
}

impl Section {
    /// The number of open brackets around a part.
    fn outside(self) -> Option<usize> {
        match self {
            Self::Metadata => Some(1),
            Self::Items => Some(2),
            Self::Other => None,
        }
    }
}

/// Splits the JSON of a list into its parts.
#[derive(Debug)]
pub(super) struct ListCutter {
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// The last string of the list itself: a field name, if a colon follows.
    key: Vec<u8>,
    section: Section,
    within: bool,
    part: Growing,
    parts: VecDeque<Part>,
    ended: bool,
}

/// The longest field name of a list that is needed.
const KEY_MAX: usize = 16;

impl ListCutter {
    pub(super) fn new() -> Self {
        Self::with_max(OBJECT_MAX)
    }

    fn with_max(max: usize) -> Self {
        Self {
            depth: 0,
            in_text: false,
            escaped: false,
            key: Vec::new(),
            section: Section::Other,
            within: false,
            part: Growing::new(max),
            parts: VecDeque::new(),
            ended: false,
        }
    }

    /// Consumes received bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut start = 0;
        let mut next = 0;
        while let Some(byte) = bytes.get(next) {
            if self.in_text {
                next += self.text_goes_on(&bytes[next..]);
                continue;
            }
            let at = next;
            next += 1;
            match byte {
                b'"' => {
                    self.in_text = true;
                    if self.depth == 1 {
                        self.key.clear();
                    }
                }
                b':' if self.depth == 1 => {
                    self.section = match self.key.as_slice() {
                        b"metadata" => Section::Metadata,
                        b"items" => Section::Items,
                        _ => Section::Other,
                    };
                }
                b'{' | b'[' => {
                    if *byte == b'{' && self.section.outside() == Some(self.depth) {
                        self.within = true;
                        start = at;
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.within && self.section.outside() == Some(self.depth) {
                        self.part.push(&bytes[start..=at]);
                        self.part_ended();
                    }
                    self.ended |= self.depth == 0;
                }
                _ => {}
            }
        }
        if self.within {
            self.part.push(&bytes[start..]);
        }
    }

    /// Consumes the text up to and including what ends it or escapes something, and returns how many bytes that was.
    fn text_goes_on(&mut self, bytes: &[u8]) -> usize {
        if self.escaped {
            self.escaped = false;
            return 1;
        }
        // Most of a list is text, so this is where reading a long one spends its time.
        let special = memchr::memchr2(b'"', b'\\', bytes);
        if self.depth == 1 {
            let plain = &bytes[..special.unwrap_or(bytes.len())];
            self.key.extend(plain.iter().take(KEY_MAX.saturating_sub(self.key.len())));
        }
        let Some(at) = special else { return bytes.len() };
        match bytes[at] {
            b'"' => self.in_text = false,
            _ => self.escaped = true,
        }
        at + 1
    }

    fn part_ended(&mut self) {
        self.within = false;
        let piece = self.part.take();
        self.parts.push_back(if self.section == Section::Metadata { Part::Metadata(piece) } else { Part::Item(piece) });
    }

    /// The next complete part.
    pub(super) fn next(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// Whether the list is complete.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }
}

/// Splits the response of a watch into lines, one per event.
#[derive(Debug)]
pub(super) struct LineCutter {
    line: Growing,
    lines: VecDeque<Piece>,
}

impl LineCutter {
    pub(super) fn new() -> Self {
        Self { line: Growing::new(OBJECT_MAX), lines: VecDeque::new() }
    }

    /// Consumes received bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.push(&rest[..end]);
            self.lines.push_back(self.line.take());
            rest = &rest[end + 1..];
        }
        self.line.push(rest);
    }

    /// The next complete line.
    pub(super) fn next(&mut self) -> Option<Piece> {
        self.lines.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"kind":"NodeList","metadata":{"resourceVersion":"7","x":{"items":[1]}},
        "items":[{"a":"}]\"{","b":[{"c":{}}]}, {},{"d":"\\"}],"other":{"items":[{}]}}"#;

    fn parts(cutter: &mut ListCutter) -> Vec<Part> {
        std::iter::from_fn(|| cutter.next()).collect()
    }

    fn expected() -> Vec<Part> {
        let item = |text: &str| Part::Item(Piece::Whole(text.into()));
        let metadata = Part::Metadata(Piece::Whole(r#"{"resourceVersion":"7","x":{"items":[1]}}"#.into()));
        vec![metadata, item(r#"{"a":"}]\"{","b":[{"c":{}}]}"#), item("{}"), item(r#"{"d":"\\"}"#)]
    }

    #[test]
    fn a_list_is_split_into_the_same_parts_for_every_chunk_size() {
        for size in 1..LIST.len() {
            let mut cutter = ListCutter::new();
            LIST.as_bytes().chunks(size).for_each(|chunk| cutter.feed(chunk));
            assert!(cutter.ended());
            assert_eq!(parts(&mut cutter), expected(), "in pieces of {size} bytes");
        }
    }

    #[test]
    fn a_truncated_list_has_not_ended() {
        for end in 0..LIST.len() - 1 {
            let mut cutter = ListCutter::new();
            cutter.feed(&LIST.as_bytes()[..end]);
            assert!(!cutter.ended(), "{end}");
        }
    }

    #[test]
    fn only_the_beginning_of_an_object_that_is_too_large_is_kept_and_the_next_is_complete() {
        let mut cutter = ListCutter::with_max(64);
        let large = format!(r#"{{"items":[{{"metadata":{{"name":"n"}},"x":"{}"}},{{"y":1}}]}}"#, "x".repeat(1000));
        large.as_bytes().chunks(7).for_each(|chunk| cutter.feed(chunk));
        let parts = parts(&mut cutter);
        assert!(
            matches!(&parts[0], Part::Item(Piece::Head(head)) if head.len() <= 64 && head.starts_with(b"{\"metadata\""))
        );
        assert_eq!(parts[1], Part::Item(Piece::Whole(b"{\"y\":1}".to_vec())));
    }

    #[test]
    fn a_deep_object_is_split_like_any_other() {
        let deep = format!("{}{}", "{\"a\":".repeat(100_000), "1".to_owned() + &"}".repeat(100_000));
        let mut cutter = ListCutter::new();
        cutter.feed(format!(r#"{{"items":[{deep}]}}"#).as_bytes());
        assert_eq!(parts(&mut cutter), [Part::Item(Piece::Whole(deep.into_bytes()))]);
    }

    #[test]
    fn lines_are_complete_for_every_chunking() {
        let mut cutter = LineCutter::new();
        [&b"a"[..], b"b\nc", b"\n\nd"].into_iter().for_each(|bytes| cutter.feed(bytes));
        let whole = |text: &[u8]| Piece::Whole(text.to_vec());
        assert_eq!(std::iter::from_fn(|| cutter.next()).collect::<Vec<_>>(), [whole(b"ab"), whole(b"c"), whole(b"")]);
    }
}
