//! Regular expressions: compiled with the expression that uses them, never while it runs.
//!
//! The `regex` crate searches in time linear to pattern × text (its documentation, "Untrusted
//! input"), so a search is paid for by the size of the compiled pattern, and that size is bounded.

use regex::{Regex, RegexBuilder};

use super::fault::{EvaluationError, Problem};
use super::steps::Steps;
use super::syntax::{Constant, Syntax, SyntaxKind};

/// Bytes of a pattern.
pub(super) const MAX_PATTERN: usize = 512;
/// Bytes of a compiled pattern, from the smallest to the largest that is told apart.
const SIZES: [usize; 9] = [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18];
/// Bytes of a compiled pattern that one step pays for, for every byte of text: about as many as a
/// search walks through in the time of a step when nothing of it can be cached.
const BYTES_OF_A_STEP: usize = 512;
/// Groups inside each other.
const MAX_GROUPS: u32 = 32;

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// A size that the compiled pattern does not exceed.
    size: usize,
}

impl Pattern {
    /// Pays for a search of `text`.
    pub(super) fn search(&self, steps: &mut Steps, text: &str) -> Result<&Regex, EvaluationError> {
        steps.take(10 + text.len().saturating_mul(1 + self.size / BYTES_OF_A_STEP))?;
        Ok(&self.regex)
    }
}

/// The pattern that `syntax`, an argument of the function `name`, writes down.
pub(super) fn compile(syntax: &Syntax, name: &str) -> Result<Pattern, Problem> {
    let SyntaxKind::Constant(Constant::Text(source)) = &syntax.kind else {
        let message = format!("the pattern of {name}() must be a string literal, so that it can be checked");
        return Err(Problem::new(syntax.at, message));
    };
    if source.len() > MAX_PATTERN {
        let message = format!("a pattern may have at most {MAX_PATTERN} bytes, but this one has {}", source.len());
        return Err(Problem::new(syntax.at, message));
    }
    let source = ascii_classes(source);
    for size in SIZES {
        let mut builder = RegexBuilder::new(&source);
        match builder.size_limit(size).dfa_size_limit(4 * size).nest_limit(MAX_GROUPS).build() {
            Ok(regex) => return Ok(Pattern { regex, size }),
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(error) => return Err(Problem::new(syntax.at, explain(&error))),
        }
    }
    Err(Problem::new(syntax.at, "this pattern is too large when compiled").remedy("repeat less"))
}

/// `\w`, `\d` and `\s` mean ASCII, as in the RE2 of Kubernetes. Their Unicode forms would also make a
/// compiled pattern a hundred times as large.
fn ascii_classes(source: &str) -> String {
    let mut classes = String::with_capacity(source.len());
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        let class = match (c, chars.clone().next()) {
            ('\\', Some('d')) => "[0-9]",
            ('\\', Some('D')) => "[^0-9]",
            ('\\', Some('w')) => "[0-9A-Za-z_]",
            ('\\', Some('W')) => "[^0-9A-Za-z_]",
            ('\\', Some('s')) => r"[\t\n\f\r ]",
            ('\\', Some('S')) => r"[^\t\n\f\r ]",
            _ => "",
        };
        if !class.is_empty() {
            classes.push_str(class);
            chars.next();
            continue;
        }
        classes.push(c);
        if c == '\\' {
            classes.extend(chars.next());
        }
    }
    classes
}

/// The last line names the fault; those before it draw the pattern.
fn explain(error: &regex::Error) -> String {
    let text = error.to_string();
    let fault = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
    format!("this is not a regular expression: {fault}")
}
