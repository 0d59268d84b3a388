//! The variables of expressions.

use serde_json::json;

use super::super::{GpuVariables, IdentityVariables, RequestVariables, Variables, Yields};
use super::{compile, node, whole};

fn evaluate(source: &str, variables: &Variables<'_>) -> Option<bool> {
    compile(source, Yields::Bool).evaluate_bool(variables).ok()
}

#[test]
fn given_labels_and_taints_replace_those_of_the_object() {
    let object = node().to_string();
    let base = Variables::node(&whole(&object));
    let first = base.with([("a", "1")], [("t", "", "NoSchedule")]);
    assert_eq!(evaluate(r#"node.metadata.labels == {"a": "1"}"#, &first), Some(true));
    assert_eq!(
        evaluate(r#"node.spec.taints == [{"key": "t", "value": "", "effect": "NoSchedule"}]"#, &first),
        Some(true)
    );
    assert_eq!(evaluate(r#"node.metadata.name == "gpu-1" && node.spec.providerID != """#, &first), Some(true));
    let second = base.with([], []);
    assert_eq!(evaluate("node.metadata.labels == {} && node.spec.taints == []", &second), Some(true));
    assert_eq!(evaluate("node.metadata.size() == 4 && node.spec.size() == 3", &second), Some(true));
}

#[test]
fn a_node_without_metadata_or_spec_has_labels_and_taints() {
    for object in [json!({}), json!({"metadata": null, "spec": 7}), json!([1]), json!(null)] {
        let text = object.to_string();
        let base = Variables::node(&whole(&text));
        let variables = base.with([], []);
        assert_eq!(
            evaluate("size(node.metadata.labels) + size(node.spec.taints) == 0", &variables),
            Some(true),
            "{object}"
        );
    }
}

#[test]
fn expressions_over_unknown_facts_fail() {
    let object = node().to_string();
    let bare = Variables::node(&whole(&object));
    let variables = bare.with([], []);
    assert_eq!(evaluate("gpu.count > 0", &variables), None);
    assert_eq!(evaluate("has(gpu.count)", &variables), Some(false));
    assert_eq!(evaluate(r#""a" in inventory"#, &variables), None);
    let gpu = GpuVariables { count: Some(0), ..GpuVariables::default() };
    let known = Variables::node(&whole(&object)).with_gpu(&gpu).with_inventory([]);
    let variables = known.with([], []);
    assert_eq!(evaluate("gpu.count == 0", &variables), Some(true));
    assert_eq!(evaluate(r#"gpu.vendor == "nvidia""#, &variables), None);
    assert_eq!(evaluate(r#""a" in inventory"#, &variables), Some(false));
    assert_eq!(evaluate(r#"inventory["a"] == "b""#, &variables), None);
    assert_eq!(evaluate("size(identity.pools) == 0", &variables), None);
}

#[test]
fn pools_are_empty_or_have_one_with_the_strongest_proof() {
    let object = node().to_string();
    let bare = Variables::node(&whole(&object));
    let none = bare.clone().with_identity(IdentityVariables::default());
    let variables = none.without_keys();
    assert_eq!(evaluate("size(identity.pools) == 0 && !has(identity.pool)", &variables), Some(true));
    assert_eq!(evaluate(r#"identity.?pool.orValue("none") == "none""#, &variables), Some(true));
    assert_eq!(evaluate(r#"identity.pool == "gpu""#, &variables), None);
    let identity =
        IdentityVariables { strongest: Some(("gpu", "bootstrap")), pools: vec!["edge", "gpu"], ..Default::default() };
    let known = bare.with_identity(identity);
    let source = r#"identity.pool == "gpu" && identity.proof == "bootstrap" && "edge" in identity.pools"#;
    assert_eq!(evaluate(source, &known.without_keys()), Some(true));
}

#[test]
fn a_written_object_has_labels_and_taints() {
    let (text, request) = (json!({"metadata": {"name": "a"}}).to_string(), RequestVariables::default());
    let object = whole(&text).completed();
    let variables = Variables::write(&object, Some(&object), Some(&request.value()));
    let source = "object.metadata.labels == {} && oldObject.spec.taints == [] && !has(object.status)";
    let expression = super::Expression::compile(source, super::Scope::Write, Yields::Bool).unwrap();
    assert_eq!(expression.evaluate_bool(&variables), Ok(true));
}

#[test]
fn numbers_of_a_document_keep_their_type() {
    let object = json!({"status": {"i": 1, "u": 18_446_744_073_709_551_615_u64, "d": 1.5, "q": "500m", "n": null}});
    let text = object.to_string();
    let base = Variables::node(&whole(&text));
    let variables = base.with([], []);
    let source = "[dyn(node.status)].all(s, s.i + 1 == 2 && s.u == 18446744073709551615u && s.d * 2.0 == 3.0 && \
                  s.q == '500m' && s.n == null)";
    assert_eq!(evaluate(source, &variables), Some(true));
}
