//! The bytes are one CEL expression.

use std::fmt::Debug;
use std::sync::LazyLock;

use nodegate_policy::cel::{
    Budget, EvaluationError, Excerpt, Expression, GpuVariables, Paths, RequestVariables, Scope, Variables, Yields,
};
use serde_json::{Value, json};

/// The recorded node, with text long enough and items many enough that reading all of it over and over costs something.
static NODE: LazyLock<Value> = LazyLock::new(|| {
    let review: Value =
        serde_json::from_str(include_str!("../../tests/data/admission-reviews/admin-label-update.json")).unwrap();
    let mut node = review["request"]["object"].clone();
    node["metadata"]["annotations"] = json!({"note": "héllo", "long": "a1-,".repeat(500)});
    node["status"]["images"] =
        (0..20).map(|at| json!({"names": [format!("registry/image:{at}")], "sizeBytes": at})).collect();
    node
});

pub(super) fn check(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let labels: Vec<(&str, &str)> = NODE["metadata"]["labels"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap()))
        .collect();
    let taints = [("dedicated", "ml", "NoSchedule"), ("node.kubernetes.io/not-ready", "", "NoExecute")];
    let gpu = GpuVariables { vendor: Some("nvidia"), model: Some("rtx-3050"), count: Some(2), source: None };
    let text = NODE.to_string();
    let object = Excerpt::read(&text, &Paths::Whole, &Budget::default()).unwrap();
    let base = Variables::node(&object).with_gpu(&gpu).with_inventory([("rack.example.com/row", "7")]);
    let node = base.with(labels, taints);
    let groups = ["system:nodes"];
    let request = RequestVariables {
        operation: "UPDATE",
        name: "n1",
        username: "system:node:n1",
        groups: groups.to_vec(),
        extra: Some(r#"{"arn":["a","b"]}"#),
        ..RequestVariables::default()
    };
    let object = object.completed();
    let write = Variables::write(&object, Some(&object), Some(&request.value()));
    for (scope, variables) in [(Scope::Node, &node), (Scope::Write, &write)] {
        for yields in [Yields::Bool, Yields::Text, Yields::TextMap] {
            match Expression::compile(source, scope, yields) {
                Ok(expression) => {
                    evaluated(&expression, yields, variables);
                    if scope == Scope::Write && yields == Yields::Bool {
                        reads_what_it_tells(&expression, &text, &request, variables);
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("column ") && !error.contains("bug in the"), "{error}");
                }
            }
        }
    }
}

/// The answer is the same when nothing is read of the objects but what the expression is said to read.
fn reads_what_it_tells(expression: &Expression, text: &str, request: &RequestVariables<'_>, all: &Variables<'_>) {
    let read = |paths| Excerpt::read(text, paths, &Budget::default()).unwrap().completed();
    let (object, old) = (read(&expression.paths().object), read(&expression.paths().old_object));
    let parts = Variables::write(&object, Some(&old), Some(&request.value()));
    assert_eq!(expression.evaluate_bool(&parts), expression.evaluate_bool(all), "{:?}", expression.paths());
}

/// There is an answer or an error, and the same one every time.
fn evaluated(expression: &Expression, yields: Yields, variables: &Variables<'_>) {
    match yields {
        Yields::Bool => sound(|| expression.evaluate_bool(variables)),
        Yields::Any | Yields::Text => sound(|| expression.evaluate_text(variables)),
        Yields::TextMap => sound(|| expression.evaluate_map(variables)),
    }
    let reads = expression.reads();
    assert!(reads.labels.is_sorted(), "{reads:?}");
}

fn sound<T: Debug + PartialEq>(evaluate: impl Fn() -> Result<T, EvaluationError>) {
    let first = evaluate();
    assert!(!matches!(first, Err(EvaluationError::Internal(_))), "{first:?}");
    assert_eq!(first, evaluate(), "the same expression has the same answer");
}
