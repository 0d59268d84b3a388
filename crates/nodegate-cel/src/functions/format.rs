//! `format` as the CEL specification has it, and numbers as Go writes them.

use std::fmt::Write as _;

use crate::fault::EvaluationError;
use crate::functions::{Function, method, unsuited};
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::{Key, Value};

pub(super) const FUNCTIONS: &[Function] = &[method("format", &[Type::Text, Type::List], Type::Text, format)];

/// Digits behind the point that `format` may be asked for.
const MAX_PRECISION: usize = 100;
/// How many there are without being asked for.
const PRECISION: usize = 6;

fn failed(message: impl Into<String>) -> EvaluationError {
    EvaluationError::failed(message)
}

fn format<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    let [Value::Text(template), Value::List(items)] = arguments else { return Err(unsuited("format", arguments)) };
    steps.bytes(2 * template.len())?;
    let (mut text, mut rest, mut next) = (String::new(), &**template, 0);
    while let Some((before, clause)) = rest.split_once('%') {
        text.push_str(before);
        if let Some(behind) = clause.strip_prefix('%') {
            text.push('%');
            rest = behind;
            continue;
        }
        let item =
            items.get(next).ok_or_else(|| failed(format!("format() has no value for its clause {}", next + 1)))?;
        next += 1;
        let (precision, clause) = precision(clause)?;
        let mut letters = clause.chars();
        let letter = letters.next().ok_or_else(|| failed("format() ends within a clause"))?;
        let before = text.len();
        write_clause(steps, &mut text, letter, precision, &item)?;
        steps.bytes(text.len() - before)?;
        rest = letters.as_str();
    }
    text.push_str(rest);
    Ok(Value::from(text))
}

/// `.3` at the start of a clause.
fn precision(clause: &str) -> Result<(usize, &str), EvaluationError> {
    let Some(rest) = clause.strip_prefix('.') else { return Ok((PRECISION, clause)) };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    match digits.parse() {
        Ok(digits) if digits <= MAX_PRECISION => Ok((digits, rest)),
        Err(_) if digits.is_empty() => Err(failed("format() needs a number of digits after `%.`")),
        _ => Err(failed(format!("format() writes at most {MAX_PRECISION} digits"))),
    }
}

fn write_clause(
    steps: &mut Steps,
    text: &mut String,
    letter: char,
    precision: usize,
    value: &Value<'_>,
) -> Result<(), EvaluationError> {
    let written = match (letter, value) {
        ('s', value) => return write_value(steps, text, value),
        ('d' | 'f' | 'e', Value::Double(value)) if !value.is_finite() => Some(double_plainly(*value)),
        ('d', Value::Int(value)) => Some(value.to_string()),
        ('d', Value::Uint(value)) => Some(value.to_string()),
        ('d', Value::Double(value)) => Some(double_plainly(*value)),
        ('f', Value::Double(value)) => Some(format!("{value:.precision$}")),
        ('f', Value::Int(value)) => Some(fixed(&value.to_string(), precision)),
        ('f', Value::Uint(value)) => Some(fixed(&value.to_string(), precision)),
        ('e', Value::Double(value)) => Some(scientific(*value, precision)),
        #[allow(clippy::cast_precision_loss)] // What its notation means.
        ('e', Value::Int(value)) => Some(scientific(*value as f64, precision)),
        #[allow(clippy::cast_precision_loss)] // What its notation means.
        ('e', Value::Uint(value)) => Some(scientific(*value as f64, precision)),
        ('b', Value::Bool(value)) => Some(u8::from(*value).to_string()),
        ('b' | 'o' | 'x' | 'X', Value::Int(value)) => {
            let sign = if *value < 0 { "-" } else { "" };
            Some(format!("{sign}{}", in_base(letter, value.unsigned_abs())))
        }
        ('b' | 'o' | 'x' | 'X', Value::Uint(value)) => Some(in_base(letter, *value)),
        ('x' | 'X', Value::Text(value)) => Some(hexadecimal(steps, letter, value.as_bytes())?),
        ('x' | 'X', Value::Bytes(value)) => Some(hexadecimal(steps, letter, value)?),
        ('b' | 'd' | 'e' | 'f' | 'o' | 'x' | 'X', _) => None,
        _ => {
            return Err(failed(format!("format() does not support `%{letter}`; use %s, %d, %f, %e, %b, %o, %x or %X")));
        }
    };
    let written = written.ok_or_else(|| failed(format!("format() cannot write {} as `%{letter}`", value.noun())))?;
    text.push_str(&written);
    Ok(())
}

