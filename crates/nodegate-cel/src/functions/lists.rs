//! Lists and sets.

use std::cmp::Ordering;

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, function, method, unsuited};
use crate::run::operators::{binary, compare, equal};
use crate::syntax::Operator;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::{List, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    method("isSorted", &[Type::List], Type::Bool, is_sorted),
    method("sum", &[Type::List], Type::Any, sum),
    method("min", &[Type::List], Type::Any, min),
    method("max", &[Type::List], Type::Any, max),
    method("slice", &[Type::List, Type::Int, Type::Int], Type::List, slice),
    method("flatten", &[Type::List, Type::Int], Type::List, flatten).optional(1),
    method("distinct", &[Type::List], Type::List, distinct),
    method("sort", &[Type::List], Type::List, sort),
    method("first", &[Type::List], Type::Optional, first),
    method("last", &[Type::List], Type::Optional, last),
    function("lists.range", &[Type::Int], Type::List, range),
    function("sets.contains", &[Type::List, Type::List], Type::Bool, set_contains),
    function("sets.equivalent", &[Type::List, Type::List], Type::Bool, set_equivalent),
    function("sets.intersects", &[Type::List, Type::List], Type::Bool, set_intersects),
];

/// The target of a method on lists.
fn items<'v, 'a>(steps: &mut Steps, name: &str, arguments: &'v [Value<'a>]) -> Result<&'v List<'a>, EvaluationError> {
    match arguments {
        [Value::List(items), ..] => {
            steps.take(items.len())?;
            Ok(items)
        }
        _ => Err(unsuited(name, arguments)),
    }
}

fn int<'a>(value: usize) -> Outcome<'a> {
    i64::try_from(value).map(Value::Int).map_err(|_| EvaluationError::failed("beyond the range of int"))
}

pub(super) fn index_of<'a>(
    steps: &mut Steps,
    items: impl Iterator<Item = Value<'a>>,
    wanted: &Value<'a>,
) -> Outcome<'a> {
    for (at, item) in items.enumerate() {
        if equal(steps, &item, wanted)? {
            return int(at);
        }
    }
    Ok(Value::Int(-1))
}

pub(super) fn last_index_of<'a>(steps: &mut Steps, items: &List<'a>, wanted: &Value<'a>) -> Outcome<'a> {
    for at in (0..items.len()).rev() {
        if let Some(item) = items.get(at)
            && equal(steps, &item, wanted)?
        {
            return int(at);
        }
    }
    Ok(Value::Int(-1))
}

fn is_sorted<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let items = items(steps, "isSorted", arguments)?;
    for (one, next) in items.iter().zip(items.iter().skip(1)) {
        if compare(steps, &one, &next)? == Some(Ordering::Greater) {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let mut items = items(steps, "sum", arguments)?.iter();
    let Some(mut sum) = items.next() else { return Ok(Value::Int(0)) };
    for item in items {
        sum = binary(steps, Operator::Add, &sum, &item)?;
    }
    Ok(sum)
}

/// The item that stands in `order` to all others.
fn extreme<'a>(name: &str, order: Ordering, steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let mut items = items(steps, name, arguments)?.iter();
    let mut extreme = items.next().ok_or_else(|| EvaluationError::failed(format!("{name}() of an empty list")))?;
    for item in items {
        if compare(steps, &item, &extreme)? == Some(order) {
            extreme = item;
        }
    }
    Ok(extreme)
}

fn min<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    extreme("min", Ordering::Less, steps, arguments)
}

fn max<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    extreme("max", Ordering::Greater, steps, arguments)
}

fn slice<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let items = items(steps, "slice", arguments)?;
    let [_, Value::Int(start), Value::Int(end)] = arguments else { return Err(unsuited("slice", arguments)) };
    match (usize::try_from(*start), usize::try_from(*end)) {
        (Ok(from), Ok(to)) if from <= to && to <= items.len() => {
            Ok(Value::from((from..to).filter_map(|at| items.get(at)).collect::<Vec<_>>()))
        }
        _ => Err(EvaluationError::failed(format!("slice({start}, {end}) of a list of {} items", items.len()))),
    }
}

fn flatten<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let items = items(steps, "flatten", arguments)?;
    let depth = match arguments {
        [_, Value::Int(depth)] => usize::try_from(*depth)
            .map_err(|_| EvaluationError::failed("flatten() needs a depth that is not negative"))?,
        _ => 1,
    };
    let mut flat = Vec::new();
    flatten_into(steps, &mut flat, items, depth)?;
    Ok(Value::from(flat))
}

