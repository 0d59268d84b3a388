//! `governance.allowed` with `range`: integers.

use crate::native::terms::formula::{Formula, quote};

/// Whether a text is outside a range, unless it was further outside before.
///
/// `old` is evaluated only if `was_there` holds.
pub(in crate::native) fn is_wrong(
    text: &str,
    was_there: Formula,
    old: &str,
    min: Option<i64>,
    max: Option<i64>,
) -> Formula {
    let range = Range { min, max };
    let nearer = Formula::any([
        range.is_number(old).not(),
        Formula::When(format!("{}.isLessThan({})", range.distance(text), range.distance(old))),
    ]);
    let better = Formula::all([was_there, range.has(old).not(), range.is_number(text), nearer]);
    Formula::all([range.has(text).not(), better.not()])
}

/// The end of the message.
pub(in crate::native) fn describe(min: Option<i64>, max: Option<i64>) -> String {
    let ends = match (min, max) {
        (Some(min), Some(max)) => format!("between {min} and {max}"),
        (Some(min), None) => format!("greater than or equal to {min}"),
        (None, max) => format!("less than or equal to {}", max.unwrap_or(i64::MAX)),
    };
    format!(": the value must be an integer {ends}")
}

struct Range {
    min: Option<i64>,
    max: Option<i64>,
}

impl Range {
    fn has(&self, text: &str) -> Formula {
        let end = |end: Option<i64>, sign: &str| {
            end.map(|end| {
                // CEL parses the smallest integer as a minus sign and a number that is too large.
                let end = if end == i64::MIN { format!("int(\"{end}\")") } else { end.to_string() };
                Formula::When(format!("(int({text}) {sign} {end})"))
            })
        };
        Formula::all([Some(self.is_number(text)), end(self.min, ">="), end(self.max, "<=")].into_iter().flatten())
    }

    /// Whether a text is a 64-bit integer: `int` fails for others.
    fn is_number(&self, text: &str) -> Formula {
        let (form, signed) = (quote("^[+-]?0*[0-9]{1,19}$"), quote("^[+-]"));
        Formula::When(format!(
            "({text}.matches({form}) && uint({text}.matches({signed}) ? {text}.substring(1) : {text}) <= ({text}.startsWith(\"-\") ? {}u : {}u))",
            i64::MIN.unsigned_abs(),
            i64::MAX
        ))
    }

    /// The distance of a number from the range, as a quantity, which does not overflow.
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
