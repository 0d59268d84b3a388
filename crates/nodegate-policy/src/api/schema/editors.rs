//! Schemas for editors, which know more of JSON Schema than the API server and the check.

use serde_json::{Value as Json, json};

use super::check::{MEANING, Meaning};

/// The schema with both forms of a taint, text and mapping, wherever a document has one.
///
/// The CRD has only one form for each field: a structural schema has one type for each value.
pub fn for_editors(mut schema: Json) -> Json {
    convert(&mut schema);
    schema
}

fn convert(schema: &mut Json) {
    match schema {
        Json::Object(fields) => fields.values_mut().for_each(convert),
        Json::Array(items) => items.iter_mut().for_each(convert),
        _ => return,
    }
    let meaning = Meaning::of(schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.remove(MEANING);
    }
    match meaning {
        Some(Meaning::Taint) => {
            let mapping = schema.take();
            *schema =
                json!({"anyOf": [{"type": "string", "description": "The taint as `key=value:Effect`."}, mapping]});
        }
        Some(Meaning::TaintText) => {
            let mapping = json!({
                "type": "object",
                "description": "The taint as a mapping.",
                "required": ["key"],
                "additionalProperties": false,
                "properties": {"key": {"type": "string"}, "value": {"type": "string"}, "effect": {"type": "string"}},
            });
            schema["items"] = json!({"anyOf": [schema["items"].take(), mapping]});
        }
        Some(Meaning::Duration | Meaning::Comparison) | None => {}
    }
}
