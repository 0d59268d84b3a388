//! What an expression says, before anything is known about names and types.

pub(crate) mod lexer;
pub(crate) mod literal;
pub(crate) mod parser;

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Syntax {
    /// The byte of the source that names this part best: an operator, a name, a bracket.
    pub(super) at: usize,
    /// How many parts lie inside each other here; bounded by the parser, so that walking and
    /// dropping the tree need a bounded stack.
    pub(super) depth: usize,
    pub(super) kind: SyntaxKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum SyntaxKind {
    Constant(Constant),
    Name(String),
    /// `of.name`, `of.?name`
    Select {
        of: Box<Syntax>,
        name: String,
        optional: bool,
    },
    /// `of[key]`, `of[?key]`
    Index {
        of: Box<Syntax>,
        key: Box<Syntax>,
        optional: bool,
    },
    /// `name(…)`, `target.name(…)`
    Call {
        target: Option<Box<Syntax>>,
        name: String,
        arguments: Vec<Syntax>,
    },
    Not(Box<Syntax>),
    Negate(Box<Syntax>),
    /// `a && b && …`
    AllOf(Vec<Syntax>),
    /// `a || b || …`
    AnyOf(Vec<Syntax>),
    /// `test ? then : otherwise`
    Choose {
        test: Box<Syntax>,
        then: Box<Syntax>,
        otherwise: Box<Syntax>,
    },
    Binary {
        operator: Operator,
        left: Box<Syntax>,
        right: Box<Syntax>,
    },
    List(Vec<Item>),
    Map(Vec<Entry>),
}

/// An item of a list; `?item` is left out when it is an empty optional.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) optional: bool,
    pub(super) value: Syntax,
}

/// An entry of a map; `?key: value` is left out when the value is an empty optional.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) optional: bool,
    pub(super) key: Syntax,
    pub(super) value: Syntax,
}

/// A value that is written down.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Constant {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Box<str>),
    Bytes(std::sync::Arc<[u8]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Operator {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::In => "in",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }
}

impl SyntaxKind {
    /// The depth of the deepest part in here.
    pub(super) fn inner_depth(&self) -> usize {
        let deepest = |parts: &[Syntax]| parts.iter().map(|part| part.depth).max().unwrap_or(0);
        match self {
            Self::Constant(_) | Self::Name(_) => 0,
            Self::Select { of, .. } | Self::Not(of) | Self::Negate(of) => of.depth,
            Self::Index { of, key, .. } => of.depth.max(key.depth),
            Self::Call { target, arguments, .. } => {
                deepest(arguments).max(target.as_ref().map_or(0, |target| target.depth))
            }
            Self::AllOf(parts) | Self::AnyOf(parts) => deepest(parts),
            Self::Choose { test, then, otherwise } => test.depth.max(then.depth).max(otherwise.depth),
            Self::Binary { left, right, .. } => left.depth.max(right.depth),
            Self::List(items) => items.iter().map(|item| item.value.depth).max().unwrap_or(0),
            Self::Map(entries) => entries.iter().map(|entry| entry.key.depth.max(entry.value.depth)).max().unwrap_or(0),
        }
    }
}
