//! The CustomResourceDefinition of `NodePolicy`: the schema of the Rust types, and further checks for the API server.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::{Value as Json, json};

use super::policy::NodePolicy;

/// Maximum number of rules in one object. The API server requires a limit for validation by CEL.
pub(crate) const RULES_MAX: u32 = 2000;

/// The definition as `nodegate render crd` prints it.
///
/// The same checks apply to files. Here, the API server refuses an invalid object before it is stored.
///
/// # Errors
/// Returns an error if the definition is not valid, which would be a bug in nodegate.
pub fn node_policy_crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut crd = serde_json::to_value(NodePolicy::crd())?;
    let root = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let mut at = |path: &str, additions: Json| {
        let schema = crd.pointer_mut(&format!("{root}/{path}")).and_then(Json::as_object_mut);
        if let (Some(schema), Json::Object(additions)) = (schema, additions) {
            schema.extend(additions);
        }
    };
    let unique_by_name =
        json!({"maxItems": RULES_MAX, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]});
    at("rules", unique_by_name.clone());
    at("rules/items/properties/name", json!({"minLength": 1}));
    at(
        "rules/items",
        json!({"x-kubernetes-validations": [{
            "rule": "has(self.labels) || has(self.labelExpressions) || has(self.labelMap) || has(self.annotations) || has(self.taints)",
            "message": "the rule sets nothing; add labels, labelExpressions, labelMap, annotations or taints",
        }]}),
    );
    at("rules/items/properties/labelMap/properties/keys", json!({"minItems": 1}));
    at("derived/items/properties/anyOf", json!({"minItems": 1}));
    at("inventory", unique_by_name.clone());
    at("gates", unique_by_name);
    at("gates/items/properties/name", json!({"minLength": 1}));
    at("gates/items/properties/labels", json!({"minItems": 1}));
    at("inventory/items/properties/allow", json!({"minItems": 1}));
    at(
        "persist",
        json!({"x-kubernetes-validations": [{
            "rule": "has(self.labels) || has(self.taints)",
            "message": "nothing is persisted; add labels or taints",
        }]}),
    );
    without_foreign_formats(&mut crd);
    serde_json::from_value(crd)
}

/// Removes formats that the API server does not know: it warns of each. The bounds of the numbers say the same.
fn without_foreign_formats(schema: &mut Json) {
    match schema {
        Json::Object(fields) => {
            fields.retain(|name, value| {
                name != "format" || !value.as_str().is_some_and(|format| format.starts_with("uint"))
            });
            fields.values_mut().for_each(without_foreign_formats);
        }
        Json::Array(items) => items.iter_mut().for_each(without_foreign_formats),
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_addition_finds_its_place() {
        let crd = serde_json::to_string(&node_policy_crd().unwrap()).unwrap();
        for (addition, count) in
            [("x-kubernetes-validations", 2), ("x-kubernetes-list-map-keys", 3), ("minItems", 4), ("minLength", 2)]
        {
            assert_eq!(crd.matches(&format!("\"{addition}\"")).count(), count, "{addition}");
        }
    }
}
