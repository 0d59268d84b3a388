//! What commands print for other programs, and its schema.

use std::process::Command;

use nodegate_policy::api::schema::check;
use nodegate_policy::api::source::{FieldPath, parse_documents};
use serde_json::Value;

/// The schema that `nodegate render schema` prints for a command.
pub(crate) fn schema(command: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["render", "schema", command]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that `printed` has every required field of the command's schema, no other field, and only documented values.
pub(crate) fn assert_conforms(command: &str, printed: &Value) {
    let mut documents = parse_documents(&printed.to_string()).unwrap();
    let mut faults = Vec::new();
    check(&mut documents[0], &schema(command), &FieldPath::root(), &mut faults);
    let faults: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.problem)).collect();
    assert!(faults.is_empty(), "{command}: {faults:#?}\n{printed:#}");
}
