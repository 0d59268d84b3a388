//! Regular expressions: compiled with the expression that uses them, never while it runs.
//!
//! The `regex` crate searches in time linear to pattern × text (its documentation, "Untrusted
//! input"), so a search is paid for by the size of the compiled pattern, and that size is bounded.

use regex::{Regex, RegexBuilder};

use crate::fault::{EvaluationError, Mistake};
use crate::syntax::{Constant, Syntax, SyntaxKind};
use crate::values::steps::Steps;

/// Bytes of a pattern.
pub(crate) const MAX_PATTERN: usize = 512;
/// Bytes of a compiled pattern, from the smallest to the largest that is told apart.
const SIZES: [usize; 9] = [1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, REGEX_SIZE_MAX];
/// Bytes of the largest compiled pattern.
pub const REGEX_SIZE_MAX: usize = 1 << 18;
/// Bytes of a compiled pattern that one step pays for, for every byte of text: about as many as a
/// search walks through in the time of a step when nothing of it can be cached.
const BYTES_OF_A_STEP: usize = 512;
/// Groups inside each other.
const MAX_GROUPS: u32 = 32;
/// Bytes of all compiled patterns of one expression.
const MAX_PATTERNS: usize = 1 << 20;

/// A compiled regular expression.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// A size that the compiled pattern does not exceed.
    size: usize,
}

impl Pattern {
    /// Pays for a search of `text`.
    pub(crate) fn search(&self, steps: &mut Steps, text: &str) -> Result<&Regex, EvaluationError> {
        steps.take(10 + text.len().saturating_mul(1 + self.size / BYTES_OF_A_STEP))?;
        Ok(&self.regex)
    }
}

/// The pattern that `syntax`, an argument of the function `name`, contains. `taken` counts the bytes of all patterns of the
/// expression.
pub(crate) fn compile(syntax: &Syntax, name: &str, taken: &mut usize) -> Result<Pattern, Mistake> {
    let SyntaxKind::Constant(Constant::Text(source)) = &syntax.kind else {
        let message = format!("the pattern of {name}() must be a string literal, so that it can be checked");
        return Err(Mistake::new(syntax.at, message));
    };
    if source.len() > MAX_PATTERN {
        let message = format!("a pattern may have at most {MAX_PATTERN} bytes, but this one has {}", source.len());
        return Err(Mistake::new(syntax.at, message));
    }
    match sized_regex(&ascii_classes(source)) {
        Ok((_, size)) if taken.saturating_add(size) > MAX_PATTERNS => {
            let message = "the patterns of this expression are too large when compiled";
            Err(Mistake::new(syntax.at, message).remedy("use fewer patterns, or repeat less in them"))
        }
        Ok((regex, size)) => {
            *taken += size;
            Ok(Pattern { regex, size })
        }
        Err(regex::Error::CompiledTooBig(_)) => {
            Err(Mistake::new(syntax.at, "this pattern is too large when compiled").remedy("repeat less"))
        }
        Err(error) => Err(Mistake::new(syntax.at, explain(&error))),
    }
}

/// Compiles a regular expression, and returns it with a size that it does not exceed: the number of bytes of its program.
/// With the reversed program and the caches of its searches it takes up to about four times as much.
///
/// # Errors
/// Returns an error if the text is not a regular expression, or if it takes more than 256 KiB when compiled.
pub fn sized_regex(source: &str) -> Result<(Regex, usize), regex::Error> {
    let mut sizes = SIZES.into_iter();
    loop {
        let size = sizes.next().unwrap_or(REGEX_SIZE_MAX);
        let mut builder = RegexBuilder::new(source);
        match builder.size_limit(size).dfa_size_limit(4 * size).nest_limit(MAX_GROUPS).build() {
            Ok(regex) => return Ok((regex, size)),
            Err(regex::Error::CompiledTooBig(_)) if size < REGEX_SIZE_MAX => {}
            Err(error) => return Err(error),
        }
    }
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
