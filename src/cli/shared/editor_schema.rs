//! JSON Schemas of the documents that people write, for their editors.

use nodegate_policy::api::case::PolicyTest;
use nodegate_policy::api::schema::{document_schema, for_editors, schema_of};
use serde_json::{Value as Json, json};

/// The schema of policy files.
pub(in crate::cli) fn node_policy() -> anyhow::Result<String> {
    titled("NodePolicy", for_editors(document_schema().clone()))
}

/// The schema of files with test cases.
pub(in crate::cli) fn policy_test() -> anyhow::Result<String> {
    titled("PolicyTest", for_editors(schema_of::<PolicyTest>()))
}

/// A schema as a document, with this title.
///
/// # Errors
/// Returns an error if the schema cannot be serialized, which is a bug in nodegate.
pub(in crate::cli) fn titled(title: &str, of_kind: Json) -> anyhow::Result<String> {
    let mut schema = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title});
    if let (Some(schema), Json::Object(of_kind)) = (schema.as_object_mut(), of_kind) {
        schema.extend(of_kind.into_iter().filter(|(field, _)| field != "title"));
    }
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}
