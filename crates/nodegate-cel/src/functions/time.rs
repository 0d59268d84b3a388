//! Durations and points in time.

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, Plain, begin, function, method, unsuited};
use crate::values::steps::Steps;
use crate::values::time::{Civil, Duration, Timestamp};
use crate::values::types::Type;
use crate::values::value::Value;

const fn getter(name: &'static str, target: &'static [Type; 2], run: Plain) -> Function {
    method(name, target, Type::Int, run).optional(1)
}

/// A point in time, and a time zone.
const TIME: &[Type; 2] = &[Type::Timestamp, Type::Text];
/// The same, or a duration.
const EITHER: &[Type; 2] = &[Type::Any, Type::Text];

pub(super) const FUNCTIONS: &[Function] = &[
    function("timestamp", &[Type::Any], Type::Timestamp, timestamp),
    function("duration", &[Type::Any], Type::Duration, duration),
    getter("getFullYear", TIME, |steps, arguments| calendar("getFullYear", steps, arguments, |at| at.year)),
    getter("getMonth", TIME, |steps, arguments| calendar("getMonth", steps, arguments, |at| at.month - 1)),
    getter("getDayOfYear", TIME, |steps, arguments| calendar("getDayOfYear", steps, arguments, |at| at.day_of_year)),
    getter("getDayOfMonth", TIME, |steps, arguments| calendar("getDayOfMonth", steps, arguments, |at| at.day - 1)),
    getter("getDate", TIME, |steps, arguments| calendar("getDate", steps, arguments, |at| at.day)),
    getter("getDayOfWeek", TIME, |steps, arguments| calendar("getDayOfWeek", steps, arguments, |at| at.weekday)),
    getter("getHours", EITHER, |steps, arguments| clock("getHours", steps, arguments, 3_600_000_000_000, |at| at.hour)),
    getter("getMinutes", EITHER, |steps, arguments| {
        clock("getMinutes", steps, arguments, 60_000_000_000, |at| at.minute)
    }),
    getter("getSeconds", EITHER, |steps, arguments| {
        clock("getSeconds", steps, arguments, 1_000_000_000, |at| at.second)
    }),
    getter("getMilliseconds", EITHER, |steps, arguments| {
        clock("getMilliseconds", steps, arguments, 1_000_000, |at| at.millisecond)
    }),
];

fn unreadable(text: &str, what: &str) -> EvaluationError {
    EvaluationError::failed(format!("{:?} is not {what}", begin(text)))
}

fn timestamp<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Timestamp(time)] => Ok(Value::Timestamp(*time)),
        [Value::Int(seconds)] => Timestamp::new(*seconds, 0)
            .map(Value::Timestamp)
            .ok_or_else(|| EvaluationError::failed(format!("timestamp({seconds}) is beyond the years 1 to 9999"))),
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            let time = Timestamp::parse(text).map(Value::Timestamp);
            time.ok_or_else(|| unreadable(text, "a point in time such as 2026-01-02T03:04:05Z"))
        }
        _ => Err(unsuited("timestamp", arguments)),
    }
}

fn duration<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Duration(duration)] => Ok(Value::Duration(*duration)),
        [Value::Int(nanos)] => Ok(Value::Duration(Duration(*nanos))),
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            let duration = Duration::parse(text).map(Value::Duration);
            duration.ok_or_else(|| unreadable(text, "a duration such as 1h30m, of at most 292 years"))
        }
        _ => Err(unsuited("duration", arguments)),
    }
}

/// Something a calendar shows, in UTC or in the time zone that is given.
fn calendar<'a>(name: &str, steps: &mut Steps, arguments: &[Value<'a>], show: impl Fn(&Civil) -> i64) -> Outcome<'a> {
    let (time, offset) = match arguments {
        [Value::Timestamp(time)] => (time, 0),
        [Value::Timestamp(time), Value::Text(zone)] => {
            steps.bytes(zone.len())?;
            (time, offset(zone)?)
        }
        _ => return Err(unsuited(name, arguments)),
    };
    Ok(Value::Int(show(&time.civil(offset))))
}

/// Something a clock shows, or how many whole units of `nanos` nanoseconds a duration has.
fn clock<'a>(
    name: &str,
    steps: &mut Steps,
    arguments: &[Value<'a>],
    nanos: i64,
    show: impl Fn(&Civil) -> i64,
) -> Outcome<'a> {
    match arguments {
        [Value::Duration(duration)] => Ok(Value::Int(duration.0 / nanos)),
        _ => calendar(name, steps, arguments, show),
    }
}

/// The seconds east of UTC of `UTC`, `+02:00`, `-09:30`. Named zones need a database of time zones, whose answers change
/// with its version.
fn offset(zone: &str) -> Result<i64, EvaluationError> {
    if matches!(zone, "" | "UTC") {
        return Ok(0);
    }
    let refused = || unreadable(zone, "a supported time zone; write UTC or an offset such as +02:00");
    let (hours, minutes) = zone.split_once(':').ok_or_else(refused)?;
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| number.abs() < 100);
    let (hours, minutes) = number(hours).zip(number(minutes)).ok_or_else(refused)?;
    let minutes = if zone.starts_with('-') { hours * 60 - minutes } else { hours * 60 + minutes };
    Ok(minutes * 60)
}
