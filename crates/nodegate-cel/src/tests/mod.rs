//! What expressions mean and cost.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test may fail, and show what it measures.

mod bounds;
mod calendar;
mod conformance;
mod environment;
mod given;
mod hostile;
mod language;
mod library;
mod prices;
mod refusals;

use serde_json::{Value as Json, json};

use crate::Shape::{Any, Bool, Int, List, Map, Object, Text};
use crate::{Budget, EvaluationError, Expression, Fields, Paths, Schema, Value, Variable, Variables, Yields};

static DOCUMENT: Fields = Fields::new(
    "Document",
    &[("metadata", Object(&METADATA)), ("spec", Object(&SPEC)), ("status", Any), ("kind", Text), ("apiVersion", Text)],
);

static METADATA: Fields = Fields::new(
    "Metadata",
    &[("name", Text), ("labels", Map(&Text)), ("annotations", Map(&Text)), ("creationTimestamp", Text)],
);

static SPEC: Fields = Fields::new(
    "Spec",
    &[("providerID", Text), ("unschedulable", Bool), ("taints", List(&Object(&TAINT))), ("configSource", Any)],
);

static TAINT: Fields = Fields::new("Taint", &[("key", Text), ("value", Text), ("effect", Text)]);

static EXTRA: Fields =
    Fields::new("Extra", &[("vendor", Text), ("model", Text), ("count", Int), ("source", Text), ("hidden", Text)])
        .withholding(&["secret"], "elsewhere, but not here");

/// A document, what else is known of it, and a table of texts.
pub(super) static SCHEMA: Schema = Schema {
    variables: &[
        Variable {
            name: "doc",
            shape: Object(&DOCUMENT),
            nullable: false,
            always: &[&["metadata", "labels"], &["spec", "taints"]],
        },
        Variable::new("extra", Object(&EXTRA)),
        Variable::new("table", Map(&Text)),
    ],
};

/// A document with 4 labels and 2 taints.
pub(super) fn document() -> Json {
    json!({
        "apiVersion": "v1",
        "kind": "Document",
        "metadata": {
            "name": "extra-1",
            "labels": {
                "kubernetes.io/arch": "arm64",
                "pool": "infra",
                "tier": "gold",
                "count": "3",
            },
            "annotations": {"note": "héllo"},
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "providerID": "aws:///eu-west-1a/i-0123",
            "unschedulable": false,
            "taints": [
                {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                {"key": "example.com/not-ready", "value": "", "effect": "NoExecute"},
            ],
        },
        "status": {
            "capacity": {"cpu": "16", "memory": "64Gi", "nvidia.com/extra": "2"},
            "nodeInfo": {"architecture": "arm64", "kubeletVersion": "v1.36.3"},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "DiskPressure", "status": "False"},
            ],
            "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        },
    })
}

/// All of a document.
pub(super) fn whole(text: &str) -> Value<'_> {
    Value::read(text, &Paths::Whole, &Budget::default()).unwrap()
}

/// The variables of the tests with this document.
pub(super) fn variables(document: Value<'_>) -> Variables<'_> {
    let extra = Value::map([("vendor", "nvidia".into()), ("model", "rtx-3050".into()), ("count", 2_i64.into())]);
    let table = Value::map([("rack.example.com/row", "7".into())]);
    Variables::new().with("doc", document).with("extra", extra).with("table", table)
}

/// Gives `look` the variables with this document.
pub(super) fn with_document<T>(document: &Json, look: impl FnOnce(&Variables<'_>) -> T) -> T {
    let text = document.to_string();
    look(&variables(whole(&text)))
}

pub(super) fn compile(source: &str, yields: Yields) -> Expression {
    Expression::compile(source, &SCHEMA, yields).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// Why `source` is refused as a condition.
pub(super) fn refusal(source: &str) -> String {
    match Expression::compile(source, &SCHEMA, Yields::Bool) {
        Ok(_) => panic!("{source} compiles"),
        Err(error) => error.to_string(),
    }
}

/// The answer of a condition on [`document`], which is the same whether all of it is read or only what the expression reads.
pub(super) fn ask(source: &str) -> Result<bool, EvaluationError> {
    let expression = compile(source, Yields::Bool);
    let answer = with_document(&document(), |variables| expression.evaluate_bool(variables));
    let (text, paths) = (document().to_string(), expression.paths("doc"));
    // What is always there has to be read whether or not it is asked for.
    let mut filled = paths.clone();
    [["metadata", "labels"], ["spec", "taints"]].iter().for_each(|keys| filled.merge(&Paths::Whole.under(keys)));
    let parts = Value::read(&text, &filled, &Budget::default()).unwrap();
    assert_eq!(expression.evaluate_bool(&variables(parts)), answer, "{source}: {paths:?}");
    answer
}

/// Why a condition on [`document`] has no answer.
pub(super) fn failure(source: &str) -> String {
    match ask(source) {
        Ok(answer) => panic!("{source} is {answer}"),
        Err(error) => error.to_string(),
    }
}
