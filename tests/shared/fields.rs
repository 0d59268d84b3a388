//! The fields of a policy, by its schema.

use std::collections::BTreeSet;

use nodegate_policy::api::policy::ConditionsSpec;
use nodegate_policy::api::schema::schema_of;
use serde_json::Value;

/// The names of the fields of an object in a schema.
pub(crate) fn fields_of(schema: &Value) -> BTreeSet<String> {
    schema["properties"].as_object().unwrap().keys().cloned().collect()
}

/// The fields of a `match` that are conditions.
pub(crate) fn condition_fields() -> BTreeSet<String> {
    fields_of(&schema_of::<ConditionsSpec>())
}
