//! CEL, the expression language of Kubernetes: `node.status.nodeInfo.architecture == "arm64"`.
//!
//! An [`Expression`] is compiled once, when a policy is loaded. Compiling parses it, refuses what
//! cannot work (unknown names, fields and functions, wrong types, bad patterns), bounds it, and
//! finds what it [`Reads`]. Evaluating it gives an answer or an [`EvaluationError`], which makes a
//! condition *unknown*.
//!
//! # Guarantees
//! - Compiling and evaluating any text on any node takes bounded time, memory and stack; an
//!   evaluation takes at most a fixed number of steps, and so do all within one [`Budget`]. Neither panics.
//! - The same expression gives the same answer for the same variables: maps are walked in the
//!   order of their keys, and there is no clock.
//! - Of a node, only what expressions read is looked at ([`Excerpt`]), within a bound of memory; of what is read, only
//!   text with escapes is copied.
//!
//! # Caveats
//! Fields are those of Kubernetes' own Node; quantities and times are strings (`quantity(…)`, `timestamp(…)`). A field
//! that only another version of Kubernetes has is read through `dyn(…)`: `dyn(node.status).newField`. The parser and the evaluation are written here;
//! `parser` tells why. Kubernetes' function library is that of the `kube-cel` crate.

mod check;
mod evaluate;
mod excerpt;
mod fault;
mod functions;
#[rustfmt::skip] // One field a line, as it is generated.
mod kubernetes;
mod lexer;
mod literal;
mod loops;
mod macros;
mod operators;
mod over_write;
mod parser;
mod paths;
mod pattern;
mod reads;
mod rename;
mod shape;
mod steps;
mod syntax;
#[cfg(test)]
mod tests;
mod time;
mod tree;
mod types;
mod value;
mod variables;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use excerpt::{Edit, Excerpt};
pub use fault::{EvaluationError, ExpressionError};
pub use over_write::ObjectNames;
pub use paths::{Paths, ReadPaths, SharedPaths};
pub use reads::{LabelRead, Polarity, Reads};
pub use steps::Budget;
pub use variables::{GpuVariables, NodeVariables, RequestVariables, Variables};

use evaluate::Evaluation;
use tree::Node;
use types::Type;
use value::{Key, Value};

/// What an expression must yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// A condition.
    Bool,
    /// The value of a label, or a message.
    Text,
    /// Labels: a map of strings.
    LabelMap,
}

/// Which variables an expression may mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `node`, `gpu`, `inventory`.
    Node,
    /// `object`, `oldObject`, `request`.
    Write,
}

impl Yields {
    fn wanted(self) -> Type {
        match self {
            Self::Bool => Type::Bool,
            Self::Text => Type::Text,
            Self::LabelMap => Type::Map,
        }
    }
}

/// A compiled expression. Cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Expression {
    compiled: Arc<Compiled>,
}

struct Compiled {
    source: String,
    tree: Node,
    reads: Reads,
    paths: ReadPaths,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.compiled.source).finish()
    }
}

impl Expression {
    /// Compiles `source`.
    ///
    /// # Errors
    /// When it is no expression, can never yield what it must, mentions what is not there, or is
    /// beyond the bounds. The message says where, and what to write instead.
    pub fn compile(source: &str, scope: Scope, yields: Yields) -> Result<Self, ExpressionError> {
        let compiled = || {
            let syntax = parser::parse(source)?;
            let tree = check::check(&syntax, scope, yields)?;
            let (reads, paths) = reads::of(&tree, yields == Yields::Bool);
            Ok(Self { compiled: Arc::new(Compiled { source: source.to_owned(), tree, reads, paths }) })
        };
        match catch_unwind(AssertUnwindSafe(compiled)) {
            Ok(result) => result.map_err(|problem: fault::Problem| problem.explain(source)),
            Err(panic) => {
                let message = format!("it could not be compiled because of a fault in nodegate: {}", words(&*panic));
                Err(fault::Problem::new(0, message).explain(source))
            }
        }
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.compiled.source
    }

    /// What it reads.
    #[must_use]
    pub fn reads(&self) -> &Reads {
        &self.compiled.reads
    }

    /// Which parts of documents it reads.
    #[must_use]
    pub fn paths(&self) -> &ReadPaths {
        &self.compiled.paths
    }

    /// The answer of a condition.
    ///
    /// # Errors
    /// See [`EvaluationError`]: the condition is unknown.
    pub fn evaluate_bool(&self, variables: &Variables<'_>) -> Result<bool, EvaluationError> {
        self.evaluate(variables, |value| match value {
            Value::Bool(value) => Ok(value),
            other => Err(unwanted(Type::Bool, &other)),
        })
    }

    /// The text an expression yields.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_text(&self, variables: &Variables<'_>) -> Result<String, EvaluationError> {
        self.evaluate(variables, text)
    }

    /// The labels an expression yields. Whether they are valid labels is for the caller to see.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_map(&self, variables: &Variables<'_>) -> Result<BTreeMap<String, String>, EvaluationError> {
        self.evaluate(variables, |value| match value {
            Value::Map(entries) => entries.entries().into_iter().map(label).collect(),
            other => Err(unwanted(Type::Map, &other)),
        })
    }

    /// Evaluates, and turns the answer into `T`. A panic is an error of this evaluation.
    fn evaluate<T>(
        &self,
        variables: &Variables<'_>,
        convert: impl FnOnce(Value<'_>) -> Result<T, EvaluationError>,
    ) -> Result<T, EvaluationError> {
        let evaluated = || {
            let mut evaluation = Evaluation::new(variables);
            let value = evaluation.value(&self.compiled.tree);
            if let Some(budget) = variables.budget() {
                budget.settle(&evaluation.steps, &value);
            }
            convert(value?)
        };
        catch_unwind(AssertUnwindSafe(evaluated)).unwrap_or_else(|panic| Err(EvaluationError::Internal(words(&*panic))))
    }
}

fn text(value: Value<'_>) -> Result<String, EvaluationError> {
    match value {
        Value::Text(text) => Ok(text.to_string()),
        other => Err(unwanted(Type::Text, &other)),
    }
}

fn label((key, value): (Key<'_>, Value<'_>)) -> Result<(String, String), EvaluationError> {
    match (key, value) {
        (Key::Text(key), Value::Text(value)) => Ok((key.to_string(), value.to_string())),
        (Key::Text(key), other) => {
            let message = format!("the value of {:?} is {}; make text of it with string(…)", &*key, other.noun());
            Err(EvaluationError::failed(message))
        }
        (key, _) => Err(EvaluationError::failed(format!("the key {key} is not a string"))),
    }
}

fn unwanted(wanted: Type, found: &Value<'_>) -> EvaluationError {
    let (wanted, found) = (wanted.noun(), found.noun());
    EvaluationError::failed(format!("the expression must yield {wanted}, here it yields {found}"))
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
