//! The functions that are left to the `cel` and `kube-cel` crates: Kubernetes' own types (quantities, versions, addresses),
//! mathematics.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::ast::{CallExpr, Expr, IdedExpr};
use cel::objects::{Key as LibraryKey, Map as LibraryMap, OptionalValue};
use kube_cel::KubeCelExt as _;

use crate::fault::EvaluationError;
use crate::functions::{Form, Function, Run, unsuited};
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::{Key, Map, Text, Value};

const fn function(name: &'static str, parameters: &'static [Type], returns: Type) -> Function {
    Function::new(name, Form::Function, parameters, returns, Run::Library)
}

const fn method(name: &'static str, parameters: &'static [Type], returns: Type) -> Function {
    Function::new(name, Form::Method, parameters, returns, Run::Library)
}

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("quantity", Form::Function, &[Type::Text], Type::Quantity, Run::Guarded(guard_quantity)),
    Function::new("isQuantity", Form::Function, &[Type::Text], Type::Bool, Run::Own(is_quantity)),
    Function::new("isInteger", Form::Method, &[Type::Quantity], Type::Bool, Run::Own(is_integer)),
    method("asInteger", &[Type::Quantity], Type::Int),
    method("asApproximateFloat", &[Type::Quantity], Type::Double),
    method("sign", &[Type::Quantity], Type::Int),
    Function::new("sign", Form::Function, &[Type::Quantity], Type::Int, Run::Own(sign)),
    method("add", &[Type::Quantity, Type::Any], Type::Quantity),
    method("sub", &[Type::Quantity, Type::Any], Type::Quantity),
    method("isGreaterThan", &[Type::Any, Type::Any], Type::Bool),
    method("isLessThan", &[Type::Any, Type::Any], Type::Bool),
    method("compareTo", &[Type::Any, Type::Any], Type::Int),
    Function::new("semver", Form::Function, &[Type::Text, Type::Bool], Type::Semver, Run::Own(semver)).optional(1),
    Function::new("isSemver", Form::Function, &[Type::Text, Type::Bool], Type::Bool, Run::Own(is_semver)).optional(1),
    method("major", &[Type::Semver], Type::Int),
    method("minor", &[Type::Semver], Type::Int),
    method("patch", &[Type::Semver], Type::Int),
    function("ip", &[Type::Text], Type::Ip),
    function("isIP", &[Type::Text], Type::Bool),
    function("ip.isCanonical", &[Type::Text], Type::Bool),
    method("family", &[Type::Ip], Type::Int),
    method("isLoopback", &[Type::Ip], Type::Bool),
    method("isUnspecified", &[Type::Ip], Type::Bool),
    method("isLinkLocalMulticast", &[Type::Ip], Type::Bool),
    method("isLinkLocalUnicast", &[Type::Ip], Type::Bool),
    method("isGlobalUnicast", &[Type::Ip], Type::Bool),
    function("cidr", &[Type::Text], Type::Cidr),
    function("isCIDR", &[Type::Text], Type::Bool),
    method("containsIP", &[Type::Cidr, Type::Any], Type::Bool),
    method("containsCIDR", &[Type::Cidr, Type::Any], Type::Bool),
    method("prefixLength", &[Type::Cidr], Type::Int),
    method("masked", &[Type::Cidr], Type::Cidr),
    method("ip", &[Type::Cidr], Type::Ip),
    function("math.ceil", &[Type::Double], Type::Double),
    function("math.floor", &[Type::Double], Type::Double),
    function("math.round", &[Type::Double], Type::Double),
    function("math.trunc", &[Type::Double], Type::Double),
    function("math.sqrt", &[Type::Double], Type::Double),
    function("math.abs", &[Type::Any], Type::Any),
    function("math.sign", &[Type::Any], Type::Any),
    function("math.isInf", &[Type::Double], Type::Bool),
    function("math.isNaN", &[Type::Double], Type::Bool),
    function("math.isFinite", &[Type::Double], Type::Bool),
    function("math.greatest", &[Type::Any; 8], Type::Any).optional(7),
    function("math.least", &[Type::Any; 8], Type::Any).optional(7),
    function("base64.encode", &[Type::Bytes], Type::Text),
    function("base64.decode", &[Type::Text], Type::Bytes),
];

