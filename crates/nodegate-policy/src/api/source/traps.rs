//! What YAML reads in another way than most people expect, and how to write it.

use std::ops::Range;

use serde_saphyr::Spanned;
use serde_saphyr::budget::BudgetBreach;

use super::place::SourcePosition;
use super::quotes::open_quote;
use super::value::Value;
use crate::api::Quoted;
use crate::api::problem::Problem;

/// A text that is not YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct SyntaxError {
    /// Where parsing stopped, if known.
    pub place: Option<SourcePosition>,
    /// What is wrong.
    pub problem: Problem,
    /// Another place that the error is about.
    pub related: Option<Related>,
    /// Whether the text exceeds the parser's budget, and may be YAML otherwise.
    pub exceeds_budget: bool,
}

/// Another place that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Related {
    /// The place, in the same text.
    pub place: SourcePosition,
    /// What is there.
    pub label: String,
}

/// Characters that begin something else than a text, and what that is.
const INDICATORS: [(char, Option<&str>); 8] = [
    ('>', Some("a block of folded text")),
    ('|', Some("a block of text")),
    ('*', Some("an alias")),
    ('&', Some("an anchor")),
    ('!', Some("a tag")),
    ('%', None),
    ('@', None),
    ('`', None),
];

/// The error of the parser in words, with its remedy if the text has one of the usual mistakes.
pub(super) fn explain(text: &str, values: usize, error: &serde_saphyr::Error) -> SyntaxError {
    let place = error.location().map(SourcePosition::from).filter(|place| place.line > 0);
    let place = place.map(|place| place.in_text(text));
    let message = error.without_snippet().to_string();
    let suffix = place.map(|place| format!(" at line {}, column {}", place.line, place.column));
    let message = suffix.and_then(|suffix| message.strip_suffix(&suffix)).unwrap_or(&message).to_owned();
    let mistake = place.and_then(|place| Some((Stop::at(text, place)?, Stop::at(text, place)?.mistake(&message)?)));
    if let Some((stop, Mistake { what, remedy, part })) = mistake {
        let problem = Problem::new(format!("invalid YAML: {what}"), remedy);
        return SyntaxError { place: Some(stop.place_of(part)), problem, related: None, exceeds_budget: false };
    }
    let breach = match error.without_snippet() {
        serde_saphyr::Error::Budget { breach, .. } => Some(breach),
        _ => None,
    };
    if let Some(problem) = breach.and_then(|breach| too_much(breach, values)) {
        return SyntaxError { place, problem, related: None, exceeds_budget: true };
    }
    if let Some((place, problem)) = place.and_then(|place| open_quote(text, place, &message)) {
        return SyntaxError { place: Some(place), problem, related: None, exceeds_budget: false };
    }
    let exceeds_budget = breach.is_some();
    let remedy = message.contains("bracket").then(|| "close each bracket, or write the text in quotes".to_owned());
    SyntaxError {
        place,
        problem: Problem::of(format!("invalid YAML: {message}"), remedy),
        related: None,
        exceeds_budget,
    }
}

/// What is too much in a text that may be written by people. Other limits only hold for hostile ones.
fn too_much(breach: &BudgetBreach, values: usize) -> Option<Problem> {
    match breach {
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            let thousands = values / 1000;
            let what = format!("too large: it may have at most {thousands},000 lists, mappings, names and values");
            Some(Problem::new(what, "split it into several policies, each in a file of its own"))
        }
        BudgetBreach::Depth { .. } => Some("lists and mappings are nested more than 32 levels deep".into()),
        _ => None,
    }
}

/// The error of a value that needs quotes.
pub(super) fn unquoted(text: &str, place: SourcePosition) -> SyntaxError {
    let found = Stop::at(text, place).and_then(|stop| {
        let Mistake { what, remedy, part } = stop.indicator()?;
        let problem = Problem::new(format!("invalid YAML: {what}"), remedy);
        Some(SyntaxError { place: Some(stop.place_of(part)), problem, related: None, exceeds_budget: false })
    });
    let problem = || Problem::new("invalid YAML: YAML reads this value as something else", "write it in quotes");
    found.unwrap_or_else(|| SyntaxError {
        place: Some(place),
        problem: problem(),
        related: None,
        exceeds_budget: false,
    })
}

