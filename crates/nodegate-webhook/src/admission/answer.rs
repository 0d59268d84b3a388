//! The result of a review: an answer or a rejection, and their texts.

use std::net::IpAddr;

use nodegate_base::metrics::Outcome;
use nodegate_base::text::{self, lines, on_a_line};
use nodegate_base::traces::Reviewed;

/// Maximum length of a warning, in characters: clients truncate longer ones (`k8s.io/api/admission/v1/types.go`).
const WARNING_MAX: usize = 120;

/// An answer: the `AdmissionReview` as JSON, and its outcome for metrics.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The JSON.
    pub body: Vec<u8>,
    /// The outcome for metrics.
    pub outcome: Outcome,
    /// What its span says; `None` if that was not asked for, or if it is not about a node.
    pub reviewed: Option<Box<Reviewed>>,
}

/// The result of one attempt to answer a review.
pub(super) enum Attempt {
    /// The answer.
    Answered(Answer),
    /// The budget of expressions was not enough.
    TooBrief,
    /// The review is of a `NodePolicy`, which [`super::policy_reviews::review`] answers.
    OfPolicy,
}

/// How a review was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Whether its answer has to be described.
    pub(super) span: Span,
    /// The address of the caller, which it cannot invent; `None` in this process.
    pub(super) peer: Option<IpAddr>,
}

/// Whether a review has a span, for which its answer has to be described.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Span {
    /// No.
    #[default]
    Absent,
    /// Yes.
    Present,
}

/// A rejected review: the HTTP status and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// The HTTP status code, 4xx or 500.
    pub code: u16,
    /// The reason.
    pub message: String,
}

impl Rejection {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { code: 500, message: message.into() }
    }
}

/// Truncates a text to the length of a warning, at a character boundary. Control characters are escaped, because the
/// API server drops warnings that contain them.
pub(super) fn warning(text: &str) -> String {
    // Truncated before, because it becomes up to six times as long.
    let end = text.char_indices().nth(WARNING_MAX + 1).map_or(text.len(), |(end, _)| end);
    let mut text = on_a_line(&text[..end]).into_owned();
    text::cut_to_characters(&mut text, WARNING_MAX);
    text
}

/// A text as warnings that are not too long, divided between words. Each is told where it is from.
pub(super) fn warnings(text: &str) -> Vec<String> {
    const FROM: &str = "nodegate:";
    let mut told = vec![FROM.to_owned()];
    for word in text.split_whitespace() {
        let fits = |line: &String| line.chars().count() + 1 + word.chars().count() <= WARNING_MAX;
        match told.last_mut().filter(|line| line.as_str() == FROM || fits(line)) {
            Some(line) => *line = format!("{line} {word}"),
            None => told.push(format!("{FROM} {word}")),
        }
    }
    told.iter().map(|line| warning(line)).collect()
}

/// Truncates a text to this many bytes, at a character boundary. Control characters except newlines are escaped,
/// because `kubectl` prints the text as it is.
pub(super) fn cut(text: &str, max: usize) -> String {
    // Truncated before, because it becomes up to six times as long.
    let begin = &text[..text.floor_char_boundary(max.saturating_add(1))];
    let mut shown = lines(begin).into_owned();
    if shown.len() <= max && begin.len() < text.len() {
        shown.push('…');
    }
    text::cut(&mut shown, max);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_before_it_is_escaped_and_after() {
        for text in ["x", "\u{7f}", "ä", "\u{1f680}"].map(|fill| fill.repeat(1 << 20)) {
            assert!(cut(&text, 100).len() <= 100 && cut(&text, 100).ends_with('…'), "{}", cut(&text, 100));
            assert_eq!(warning(&text).chars().count(), WARNING_MAX);
        }
        for text in ["", "abc", "ä\n"] {
            assert_eq!((cut(text, 3), cut(text, 100)), (text.to_owned(), text.to_owned()));
        }
        assert_eq!(cut("abcdef", 5), "ab…");
    }
}
