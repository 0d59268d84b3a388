//! Evaluates a tree.

pub(crate) mod evaluate;
pub(crate) mod loops;
pub(crate) mod operators;
