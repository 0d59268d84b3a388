//! What the environment of Kubernetes' own expressions has. `kubernetes.jsonl` lists it, each overload and macro with an expression
//! that calls it and that Kubernetes compiles; `just cel-environment` writes it anew.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::tests::SCHEMA;
use crate::{Expression, Yields};

#[derive(Deserialize)]
struct Callable {
    #[serde(default)]
    function: String,
    #[serde(default, rename = "macro")]
    name: String,
    #[serde(default)]
    overload: String,
    #[serde(default)]
    example: String,
}

/// What cannot be called here; `docs/reference/cel.md` says why.
const LACKING: [&str; 16] = [
    // The type of a value is no value here.
    "type",
    // Nobody asks what a requester may do besides.
    "authorizer_fieldselector",
    "authorizer_group",
    "authorizer_labelselector",
    "authorizer_path",
    "authorizer_serviceaccount",
    "decision_allowed",
    "decision_error",
    "decision_errored",
    "decision_reason",
    "groupcheck_resource",
    "pathcheck_check",
    "resourcecheck_check",
    "resourcecheck_name",
    "resourcecheck_namespace",
    "resourcecheck_subresource",
];

#[test]
fn what_kubernetes_can_call_can_be_called() {
    let all: Vec<Callable> =
        include_str!("kubernetes.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(all.len() > 300, "only {} are listed", all.len());
    let (mut lacking, mut refused) = (BTreeSet::new(), Vec::new());
    for Callable { function, name, overload, example } in &all {
        match Expression::compile(example, &SCHEMA, Yields::Any) {
            Ok(_) => {}
            Err(_) if LACKING.contains(&&**overload) => drop(lacking.insert(&**overload)),
            Err(error) => refused.push(format!("{function}{name} {overload}: {example}: {error}")),
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert_eq!(lacking, LACKING.into_iter().collect(), "what is lacking (left) and what is listed (right)");
}
