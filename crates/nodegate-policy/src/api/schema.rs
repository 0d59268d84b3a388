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
use super::source::{Field, FieldPath, Node, SourcePosition, Tree};

/// A value that does not conform to the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeFault {
    /// The position.
    pub place: SourcePosition,
    /// The field.
    pub path: FieldPath,
    /// What is wrong, and what to write instead.
    pub message: String,
}

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

/// Checks `tree`, removes invalid values, and adds an error for each.
///
/// Returns false if `tree` itself is invalid, so the caller must drop it.
pub fn check(tree: &mut Tree, schema: &Json, path: &FieldPath, faults: &mut Vec<ShapeFault>) -> bool {
    let Some(wanted) = schema.get("type").and_then(Json::as_str) else {
        check_values(tree, path, faults);
        return true;
    };
    match (&mut tree.value, wanted) {
        (Node::Mapping(fields), "object") => check_mapping(tree.place, fields, schema, path, faults),
        (Node::List(items), "array") => {
            let inner = &schema["items"];
            items.retain_mut(|(index, item)| check(item, inner, &path.index(*index), faults));
            true
        }
        (Node::Scalar(scalar), _) => match scalar_fault(scalar, wanted, schema) {
            Some(message) => {
                faults.push(ShapeFault { place: tree.place, path: path.clone(), message });
                false
            }
            None => true,
        },
        (Node::List(_), _) => {
            faults.push(ShapeFault {
                place: tree.place,
                path: path.clone(),
                message: format!("expected {}, found a list", article(wanted)),
            });
            false
        }
        (Node::Mapping(_), _) => {
            faults.push(ShapeFault {
                place: tree.place,
                path: path.clone(),
                message: format!("expected {}, found a mapping", article(wanted)),
            });
            false
        }
    }
}

fn check_mapping(
    at: SourcePosition,
    fields: &mut Vec<Field>,
    schema: &Json,
    path: &FieldPath,
    faults: &mut Vec<ShapeFault>,
) -> bool {
    let properties = schema.get("properties").and_then(Json::as_object);
    let open = schema.get("additionalProperties");
    let mut whole = true;
    for name in schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str) {
        if !fields.iter().any(|field| field.key == name) {
            faults.push(ShapeFault {
                place: at,
                path: path.clone(),
                message: format!("the field {name:?} is missing; add it"),
            });
            whole = false;
        }
    }
    let required = |key: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == key));
    fields.retain_mut(|field| {
        let inner = match (properties.and_then(|all| all.get(&field.key)), open) {
            (Some(inner), _) => inner,
            (None, Some(Json::Bool(false))) => {
                let known = properties.into_iter().flat_map(|all| all.keys());
                let message = unknown_field(&field.key, known.map(String::as_str));
                faults.push(ShapeFault { place: field.place, path: path.key(&field.key), message });
                return false;
            }
            (None, Some(inner)) if inner.is_object() => inner,
            (None, _) => return true,
        };
        let path = path.key(&field.key);
        let fits = if field.tree.is_null() {
            faults.push(ShapeFault { place: field.place, path, message: no_value(inner) });
            false
        } else {
            check(&mut field.tree, inner, &path, faults)
        };
        whole &= fits || !required(&field.key);
        fits
    });
    whole
}

/// Adds an error for each field without a value if the schema accepts any type. Kubernetes writes null for unset times.
fn check_values(tree: &Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    match &tree.value {
        Node::Scalar(_) => {}
        Node::List(items) => items.iter().for_each(|(index, item)| check_values(item, &path.index(*index), faults)),
        Node::Mapping(fields) => {
            for field in fields {
                let (path, is_time) =
                    (path.key(&field.key), field.key.ends_with("Time") || field.key.ends_with("Timestamp"));
                if !field.tree.is_null() {
                    check_values(&field.tree, &path, faults);
                } else if !is_time {
                    faults.push(ShapeFault { place: field.place, path, message: no_value(&Json::Null) });
                }
            }
        }
    }
}

/// The message for a field without a value. Kubernetes treats null as absent, so the field would be ignored.
fn no_value(schema: &Json) -> String {
    let wanted = match (schema.get("enum"), schema["type"].as_str()) {
        (Some(_), _) | (None, None) => "a value",
        (None, Some("string")) => "\"\" for an empty string",
        (None, Some("object")) => "{} for an empty mapping",
        (None, Some(other)) => article(other),
    };
    format!("has no value; write {wanted}, or remove the field")
}

/// The one of `known` that `found` is most likely meant to be.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |name: &str| strsim::damerau_levenshtein(&found.to_lowercase(), &name.to_lowercase());
    let near = known.iter().map(|name| (distance(name), *name)).min();
    near.filter(|(distance, name)| *distance <= 2.max(name.len() / 3)).map(|(_, name)| name)
}

fn unknown_field<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    match nearest(found, &known) {
        Some(name) => format!("unknown field; did you mean {name:?}?"),
        None => format!("unknown field; the valid fields are {}", known.join(", ")),
    }
}

fn article(kind: &str) -> &'static str {
    match kind {
        "object" => "a mapping",
        "array" => "a list",
        "integer" => "an integer",
        "boolean" => "true or false",
        "number" => "a number",
        _ => "a string",
    }
}

fn scalar_fault(scalar: &Json, wanted: &str, schema: &Json) -> Option<String> {
    let fits = match wanted {
        "string" => scalar.is_string(),
        "boolean" => scalar.is_boolean(),
        "integer" => scalar.is_i64() || scalar.is_u64(),
        "number" => scalar.is_number(),
        _ => false,
    };
    if !fits {
        let found = match scalar {
            Json::Null => "nothing".to_owned(),
            other => other.to_string(),
        };
        return Some(match (wanted, scalar) {
            ("string", Json::Bool(_) | Json::Number(_)) => {
                format!("expected a string, found {found}; write it in quotes: \"{found}\"")
            }
            ("array", _) => format!("expected a list, found {found}; write it as [{found}]"),
            _ => format!("expected {}, found {found}", article(wanted)),
        });
    }
    let names = schema.get("enum").and_then(Json::as_array)?;
    if names.contains(scalar) {
        return None;
    }
    let names: Vec<&str> = names.iter().filter_map(Json::as_str).collect();
    Some(format!("{scalar} is not a valid value; write {}", names.join(" or ")))
}

#[cfg(test)]
mod tests;
