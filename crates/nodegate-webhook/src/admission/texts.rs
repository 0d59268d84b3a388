//! Checks the lengths of the texts of a large body, before it is parsed.

use super::answer::Rejection;

/// Checks that no text of a body takes more than `max` bytes when it is read. Texts with escapes are copied to be read, and
/// wherever a text is copied, compared or shown, it takes memory again.
///
/// A body that is not JSON is looked through as if it were until its first error, where the parser stops as well.
///
/// # Errors
/// Returns 400 if one is longer.
pub(super) fn check(body: &[u8], max: usize) -> Result<(), Rejection> {
    if body.len() <= max {
        return Ok(());
    }
    // The length of the text so far; none between texts.
    let (mut at, mut length) = (0, None::<usize>);
    while let Some(byte) = body.get(at) {
        let (written, read) = match (length, byte) {
            (Some(_), b'\\') => escape(&body[at + 1..]),
            (Some(_), b'"') | (None, _) => (1, 0),
            (Some(_), _) => (1, 1),
        };
        at += written;
        length = match (length, byte) {
            (None, b'"') => Some(0),
            (Some(_), b'"') | (None, _) => None,
            (Some(length), _) if length + read > max => {
                let message = format!("a text in the review has more than {max} bytes, which no API server stores");
                return Err(Rejection::bad_request(message));
            }
            (Some(length), _) => Some(length + read),
        };
    }
    Ok(())
}

/// How many bytes an escape has in JSON, and how many when it is read. `rest` begins behind its backslash.
fn escape(rest: &[u8]) -> (usize, usize) {
    match rest {
        [b'u', b'0', b'0', b'0'..b'8', ..] => (6, 1),
        // Of the four bytes of a pair, each half has two.
        [b'u', b'0', b'0'..b'8', ..] | [b'u', b'd' | b'D', b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F', ..] => (6, 2),
        [b'u', ..] => (6, 3),
        _ => (2, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_within(body: &str, max: usize) -> bool {
        check(body.as_bytes(), max).is_ok()
    }

    #[test]
    fn a_text_counts_with_the_bytes_that_it_has_when_it_is_read() {
        for (text, bytes) in [
            (r"abcd", 4),
            (r#"a\"b\\c"#, 5),
            (r"\u0041\n\u007f", 3),
            (r"\u00e4\u4e2d", 5),
            (r"\ud83d\ude80", 4),
            ("äöü", 6),
        ] {
            let read: String = serde_json::from_str(&format!("\"{text}\"")).unwrap_or_default();
            assert_eq!(read.len(), bytes, "{text}");
            let body = format!(r#"{{"a": {{"b{{": [1, "x", "{text}"], "c": ""}}}}"#);
            assert!(is_within(&body, bytes.max(2)) && !is_within(&body, bytes - 1), "{text}");
            let key = format!(r#"{{"{text}": null}}"#);
            assert!(is_within(&key, bytes) && !is_within(&key, bytes - 1), "{text}");
        }
    }

    #[test]
    fn a_text_that_does_not_end_counts_as_well() {
        for body in [r#"{"a": "xxxxxxxx"#, r#"{"a": "xxxxxxxx\"#, r#"{"a": "xxxxxxx\u00"#] {
            assert!(is_within(body, 16) && !is_within(body, 7), "{body}");
        }
    }
}
