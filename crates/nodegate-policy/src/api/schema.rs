//! The schema of a `NodePolicy` file, and the check of a document against it.
//!
//! The CRD and this check are generated from the same Rust types, so they cannot differ. The check
//! reports every unknown field and wrong type with its position, and removes invalid values, so that
//! the remaining document can be compiled in the same pass.

use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value as Json, json};

use super::policy::NodePolicySpec;

mod check;
mod editors;
mod fault;
mod taints;

pub use check::{check, nearest};
pub use editors::for_editors;
pub use fault::ShapeFault;

/// The schema of a type in the small vocabulary that [`check`] understands: `type`, `properties`,
/// `required`, `items`, `additionalProperties`, `enum`. Without `type`, any value is valid.
pub fn schema_of<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::default().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    schema
}

/// The schema of what a command prints: [`schema_of`], with the meaning of each value of an enum in its description.
pub fn output_schema_of<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::default().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    describe_values(&mut schema);
    simplify(&mut schema);
    schema
}

/// Adds the descriptions of the values of enums to the description of the enum.
fn describe_values(schema: &mut Json) {
    if let Some(values) = schema.get("oneOf").and_then(Json::as_array) {
        let text = |value: &Json, field: &str| value.get(field).and_then(Json::as_str).map(str::to_owned);
        let described = values
            .iter()
            .filter_map(|value| Some(format!("`{}`: {}", text(value, "const")?, text(value, "description")?)));
        let of_enum = text(schema, "description").into_iter();
        let whole: Vec<String> = of_enum.chain(described).map(|sentence| sentence.replace('\n', " ")).collect();
        schema["description"] = whole.join(" ").into();
    }
    match schema {
        Json::Object(fields) => fields.values_mut().for_each(describe_values),
        Json::Array(items) => items.iter_mut().for_each(describe_values),
        _ => {}
    }
}

/// The schema of a whole `NodePolicy` file. It is generated only once, because that takes longer than parsing most files.
pub fn document_schema() -> &'static Json {
    static SCHEMA: LazyLock<Json> = LazyLock::new(make_document_schema);
    &SCHEMA
}

fn make_document_schema() -> Json {
    json!({
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": false,
        "properties": {
            "apiVersion": {"type": "string", "enum": ["nodegate.dev/v1alpha1"], "description": "The version of the schema."},
            "kind": {"type": "string", "enum": ["NodePolicy"], "description": "The kind of the document."},
            "metadata": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "description": "The name of the policy, unique among all policies."}},
                "description": "The metadata of the object; files need only the name.",
            },
            "spec": schema_of::<NodePolicySpec>(),
        },
    })
}

/// Converts schemars' JSON Schema to the small vocabulary: removes `null` alternatives (a null field is an
/// absent field), converts documented enums to `enum`, and closes objects with named properties.
fn simplify(schema: &mut Json) {
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Json::Array(mut alternatives)) = object.remove("anyOf") {
        alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
        if let Some(Json::Object(only)) = alternatives.pop() {
            object.extend(only);
        }
    }
    if let Some(Json::Array(alternatives)) = object.remove("oneOf") {
        let names: Vec<Json> =
            alternatives.iter().filter_map(|alternative| alternative.get("const").cloned()).collect();
        object.insert("type".into(), json!("string"));
        object.insert("enum".into(), Json::Array(names));
    }
    if let Some(Json::Array(types)) = object.get("type") {
        let only = types.iter().find(|name| **name != json!("null")).cloned();
        object.insert("type".into(), only.unwrap_or(Json::Null));
    }
    if let Some(Json::Array(names)) = object.get_mut("enum") {
        names.retain(|name| !name.is_null());
    }
    if let Some(Json::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(simplify);
        object.insert("additionalProperties".into(), json!(false));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(inner) {
            simplify(inner);
        }
    }
}

#[cfg(test)]
mod tests;
