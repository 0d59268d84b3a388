//! Reviews `NodePolicy` objects before they are stored, by the same rules as files.

use serde_json::Value as Json;

use crate::api::document::{Origin, PolicyDocument, PolicyError};
use crate::lint::Lint;
use crate::set::PolicySet;

/// The result of a review of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReview {
    /// All errors. An object with errors does not come into force.
    pub faults: Vec<ObjectFault>,
    /// What is probably wrong in the object, alone and together with other policies, if it has no errors.
    pub warnings: Vec<ObjectFault>,
    /// Its governance entries that a change of annotations alone can violate.
    pub on_annotations: Vec<String>,
}

/// One error of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFault {
    /// The field; empty if the error concerns no single field.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// The error of an object with the name of a policy file.
const NAME_IS_TAKEN: &str = "a policy file already uses this name; give each policy a unique name";

impl PolicyDocument {
    /// The document of an object, if it compiles by itself.
    ///
    /// # Errors
    /// Returns all errors, as for a file: invalid fields and types, and the errors of the compilation.
    pub fn of_object(name: &str, spec: &Json) -> Result<Self, Vec<PolicyError>> {
        Self::of_object_text(name, &spec.to_string())
    }

    /// As [`Self::of_object`], from the JSON of the spec.
    ///
    /// # Errors
    /// As [`Self::of_object`].
    pub fn of_object_text(name: &str, spec: &str) -> Result<Self, Vec<PolicyError>> {
        let name = Json::from(name);
        let text = format!(
            r#"{{"apiVersion":"nodegate.dev/v1alpha1","kind":"NodePolicy","metadata":{{"name":{name}}},"spec":{spec}}}"#
        );
        let mut faults = Vec::new();
        let parsed = Self::parse_all(&Origin::Object, &text, &mut faults).pop();
        let Some(document) = parsed else { return Err(faults) };
        faults.extend(PolicySet::compile(std::slice::from_ref(&document)).err().into_iter().flatten());
        PolicyError::sort(&mut faults);
        if faults.is_empty() { Ok(document) } else { Err(faults) }
    }
}

/// The error of an object with this name, if a policy file already uses it.
pub fn name_is_taken<'a>(name: &str, files: impl IntoIterator<Item = &'a PolicyDocument>) -> Option<ObjectFault> {
    let taken = files.into_iter().any(|file| file.name == name);
    taken.then(|| ObjectFault { field: "metadata.name".to_owned(), message: NAME_IS_TAKEN.to_owned() })
}

/// Reviews an object that is to be stored, by itself and together with the policies in force. `spec` is JSON.
pub fn review_object(in_force: &PolicySet, name: &str, spec: &str) -> ObjectReview {
    let document = match PolicyDocument::of_object_text(name, spec) {
        Ok(document) => document,
        Err(faults) => {
            return ObjectReview { faults: faults.iter().map(ObjectFault::of).collect(), ..Default::default() };
        }
    };
    // The default preset applies only without policies, and the previous version of the object is replaced.
    let others = in_force.documents().iter().filter(|other| match other.origin {
        Origin::File(_) => true,
        Origin::Object => other.name != name,
        Origin::Preset => false,
    });
    if let Some(fault) = name_is_taken(name, others.clone()) {
        return ObjectReview { faults: vec![fault], ..Default::default() };
    }
    let together: Vec<PolicyDocument> = others.cloned().chain([document]).collect();
    match PolicySet::compile(&together) {
        Ok(set) => {
            let warnings =
                set.lints_of(Some(name)).iter().map(|Lint { name: _, fault }| ObjectFault::of(fault)).collect();
            let on_annotations = set.entries_on_annotations().into_iter().filter(|entry| *entry.policy == *name);
            let on_annotations = on_annotations.map(ToString::to_string).collect();
            ObjectReview { faults: Vec::new(), warnings, on_annotations }
        }
        Err(errors) => {
            ObjectReview { faults: errors.iter().map(ObjectFault::together).collect(), ..Default::default() }
        }
    }
}

impl ObjectFault {
    /// An error of the object itself.
    pub fn of(error: &PolicyError) -> Self {
        Self { field: error.path.to_string(), message: error.problem.to_string() }
    }

    /// An error that occurs only together with other policies. It may be at a field of one of those.
    pub fn together(error: &PolicyError) -> Self {
        let message = format!("together with other policies: {}", error.to_string().trim());
        Self { field: "spec".to_owned(), message }
    }
}

