//! `NodePolicy` objects: read as files are, and judged before they are stored.

use serde_json::{Value as Json, json};

use super::document::{Origin, PolicyDocument, PolicyError};
use super::overlap::possible_conflicts;
use super::set::PolicySet;

/// What would come of an object if it were stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReview {
    /// Every fault, as field and message. An object with faults cannot be in force.
    pub faults: Vec<ObjectFault>,
    /// Rules of other policies that give the same keys other values, a sentence each.
    pub conflicts: Vec<String>,
}

/// One fault of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFault {
    /// The field; empty when no one field is at fault.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// Why an object whose name a policy file has is not in force.
const NAME_IS_TAKEN: &str = "a policy file has this name; give each policy a name of its own";

impl PolicyDocument {
    /// The document of an object, which compiles by itself.
    ///
    /// # Errors
    /// Every fault of it, found as in a file: those of its shape, and what the rest of it means.
    pub fn of_object(name: &str, spec: &Json) -> Result<Self, Vec<PolicyError>> {
        let text = json!({
            "apiVersion": "nodegate.dev/v1alpha1",
            "kind": "NodePolicy",
            "metadata": {"name": name},
            "spec": spec,
        })
        .to_string();
        let mut faults = Vec::new();
        let parsed = Self::parse_all(&Origin::Object, &text, &mut faults).pop();
        let Some(document) = parsed else { return Err(faults) };
        for fault in PolicySet::compile(std::slice::from_ref(&document)).err().into_iter().flatten() {
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        if faults.is_empty() { Ok(document) } else { Err(faults) }
    }
}

/// Why `name` is not free for an object, if a policy file has it.
pub fn name_is_taken<'a>(name: &str, files: impl IntoIterator<Item = &'a PolicyDocument>) -> Option<ObjectFault> {
    let taken = files.into_iter().any(|file| file.name == name);
    taken.then(|| ObjectFault { field: "metadata.name".to_owned(), message: NAME_IS_TAKEN.to_owned() })
}

/// Judges an object that somebody wants to store, by itself and together with the policies in force.
pub fn review_object(in_force: &PolicySet, name: &str, spec: &Json) -> ObjectReview {
    let document = match PolicyDocument::of_object(name, spec) {
        Ok(document) => document,
        Err(faults) => {
            return ObjectReview { faults: faults.iter().map(ObjectFault::of).collect(), ..Default::default() };
        }
    };
    // What stands in where there is no policy goes when there is one; the object before is replaced.
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
        Ok(set) => ObjectReview { faults: Vec::new(), conflicts: possible_conflicts(&set, name) },
        Err(errors) => {
            ObjectReview { faults: errors.iter().map(ObjectFault::together).collect(), ..Default::default() }
        }
    }
}

impl ObjectFault {
    /// A fault of the object itself.
    pub fn of(error: &PolicyError) -> Self {
        Self { field: error.path.to_string(), message: error.message.clone() }
    }

    /// A fault that the object has only together with other policies. It may be told at a field of one of those.
    pub fn together(error: &PolicyError) -> Self {
        let message = format!("together with other policies: {}", error.to_string().trim());
        Self { field: "spec".to_owned(), message }
    }
}

impl std::fmt::Display for ObjectFault {
    /// One line, as conditions and events are shown.
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
    use super::*;

    fn set(documents: &[(&str, Origin, Json)]) -> PolicySet {
        let read = |(name, origin, spec): &(&str, Origin, Json)| {
            PolicyDocument::new(*name, origin.clone(), serde_json::from_value(spec.clone()).unwrap())
        };
        PolicySet::compile(&documents.iter().map(read).collect::<Vec<_>>()).unwrap()
    }

    fn gives(label: &str, value: &str, names: Json) -> Json {
        json!({"rules": [{"name": "r", "match": {"names": names}, "labels": {label: value}}]})
    }

    fn unless(absent: &str, label: &str) -> Json {
        json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions": [{"key": absent, "operator": "DoesNotExist"}]}},
                          "labels": {label: "x"}}]})
    }

    #[test]
    fn faults_of_shape_and_of_meaning_are_told_at_once_each_with_its_field() {
        let spec = json!({"rules": [
            {"name": "a", "match": {"expression": "1 +"}, "labels": {"a": "b"}, "unknown": 1},
            {"name": "b", "match": {"selector": {"matchExpressions": [{"key": "x", "operator": "In"}]}}, "labels": {"bad key": "b"}},
        ]});
        let review = review_object(&PolicySet::default(), "p", &spec);
        let fields: Vec<&str> = review.faults.iter().map(|fault| fault.field.as_str()).collect();
        for field in ["spec.rules[0].unknown", "spec.rules[0].match.expression", "spec.rules[1].match.selector"] {
            assert!(fields.iter().any(|found| found.starts_with(field)), "{field}: {fields:?}");
        }
        assert!(fields.iter().any(|found| found.starts_with("spec.rules[1].labels")), "{fields:?}");
    }

    #[test]
    fn an_object_is_judged_together_with_the_others_and_not_with_itself() {
        let in_force = set(&[("a", Origin::Object, unless("x", "y")), ("b", Origin::Object, json!({}))]);
        assert_eq!(
            review_object(&in_force, "a", &unless("y", "x")),
            ObjectReview::default(),
            "the one before is replaced"
        );
        let cycle = review_object(&in_force, "b", &unless("y", "x"));
        assert!(cycle.faults[0].message.starts_with("together with other policies: "), "{cycle:?}");
        let file = set(&[("a", Origin::File("a.yaml".to_owned()), json!({}))]);
        assert_eq!(review_object(&file, "a", &json!({})).faults[0].field, "metadata.name");
        let stand_in = PolicySet::compile(&[crate::policy::baseline()]).unwrap();
        assert_eq!(review_object(&stand_in, "default", &json!({"presets": ["baseline"]})), ObjectReview::default());
    }

    #[test]
    fn another_value_for_the_same_key_is_no_fault_and_is_told_where_both_can_match() {
        let in_force = set(&[("a", Origin::Object, gives("tier", "gold", json!(["gpu-*"])))]);
        let review = |names| review_object(&in_force, "b", &gives("tier", "tin", names));
        let both = review(json!(["gpu-1"]));
        assert_eq!(both.conflicts, ["label tier: rule a/r wins over rule b/r where both match"]);
        assert_eq!(both.faults, []);
        assert_eq!(review(json!(["cpu-1"])), ObjectReview::default(), "no node has both");
        assert_eq!(review_object(&in_force, "b", &gives("tier", "gold", json!(["gpu-1"]))), ObjectReview::default());
    }
}