/// The line in which the parser stopped.
#[derive(Clone, Copy)]
struct Stop<'t> {
    line: &'t str,
    number: u32,
    /// The byte at which the line begins.
    start: usize,
    /// The byte of the line at which the parser stopped.
    at: usize,
    /// Where the value in the line begins.
    value: Option<usize>,
}

/// One of the usual mistakes, and the part of the line that has it.
struct Mistake {
    what: String,
    remedy: String,
    part: Range<usize>,
}

impl<'t> Stop<'t> {
    fn at(text: &'t str, place: SourcePosition) -> Option<Self> {
        let start = line_start(text, place.start())?;
        let line = text.get(start..)?.lines().next()?;
        Some(Self { line, number: place.line, start, at: place.start() - start, value: value_start(line) })
    }

    fn place_of(&self, part: Range<usize>) -> SourcePosition {
        let before = self.line.get(..part.start).map_or(0, |before| before.chars().count());
        let column = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
        SourcePosition::new(self.number, column, self.start + part.start..self.start + part.end)
    }

    fn rest(&self, at: usize) -> &'t str {
        self.line.get(at..).unwrap_or_default()
    }

    fn mistake(&self, message: &str) -> Option<Mistake> {
        if let Some(template) = self.line.find("{{") {
            let end = self.rest(template).find("}}").map_or(self.line.len(), |length| template + length + 2);
            let what = "`{{` begins a mapping, not a template".to_owned();
            let remedy = "write YAML without templates, or render the template first".to_owned();
            return Some(Mistake { what, remedy, part: template..end });
        }
        if message.contains("tabs disallowed") {
            let tab = self.line.find('\t')?;
            let (what, remedy) = ("the line is indented with a tab".to_owned(), "indent it with spaces".to_owned());
            return Some(Mistake { what, remedy, part: tab..tab + 1 });
        }
        if message.contains("unknown escape") {
            let what = "an unknown escape sequence in double quotes".to_owned();
            let remedy = "write the text in single quotes, in which a backslash is only a backslash".to_owned();
            return Some(Mistake { what, remedy, part: self.at..self.at + value_at(self.line, self.at).len() });
        }
        if let Some(found) = self.indicator() {
            return Some(found);
        }
        // The parser stopped at the colon of the first field in the line.
        let key = self.line.get(..self.at)?.trim_start();
        if message.contains("mapping values are not allowed") && !key.is_empty() && !key.contains([':', ' ', '{', '['])
        {
            let what =
                format!("{} is indented more than the line above, so it continues that line's value", Quoted(key));
            let remedy = "indent it as much as the other fields".to_owned();
            return Some(Mistake { what, remedy, part: self.at - key.len()..self.at });
        }
        let value = self.value.filter(|value| *value < self.at)?;
        if message.contains("mapping values are not allowed") {
            return Some(self.quote(value, "an unquoted text cannot contain `: `".to_owned()));
        }
        let kind = match self.rest(value).chars().next()? {
            '[' => "a list",
            '{' => "a mapping",
            _ => return None,
        };
        // A bracket that is not closed is an error of its own.
        let is_closed = self.line.get(value..self.at)?.contains([']', '}']);
        let sign = self.rest(value).chars().next()?;
        let what = format!("an unquoted `{sign}` begins {kind}, and more text follows its end");
        is_closed.then(|| self.quote(value, what))
    }

    /// The value at which the parser stopped, or in which it did, if it begins with a sign that has a meaning.
    fn indicator(&self) -> Option<Mistake> {
        let begins = |at: usize| INDICATORS.iter().find(|(sign, _)| self.rest(at).starts_with(*sign));
        let starts = [Some(self.at), self.value].into_iter().flatten();
        let (start, (sign, begun)) = starts.into_iter().find_map(|at| Some((at, begins(at)?)))?;
        let what = match begun {
            Some(begun) => format!("an unquoted `{sign}` begins {begun}"),
            None => format!("a value cannot begin with an unquoted `{sign}`"),
        };
        Some(self.quote(start, what))
    }

    /// The remedy for a value that needs quotes.
    fn quote(&self, start: usize, what: String) -> Mistake {
        let written = value_at(self.line, start);
        let remedy = format!("write it in quotes: {}", quoted(written));
        Mistake { what, remedy, part: start..start + written.len() }
    }
}

