//! `governance.allowed` by `range`: whole numbers.

use super::formula::{Formula, quote};

/// Whether a text is outside a range, and was not outside it before by as much or less.
///
/// `old` is evaluated only where `was_there` holds.
pub(super) fn is_wrong(text: &str, was_there: Formula, old: &str, min: Option<i64>, max: Option<i64>) -> Formula {
    let range = Range { min, max };
    let nearer = Formula::any([
        range.is_number(old).not(),
        Formula::When(format!("{}.isLessThan({})", range.distance(text), range.distance(old))),
    ]);
    let better = Formula::all([was_there, range.has(old).not(), range.is_number(text), nearer]);
    Formula::all([range.has(text).not(), better.not()])
}

/// The range in words.
pub(super) fn told(min: Option<i64>, max: Option<i64>) -> String {
    let ends = match (min, max) {
        (Some(min), Some(max)) => format!("from {min} to {max}"),
        (Some(min), None) => format!("of at least {min}"),
        (None, max) => format!("of at most {}", max.unwrap_or(i64::MAX)),
    };
    format!(": it must be a whole number {ends}")
}

struct Range {
    min: Option<i64>,
    max: Option<i64>,
}

impl Range {
    fn has(&self, text: &str) -> Formula {
        let end = |end: Option<i64>, sign: &str| {
            end.map(|end| {
                // CEL reads the least number as a sign and one that is too large.
                let end = if end == i64::MIN { format!("int(\"{end}\")") } else { end.to_string() };
                Formula::When(format!("(int({text}) {sign} {end})"))
            })
        };
        Formula::all([Some(self.is_number(text)), end(self.min, ">="), end(self.max, "<=")].into_iter().flatten())
    }

    /// Whether a text is a whole number of 64 bits: others make `int` fail.
    fn is_number(&self, text: &str) -> Formula {
        let (form, signed) = (quote("^[+-]?0*[0-9]{1,19}$"), quote("^[+-]"));
        Formula::When(format!(
            "({text}.matches({form}) && uint({text}.matches({signed}) ? {text}.substring(1) : {text}) <= ({text}.startsWith(\"-\") ? {}u : {}u))",
            i64::MIN.unsigned_abs(),
            i64::MAX
        ))
    }

    /// How far a number outside the range is from it, as a quantity, which does not overflow.
    fn distance(&self, text: &str) -> String {
        let from = |end: i64| format!("quantity({})", quote(&end.to_string()));
        let below = self.min.map(|min| format!("{}.sub(quantity({text}))", from(min)));
        let above = self.max.map(|max| format!("quantity({text}).sub({})", from(max)));
        match (below, above, self.min) {
            (Some(below), Some(above), Some(min)) => format!("(int({text}) < {min} ? {below} : {above})"),
            (below, above, _) => below.or(above).unwrap_or_default(),
        }
    }
}
