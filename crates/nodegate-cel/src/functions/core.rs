//! Sizes, conversions and optionals.

use std::sync::Arc;

use crate::fault::EvaluationError;
use crate::functions::{Form, Function, Outcome, Run, begin, format, function, method, unsuited};
use crate::values::opaque::Opaque;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::{Text, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("size", Form::Either, &[Type::Any], Type::Int, Run::Plain(size)),
    function("dyn", &[Type::Any], Type::Any, same),
    function("bool", &[Type::Any], Type::Bool, bool),
    function("int", &[Type::Any], Type::Int, int),
    function("uint", &[Type::Any], Type::Uint, uint),
    function("double", &[Type::Any], Type::Double, double),
    function("string", &[Type::Any], Type::Text, string),
    function("bytes", &[Type::Any], Type::Bytes, bytes),
    function("optional.none", &[], Type::Optional, none),
    function("optional.of", &[Type::Any], Type::Optional, some),
    function("optional.ofNonZeroValue", &[Type::Any], Type::Optional, some_non_zero),
    function("optional.unwrap", &[Type::List], Type::List, unwrap),
    method("unwrapOpt", &[Type::List], Type::List, unwrap),
    method("hasValue", &[Type::Optional], Type::Bool, has_value),
    method("value", &[Type::Optional], Type::Any, value),
];

/// Characters of text, bytes, items, entries.
fn size<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let size = match arguments {
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            text.chars().count()
        }
        [Value::Bytes(bytes)] => bytes.len(),
        [Value::List(items)] => items.len(),
        [Value::Map(entries)] => entries.len(),
        _ => return Err(unsuited("size", arguments)),
    };
    i64::try_from(size).map(Value::Int).map_err(|_| EvaluationError::failed("size() is beyond the range of int"))
}

fn same<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    arguments.first().cloned().ok_or_else(|| unsuited("dyn", arguments))
}

fn bool<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Bool(value)] => Ok(Value::Bool(*value)),
        // The spellings of Go's strconv.ParseBool, as cel-go takes them.
        [Value::Text(text)] => match &**text {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(Value::Bool(false)),
            _ => Err(unreadable(Type::Bool, text)),
        },
        _ => Err(unsuited("bool", arguments)),
    }
}

fn unreadable(wanted: Type, text: &str) -> EvaluationError {
    EvaluationError::failed(format!("{:?} is not {}", begin(text), wanted.noun()))
}

fn out_of_range(name: &str) -> EvaluationError {
    EvaluationError::failed(format!("the number is beyond the range of {name}"))
}

#[allow(clippy::cast_possible_truncation)] // Checked: CEL cuts towards zero.
fn int<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let value = match arguments {
        [Value::Int(value)] => *value,
        [Value::Uint(value)] => i64::try_from(*value).map_err(|_| out_of_range("int"))?,
        // 2^63, which int cannot hold, is the first double beyond its range.
        [Value::Double(value)] if *value > -9.223_372_036_854_776e18 && *value < 9.223_372_036_854_776e18 => {
            *value as i64
        }
        [Value::Double(_)] => return Err(out_of_range("int")),
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            text.parse().map_err(|_| unreadable(Type::Int, text))?
        }
        [Value::Timestamp(time)] => time.seconds(),
        [Value::Duration(duration)] => duration.0,
        _ => return Err(unsuited("int", arguments)),
    };
    Ok(Value::Int(value))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked.
fn uint<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let value = match arguments {
        [Value::Uint(value)] => *value,
        [Value::Int(value)] => u64::try_from(*value).map_err(|_| out_of_range("uint"))?,
        [Value::Double(value)] if *value >= 0.0 && *value < 1.844_674_407_370_955_2e19 => *value as u64,
        [Value::Double(_)] => return Err(out_of_range("uint")),
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            text.parse().map_err(|_| unreadable(Type::Uint, text))?
        }
        _ => return Err(unsuited("uint", arguments)),
    };
    Ok(Value::Uint(value))
}

#[allow(clippy::cast_precision_loss)] // What a conversion to double means.
fn double<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let value = match arguments {
        [Value::Double(value)] => *value,
        [Value::Int(value)] => *value as f64,
        [Value::Uint(value)] => *value as f64,
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            text.parse().map_err(|_| unreadable(Type::Double, text))?
        }
        _ => return Err(unsuited("double", arguments)),
    };
    Ok(Value::Double(value))
}

fn string<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Text(text)] => Ok(Value::Text(text.clone())),
        [Value::Bool(value)] => Ok(Value::from(value.to_string())),
        [Value::Int(value)] => Ok(Value::from(value.to_string())),
        [Value::Uint(value)] => Ok(Value::from(value.to_string())),
        [Value::Double(value)] => Ok(Value::from(format::double(*value))),
        [Value::Duration(value)] => Ok(Value::from(value.to_string())),
        [Value::Timestamp(value)] => Ok(Value::from(value.to_string())),
        [Value::Bytes(bytes)] => {
            steps.bytes(bytes.len())?;
            let text = std::str::from_utf8(bytes).map_err(|_| EvaluationError::failed("these bytes are not UTF-8"))?;
            Ok(Value::Text(Text::Shared(Arc::from(text))))
        }
        [Value::Opaque(opaque)] => match &**opaque {
            Opaque::Ip(address) => Ok(Value::from(address.to_string())),
            Opaque::Cidr(network) => Ok(Value::from(network.to_string())),
            Opaque::Quantity(_) | Opaque::Semver(_) | Opaque::Url(_) | Opaque::Format(_) => {
                Err(unsuited("string", arguments))
            }
        },
        _ => Err(unsuited("string", arguments)),
    }
}

fn bytes<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(Arc::clone(bytes))),
        [Value::Text(text)] => {
            steps.bytes(text.len())?;
            Ok(Value::Bytes(Arc::from(text.as_bytes())))
        }
        _ => Err(unsuited("bytes", arguments)),
    }
}

fn none<'a>(_: &mut Steps, _: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Optional(None))
}

fn some<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    same(steps, arguments).map(Value::some)
}

fn some_non_zero<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let zero = match arguments {
        [Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0)] => true,
        [Value::Double(value)] => *value == 0.0,
        [Value::Text(text)] => text.is_empty(),
        [Value::Bytes(bytes)] => bytes.is_empty(),
        [Value::List(items)] => items.len() == 0,
        [Value::Map(entries)] => entries.len() == 0,
        _ => false,
    };
    match arguments {
        [value] if !zero => Ok(Value::some(value.clone())),
        _ => Ok(Value::Optional(None)),
    }
}

fn has_value<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
        _ => Err(unsuited("hasValue", arguments)),
    }
}

/// The values of those optionals that have one.
fn unwrap<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(items)] = arguments else { return Err(unsuited("unwrap", arguments)) };
    steps.take(items.len())?;
    let mut values = Vec::new();
    for item in items.iter() {
        match item {
            Value::Optional(value) => values.extend(value.map(|value| (*value).clone())),
            other => {
                return Err(EvaluationError::failed(format!(
                    "unwrap() needs a list of optionals, one is {}",
                    other.noun()
                )));
            }
        }
    }
    Ok(Value::from(values))
}

fn value<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    match arguments {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Err(EvaluationError::failed("value() of an empty optional; write orValue(…)")),
        _ => Err(unsuited("value", arguments)),
    }
}