fn line_start(text: &str, at: usize) -> Option<usize> {
    Some(text.get(..at)?.rfind('\n').map_or(0, |newline| newline + 1))
}

/// Where the value of `key: value` or `- value` begins in a line.
fn value_start(line: &str) -> Option<usize> {
    let mut at = line.len() - line.trim_start().len();
    let item = at;
    while let Some(rest) = line.get(at..)?.strip_prefix("- ") {
        at = line.len() - rest.trim_start().len();
    }
    match line.get(at..)?.find(": ") {
        Some(colon) if line.get(at..at + colon).is_some_and(|key| !key.starts_with(['[', '{'])) => {
            let rest = line.get(at + colon + 2..)?;
            Some(line.len() - rest.trim_start().len())
        }
        _ => Some(at).filter(|at| *at > item),
    }
}

/// The text that begins at `start`: up to the end of the line or a comment, in brackets up to the end of the item.
fn value_at(line: &str, start: usize) -> &str {
    let rest = line.get(start..).unwrap_or_default();
    let comment = rest.find(" #").unwrap_or(rest.len());
    let item = rest.find([',', ']', '}']).filter(|_| in_brackets(line, start)).unwrap_or(rest.len());
    rest.get(..comment.min(item)).unwrap_or_default().trim_end()
}

/// Whether more brackets are opened than closed before `start`.
fn in_brackets(line: &str, start: usize) -> bool {
    let before = line.get(..start).unwrap_or_default();
    before.matches(['[', '{']).count() > before.matches([']', '}']).count()
}

/// `text` in the quotes that change it least.
pub(crate) fn quoted(text: &str) -> String {
    if text.contains(['"', '\\']) { format!("'{}'", text.replace('\'', "''")) } else { format!("\"{text}\"") }
}

/// Where a value is written that begins behind the byte `after` and that YAML accepts, but reads as something else than it
/// says. A tag that is not one of YAML's own (`!!str`) is an expression such as `!has(…)` without quotes, of which YAML
/// drops the first word. A block of text without a line, but with an indentation, is a condition such as `>4`.
pub(super) fn misread(text: &str, after: usize, value: SourcePosition) -> Option<SourcePosition> {
    let between = text.get(after..value.start())?;
    let lead = between.len() - between.trim_start_matches([' ', ':', '-', ',', '[', '{', '\n', '\r', '?']).len();
    let rest = between.get(lead..)?;
    let is_tag = rest.starts_with('!') && !rest.starts_with("!!");
    let is_condition = value.start() == value.end()
        && rest.strip_prefix('>').is_some_and(|header| header.starts_with(|c: char| c.is_ascii_digit()));
    if !is_tag && !is_condition {
        return None;
    }
    let start = after + lead;
    SourcePosition::of_bytes(text, start..start)
}

/// The error of a key that a mapping has twice, with the place of the first one.
pub(super) fn duplicate(key: Option<&str>, second: SourcePosition, documents: &[Spanned<Value>]) -> SyntaxError {
    let first = documents.iter().find_map(|document| first_of(&document.value, second));
    let what = match key {
        Some(key) => format!("the key {} is given twice", Quoted(key)),
        None => "a key is given twice".to_owned(),
    };
    let what = match first {
        Some(first) if first.line == second.line => format!("{what} in line {}", second.line),
        Some(first) => format!("{what}, in lines {} and {}", first.line, second.line),
        None => what,
    };
    SyntaxError {
        place: Some(second),
        problem: Problem::new(what, "remove one of the two"),
        related: first.map(|place| Related { place, label: "the first one".to_owned() }),
        exceeds_budget: false,
    }
}

/// The first field with the same name in the mapping that has a field at `second`.
fn first_of(value: &Value, second: SourcePosition) -> Option<SourcePosition> {
    match value {
        Value::Scalar(_) => None,
        Value::List(items) => items.iter().find_map(|item| first_of(&item.value, second)),
        Value::Mapping(fields) => {
            let place = |key: &Spanned<String>| SourcePosition::from(key.referenced);
            let twice = fields.iter().find(|(key, _)| place(key) == second);
            let first = twice.and_then(|(twice, _)| fields.iter().find(|(key, _)| key.value == twice.value));
            first
                .map(|(key, _)| place(key))
                .or_else(|| fields.iter().find_map(|(_, value)| first_of(&value.value, second)))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
