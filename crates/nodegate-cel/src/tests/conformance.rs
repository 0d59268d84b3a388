//! The CEL specification's own conformance tests (`conformance.jsonl`, written by `just cel-conformance`).
//!
//! A case that is wrong and is not among the [`EXCEPTIONS`] fails the test, and so does an exception that is right by now.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::values::time::{Duration, Timestamp};
use crate::values::value::Value;
use crate::{Expression, Schema, Shape, Value as Given, Variable, Variables, Yields};

#[derive(Deserialize)]
struct Case {
    name: String,
    expr: String,
    #[serde(default)]
    check_only: bool,
    #[serde(default)]
    bindings: BTreeMap<String, Json>,
    value: Option<Json>,
}

/// A value as the cases write it.
fn value(json: &Json) -> Value<'_> {
    let (kind, held) = json.as_object().unwrap().iter().next().unwrap();
    let text = || held.as_str().unwrap();
    let list = || held.as_array().unwrap().iter();
    match kind.as_str() {
        "null" => Value::Null,
        "bool" => Value::Bool(held.as_bool().unwrap()),
        "int" => Value::Int(text().parse().unwrap()),
        "uint" => Value::Uint(text().parse().unwrap()),
        "double" => Value::Double(text().parse().unwrap()),
        "string" => Value::from(text()),
        "bytes" => Value::Bytes(STANDARD.decode(text()).unwrap().into()),
        "duration" | "timestamp" => {
            let (seconds, nanos) = text().split_once("+").unwrap();
            let (seconds, nanos) = (seconds.parse().unwrap(), nanos.parse().unwrap());

            if kind == "duration" {
                let seconds: i64 = seconds;
                Value::Duration(Duration(seconds * 1_000_000_000 + nanos))
            } else {
                Value::Timestamp(Timestamp::new(seconds, nanos).unwrap())
            }
        }
        "list" => Value::from(list().map(value).collect::<Vec<_>>()),
        "map" => {
            let entries = list().map(|entry| (value(&entry[0]).as_key().unwrap(), value(&entry[1])));
            Value::from(entries.collect::<BTreeMap<_, _>>())
        }
        kind => panic!("{kind}"),
    }
}

fn same(one: &Value<'_>, other: &Value<'_>) -> bool {
    match (one, other) {
        (Value::Double(one), Value::Double(other)) => one == other || (one.is_nan() && other.is_nan()),
        (Value::List(one), Value::List(other)) => {
            one.len() == other.len() && one.iter().zip(other.iter()).all(|(one, other)| same(&one, &other))
        }
        (Value::Map(one), Value::Map(other)) => {
            one.len() == other.len()
                && one
                    .entries()
                    .iter()
                    .zip(other.entries())
                    .all(|(one, other)| one.0 == other.0 && same(&one.1, &other.1))
        }
        (Value::Null, Value::Null) => true,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Int(one), Value::Int(other)) => one == other,
        (Value::Uint(one), Value::Uint(other)) => one == other,
        (Value::Text(one), Value::Text(other)) => one == other,
        (Value::Bytes(one), Value::Bytes(other)) => one == other,
        (Value::Duration(one), Value::Duration(other)) => one == other,
        (Value::Timestamp(one), Value::Timestamp(other)) => one == other,
        _ => false,
    }
}

/// What is wrong with the answer to a case.
fn judge(case: &Case) -> Option<String> {
    let names: Vec<Variable> =
        case.bindings.keys().map(|name| Variable::new(name.clone().leak(), Shape::Any)).collect();
    // A schema is static; a test may leak one.
    let schema: &'static Schema = Box::leak(Box::new(Schema { variables: names.leak() }));
    let expression = match Expression::compile(&case.expr, schema, Yields::Any) {
        Ok(expression) => expression,
        Err(_) if case.value.is_none() && !case.check_only => return None,
        Err(problem) => return Some(format!("refused: {problem}")),
    };
    if case.check_only {
        return None;
    }
    let bindings = schema.variables.iter().zip(case.bindings.values());
    let variables =
        bindings.fold(Variables::new(), |all, (declared, bound)| all.with(declared.name, Given(value(bound))));
    match (expression.evaluate(&variables).map(|found| found.0), &case.value) {
        (Err(_), None) => None,
        (Ok(found), Some(wanted)) if same(&found, &value(wanted)) => None,
        (found, wanted) => Some(format!("{found:?}, and not {wanted:?}")),
    }
}

/// Names of cases, or their start, that are wrong on purpose; `docs/reference/cel.md` says the same.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    (
        "an expression with an unknown name is refused when it is compiled",
        &[
            "basic/variables/unbound_is_runtime_error",
            "basic/functions/unbound_is_runtime_error",
            "parse/receiver_function_names/",
        ],
    ),
    (
        "an expression whose types do not fit is refused when it is compiled",
        &["logic/AND/short_circuit_type_", "logic/OR/short_circuit_type_"],
    ),
    ("Kubernetes 1.36 has no cel.bind", &["bindings_ext/bind/"]),
    (
        "in Kubernetes 1.36 a start behind the end of a text finds nothing",
        &["string_ext/value_errors/indexof_out_of_range", "string_ext/value_errors/lastindexof_out_of_range"],
    ),
    (
        "in Kubernetes 1.36 getMilliseconds() counts all of a duration",
        &["timestamps/duration_converters/get_milliseconds"],
    ),
    (
        "time zones with names need a database, whose answers change with its version",
        &[
            "timestamps/timestamp_selectors_tz/getDate",
            "timestamps/timestamp_selectors_tz/getDayOfMonth_name_",
            "timestamps/timestamp_selectors_tz/getDayOfYear",
            "timestamps/timestamp_selectors_tz/getMinutes",
        ],
    ),
];

#[test]
fn the_cases_of_the_specification_are_right() {
    let text = include_str!("conformance.jsonl");
    let cases: Vec<Case> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cases.len() > 1500, "{} cases", cases.len());
    let mut unused: BTreeSet<&str> = EXCEPTIONS.iter().flat_map(|(_, names)| *names).copied().collect();
    let (mut faults, mut excepted) = (Vec::new(), 0);
    for case in &cases {
        let exception = EXCEPTIONS.iter().flat_map(|(_, names)| *names).find(|name| case.name.starts_with(**name));
        match (judge(case), exception) {
            (None, None) => {}
            (Some(_), Some(name)) => {
                unused.remove(name);
                excepted += 1;
            }
            (Some(fault), None) => faults.push(format!("{}: {}\n    {fault}", case.name, case.expr)),
            (None, Some(_)) => {
                faults.push(format!("{}: {}\n    is right, and no exception any more", case.name, case.expr));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
    assert!(unused.is_empty(), "no case has the name of these exceptions: {unused:?}");
    println!("{} cases right, {excepted} exceptions", cases.len() - excepted);
}
