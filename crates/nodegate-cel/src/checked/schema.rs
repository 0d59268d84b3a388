//! What expressions may mention: variables, and what is known of their structure.

use crate::fault::Mistake;
use crate::values::types::{self, Type};

/// The variables that expressions may mention.
///
/// A schema is a static table, so that compiled expressions can point into it.
#[derive(Debug)]
pub struct Schema {
    /// In the order in which messages list them.
    pub variables: &'static [Variable],
}

/// One variable.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// Whether it may be null instead.
    pub nullable: bool,
    /// Members that are always there, because whoever sets the variable fills them in: each is the keys that lead to it.
    /// Asking whether they are there reads nothing.
    pub always: &'static [&'static [&'static str]],
}

/// What is known of the structure of a value.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Nothing.
    Any,
    /// True or false.
    Bool,
    /// A whole number.
    Int,
    /// Text.
    Text,
    /// A list of these.
    List(&'static Shape),
    /// A map of these, with any text as keys.
    Map(&'static Shape),
    /// These fields and no others.
    Object(&'static Fields),
}

/// The fields of an object.
#[derive(Debug)]
pub struct Fields {
    name: &'static str,
    fields: &'static [(&'static str, Shape)],
    withheld: &'static [&'static str],
    reason: &'static str,
}

use Shape::{Any, Bool, Int, List, Map, Object, Text};

impl Schema {
    pub(crate) fn variable(&self, name: &str) -> Option<&'static Variable> {
        self.variables.iter().find(|variable| variable.name == name)
    }
}

impl Variable {
    /// A variable that is never null and has no members that are always there.
    #[must_use]
    pub const fn new(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, nullable: false, always: &[] }
    }

    pub(crate) fn type_of(&self) -> Type {
        if self.nullable { Type::Any } else { self.shape.type_of() }
    }

    /// Whether what these keys lead to is always there.
    pub(crate) fn always_has(&self, keys: &[&str]) -> bool {
        !keys.is_empty() && self.always.iter().any(|there| there.starts_with(keys))
    }
}

impl Fields {
    /// An object that is called `name`, with these fields.
    #[must_use]
    pub const fn new(name: &'static str, fields: &'static [(&'static str, Shape)]) -> Self {
        Self { name, fields, withheld: &[], reason: "" }
    }

    /// Names fields that people expect and that are not there, and why: `… has the field x {reason}`.
    #[must_use]
    pub const fn withholding(self, withheld: &'static [&'static str], reason: &'static str) -> Self {
        Self { withheld, reason, ..self }
    }

    /// The fields, with what is known of each.
    #[must_use]
    pub fn all(&self) -> &'static [(&'static str, Shape)] {
        self.fields
    }
}

impl Shape {
    /// The type of what is made like this.
    pub(crate) fn type_of(self) -> Type {
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
    pub(crate) fn item(self) -> Self {
        match self {
            List(item) | Map(item) => *item,
            Any | Bool | Int | Text | Object(_) => Any,
        }
    }

    /// Whether the keys of this are text.
    pub(crate) fn has_text_keys(self) -> bool {
        matches!(self, Map(_) | Object(_))
    }

    /// The member with the key `key` (`None`: computed). `described` is how a message names this.
    ///
    /// # Errors
    /// There can be no such member; the message says which there are.
    pub(crate) fn member(self, key: Option<&str>, described: Option<String>) -> Result<Self, Mistake> {
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

/// The problem of a field that is not there, without its place.
fn no_field(of: &'static Fields, key: &str, described: Option<String>) -> Mistake {
    let what = described.as_ref().map_or_else(|| types::noun(of.name), |described| format!("`{described}`"));
    let names: Vec<&str> = of.fields.iter().map(|(name, _)| *name).collect();
    if of.withheld.contains(&key) {
        let what = format!("{what} has the field `{key}` {}", of.reason);
        return Mistake::new(0, what).remedy(format!("the available fields are {}", names.join(", ")));
    }
    let remedy = match (elsewhere(of, key), nearest(key, &names)) {
        (Some(holder), _) => format!("write {}.{holder}.{key}", described.as_deref().unwrap_or(of.name)),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => format!("it has {}", names.join(", ")),
    };
    Mistake::new(0, format!("{what} has no field `{key}`")).remedy(remedy)
}

/// The field of an object that has a field `key`.
fn elsewhere(of: &'static Fields, key: &str) -> Option<&'static str> {
    let has = |shape: &Shape| matches!(shape, Object(inner) if inner.fields.iter().any(|(name, _)| *name == key));
    of.fields.iter().find(|(_, shape)| has(shape)).map(|(holder, _)| *holder)
}

/// The name that is most like `written`, if any is like it.
pub(crate) fn nearest<'n>(written: &str, names: &[&'n str]) -> Option<&'n str> {
    let distance = |name: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &written.to_lowercase());
    let nearest = names.iter().copied().min_by_key(|name| distance(name))?;
    (distance(nearest) <= 2 && distance(nearest) < written.len()).then_some(nearest)
}
