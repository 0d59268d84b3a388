//! Quantities and versions, which have an order (`k8s.io/apiserver/pkg/cel/library`, `quantity.go` and `semverlib.go`).

use std::cmp::Ordering;

use semver::{BuildMetadata, Version};

use crate::fault::EvaluationError;
use crate::functions::{Function, Outcome, begin, function, method, unsuited};
use crate::values::opaque::Opaque;
use crate::values::quantity::Quantity;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    function("quantity", &[Type::Text], Type::Quantity, quantity),
    function("isQuantity", &[Type::Text], Type::Bool, |steps, arguments| succeeds(quantity(steps, arguments))),
    method("isInteger", &[Type::Quantity], Type::Bool, |_, arguments| {
        one("isInteger", arguments, |quantity| Ok(Value::Bool(quantity.as_int().is_some())))
    }),
    method("asInteger", &[Type::Quantity], Type::Int, |_, arguments| {
        let is_none = || EvaluationError::failed("asInteger(): the quantity has no int, see isInteger()");
        one("asInteger", arguments, |quantity| quantity.as_int().map(Value::Int).ok_or_else(is_none))
    }),
    method("asApproximateFloat", &[Type::Quantity], Type::Double, |_, arguments| {
        one("asApproximateFloat", arguments, |quantity| Ok(Value::Double(quantity.as_double())))
    }),
    // Kubernetes has it as a function, and documents a method.
    function("sign", &[Type::Quantity], Type::Int, sign),
    method("sign", &[Type::Quantity], Type::Int, sign),
    method("add", &[Type::Quantity, Type::Any], Type::Quantity, |_, arguments| sum("add", arguments, Quantity::add)),
    method("sub", &[Type::Quantity, Type::Any], Type::Quantity, |_, arguments| {
        sum("sub", arguments, Quantity::subtract)
    }),
    method("isGreaterThan", &[Type::Any, Type::Any], Type::Bool, |steps, arguments| {
        Ok(Value::Bool(order(steps, "isGreaterThan", arguments)?.is_gt()))
    }),
    method("isLessThan", &[Type::Any, Type::Any], Type::Bool, |steps, arguments| {
        Ok(Value::Bool(order(steps, "isLessThan", arguments)?.is_lt()))
    }),
    method("compareTo", &[Type::Any, Type::Any], Type::Int, |steps, arguments| {
        Ok(Value::Int(i64::from(order(steps, "compareTo", arguments)? as i8)))
    }),
    function("semver", &[Type::Text, Type::Bool], Type::Semver, semver).optional(1),
    function("isSemver", &[Type::Text, Type::Bool], Type::Bool, |steps, arguments| succeeds(semver(steps, arguments)))
        .optional(1),
    method("major", &[Type::Semver], Type::Int, |_, arguments| part("major", arguments, |version| version.major)),
    method("minor", &[Type::Semver], Type::Int, |_, arguments| part("minor", arguments, |version| version.minor)),
    method("patch", &[Type::Semver], Type::Int, |_, arguments| part("patch", arguments, |version| version.patch)),
];

fn quantity<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("quantity", arguments)) };
    steps.take(20)?;
    steps.bytes(text.len())?;
    let fault = || EvaluationError::failed(format!("{:?} is not a quantity, or is out of range", begin(text)));
    let quantity = Quantity::parse(text).ok_or_else(fault)?;
    Ok(Opaque::Quantity(quantity).into())
}

fn as_quantity(value: &Value<'_>) -> Option<Quantity> {
    match value {
        Value::Opaque(opaque) if let Opaque::Quantity(quantity) = **opaque => Some(quantity),
        _ => None,
    }
}

fn one<'a>(name: &str, arguments: &[Value<'a>], get: impl Fn(Quantity) -> Outcome<'a>) -> Outcome<'a> {
    match arguments {
        [value] if let Some(quantity) = as_quantity(value) => get(quantity),
        _ => Err(unsuited(name, arguments)),
    }
}

