//! The meaning, the reads and the cost of expressions.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test may fail, and show what it measures.

mod compiling;
mod examples;
mod excerpt;
mod reads;
mod variables;

use serde_json::{Value as Json, json};

use super::{
    Budget, EvaluationError, Excerpt, Expression, GpuVariables, Paths, RequestVariables, Scope, Variables, Yields,
};

/// A node as a kubelet sends it, with 4 labels and 2 taints.
pub(super) fn node() -> Json {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "gpu-1",
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
                {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
            ],
        },
        "status": {
            "capacity": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "2"},
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

pub(super) const GPU: GpuVariables<'_> =
    GpuVariables { vendor: Some("nvidia"), model: Some("rtx-3050"), count: Some(2), source: None };

/// Calls `use_variables` with the variables of [`node`], two GPUs and one inventory label.
pub(super) fn with_node<T>(use_variables: impl FnOnce(&Variables<'_>) -> T) -> T {
    with_object(&node(), use_variables)
}

/// The result of a condition over a write of `new`, which is the same whether the whole objects are read or only the needed
/// parts.
pub(super) fn evaluate_write(
    source: &str,
    new: &Json,
    old: Option<&Json>,
    request: &RequestVariables<'_>,
) -> Result<bool, EvaluationError> {
    let expression = Expression::compile(source, Scope::Write, Yields::Bool).unwrap();
    let (new, old) = (new.to_string(), old.map(Json::to_string));
    let read = |text, paths| Excerpt::read(text, paths, &Budget::default()).unwrap().completed();
    let answer = |new_paths, old_paths| {
        let old = old.as_deref().map(|old| read(old, old_paths));
        expression.evaluate_bool(&Variables::write(&read(&new, new_paths), old.as_ref(), Some(&request.value())))
    };
    let answered = answer(&expression.paths().object, &expression.paths().old_object);
    assert_eq!(answered, answer(&Paths::Whole, &Paths::Whole), "{source}: {:?}", expression.paths());
    answered
}

/// All of a document.
pub(super) fn whole(text: &str) -> Excerpt<'_> {
    Excerpt::read(text, &Paths::Whole, &Budget::default()).unwrap()
}

/// The same for any object, with its own labels and taints.
pub(super) fn with_object<T>(object: &Json, use_variables: impl FnOnce(&Variables<'_>) -> T) -> T {
    with_parts(object, &Paths::Whole, use_variables)
}

/// The same for some parts of an object.
fn with_parts<T>(object: &Json, paths: &Paths, use_variables: impl FnOnce(&Variables<'_>) -> T) -> T {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let taints = object["spec"]["taints"].as_array().into_iter().flatten();
    let text = |value: &'_ Json| value.as_str().unwrap_or_default().to_owned();
    let labels: Vec<(String, String)> = labels.map(|(key, value)| (key.clone(), text(value))).collect();
    let taints: Vec<[String; 3]> = taints.map(|of| ["key", "value", "effect"].map(|name| text(&of[name]))).collect();
    let mut others = object.clone();
    others["metadata"].as_object_mut().map(|metadata| metadata.remove("labels"));
    let others = others.to_string();
    let others = Excerpt::read(&others, paths, &Budget::default()).unwrap();
    let base = Variables::node(&others).with_gpu(&GPU).with_inventory([("rack.example.com/row", "7")]);
    let variables = base.with(
        labels.iter().map(|(key, value)| (key.as_str(), value.as_str())),
        taints.iter().map(|[key, value, effect]| (key.as_str(), value.as_str(), effect.as_str())),
    );
    use_variables(&variables)
}

pub(super) fn compile(source: &str, yields: Yields) -> Expression {
    Expression::compile(source, Scope::Node, yields).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// Why `source` is refused as a condition over a node.
pub(super) fn refusal(source: &str) -> String {
    match Expression::compile(source, Scope::Node, Yields::Bool) {
        Ok(_) => panic!("{source} compiles"),
        Err(error) => error.to_string(),
    }
}

/// The result of a condition on [`node`], which is the same whether the whole node is read or only the needed parts.
pub(super) fn evaluate(source: &str) -> Result<bool, EvaluationError> {
    let expression = compile(source, Yields::Bool);
    let answer = with_node(|variables| expression.evaluate_bool(variables));
    let paths = &expression.paths().node;
    assert_eq!(
        with_parts(&node(), paths, |variables| expression.evaluate_bool(variables)),
        answer,
        "{source}: {paths:?}"
    );
    answer
}