/// A whole number with zeros behind its point.
fn fixed(whole: &str, precision: usize) -> String {
    if precision == 0 { whole.to_owned() } else { format!("{whole}.{}", "0".repeat(precision)) }
}

/// `1.052033e+03`: an exponent has a sign and at least two digits.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn in_base(letter: char, value: u64) -> String {
    match letter {
        'b' => format!("{value:b}"),
        'o' => format!("{value:o}"),
        'x' => format!("{value:x}"),
        _ => format!("{value:X}"),
    }
}

fn hexadecimal(steps: &mut Steps, letter: char, bytes: &[u8]) -> Result<String, EvaluationError> {
    steps.bytes(2 * bytes.len())?;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let written = if letter == 'x' { write!(text, "{byte:02x}") } else { write!(text, "{byte:02X}") };
        written.map_err(|error| EvaluationError::Internal(error.to_string()))?;
    }
    Ok(text)
}

/// A value as `%s` writes it. Values lie inside each other no deeper than an expression or a document does.
fn write_value(steps: &mut Steps, text: &mut String, value: &Value<'_>) -> Result<(), EvaluationError> {
    steps.take(1)?;
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => text.push_str(&value.to_string()),
        Value::Uint(value) => text.push_str(&value.to_string()),
        Value::Double(value) => text.push_str(&double_plainly(*value)),
        Value::Text(value) => {
            steps.bytes(value.len())?;
            text.push_str(value);
        }
        Value::Bytes(value) => {
            steps.bytes(value.len())?;
            text.push_str(&String::from_utf8_lossy(value));
        }
        Value::Duration(value) => text.push_str(&value.to_string()),
        Value::Timestamp(value) => text.push_str(&value.to_string()),
        Value::List(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                write_value(steps, text, &item)?;
            }
            text.push(']');
        }
        Value::Map(map) => {
            steps.take(map.len())?;
            let mut entries =
                map.entries().into_iter().map(|(key, value)| (written_key(&key), value)).collect::<Vec<_>>();
            entries.sort_by(|(one, _), (other, _)| one.cmp(other));
            text.push('{');
            for (at, (key, value)) in entries.iter().enumerate() {
                steps.bytes(key.len())?;
                text.push_str(if at > 0 { ", " } else { "" });
                text.push_str(key);
                text.push_str(": ");
                write_value(steps, text, value)?;
            }
            text.push('}');
        }
        Value::Optional(_) | Value::Opaque(_) | Value::Unread(_) => {
            return Err(failed(format!("format() cannot write {} as `%s`", value.noun())));
        }
    }
    Ok(())
}

fn written_key(key: &Key<'_>) -> String {
    match key {
        Key::Text(text) => text.to_string(),
        Key::Bool(_) | Key::Int(_) | Key::Uint(_) => key.to_string(),
    }
}

/// A number without an exponent, with as few digits as tell it from others.
fn double_plainly(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        value => value.to_string(),
    }
}

/// A number as `string()` writes it: Go's `%g`, which writes an exponent from a million on (`1e+06`) and below a ten-thousandth.
pub(super) fn double(value: f64) -> String {
    if !value.is_finite() {
        let text = if value.is_nan() { "NaN" } else { "Inf" };
        let sign = if value.is_nan() { "" } else { ["-", "+"][usize::from(value > 0.0)] };
        return format!("{sign}{text}");
    }
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => format!("{mantissa}e{exponent:+03}"),
        _ => value.to_string(),
    }
}
