//! Reads compact JSON, the form in which the API server sends reviews: no space between tokens, no control character anywhere.
//!
//! Most of a review is values that nobody reads. What makes this quicker than `serde_json` is what it need not look for: spaces around
//! each token, and control characters in each text. Everything else about a value that is read is left to `serde_json`: it gets the
//! numbers, and the texts with escapes.

use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum number of objects and lists inside one another, counted once for those that are deserialized and once for those that are only
/// passed. Together they stay below the 128 of `serde_json`, to which some of the latter are given.
const DEPTH_MAX: u32 = 60;

/// Deserializes a value from compact JSON.
///
/// `None` is not an error: the text has another form, is not JSON, or is not what `T` expects. `serde_json::from_str` then gives the
/// value or the reason.
///
/// # Guarantees
/// What this returns is what `serde_json::from_str` returns for the same text, if `T` reads each item that it asks for, returns each
/// error, and accepts only what it asks for, as derived types do.
pub fn read_compact<'de, T: Deserialize<'de>>(text: &'de str) -> Option<T> {
    // Go's encoder ends each document with a line end.
    let text = text.strip_suffix('\n').unwrap_or(text);
    // Looked for once here, so that it is not looked for in each text.
    let has_control_characters = text.bytes().fold(u8::MAX, u8::min) < b' ';
    if has_control_characters {
        return None;
    }
    let mut reader = Reader { text, at: 0, depth: 0 };
    let value = T::deserialize(&mut reader).ok()?;
    (reader.at == text.len() && reader.depth == 0).then_some(value)
}

/// Something is not read here. Nobody is told why.
#[derive(Debug, thiserror::Error)]
#[error("left to serde_json")]
struct Refused;

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl From<serde_json::Error> for Refused {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

/// Where the first quote or backslash is, looked for in eight bytes at once. Most texts are so short that a call of `memchr` takes
/// longer.
fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = zero_bytes(word ^ repeated(b'"')) | zero_bytes(word ^ repeated(b'\\'));
        if found != 0 {
            return Some(8 * at + found.trailing_zeros() as usize / 8);
        }
    }
    let last = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    Some(8 * words.len() + last)
}

const fn repeated(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The highest bit of each byte that is zero. Of the bytes above the lowest of these, some may be marked that are not zero.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(1)) & !word & repeated(0x80)
}

/// Reads from `at` on.
struct Reader<'de> {
    text: &'de str,
    at: usize,
    /// The number of objects and lists around this place whose items are deserialized.
    depth: u32,
}

