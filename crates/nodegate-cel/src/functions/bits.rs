//! Bits of numbers.

use crate::fault::EvaluationError;
use crate::functions::{Form, Function, Own, Run, unsuited};
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

const fn function(name: &'static str, parameters: &'static [Type], run: Own) -> Function {
    Function::new(name, Form::Function, parameters, Type::Any, Run::Own(run))
}

/// Two ints or two uints.
const BOTH: &[Type] = &[Type::Any, Type::Any];
/// An int or a uint, and by how many bits.
const SHIFT: &[Type] = &[Type::Any, Type::Int];

pub(super) const FUNCTIONS: &[Function] = &[
    function("math.bitAnd", BOTH, |_, arguments| {
        both("math.bitAnd", arguments, |one, other| one & other, |one, other| one & other)
    }),
    function("math.bitOr", BOTH, |_, arguments| {
        both("math.bitOr", arguments, |one, other| one | other, |one, other| one | other)
    }),
    function("math.bitXor", BOTH, |_, arguments| {
        both("math.bitXor", arguments, |one, other| one ^ other, |one, other| one ^ other)
    }),
    function("math.bitNot", &[Type::Any], not),
    function("math.bitShiftLeft", SHIFT, |_, arguments| shift("math.bitShiftLeft", arguments, u64::checked_shl)),
    function("math.bitShiftRight", SHIFT, |_, arguments| shift("math.bitShiftRight", arguments, u64::checked_shr)),
];

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

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