/// Kubernetes has it as a function, and documents a method.
fn sign<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    call(steps, "sign", Form::Method, arguments)
}

/// The library, with every function it has; [`FUNCTIONS`] says which can be reached.
static LIBRARY: LazyLock<cel::Context<'static>> = LazyLock::new(|| cel::Context::default().with_all());

/// The names under which arguments are handed over.
const ARGUMENTS: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"];

/// What the function `name` of the library answers.
pub(super) fn call<'a>(
    steps: &mut Steps,
    name: &str,
    form: Form,
    arguments: &[Value<'_>],
) -> Result<Value<'a>, EvaluationError> {
    steps.take(20)?;
    let mut context = LIBRARY.new_inner_scope();
    let mut names = Vec::with_capacity(arguments.len());
    for (argument, name) in arguments.iter().zip(ARGUMENTS) {
        context.add_variable_from_value(name, to_library(steps, argument)?);
        names.push(part(Expr::Ident(name.to_owned())));
    }
    let mut names = names.into_iter();
    let target = match form {
        Form::Method => names.next().map(Box::new),
        Form::Function | Form::Either => None,
    };
    let call = part(Expr::Call(CallExpr { func_name: name.to_owned(), target, args: names.collect() }));
    match cel::Value::resolve(&call, &context) {
        Ok(value) => from_library(steps, value),
        Err(cel::ExecutionError::FunctionError { function, message }) => {
            Err(EvaluationError::failed(format!("{function}(): {message}")))
        }
        Err(error) => Err(EvaluationError::failed(format!("{name}(): {error}"))),
    }
}

fn part(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn to_library(steps: &mut Steps, value: &Value<'_>) -> Result<cel::Value, EvaluationError> {
    steps.take(1)?;
    Ok(match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Int(value) => cel::Value::Int(*value),
        Value::Uint(value) => cel::Value::UInt(*value),
        Value::Double(value) => cel::Value::Float(*value),
        Value::Text(text) => {
            steps.bytes(text.len())?;
            cel::Value::String(Arc::new(text.to_string()))
        }
        Value::Bytes(bytes) => {
            steps.bytes(bytes.len())?;
            cel::Value::Bytes(Arc::new(bytes.to_vec()))
        }
        Value::List(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| to_library(steps, &item)).collect();
            cel::Value::List(Arc::new(items?))
        }
        Value::Map(entries) => to_library_map(steps, entries)?,
        Value::Optional(value) => {
            let value = value.as_deref().map(|value| to_library(steps, value)).transpose()?;
            cel::Value::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
        }
        Value::Library(value) => value.clone(),
        Value::Duration(_) | Value::Timestamp(_) => {
            let message = format!("this function cannot take {}; convert it with string(…)", value.noun());
            return Err(EvaluationError::failed(message));
        }
        Value::Unread(why) => return Err((*why).into()),
    })
}

fn to_library_map(steps: &mut Steps, entries: &Map<'_>) -> Result<cel::Value, EvaluationError> {
    steps.take(entries.len())?;
    let mut map = HashMap::with_capacity(entries.len());
    for (key, value) in entries.entries() {
        let key = match key {
            Key::Bool(value) => LibraryKey::Bool(value),
            Key::Int(value) => LibraryKey::Int(value),
            Key::Uint(value) => LibraryKey::Uint(value),
            Key::Text(text) => LibraryKey::String(Arc::new(text.to_string())),
        };
        map.insert(key, to_library(steps, &value)?);
    }
    Ok(cel::Value::Map(LibraryMap { map: Arc::new(map) }))
}