fn sign<'a>(_: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    one("sign", arguments, |quantity| Ok(Value::Int(quantity.sign())))
}

/// A quantity and another one or an int.
fn sum<'a>(
    name: &str,
    arguments: &[Value<'a>],
    together: impl Fn(Quantity, Quantity) -> Option<Quantity>,
) -> Outcome<'a> {
    let [one, other] = arguments else { return Err(unsuited(name, arguments)) };
    let whole = if let Value::Int(number) = other { Some(Quantity::whole(*number)) } else { None };
    let Some((one, other)) = as_quantity(one).zip(whole.or_else(|| as_quantity(other))) else {
        return Err(unsuited(name, arguments));
    };
    let sum = together(one, other).ok_or_else(|| EvaluationError::failed(format!("{name}() is out of range")))?;
    Ok(Opaque::Quantity(sum).into())
}

/// The order of two quantities, or of two versions.
fn order(steps: &mut Steps, name: &str, arguments: &[Value<'_>]) -> Result<Ordering, EvaluationError> {
    let [Value::Opaque(one), Value::Opaque(other)] = arguments else { return Err(unsuited(name, arguments)) };
    match (&**one, &**other) {
        (Opaque::Quantity(one), Opaque::Quantity(other)) => Ok(one.cmp(other)),
        (Opaque::Semver(version), Opaque::Semver(with)) => {
            steps.bytes(one.length() + other.length())?;
            Ok(version.cmp(with))
        }
        _ => Err(unsuited(name, arguments)),
    }
}

/// A version, which may be short if the second argument says so.
fn semver<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Outcome<'a> {
    let (text, complete) = match arguments {
        [Value::Text(text)] => (text, false),
        [Value::Text(text), Value::Bool(complete)] => (text, *complete),
        _ => return Err(unsuited("semver", arguments)),
    };
    steps.take(20)?;
    steps.bytes(3 * text.len())?;
    let completed = if complete { completed(text)? } else { text.to_string() };
    let version = Version::parse(&completed).map_err(|fault| EvaluationError::failed(format!("semver(): {fault}")))?;
    // `github.com/blang/semver/v4` reads numbers as 64 bits, and nobody looks at the build.
    let is_long = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_err();
    if !version.pre.is_empty() && version.pre.split('.').any(is_long) {
        return Err(EvaluationError::failed("semver(): a number of the pre-release has more than 64 bits"));
    }
    Ok(Opaque::Semver(Version { build: BuildMetadata::EMPTY, ..version }).into())
}

/// A short version with what it lacks and without leading zeros, as `normalizeAndParse` completes it.
fn completed(text: &str) -> Result<String, EvaluationError> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let parts = text.splitn(3, '.').map(|part| {
        let stripped = part.trim_start_matches('0');
        let needs_zero = !stripped.starts_with(|c: char| c.is_ascii_digit());
        match part.len() {
            0 | 1 => part.to_owned(),
            _ if needs_zero => format!("0{stripped}"),
            _ => stripped.to_owned(),
        }
    });
    let mut parts: Vec<String> = parts.collect();
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        let message = "semver(): a short version has neither a pre-release nor a build";
        return Err(EvaluationError::failed(message));
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

/// A number of a version. Kubernetes wraps one that an int cannot hold around.
#[allow(clippy::cast_possible_wrap)] // As said.
fn part<'a>(name: &str, arguments: &[Value<'a>], get: impl Fn(&Version) -> u64) -> Outcome<'a> {
    match arguments {
        [Value::Opaque(opaque)] if let Opaque::Semver(version) = &**opaque => Ok(Value::Int(get(version) as i64)),
        _ => Err(unsuited(name, arguments)),
    }
}

/// Whether there is an answer.
fn succeeds<'a>(outcome: Outcome<'_>) -> Outcome<'a> {
    match outcome {
        Ok(_) => Ok(Value::Bool(true)),
        Err(EvaluationError::Failed(_)) => Ok(Value::Bool(false)),
        Err(other) => Err(other),
    }
}