/// Lists lie inside each other no deeper than an expression or a document does.
fn flatten_into<'a>(
    steps: &mut Steps,
    flat: &mut Vec<Value<'a>>,
    items: &List<'a>,
    depth: usize,
) -> Result<(), EvaluationError> {
    for item in items.iter() {
        steps.take(1)?;
        match item {
            Value::List(inner) if depth > 0 => flatten_into(steps, flat, &inner, depth - 1)?,
            item => flat.push(item),
        }
    }
    Ok(())
}

fn distinct<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let mut kept: Vec<Value<'a>> = Vec::new();
    for item in items(steps, "distinct", arguments)?.iter() {
        if !holds(steps, kept.iter().cloned(), &item)? {
            kept.push(item);
        }
    }
    Ok(Value::from(kept))
}

fn holds<'a>(
    steps: &mut Steps,
    items: impl Iterator<Item = Value<'a>>,
    wanted: &Value<'a>,
) -> Result<bool, EvaluationError> {
    for item in items {
        if equal(steps, &item, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn sort<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let items = items(steps, "sort", arguments)?.iter().map(|item| (item.clone(), item)).collect();
    sorted(steps, items)
}

/// A value, and what it is sorted by.
type Keyed<'a> = (Value<'a>, Value<'a>);

/// The values in the order of their keys. Sorts by merging: an order that is no order (NaN, mixed types) yields an error,
/// never a panic.
pub(crate) fn sorted<'a>(steps: &mut Steps, items: Vec<Keyed<'a>>) -> Outcome<'a> {
    let mut runs: Vec<Vec<Keyed<'a>>> = items.into_iter().map(|item| vec![item]).collect();
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut pairs = runs.into_iter();
        while let Some(left) = pairs.next() {
            merged.push(match pairs.next() {
                Some(right) => merge(steps, left, right)?,
                None => left,
            });
        }
        runs = merged;
    }
    let sorted = runs.pop().unwrap_or_default().into_iter().map(|(_, value)| value);
    Ok(Value::from(sorted.collect::<Vec<_>>()))
}

fn merge<'a>(
    steps: &mut Steps,
    left: Vec<Keyed<'a>>,
    right: Vec<Keyed<'a>>,
) -> Result<Vec<Keyed<'a>>, EvaluationError> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some((one, _)), Some((other, _))) = (left.peek(), right.peek()) {
        let from = if compare(steps, one, other)? == Some(Ordering::Greater) { &mut right } else { &mut left };
        merged.extend(from.next());
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

pub(super) fn reverse<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let mut items: Vec<_> = items(steps, "reverse", arguments)?.iter().collect();
    items.reverse();
    Ok(Value::from(items))
}

fn first<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(items)] = arguments else { return Err(unsuited("first", arguments)) };
    Ok(items.get(0).map_or(Value::Optional(None), Value::some))
}

fn last<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(items)] = arguments else { return Err(unsuited("last", arguments)) };
    let last = items.len().checked_sub(1).and_then(|at| items.get(at));
    Ok(last.map_or(Value::Optional(None), Value::some))
}

fn range<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Int(end)] = arguments else { return Err(unsuited("lists.range", arguments)) };
    let count = usize::try_from(*end).map_err(|_| EvaluationError::failed("lists.range() of a negative number"))?;
    steps.take(count)?;
    Ok(Value::from((0..*end).map(Value::Int).collect::<Vec<_>>()))
}

fn sets<'v, 'a>(name: &str, arguments: &'v [Value<'a>]) -> Result<(&'v List<'a>, &'v List<'a>), EvaluationError> {
    match arguments {
        [Value::List(left), Value::List(right)] => Ok((left, right)),
        _ => Err(unsuited(name, arguments)),
    }
}

fn covers<'a>(steps: &mut Steps, all: &List<'a>, wanted: &List<'a>) -> Result<bool, EvaluationError> {
    for item in wanted.iter() {
        if !holds(steps, all.iter(), &item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn set_contains<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (all, wanted) = sets("sets.contains", arguments)?;
    covers(steps, all, wanted).map(Value::Bool)
}

fn set_equivalent<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (left, right) = sets("sets.equivalent", arguments)?;
    Ok(Value::Bool(covers(steps, left, right)? && covers(steps, right, left)?))
}

fn set_intersects<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (left, right) = sets("sets.intersects", arguments)?;
    for item in left.iter() {
        if holds(steps, right.iter(), &item)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
