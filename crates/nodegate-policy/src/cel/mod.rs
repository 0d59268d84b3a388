//! CEL over nodes: `node.status.nodeInfo.architecture == "arm64"`.
//!
//! The engine is the crate `nodegate_cel`, which does not know Nodes. This module has the variables with the fields of
//! Kubernetes' Node, what an expression [`Reads`] of a node, and the conversion of expressions for the API server's own
//! CEL.
//!
//! # Caveats
//! Quantities and times are strings (`quantity(…)`, `timestamp(…)`). Fields of another version of Kubernetes are read
//! through `dyn(…)`: `dyn(node.status).newField`.

mod excerpt;
mod item;
#[rustfmt::skip] // One field a line, as it is generated.
mod kubernetes;
mod native_node;
mod native_write;
mod paths;
mod reads;
mod schema;
#[cfg(test)]
mod tests;
mod tokens;
mod variables;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use excerpt::{Edit, Excerpt};
pub use item::Item;
pub use native_write::ObjectNames;
pub use nodegate_cel::{Budget, EvaluationError, ExpressionError, Paths, Yields};
pub(crate) use nodegate_cel::{REGEX_SIZE_MAX, sized_regex};
pub use paths::{ReadPaths, SharedPaths};
pub use reads::{LabelRead, Polarity, Reads};
pub(crate) use schema::NODE_FIELDS;
pub use variables::{GpuVariables, IdentityVariables, NodeVariables, RequestValue, RequestVariables, Variables};

/// The variables that an expression may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `node`, `gpu`, `inventory`, `identity`, `devices`.
    Node,
    /// `object`, `oldObject`, `request`.
    Write,
    /// `item`, `key`: a part of what an inventory answers.
    Item,
}

/// What a regular expression takes with its caches, as a multiple of its size.
pub(crate) const REGEX_FACTOR: usize = 4;
/// What each byte of an expression takes in its tree at most, in bytes.
const TREE_BYTES: usize = 64;

/// A compiled expression over nodes. Cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Expression {
    compiled: nodegate_cel::Expression,
    read: Arc<(Reads, ReadPaths)>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.compiled.fmt(f)
    }
}

/// What to write instead of `node.metadata.labels.acme.io/pool`, if the error at the byte `at` is in such a key: CEL reads it as
/// a path and a division.
fn bracketed_key(source: &str, at: usize) -> Option<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
    let fields = ["labels.", "annotations."]
        .into_iter()
        .flat_map(|field| source.match_indices(field).map(move |(start, _)| start + field.len()));
    fields.filter(|key| *key <= at).max().and_then(|begin| {
        let key = source.get(begin..)?.split(|c: char| !is_path(c) && !"/-".contains(c)).next()?;
        let map = source.get(..begin - 1)?;
        let map = map.get(map.trim_end_matches(is_path).len()..)?;
        let is_meant = at < begin + key.len() && key.contains(['/', '-']);
        is_meant.then(|| format!("write a key with such characters in brackets: {map}[\"{key}\"]"))
    })
}

impl Expression {
    /// Compiles `source`.
    ///
    /// # Errors
    /// Returns an error if it is not a valid expression, can never yield the required type, uses unknown names,
    /// or exceeds the limits. The message says where, and what to write instead.
    pub fn compile(source: &str, scope: Scope, yields: Yields) -> Result<Self, ExpressionError> {
        let compiled = nodegate_cel::Expression::compile(source, scope.schema(), yields).map_err(|error| {
            match bracketed_key(source, error.bytes().start) {
                Some(remedy) => error.with_remedy(remedy),
                None => error,
            }
        })?;
        let read = Arc::new(reads::of(compiled.reads()));
        Ok(Self { compiled, read })
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        self.compiled.source()
    }

    /// About how much memory it takes, in bytes: its regular expressions with their caches, and its tree.
    pub(crate) fn compiled_bytes(&self) -> usize {
        REGEX_FACTOR * self.compiled.pattern_bytes() + TREE_BYTES * self.source().len()
    }

    /// The variables and labels that it reads.
    #[must_use]
    pub fn reads(&self) -> &Reads {
        &self.read.0
    }

    /// The parts of documents that it reads.
    #[must_use]
    pub fn paths(&self) -> &ReadPaths {
        &self.read.1
    }

    /// The first function in it that no expression in Kubernetes can call, if there is one.
    pub(crate) fn unknown_to_kubernetes(&self) -> Option<String> {
        self.compiled.unknown_to_kubernetes()
    }

    /// Evaluates a condition.
    ///
    /// # Errors
    /// See [`EvaluationError`]: the condition is unknown.
    pub fn evaluate_bool(&self, variables: &Variables<'_>) -> Result<bool, EvaluationError> {
        self.compiled.evaluate_bool(&variables.0)
    }

    /// Evaluates an expression that yields a string.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_text(&self, variables: &Variables<'_>) -> Result<String, EvaluationError> {
        self.compiled.evaluate_text(&variables.0)
    }

    /// Evaluates an expression that yields labels. The caller checks whether they are valid.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_map(&self, variables: &Variables<'_>) -> Result<BTreeMap<String, String>, EvaluationError> {
        self.compiled.evaluate_map(&variables.0)
    }
}
