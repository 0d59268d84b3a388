//! What all validations share: their form, the fields that they judge, and how their messages name keys.

use crate::api::policy::EntryMode;
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use crate::native::terms::formula::{Formula, quote};

/// A condition that must hold, and the message if it does not.
pub(in crate::native) struct Validation {
    pub(in crate::native) mode: EntryMode,
    /// Whether its evaluation may fail, so that it gets its own policy.
    pub(in crate::native) alone: bool,
    pub(in crate::native) expression: String,
    /// CEL for the message.
    pub(in crate::native) message: String,
    /// The message if that cannot be evaluated.
    pub(in crate::native) fallback: String,
}

/// The three fields that are judged, and the names of their variables.
pub(in crate::native) const FIELDS: [(Field, &str); 3] =
    [(Field::Label, "Labels"), (Field::Annotation, "Annotations"), (Field::Taint, "TaintValues")];

/// The variable with a field as it would be stored, by key; a taint's key is `key:Effect`.
pub(in crate::native) fn now(field: Field) -> &'static str {
    match field {
        Field::Label => "variables.labels",
        Field::Annotation => "variables.annotations",
        Field::Taint => "variables.taintValues",
    }
}

/// Whether the taint `key:Effect` in `k` has a key in the set.
pub(in crate::native) fn taint_in_keys(keys: &KeySet) -> Formula {
    Formula::any(keys.written().map(|written| match written.strip_suffix("/*") {
        _ if written == "*" => Formula::Always,
        Some(prefix) => Formula::When(format!("k.startsWith({})", quote(&format!("{prefix}/")))),
        None => Formula::When(format!("k.startsWith({})", quote(&format!("{written}:")))),
    }))
}

/// CEL for the changes of the keys in `variable`: `label "a" may not be changed, …`.
pub(in crate::native) fn describe(field: Field, title: &str, variable: &str) -> String {
    let (now, before) = (now(field), format!("variables.old{title}"));
    format!(
        r#"{variable}.map(k, "{field} \"" + k + "\" may not be " + (k in {now} ? (k in {before} ? "changed" : "added") : "removed")).join(", ")"#
    )
}