impl<'de> Reader<'de> {
    fn rest(&self) -> &'de [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn peek(&self) -> Result<u8, Refused> {
        self.text.as_bytes().get(self.at).copied().ok_or(Refused)
    }

    fn next(&mut self) -> Result<u8, Refused> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    /// Passes this byte, or refuses any other.
    fn pass(&mut self, expected: u8) -> Result<(), Refused> {
        if self.next()? == expected { Ok(()) } else { Err(Refused) }
    }

    /// Passes this word, or refuses any other.
    fn pass_word(&mut self, word: &str) -> Result<(), Refused> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(Refused);
        }
        self.at += word.len();
        Ok(())
    }

    fn pass_digits(&mut self) -> Result<(), Refused> {
        let digits = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        if digits == 0 { Err(Refused) } else { Ok(()) }
    }

    /// Passes a number (RFC 8259, section 6).
    fn pass_number(&mut self) -> Result<(), Refused> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        if self.peek()? == b'0' {
            self.at += 1;
        } else {
            self.pass_digits()?;
        }
        if self.peek().is_ok_and(|byte| byte == b'.') {
            self.at += 1;
            self.pass_digits()?;
        }
        if self.peek().is_ok_and(|byte| matches!(byte, b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.pass_digits()?;
        }
        Ok(())
    }

    /// Passes a text with its quotes; returns whether it has escapes.
    fn pass_text(&mut self) -> Result<bool, Refused> {
        self.pass(b'"')?;
        let mut has_escapes = false;
        loop {
            self.at += quote_or_backslash(self.rest()).ok_or(Refused)?;
            if self.peek()? == b'"' {
                self.at += 1;
                return Ok(has_escapes);
            }
            has_escapes = true;
            while self.peek()? == b'\\' {
                self.at += 1;
                self.pass_escaped()?;
            }
        }
    }

    /// Passes what follows a backslash (RFC 8259, section 7).
    fn pass_escaped(&mut self) -> Result<(), Refused> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(()),
            b'u' => {
                let code = self.text.as_bytes().get(self.at..self.at + 4);
                if !code.is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(Refused);
                }
                self.at += 4;
                Ok(())
            }
            _ => Err(Refused),
        }
    }

    /// Passes the name of a member and the colon.
    fn pass_name(&mut self) -> Result<(), Refused> {
        self.pass_text()?;
        self.pass(b':')
    }

    /// Passes a value.
    fn pass_value(&mut self) -> Result<(), Refused> {
        // A bit for each that is open, the innermost one lowest: whether it is an object.
        let (mut opened, mut depth) = (0_u64, 0);
        loop {
            match self.peek()? {
                b'"' => {
                    self.pass_text()?;
                }
                bracket @ (b'{' | b'[') => {
                    self.at += 1;
                    // Two more than the opening one, in ASCII.
                    if self.peek()? == bracket + 2 {
                        self.at += 1;
                    } else {
                        if depth == DEPTH_MAX {
                            return Err(Refused);
                        }
                        (opened, depth) = (opened << 1 | u64::from(bracket == b'{'), depth + 1);
                        if bracket == b'{' {
                            self.pass_name()?;
                        }
                        continue;
                    }
                }
                b't' => self.pass_word("true")?,
                b'f' => self.pass_word("false")?,
                b'n' => self.pass_word("null")?,
                _ => self.pass_number()?,
            }
            // After a value: what it ends, or the next one.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let in_object = opened & 1 == 1;
                match self.next()? {
                    b',' if in_object => break self.pass_name()?,
                    b',' => break,
                    b'}' if in_object => {}
                    b']' if !in_object => {}
                    _ => return Err(Refused),
                }
                (opened, depth) = (opened >> 1, depth - 1);
            }
        }
    }

    /// Visits a text.
    fn text<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Refused> {
        let start = self.at;
        if self.pass_text()? {
            return Ok(serde_json::Deserializer::from_str(&self.text[start..self.at]).deserialize_any(visitor)?);
        }
        visitor.visit_borrowed_str(&self.text[start + 1..self.at - 1])
    }

    /// What `serde_json` reads from the next value.
    fn by_serde_json(&mut self) -> Result<serde_json::Deserializer<serde_json::de::StrRead<'de>>, Refused> {
        let start = self.at;
        self.pass_value()?;
        Ok(serde_json::Deserializer::from_str(&self.text[start..self.at]))
    }

    /// Visits the items between an opening bracket and the closing one.
    fn inside<V>(
        &mut self,
        close: u8,
        visit: impl FnOnce(&mut Items<'_, 'de>) -> Result<V, Refused>,
    ) -> Result<V, Refused> {
        if self.depth == DEPTH_MAX {
            return Err(Refused);
        }
        (self.at, self.depth) = (self.at + 1, self.depth + 1);
        let mut items = Items { reader: self, close, state: State::First };
        let value = visit(&mut items)?;
        if items.state != State::Ended {
            return Err(Refused);
        }
        self.depth -= 1;
        Ok(value)
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.peek()? {
            b'{' => self.inside(b'}', |members| visitor.visit_map(members)),
            b'[' => self.inside(b']', |items| visitor.visit_seq(items)),
            b'"' => self.text(visitor),
            b't' => self.pass_word("true").and_then(|()| visitor.visit_bool(true)),
            b'f' => self.pass_word("false").and_then(|()| visitor.visit_bool(false)),
            b'n' => self.pass_word("null").and_then(|()| visitor.visit_unit()),
            _ => Ok(self.by_serde_json()?.deserialize_any(visitor)?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if self.peek()? == b'n' {
            return self.pass_word("null").and_then(|()| visitor.visit_none());
        }
        visitor.visit_some(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.pass_value()?;
        visitor.visit_unit()
    }

    /// Only `serde_json` can read one of these types, `RawValue`, so it reads all of them. Their text is passed twice.
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Refused> {
        Ok(self.by_serde_json()?.deserialize_newtype_struct(name, visitor)?)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct enum identifier
    }
}

/// The name of a member: always a text, whichever type is asked for.
struct Name<'r, 'de>(&'r mut Reader<'de>);

impl<'de> Deserializer<'de> for Name<'_, 'de> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.0.text(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[derive(PartialEq, Eq)]
enum State {
    First,
    Further,
    Ended,
}

/// The items of a list, or the members of an object.
struct Items<'r, 'de> {
    reader: &'r mut Reader<'de>,
    close: u8,
    state: State,
}

impl Items<'_, '_> {
    /// Whether there is one more, which starts here.
    fn advance(&mut self) -> Result<bool, Refused> {
        let next = self.reader.peek()?;
        if next == self.close && self.state != State::Ended {
            (self.reader.at, self.state) = (self.reader.at + 1, State::Ended);
            return Ok(false);
        }
        match self.state {
            State::First => self.state = State::Further,
            State::Further => self.reader.pass(b',')?,
            State::Ended => return Err(Refused),
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_, 'de> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refused> {
        if !self.advance()? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> MapAccess<'de> for &mut Items<'_, 'de> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refused> {
        if !self.advance()? {
            return Ok(None);
        }
        seed.deserialize(Name(self.reader)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        self.reader.pass(b':')?;
        seed.deserialize(&mut *self.reader)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