impl std::fmt::Display for ObjectFault {
    /// Formats the error on one line, for conditions and events.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let message = self.message.split_whitespace().collect::<Vec<_>>().join(" ");
        match self.field.as_str() {
            "" => f.write_str(&message),
            field => write!(f, "{field}: {message}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(documents: &[(&str, Origin, Json)]) -> PolicySet {
        let read = |(name, origin, spec): &(&str, Origin, Json)| {
            PolicyDocument::new(*name, origin.clone(), serde_json::from_value(spec.clone()).unwrap())
        };
        PolicySet::compile(&documents.iter().map(read).collect::<Vec<_>>()).unwrap()
    }

    fn assigns(label: &str, value: &str, names: Json) -> Json {
        json!({"rules": [{"name": "r", "match": {"names": names}, "labels": {label: value}}]})
    }

    fn unless(absent: &str, label: &str) -> Json {
        json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions": [{"key": absent, "operator": "DoesNotExist"}]}},
                          "labels": {label: "x"}}]})
    }

    #[test]
    fn all_errors_of_an_object_are_reported_at_once_each_with_its_field() {
        let spec = json!({"rules": [
            {"name": "a", "match": {"expression": "1 +"}, "labels": {"a": "b"}, "unknown": 1},
            {"name": "b", "match": {"selector": {"matchExpressions": [{"key": "x", "operator": "In"}]}}, "labels": {"bad key": "b"}},
        ]});
        let review = review_object(&PolicySet::default(), "p", &spec.to_string());
        let fields: Vec<&str> = review.faults.iter().map(|fault| fault.field.as_str()).collect();
        for field in ["spec.rules[0].unknown", "spec.rules[0].match.expression", "spec.rules[1].match.selector"] {
            assert!(fields.iter().any(|found| found.starts_with(field)), "{field}: {fields:?}");
        }
        assert!(fields.iter().any(|found| found.starts_with("spec.rules[1].labels")), "{fields:?}");
    }

    #[test]
    fn an_object_is_reviewed_together_with_others_and_not_with_its_previous_version() {
        let in_force = set(&[("a", Origin::Object, unless("x", "y")), ("b", Origin::Object, json!({}))]);
        assert_eq!(
            review_object(&in_force, "a", &unless("y", "x").to_string()),
            ObjectReview::default(),
            "the previous version is replaced"
        );
        let cycle = review_object(&in_force, "b", &unless("y", "x").to_string());
        assert!(cycle.faults[0].message.starts_with("together with other policies: "), "{cycle:?}");
        let file = set(&[("a", Origin::File("a.yaml".to_owned()), json!({}))]);
        assert_eq!(review_object(&file, "a", &json!({}).to_string()).faults[0].field, "metadata.name");
        let stand_in = PolicySet::compile(&[crate::baseline(Default::default())]).unwrap();
        assert_eq!(
            review_object(&stand_in, "default", &json!({"presets": ["baseline"]}).to_string()),
            ObjectReview::default()
        );
    }

    #[test]
    fn another_value_for_the_same_key_is_a_conflict_and_no_error_if_both_rules_can_match() {
        let in_force = set(&[("a", Origin::Object, assigns("tier", "gold", json!(["gpu-*"])))]);
        let review = |names| review_object(&in_force, "b", &assigns("tier", "tin", names).to_string());
        let both = review(json!(["gpu-1"]));
        let told = |review: &ObjectReview| review.warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
        let expected = "spec.rules[0].labels.tier: rule a/r takes precedence over rule b/r on nodes named gpu-1, only because its \
                        policy's name sorts first (label tier: \"gold\", not \"tin\"); give the rule that should win a higher \
                        priority, such as \"priority: 10\"";
        assert_eq!(told(&both), [expected]);
        assert_eq!(both.faults, []);
        assert_eq!(review(json!(["cpu-1"])), ObjectReview::default(), "no node matches both");
        assert_eq!(
            review_object(&in_force, "b", &assigns("tier", "gold", json!(["gpu-1"])).to_string()),
            ObjectReview::default()
        );
        let later = set(&[("z", Origin::Object, assigns("tier", "gold", json!(["gpu-*"])))]);
        let first = review_object(&later, "b", &assigns("tier", "tin", json!(["gpu-1"])).to_string());
        assert!(told(&first)[0].contains("rule b/r takes precedence over rule z/r"), "{first:?}");
    }
}
