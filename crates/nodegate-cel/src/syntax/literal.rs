//! Quoted text and bytes.

use crate::fault::Mistake;

/// What stands between quotes.
#[derive(Debug, PartialEq)]
pub(crate) enum Quoted {
    Text(String),
    Bytes(Vec<u8>),
}

/// The text or bytes that `source` starts with and how many bytes of the source they take; `None`
/// if it starts with neither. Places of problems are relative to `source`.
pub(crate) fn quoted(source: &str) -> Result<Option<(Quoted, usize)>, Mistake> {
    let unprefixed = source.strip_prefix(['b', 'B']);
    let bytes = unprefixed.is_some();
    let rest = unprefixed.unwrap_or(source);
    let raw = rest.starts_with(['r', 'R']);
    let rest = if raw { rest.get(1..).unwrap_or_default() } else { rest };
    let Some(quote) = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote)) else {
        return Ok(None);
    };
    let start = source.len() - rest.len() + quote.len();
    let body = source.get(start..).unwrap_or_default();
    let mut text = Body { source: body, at: 0, bytes: Vec::new(), as_bytes: bytes };
    text.read(quote, raw).map_err(|problem| problem.moved(start))?;
    let length = start + text.at + quote.len();
    if bytes {
        return Ok(Some((Quoted::Bytes(text.bytes), length)));
    }
    // Only whole characters were pushed.
    let text = String::from_utf8(text.bytes).map_err(|_| Mistake::new(0, "this text is not UTF-8"))?;
    Ok(Some((Quoted::Text(text), length)))
}

/// What has been read between the quotes so far.
struct Body<'s> {
    source: &'s str,
    at: usize,
    bytes: Vec<u8>,
    as_bytes: bool,
}

impl Body<'_> {
    fn read(&mut self, quote: &str, raw: bool) -> Result<(), Mistake> {
        loop {
            let rest = self.source.get(self.at..).unwrap_or_default();
            if rest.starts_with(quote) {
                return Ok(());
            }
            match rest.chars().next() {
                None => {
                    return Err(
                        Mistake::new(self.at, "this text is not closed").remedy(format!("write {quote} after it"))
                    );
                }
                Some('\n' | '\r') if quote.len() == 1 => {
                    return Err(
                        Mistake::new(self.at, "this text is not closed on its line").remedy(format!("write {quote}"))
                    );
                }
                Some('\\') if !raw => self.escape()?,
                Some(c) => {
                    self.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
    }

    fn push(&mut self, c: char) {
        self.bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }

    /// One escape sequence.
    fn escape(&mut self) -> Result<(), Mistake> {
        let rest = self.source.get(self.at + 1..).unwrap_or_default();
        let Some(letter) = rest.chars().next() else {
            return Err(Mistake::new(self.at, "this text is not closed"));
        };
        let plain = match letter {
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            '\\' | '?' | '"' | '\'' | '`' => Some(letter),
            _ => None,
        };
        if let Some(c) = plain {
            self.push(c);
            self.at += 2;
            return Ok(());
        }
        match letter {
            'x' | 'X' => self.code(1, 2, 16),
            'u' if !self.as_bytes => self.code(1, 4, 16),
            'U' if !self.as_bytes => self.code(1, 8, 16),
            '0'..='3' => self.code(0, 3, 8),
            _ => Err(Mistake::new(self.at, format!("`\\{letter}` is not an escape sequence"))
                .remedy("write `\\\\` for a backslash")),
        }
    }

    /// An escape of `digits` digits, which follow the backslash and `letters` letters.
    fn code(&mut self, letters: usize, digits: usize, radix: u32) -> Result<(), Mistake> {
        let problem = || Mistake::new(self.at, format!("this escape needs {digits} digits that name a character"));
        let start = self.at + 1 + letters;
        let text = self.source.get(start..start + digits).ok_or_else(problem)?;
        if !text.chars().all(|c| c.is_digit(radix)) {
            return Err(problem());
        }
        let code = u32::from_str_radix(text, radix).map_err(|_| problem())?;
        match u8::try_from(code) {
            Ok(byte) if self.as_bytes => self.bytes.push(byte),
            _ => {
                let c = char::from_u32(code).ok_or_else(problem)?;
                self.push(c);
            }
        }
        self.at = start + digits;
        Ok(())
    }
}
