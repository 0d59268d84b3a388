//! Arithmetic, comparison and membership.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::fault::EvaluationError;
use crate::syntax::Operator;
use crate::values::steps::Steps;
use crate::values::time::Duration;
use crate::values::types::Type;
use crate::values::value::{List, Map, Value};

/// `left operator right`.
pub(crate) fn binary<'a>(
    steps: &mut Steps,
    operator: Operator,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Result<Value<'a>, EvaluationError> {
    match operator {
        Operator::Equal => equal(steps, left, right).map(Value::Bool),
        Operator::NotEqual => equal(steps, left, right).map(|equal| Value::Bool(!equal)),
        Operator::In => contains(steps, right, left).map(Value::Bool),
        Operator::Less => compare(steps, left, right).map(|order| Value::Bool(order == Some(Ordering::Less))),
        Operator::Greater => compare(steps, left, right).map(|order| Value::Bool(order == Some(Ordering::Greater))),
        Operator::LessOrEqual => {
            compare(steps, left, right).map(|order| Value::Bool(order.is_some_and(Ordering::is_le)))
        }
        Operator::GreaterOrEqual => {
            compare(steps, left, right).map(|order| Value::Bool(order.is_some_and(Ordering::is_ge)))
        }
        Operator::Add | Operator::Subtract | Operator::Multiply | Operator::Divide | Operator::Remainder => {
            calculate(steps, operator, left, right)
        }
    }
}

/// Whether two values are the same. Numbers of different types are compared by value; values of
/// otherwise different types are not the same.
pub(crate) fn equal(steps: &mut Steps, left: &Value<'_>, right: &Value<'_>) -> Result<bool, EvaluationError> {
    steps.take(1)?;
    Ok(match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => {
            left.len() == right.len() && {
                steps.bytes(left.len())?;
                left == right
            }
        }
        (Value::Bytes(left), Value::Bytes(right)) => {
            steps.bytes(left.len())?;
            left == right
        }
        (Value::List(left), Value::List(right)) => equal_lists(steps, left, right)?,
        (Value::Map(left), Value::Map(right)) => equal_maps(steps, left, right)?,
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(left)), Value::Optional(Some(right))) => equal(steps, left, right)?,
        (Value::Duration(left), Value::Duration(right)) => left == right,
        (Value::Timestamp(left), Value::Timestamp(right)) => left == right,
        (Value::Opaque(left), Value::Opaque(right)) => {
            steps.bytes(left.length())?;
            left == right
        }
        (left, right) => numbers(left, right) == Some(Some(Ordering::Equal)),
    })
}

