//! Mathematics (`ext/math.go` of cel-go).

use std::cmp::Ordering;

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, Plain, function, unsuited};
use crate::run::operators::numbers;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

const fn of_numbers(name: &'static str, parameters: &'static [Type], run: Plain) -> Function {
    function(name, parameters, Type::Any, run)
}

/// Two ints or two uints.
const BOTH: &[Type] = &[Type::Any, Type::Any];
/// An int or a uint, and by how many bits.
const SHIFT: &[Type] = &[Type::Any, Type::Int];

const fn rounding(name: &'static str, run: Plain) -> Function {
    function(name, &[Type::Double], Type::Double, run)
}

const fn question(name: &'static str, run: Plain) -> Function {
    function(name, &[Type::Double], Type::Bool, run)
}

pub(super) const FUNCTIONS: &[Function] = &[
    rounding("math.ceil", |_, arguments| double("math.ceil", arguments, f64::ceil)),
    rounding("math.floor", |_, arguments| double("math.floor", arguments, f64::floor)),
    rounding("math.round", |_, arguments| double("math.round", arguments, f64::round)),
    rounding("math.trunc", |_, arguments| double("math.trunc", arguments, f64::trunc)),
    rounding("math.sqrt", |_, arguments| double("math.sqrt", arguments, f64::sqrt)),
    question("math.isInf", |_, arguments| is("math.isInf", arguments, f64::is_infinite)),
    question("math.isNaN", |_, arguments| is("math.isNaN", arguments, f64::is_nan)),
    question("math.isFinite", |_, arguments| is("math.isFinite", arguments, f64::is_finite)),
    of_numbers("math.abs", &[Type::Any], absolute),
    of_numbers("math.sign", &[Type::Any], sign),
    of_numbers("math.greatest", &[Type::Any; 8], |steps, arguments| {
        outermost(steps, "math.greatest", arguments, Ordering::Greater)
    })
    .optional(7),
    of_numbers("math.least", &[Type::Any; 8], |steps, arguments| {
        outermost(steps, "math.least", arguments, Ordering::Less)
    })
    .optional(7),
    of_numbers("math.bitAnd", BOTH, |_, arguments| {
        both("math.bitAnd", arguments, |one, other| one & other, |one, other| one & other)
    }),
    of_numbers("math.bitOr", BOTH, |_, arguments| {
        both("math.bitOr", arguments, |one, other| one | other, |one, other| one | other)
    }),
    of_numbers("math.bitXor", BOTH, |_, arguments| {
        both("math.bitXor", arguments, |one, other| one ^ other, |one, other| one ^ other)
    }),
    of_numbers("math.bitNot", &[Type::Any], not),
    of_numbers("math.bitShiftLeft", SHIFT, |_, arguments| shift("math.bitShiftLeft", arguments, u64::checked_shl)),
    of_numbers("math.bitShiftRight", SHIFT, |_, arguments| shift("math.bitShiftRight", arguments, u64::checked_shr)),
];

fn double<'a>(name: &str, arguments: &[Value<'a>], of: impl Fn(f64) -> f64) -> Outcome<'a> {
    match arguments {
        [Value::Double(value)] => Ok(Value::Double(of(*value))),
        _ => Err(unsuited(name, arguments)),
    }
}

fn is<'a>(name: &str, arguments: &[Value<'a>], of: impl Fn(f64) -> bool) -> Outcome<'a> {
    match arguments {
        [Value::Double(value)] => Ok(Value::Bool(of(*value))),
        _ => Err(unsuited(name, arguments)),
    }
}

fn absolute<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let beyond = || EvaluationError::failed("math.abs() is beyond the range of an int");
    match arguments {
        [Value::Int(value)] => value.checked_abs().map(Value::Int).ok_or_else(beyond),
        [Value::Uint(value)] => Ok(Value::Uint(*value)),
        [Value::Double(value)] => Ok(Value::Double(value.abs())),
        _ => Err(unsuited("math.abs", arguments)),
    }
}

/// −1, 0 or 1, as a number of the same type. What is not a number stays so.
fn sign<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Int(value)] => Ok(Value::Int(value.signum())),
        [Value::Uint(value)] => Ok(Value::Uint((*value).min(1))),
        [Value::Double(value)] if *value == 0.0 => Ok(Value::Double(0.0)),
        [Value::Double(value)] => Ok(Value::Double(value.signum())),
        _ => Err(unsuited("math.sign", arguments)),
    }
}

/// The greatest or the least of some numbers, or of a list of them; of equal ones the first.
fn outermost<'a>(steps: &mut Steps, name: &str, arguments: &[Value<'a>], wanted: Ordering) -> Outcome<'a> {
    let items: Vec<Value<'a>> = match arguments {
        [Value::List(items)] => {
            steps.take(items.len())?;
            items.iter().collect()
        }
        _ => arguments.to_vec(),
    };
    let Some((first, rest)) = items.split_first() else {
        return Err(EvaluationError::failed(format!("{name}() needs a number")));
    };
    let mut found = first;
    // The first is compared with itself, because it has to be a number, too.
    for item in [first].into_iter().chain(rest) {
        let order = numbers(item, found).ok_or_else(|| unsuited(name, std::slice::from_ref(item)))?;
        if order.ok_or_else(|| EvaluationError::failed(format!("{name}() cannot compare what is not a number")))?
            == wanted
        {
            found = item;
        }
    }
    Ok(found.clone())
}

fn both<'a>(
    name: &str,
    arguments: &[Value<'a>],
    ints: impl Fn(i64, i64) -> i64,
    uints: impl Fn(u64, u64) -> u64,
) -> Outcome<'a> {
    match arguments {
        [Value::Int(one), Value::Int(other)] => Ok(Value::Int(ints(*one, *other))),
        [Value::Uint(one), Value::Uint(other)] => Ok(Value::Uint(uints(*one, *other))),
        _ => Err(unsuited(name, arguments)),
    }
}

fn not<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Int(value)] => Ok(Value::Int(!value)),
        [Value::Uint(value)] => Ok(Value::Uint(!value)),
        _ => Err(unsuited("math.bitNot", arguments)),
    }
}

/// Shifts the bits of a number, whatever its sign. Beyond 63 nothing is left.
#[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // The bits stay the same.
fn shift<'a>(name: &str, arguments: &[Value<'a>], by: impl Fn(u64, u32) -> Option<u64>) -> Outcome<'a> {
    let [_, Value::Int(bits)] = arguments else { return Err(unsuited(name, arguments)) };
    if *bits < 0 {
        return Err(EvaluationError::failed(format!("{name}() by a negative number of bits")));
    }
    let shifted = |value: u64| u32::try_from(*bits).ok().and_then(|bits| by(value, bits)).unwrap_or(0);
    match arguments {
        [Value::Int(value), _] => Ok(Value::Int(shifted(*value as u64) as i64)),
        [Value::Uint(value), _] => Ok(Value::Uint(shifted(*value))),
        _ => Err(unsuited(name, arguments)),
    }
}
