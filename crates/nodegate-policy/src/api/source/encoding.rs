//! The text of a file.

/// Bytes that are no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not {encoding}; save the file as UTF-8")]
pub struct NotText {
    line: usize,
    encoding: &'static str,
}

/// The text of a file in UTF-8, or in UTF-16 as PowerShell's `>` writes it, without a byte order mark.
///
/// Without a mark, a text whose first character takes two bytes of which one is zero is UTF-16 (YAML 1.2, section 5.2).
///
/// # Errors
/// Returns the first line that is not in the encoding.
pub fn decode(bytes: Vec<u8>) -> Result<String, NotText> {
    match bytes.as_slice() {
        [0xff, 0xfe, ..] | [1..=0xff, 0, ..] => utf_16(&bytes, u16::from_le_bytes),
        [0xfe, 0xff, ..] | [0, 1..=0xff, ..] => utf_16(&bytes, u16::from_be_bytes),
        _ => {
            let lines = |valid: &[u8]| valid.iter().filter(|byte| **byte == b'\n').count();
            let text = String::from_utf8(bytes).map_err(|error| NotText {
                line: 1 + lines(&error.as_bytes()[..error.utf8_error().valid_up_to()]),
                encoding: "UTF-8",
            })?;
            Ok(without_mark(text))
        }
    }
}

fn utf_16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, NotText> {
    let (units, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(units.len());
    let not_text = |valid: &str| NotText { line: 1 + valid.matches('\n').count(), encoding: "UTF-16" };
    for character in char::decode_utf16(units.iter().copied().map(unit)) {
        text.push(character.map_err(|_| not_text(&text))?);
    }
    if rest.is_empty() { Ok(without_mark(text)) } else { Err(not_text(&text)) }
}

fn without_mark(text: String) -> String {
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::decode;

    fn units(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn utf_8_and_both_orders_of_utf_16_are_the_same_text_with_and_without_a_mark() {
        for text in ["", "a", "kind: Node # 日本 😀\n"] {
            let marked = format!("\u{feff}{text}");
            for written in [text, &marked] {
                assert_eq!(decode(written.into()).unwrap(), text, "{written:?}");
                assert_eq!(decode(units(written, u16::to_le_bytes)).unwrap(), text, "{written:?}");
                assert_eq!(decode(units(written, u16::to_be_bytes)).unwrap(), text, "{written:?}");
            }
        }
    }

    #[test]
    fn the_line_that_is_no_text_is_named() {
        let error = |bytes: Vec<u8>| decode(bytes).unwrap_err().to_string();
        assert_eq!(error(b"a\n# caf\xe9\n".into()), "line 2 is not UTF-8; save the file as UTF-8");
        let mut half = units("a\nb\nc", u16::to_le_bytes);
        half.pop();
        assert_eq!(error(half), "line 3 is not UTF-16; save the file as UTF-8");
        let mut surrogate = units("a\n", u16::to_be_bytes);
        surrogate.extend([0xd8, 0, 0, b'x']);
        assert_eq!(error(surrogate), "line 2 is not UTF-16; save the file as UTF-8");
    }
}