fn from_library<'a>(steps: &mut Steps, value: cel::Value) -> Result<Value<'a>, EvaluationError> {
    steps.take(1)?;
    Ok(match value {
        cel::Value::Null => Value::Null,
        cel::Value::Bool(value) => Value::Bool(value),
        cel::Value::Int(value) => Value::Int(value),
        cel::Value::UInt(value) => Value::Uint(value),
        cel::Value::Float(value) => Value::Double(value),
        cel::Value::String(text) => {
            steps.bytes(text.len())?;
            Value::Text(Text::Shared(Arc::from(text.as_str())))
        }
        cel::Value::Bytes(bytes) => {
            steps.bytes(bytes.len())?;
            Value::Bytes(Arc::from(bytes.as_slice()))
        }
        cel::Value::List(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| from_library(steps, item.clone())).collect();
            Value::from(items?)
        }
        cel::Value::Map(map) => {
            let mut entries = std::collections::BTreeMap::new();
            for (key, value) in map.map.iter() {
                let key = from_library(steps, key.into())?.as_key();
                let key = key.ok_or_else(|| EvaluationError::Internal("a key that is none".to_owned()))?;
                entries.insert(key, from_library(steps, value.clone())?);
            }
            Value::from(entries)
        }
        optional if <&OptionalValue>::try_from(&optional).is_ok() => {
            let held = <&OptionalValue>::try_from(&optional).ok().and_then(|optional| optional.value().cloned());
            match held {
                Some(held) => Value::some(from_library(steps, held)?),
                None => Value::Optional(None),
            }
        }
        other => Value::Library(other),
    })
}

/// Whether the library computes with this quantity without leaving its 128 bits, where it would
/// wrap around in silence: at most 22 digits before the point and 12 behind it.
fn is_small_quantity(text: &str) -> bool {
    let text = text.trim();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = match suffix {
        "" => Some(0),
        "n" => Some(-9),
        "u" => Some(-6),
        "m" => Some(-3),
        "k" | "Ki" => Some(3),
        "M" | "Mi" => Some(6),
        "G" | "Gi" => Some(9),
        "T" | "Ti" => Some(12),
        "P" | "Pi" => Some(15),
        "E" => Some(18),
        "Ei" => Some(19),
        _ => suffix.strip_prefix(['e', 'E']).and_then(|exponent| exponent.parse::<i32>().ok()),
    };
    let digits = |part: &str| i32::try_from(part.len()).unwrap_or(i32::MAX);
    let Some(scale) = scale.filter(|scale| scale.abs() <= 30) else { return false };
    let (before, behind) = (digits(whole).saturating_add(scale), digits(fraction).saturating_sub(scale));
    before <= 22 && behind <= 12 && digits(number) <= 34
}

fn guard_quantity(steps: &mut Steps, arguments: &[Value<'_>]) -> Result<(), EvaluationError> {
    let [Value::Text(text)] = arguments else { return Err(unsuited("quantity", arguments)) };
    steps.bytes(text.len())?;
    if is_small_quantity(text) {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(EvaluationError::failed(format!("{shown:?} is not a quantity, or is out of range")))
}

fn is_quantity<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    match guard_quantity(steps, arguments) {
        Ok(()) => call(steps, "isQuantity", Form::Function, arguments),
        Err(EvaluationError::Failed(_)) => Ok(Value::Bool(false)),
        Err(other) => Err(other),
    }
}

/// Whether `asInteger` has an answer. For the library, a quantity beyond 64 bits is an integer too.
fn is_integer<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    succeeds(call(steps, "asInteger", Form::Method, arguments))
}

/// A version. The library completes short ones differently from Kubernetes, and compares build metadata.
fn semver<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    let (text, complete) = match arguments {
        [Value::Text(text)] => (text, false),
        [Value::Text(text), Value::Bool(complete)] => (text, *complete),
        _ => return Err(unsuited("semver", arguments)),
    };
    steps.bytes(3 * text.len())?;
    let version = if complete { completed(text)? } else { text.to_string() };
    let parsed = call(steps, "semver", Form::Function, &[Value::from(version.clone())])?;
    match version.split_once('+') {
        Some((version, _)) => call(steps, "semver", Form::Function, &[Value::from(version.to_owned())]),
        None => Ok(parsed),
    }
}

/// A short version with what it lacks and without leading zeros, as `normalizeAndParse` in
/// `k8s.io/apiserver/pkg/cel/library/semverlib.go` completes it.
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

fn is_semver<'a>(steps: &mut Steps, arguments: &[Value<'a>]) -> Result<Value<'a>, EvaluationError> {
    succeeds(semver(steps, arguments))
}

/// Whether there is an answer.
fn succeeds<'a>(outcome: Result<Value<'_>, EvaluationError>) -> Result<Value<'a>, EvaluationError> {
    match outcome {
        Ok(_) => Ok(Value::Bool(true)),
        Err(EvaluationError::Failed(_)) => Ok(Value::Bool(false)),
        Err(other) => Err(other),
    }
}
