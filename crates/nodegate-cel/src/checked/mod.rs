//! From a syntax tree to a tree whose names and types are right.

pub(crate) mod check;
pub(crate) mod macros;
pub(crate) mod pattern;
pub(crate) mod reads;
pub(crate) mod schema;
pub(crate) mod tree;
