//! The variables of each kind of expression and what is known of their fields.

use super::Scope;
use super::tree::Variable;
use super::types::Type;

impl Scope {
    /// The variables an expression of this scope may mention.
    pub(super) fn variables(self) -> &'static [Variable] {
        match self {
            Self::Node => &[Variable::Node, Variable::Gpu, Variable::Inventory],
            Self::Write => &[Variable::Object, Variable::OldObject, Variable::Request],
        }
    }
}

/// The type of a variable itself.
pub(super) fn type_of(variable: Variable) -> Type {
    match variable {
        // Null when a node is created.
        Variable::OldObject => Type::Any,
        Variable::Node | Variable::Gpu | Variable::Inventory | Variable::Object | Variable::Request => Type::Map,
    }
}

const NODE: &[(&str, Type)] = &[
    ("apiVersion", Type::Text),
    ("kind", Type::Text),
    ("metadata", Type::Map),
    ("spec", Type::Map),
    ("status", Type::Map),
];
const METADATA: &[(&str, Type)] = &[
    ("name", Type::Text),
    ("uid", Type::Text),
    ("creationTimestamp", Type::Text),
    ("labels", Type::Map),
    ("annotations", Type::Map),
];
const SPEC: &[(&str, Type)] = &[
    ("taints", Type::List),
    ("providerID", Type::Text),
    ("unschedulable", Type::Bool),
    ("podCIDR", Type::Text),
    ("podCIDRs", Type::List),
];
const STATUS: &[(&str, Type)] = &[
    ("capacity", Type::Map),
    ("allocatable", Type::Map),
    ("nodeInfo", Type::Map),
    ("addresses", Type::List),
    ("conditions", Type::List),
    ("images", Type::List),
];
const GPU: &[(&str, Type)] =
    &[("vendor", Type::Text), ("model", Type::Text), ("count", Type::Int), ("source", Type::Text)];
const REQUEST: &[(&str, Type)] = &[
    ("operation", Type::Text),
    ("name", Type::Text),
    ("subResource", Type::Text),
    ("dryRun", Type::Bool),
    ("userInfo", Type::Map),
];
const USER_INFO: &[(&str, Type)] = &[("username", Type::Text), ("uid", Type::Text), ("groups", Type::List)];

/// What is known of the fields of something.
enum Fields {
    /// Others may exist.
    Some(&'static [(&'static str, Type)]),
    /// There are no others.
    Only(&'static [(&'static str, Type)]),
    /// Any key, all values of one type.
    Every(Type),
}

fn fields(variable: Variable, keys: &[&str]) -> Option<Fields> {
    Some(match (variable, keys) {
        (Variable::Gpu, []) => Fields::Only(GPU),
        (Variable::Inventory, []) => Fields::Every(Type::Text),
        (Variable::Request, []) => Fields::Only(REQUEST),
        (Variable::Request, ["userInfo"]) => Fields::Only(USER_INFO),
        (Variable::Gpu | Variable::Inventory | Variable::Request, _) => return None,
        (_, []) => Fields::Only(NODE),
        (_, ["metadata"]) => Fields::Some(METADATA),
        (_, ["spec"]) => Fields::Some(SPEC),
        (_, ["status"]) => Fields::Some(STATUS),
        (_, ["metadata", "labels" | "annotations"] | ["status", "capacity" | "allocatable" | "nodeInfo"]) => {
            Fields::Every(Type::Text)
        }
        _ => return None,
    })
}

/// The type of the field `key` (`None`: computed) of what `keys` of `variable` lead to.
///
/// # Errors
/// There can be no such field; the message says which there are.
pub(super) fn type_of_field(variable: Variable, keys: &[&str], key: Option<&str>) -> Result<Type, String> {
    let (known, only) = match fields(variable, keys) {
        None => return Ok(Type::Any),
        Some(Fields::Every(of)) => return Ok(of),
        Some(Fields::Some(known)) => (known, false),
        Some(Fields::Only(known)) => (known, true),
    };
    let Some(key) = key else { return Ok(Type::Any) };
    match known.iter().find(|(name, _)| *name == key) {
        Some((_, of)) => Ok(*of),
        None if !only => Ok(Type::Any),
        None => {
            let of = std::iter::once(variable.name()).chain(keys.iter().copied()).collect::<Vec<_>>().join(".");
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let hint = match (std::ptr::eq(known, NODE), key) {
                (true, "name" | "labels" | "annotations" | "uid") => format!("; write {of}.metadata.{key}"),
                (true, "taints" | "providerID" | "unschedulable") => format!("; write {of}.spec.{key}"),
                (true, "capacity" | "allocatable" | "nodeInfo") => format!("; write {of}.status.{key}"),
                _ => String::new(),
            };
            Err(format!("`{of}` has no field `{key}`{hint} (it has {names})"))
        }
    }
}
