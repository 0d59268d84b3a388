//! An expression whose names and types have been checked: what is evaluated and analysed.

use crate::checked::pattern::Pattern;
use crate::checked::schema::Variable;
use crate::functions::Function;
use crate::syntax::{Constant, Operator};

/// A part of a checked expression.
#[derive(Debug)]
pub(crate) enum Tree {
    Constant(Constant),
    Variable(&'static Variable),
    /// The variable of a loop, counted from the outermost one.
    Local(usize),
    /// `of.key` and `of[key]`
    Member {
        of: Box<Tree>,
        key: Box<Tree>,
        optional: bool,
    },
    /// `has(of.field)`
    Has {
        of: Box<Tree>,
        field: Box<str>,
    },
    Not(Box<Tree>),
    Negate(Box<Tree>),
    AllOf(Vec<Tree>),
    AnyOf(Vec<Tree>),
    Choose {
        test: Box<Tree>,
        then: Box<Tree>,
        otherwise: Box<Tree>,
    },
    Binary {
        operator: Operator,
        left: Box<Tree>,
        right: Box<Tree>,
    },
    List(Vec<Item>),
    Map(Vec<Entry>),
    Call(Box<Call>),
    /// `of.orValue(otherwise)`, and `of.or(otherwise)`, which stays an optional.
    OrElse {
        of: Box<Tree>,
        otherwise: Box<Tree>,
        unwrap: bool,
    },
    Loop(Box<Loop>),
}

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) optional: bool,
    pub(crate) value: Tree,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) optional: bool,
    pub(crate) key: Tree,
    pub(crate) value: Tree,
}

/// A call; the target of a method is the first argument.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: &'static Function,
    pub(crate) arguments: Vec<Tree>,
    /// The compiled pattern of a function on regular expressions; it is not among the arguments.
    pub(crate) pattern: Option<Pattern>,
}

/// What one of CEL's macros does with the items of a list, the keys of a map, or an optional.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    /// Two variables: index and item of a list, key and value of a map.
    pub(crate) two_variables: bool,
    pub(crate) range: Tree,
    /// Which items count; of `map`, `transformList`, `transformMap` and `transformMapEntry` only.
    pub(crate) filter: Option<Tree>,
    pub(crate) body: Tree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    Filter,
    /// `map` and `transformList`
    Collect,
    /// `sortBy`
    SortBy,
    TransformMap,
    /// `transformMapEntry`: the body is a map, whose entries become those of the result.
    TransformMapEntry,
    /// `optMap`; the result of `optFlatMap` is an optional already.
    OptionalMap,
    OptionalFlatMap,
}

impl Tree {
    /// The variable and the keys that lead here, if all of them are written down.
    ///
    /// Asking for what is always there with an empty default (`a.?b.orValue({})`) is the same path.
    pub(crate) fn path(&self) -> Option<(&'static Variable, Vec<&str>)> {
        match self {
            Self::Variable(variable) => Some((*variable, Vec::new())),
            Self::Member { of, key, .. } => {
                let Self::Constant(Constant::Text(key)) = &**key else { return None };
                let (variable, mut keys) = of.path()?;
                keys.push(key);
                Some((variable, keys))
            }
            Self::OrElse { of, otherwise, .. } => {
                let empty = match &**otherwise {
                    Self::Map(entries) => entries.is_empty(),
                    Self::List(items) => items.is_empty(),
                    _ => false,
                };
                of.path().filter(|(variable, keys)| empty && variable.always_has(keys))
            }
            _ => None,
        }
    }

    /// How a message names this part.
    pub(crate) fn describe(&self) -> String {
        match (self, self.path()) {
            (_, Some((variable, keys))) => {
                let mut text = variable.name.to_owned();
                for key in keys {
                    let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                    text.push_str(&if plain { format!(".{key}") } else { format!("[{key:?}]") });
                }
                text
            }
            (Self::Local(_), None) => "the variable of the loop".to_owned(),
            (Self::Call(call), None) => format!("the result of {}()", call.function.name),
            _ => "the value".to_owned(),
        }
    }
}