fn equal_lists(steps: &mut Steps, left: &List<'_>, right: &List<'_>) -> Result<bool, EvaluationError> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.iter().zip(right.iter()) {
        if !equal(steps, &left, &right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps(steps: &mut Steps, left: &Map<'_>, right: &Map<'_>) -> Result<bool, EvaluationError> {
    if left.len() != right.len() {
        return Ok(false);
    }
    steps.take(left.len())?;
    let (left, right) = (left.entries(), right.entries());
    for ((left_key, left), (right_key, right)) in left.iter().zip(&right) {
        if left_key != right_key || !equal(steps, left, right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two numbers: `None` if one is not a number, `Some(None)` if one is NaN.
#[allow(clippy::cast_precision_loss)] // CEL compares an integer with a double as doubles.
/// The order of two numbers; the inner one is none if one is NaN, the outer one if one is no number.
pub(crate) fn numbers(left: &Value<'_>, right: &Value<'_>) -> Option<Option<Ordering>> {
    Some(match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Uint(left), Value::Uint(right)) => Some(left.cmp(right)),
        (Value::Int(left), Value::Uint(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Value::Uint(left), Value::Int(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
        (Value::Double(left), Value::Int(right)) => left.partial_cmp(&(*right as f64)),
        (Value::Double(left), Value::Uint(right)) => left.partial_cmp(&(*right as f64)),
        (Value::Int(left), Value::Double(right)) => (*left as f64).partial_cmp(right),
        (Value::Uint(left), Value::Double(right)) => (*left as f64).partial_cmp(right),
        _ => return None,
    })
}

/// The order of two values of one type; none if a number is NaN.
pub(crate) fn compare(
    steps: &mut Steps,
    left: &Value<'_>,
    right: &Value<'_>,
) -> Result<Option<Ordering>, EvaluationError> {
    steps.take(1)?;
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Ok(Some(left.cmp(right))),
        (Value::Text(left), Value::Text(right)) => {
            steps.bytes(left.len().min(right.len()))?;
            Ok(Some(left.cmp(right)))
        }
        (Value::Bytes(left), Value::Bytes(right)) => {
            steps.bytes(left.len().min(right.len()))?;
            Ok(Some(left.cmp(right)))
        }
        (Value::Duration(left), Value::Duration(right)) => Ok(Some(left.cmp(right))),
        (Value::Timestamp(left), Value::Timestamp(right)) => Ok(Some(left.cmp(right))),
        _ => numbers(left, right).ok_or_else(|| incomparable(left, right)),
    }
}

fn incomparable(left: &Value<'_>, right: &Value<'_>) -> EvaluationError {
    EvaluationError::failed(format!("{} cannot be compared with {}", left.noun(), right.noun()))
}

/// Whether a list holds `item`, or a map the key `item`.
fn contains(steps: &mut Steps, holder: &Value<'_>, item: &Value<'_>) -> Result<bool, EvaluationError> {
    match holder {
        Value::List(items) => {
            for candidate in items.iter() {
                if equal(steps, &candidate, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Map(entries) => {
            steps.take(1)?;
            match (item.as_key(), item) {
                (Some(key), _) => Ok(entries.get(&key).is_some()),
                // No key has a fraction.
                (None, Value::Double(_)) => Ok(false),
                (None, _) => Err(EvaluationError::failed(format!("{} is never a key", item.noun()))),
            }
        }
        _ => Err(EvaluationError::failed(format!("`in` needs a list or a map, found {}", holder.noun()))),
    }
}

fn calculate<'a>(
    steps: &mut Steps,
    operator: Operator,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Result<Value<'a>, EvaluationError> {
    let beyond = || out_of_range(operator, left, right);
    match (left, right) {
        (Value::Int(one), Value::Int(other)) => int(operator, *one, *other).map(Value::Int).ok_or_else(beyond),
        (Value::Uint(one), Value::Uint(other)) => uint(operator, *one, *other).map(Value::Uint).ok_or_else(beyond),
        (Value::Double(one), Value::Double(other)) => match operator {
            Operator::Add => Ok(Value::Double(one + other)),
            Operator::Subtract => Ok(Value::Double(one - other)),
            Operator::Multiply => Ok(Value::Double(one * other)),
            Operator::Divide => Ok(Value::Double(one / other)),
            _ => Err(no_such(operator, left, right)),
        },
        (Value::Duration(_) | Value::Timestamp(_), Value::Duration(_) | Value::Timestamp(_)) => {
            times(operator, left, right)
        }
        _ if operator == Operator::Add => join(steps, left, right),
        _ => Err(no_such(operator, left, right)),
    }
}

fn int(operator: Operator, left: i64, right: i64) -> Option<i64> {
    match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => left.checked_div(right),
        _ => left.checked_rem(right),
    }
}

fn uint(operator: Operator, left: u64, right: u64) -> Option<u64> {
    match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => left.checked_div(right),
        _ => left.checked_rem(right),
    }
}

fn no_such(operator: Operator, left: &Value<'_>, right: &Value<'_>) -> EvaluationError {
    let message = format!("`{}` cannot take {} and {}", operator.symbol(), left.noun(), right.noun());
    EvaluationError::failed(message)
}

fn out_of_range(operator: Operator, left: &Value<'_>, right: &Value<'_>) -> EvaluationError {
    let zero = matches!(right, Value::Int(0) | Value::Uint(0));
    match operator {
        Operator::Divide | Operator::Remainder if zero => EvaluationError::failed("division by zero"),
        _ => {
            let (symbol, name) = (operator.symbol(), Type::of(left).name());
            EvaluationError::failed(format!("the result of `{symbol}` is beyond the range of {name}"))
        }
    }
}

/// Text, bytes or lists, one behind the other.
fn join<'a>(steps: &mut Steps, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>, EvaluationError> {
    match (left, right) {
        (Value::Text(one), Value::Text(other)) => {
            steps.bytes(one.len() + other.len())?;
            Ok(Value::from([&**one, &**other].concat()))
        }
        (Value::Bytes(one), Value::Bytes(other)) => {
            steps.bytes(one.len() + other.len())?;
            Ok(Value::Bytes(Arc::from([&**one, &**other].concat())))
        }
        (Value::List(one), Value::List(other)) => {
            steps.take(one.len() + other.len())?;
            Ok(Value::from(one.iter().chain(other.iter()).collect::<Vec<_>>()))
        }
        _ => Err(no_such(Operator::Add, left, right)),
    }
}

/// Durations and points in time.
fn times<'a>(operator: Operator, left: &Value<'a>, right: &Value<'a>) -> Result<Value<'a>, EvaluationError> {
    let result = match (operator, left, right) {
        (Operator::Add, Value::Duration(one), Value::Duration(other)) => {
            one.0.checked_add(other.0).map(|nanos| Value::Duration(Duration(nanos)))
        }
        (Operator::Add, Value::Timestamp(time), Value::Duration(duration))
        | (Operator::Add, Value::Duration(duration), Value::Timestamp(time)) => {
            time.checked_add(*duration).map(Value::Timestamp)
        }
        (Operator::Subtract, Value::Duration(one), Value::Duration(other)) => {
            one.0.checked_sub(other.0).map(|nanos| Value::Duration(Duration(nanos)))
        }
        (Operator::Subtract, Value::Timestamp(time), Value::Duration(duration)) => {
            time.checked_sub(*duration).map(Value::Timestamp)
        }
        (Operator::Subtract, Value::Timestamp(time), Value::Timestamp(earlier)) => {
            time.since(*earlier).map(Value::Duration)
        }
        _ => return Err(no_such(operator, left, right)),
    };
    result.ok_or_else(|| {
        let message = "the result is beyond the years 1 to 9999, or a duration of more than 292 years";
        EvaluationError::failed(message)
    })
}
