//! What documents are made of: which fields an object has, and what lies in lists and maps.

use super::tree::Variable;
use super::types::{self, Type};
use super::{Scope, kubernetes};

/// What is known of the structure of a part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Nothing.
    Any,
    Bool,
    Int,
    /// Text; quantities and times are text as well.
    Text,
    List(&'static Shape),
    /// Any keys.
    Map(&'static Shape),
    /// These fields and no others.
    Object(&'static Fields),
}

/// The fields of an object.
#[derive(Debug)]
pub(super) struct Fields {
    /// What Kubernetes calls such an object.
    pub(super) name: &'static str,
    /// By name.
    pub(super) fields: &'static [(&'static str, Shape)],
}

use Shape::{Any, Bool, Int, List, Map, Object, Text};

static GPU: Fields =
    Fields { name: "GPU", fields: &[("vendor", Text), ("model", Text), ("count", Int), ("source", Text)] };

/// What nodegate tells of a request.
static REQUEST: Fields = Fields {
    name: "AdmissionRequest",
    fields: &[
        ("operation", Text),
        ("name", Text),
        ("subResource", Text),
        ("dryRun", Bool),
        ("userInfo", Object(&USER_INFO)),
    ],
};

static USER_INFO: Fields =
    Fields { name: "UserInfo", fields: &[("username", Text), ("uid", Text), ("groups", List(&Text))] };

/// What Kubernetes' own request has besides (`k8s.io/api/admission/v1`).
const NOT_SUPPLIED: [&str; 11] = [
    "extra",
    "kind",
    "namespace",
    "object",
    "oldObject",
    "options",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "resource",
    "uid",
];

impl Scope {
    /// The variables an expression of this scope may mention.
    pub(super) fn variables(self) -> &'static [Variable] {
        match self {
            Self::Node => &[Variable::Node, Variable::Gpu, Variable::Inventory],
            Self::Write => &[Variable::Object, Variable::OldObject, Variable::Request],
        }
    }
}

/// The type of a variable, and its structure.
pub(super) fn of_variable(variable: Variable) -> (Type, Shape) {
    let shape = match variable {
        Variable::Node | Variable::Object | Variable::OldObject => Object(&kubernetes::NODE),
        Variable::Gpu => Object(&GPU),
        Variable::Inventory => Map(&Text),
        Variable::Request => Object(&REQUEST),
    };
    // Null when a node is created.
    let of = if variable == Variable::OldObject { Type::Any } else { shape.type_of() };
    (of, shape)
}

impl Shape {
    /// The type of what is made like this.
    pub(super) fn type_of(self) -> Type {
        match self {
            Any => Type::Any,
            Bool => Type::Bool,
            Int => Type::Int,
            Text => Type::Text,
            List(_) => Type::List,
            Map(_) | Object(_) => Type::Map,
        }
    }

    /// What lies in a list, or behind each key of a map.
    pub(super) fn item(self) -> Self {
        match self {
            List(item) | Map(item) => *item,
            Any | Bool | Int | Text | Object(_) => Any,
        }
    }

    /// Whether the keys of this are text.
    pub(super) fn has_text_keys(self) -> bool {
        matches!(self, Map(_) | Object(_))
    }

    /// The member with the key `key` (`None`: computed). `described` is how a message names this.
    ///
    /// # Errors
    /// There can be no such member; the message says which there are.
    pub(super) fn member(self, key: Option<&str>, described: Option<String>) -> Result<Self, String> {
        match (self, key) {
            (Object(fields), Some(key)) => match fields.fields.iter().find(|(name, _)| *name == key) {
                Some((_, shape)) => Ok(*shape),
                None => Err(no_field(fields, key, described)),
            },
            (Object(_), None) => Ok(Any),
            _ => Ok(self.item()),
        }
    }
}

fn no_field(of: &'static Fields, key: &str, described: Option<String>) -> String {
    let what = described.as_ref().map_or_else(|| types::noun(of.name), |described| format!("`{described}`"));
    let names = of.fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let request = std::ptr::eq(of, &raw const REQUEST) || std::ptr::eq(of, &raw const USER_INFO);
    if request && NOT_SUPPLIED.contains(&key) {
        return format!(
            "{what} has the field `{key}` in Kubernetes, but nodegate does not supply it (there are {names})"
        );
    }
    let hint = match (elsewhere(of, key), nearest(of, key)) {
        (Some(holder), _) => {
            format!("; write {}.{holder}.{key}", described.as_deref().unwrap_or(of.name))
        }
        (None, Some(near)) => format!(", did you mean `{near}`?"),
        (None, None) => String::new(),
    };
    format!("{what} has no field `{key}`{hint} (it has {names})")
}

/// The field of an object that has a field `key`.
fn elsewhere(of: &'static Fields, key: &str) -> Option<&'static str> {
    let has = |shape: &Shape| matches!(shape, Object(inner) if inner.fields.iter().any(|(name, _)| *name == key));
    of.fields.iter().find(|(_, shape)| has(shape)).map(|(holder, _)| *holder)
}

/// The field whose name is most like `key`, if any is like it.
fn nearest(of: &'static Fields, key: &str) -> Option<&'static str> {
    let distance = |name: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &key.to_lowercase());
    let nearest = of.fields.iter().map(|(name, _)| *name).min_by_key(|name| distance(name))?;
    (distance(nearest) <= 2 && distance(nearest) < key.len()).then_some(nearest)
}
