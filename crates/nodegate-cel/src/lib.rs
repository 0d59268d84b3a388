#![doc = include_str!("../README.md")]

mod checked;
mod fault;
mod functions;
mod limits;
mod run;
mod syntax;
#[cfg(test)]
mod tests;
mod values;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use checked::pattern::{REGEX_SIZE_MAX, sized_regex};
pub use checked::reads::Read;
pub use checked::schema::{Fields, Schema, Shape, Variable};
pub use fault::{EvaluationError, ExpressionError};
pub use values::given::Value;
pub use values::paths::Paths;
pub use values::steps::Budget;
pub use values::variables::Variables;

use checked::tree::Tree;
use run::evaluate::Evaluation;
use values::types::Type;
use values::value::{Key, Value as Inner};

/// What an expression must yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// Anything.
    Any,
    /// A condition.
    Bool,
    /// Text.
    Text,
    /// A map whose keys and values are text.
    TextMap,
}

impl Yields {
    fn wanted(self) -> Type {
        match self {
            Self::Any => Type::Any,
            Self::Bool => Type::Bool,
            Self::Text => Type::Text,
            Self::TextMap => Type::Map,
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
    tree: Tree,
    reads: Vec<Read>,
    /// The bytes of its compiled patterns.
    patterns: usize,
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
    pub fn compile(source: &str, schema: &'static Schema, yields: Yields) -> Result<Self, ExpressionError> {
        let compiled = || {
            let syntax = syntax::parser::parse(source)?;
            let (tree, patterns) = checked::check::check(&syntax, schema, yields)?;
            let reads = checked::reads::of(&tree, yields == Yields::Bool);
            Ok(Self { compiled: Arc::new(Compiled { source: source.to_owned(), tree, reads, patterns }) })
        };
        match catch_unwind(AssertUnwindSafe(compiled)) {
            Ok(result) => {
                result.map_err(|problem: fault::Mistake| problem.explain(source, syntax::lexer::end_of_token))
            }
            Err(panic) => {
                let words = words(&*panic);
                let message =
                    format!("the expression could not be compiled because of a bug in the expression engine: {words}");
                Err(fault::Mistake::new(0, message).explain(source, syntax::lexer::end_of_token))
            }
        }
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.compiled.source
    }

    /// The sizes of its regular expressions, as [`sized_regex`] gives them, in bytes.
    #[must_use]
    pub fn pattern_bytes(&self) -> usize {
        self.compiled.patterns
    }

    /// The tokens of the text, each with the byte it starts at, without blanks and comments: for those who write an
    /// expression in another way.
    #[must_use]
    pub fn tokens(&self) -> Vec<(usize, &str)> {
        let tokens = syntax::lexer::tokens(self.source()).unwrap_or_default();
        let written = tokens.into_iter().filter_map(|token| Some((token.at, self.source().get(token.at..token.end)?)));
        written.filter(|(_, text)| !text.is_empty()).collect()
    }

    /// The first function in it that no CEL expression of Kubernetes 1.37 can call, if there is one.
    ///
    /// `reverse` is none, because Kubernetes has it for lists, though not for text. `sign` of a quantity is a function there,
    /// though documented as a method (`k8s.io/apiserver/pkg/cel/library/quantity.go`).
    #[must_use]
    pub fn unknown_to_kubernetes(&self) -> Option<String> {
        let tokens = self.tokens();
        let text = |at: usize| tokens.get(at).map_or("", |(_, text)| *text);
        let is_after_dot = |at: usize| at > 0 && matches!(text(at - 1), "." | "?");
        (0..tokens.len()).find_map(|at| match text(at) {
            "sign" if is_after_dot(at) && text(at + 1) == "(" && !(at > 1 && text(at - 2) == "math") => {
                Some("….sign".to_owned())
            }
            space if text(at + 1) == "." && !is_after_dot(at) => {
                let name = format!("{space}.{}", text(at + 2));
                (functions::find(&name, false).is_some() && !functions::is_in_kubernetes(&name)).then_some(name)
            }
            _ => None,
        })
    }

    /// What it reads of its variables. It may read less, never more.
    #[must_use]
    pub fn reads(&self) -> &[Read] {
        &self.compiled.reads
    }

    /// Which parts of the document in `variable` it reads.
    #[must_use]
    pub fn paths(&self, variable: &str) -> Paths {
        let mut paths = Paths::default();
        self.reads().iter().filter(|read| read.variable == variable).for_each(|read| paths.merge(&read.paths()));
        paths
    }

    /// What it yields.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate<'v>(&'v self, variables: &'v Variables<'v>) -> Result<Value<'v>, EvaluationError> {
        self.evaluated(variables, |value| Ok(Value(value)))
    }

    /// The answer of a condition.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_bool(&self, variables: &Variables<'_>) -> Result<bool, EvaluationError> {
        self.evaluated(variables, |value| match value {
            Inner::Bool(value) => Ok(value),
            other => Err(unwanted(Type::Bool, &other)),
        })
    }

    /// The text it yields.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_text(&self, variables: &Variables<'_>) -> Result<String, EvaluationError> {
        self.evaluated(variables, |value| match value {
            Inner::Text(text) => Ok(text.to_string()),
            other => Err(unwanted(Type::Text, &other)),
        })
    }

    /// The map of texts it yields.
    ///
    /// # Errors
    /// See [`EvaluationError`].
    pub fn evaluate_map(&self, variables: &Variables<'_>) -> Result<BTreeMap<String, String>, EvaluationError> {
        self.evaluated(variables, |value| match value {
            Inner::Map(entries) => entries.entries().into_iter().map(text_entry).collect(),
            other => Err(unwanted(Type::Map, &other)),
        })
    }

    /// Evaluates, and turns the answer into `T`. A panic is an error of this evaluation.
    fn evaluated<'v, T>(
        &'v self,
        variables: &'v Variables<'v>,
        convert: impl FnOnce(Inner<'v>) -> Result<T, EvaluationError>,
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

fn text_entry((key, value): (Key<'_>, Inner<'_>)) -> Result<(String, String), EvaluationError> {
    match (key, value) {
        (Key::Text(key), Inner::Text(value)) => Ok((key.to_string(), value.to_string())),
        (Key::Text(key), other) => {
            let message = format!("the value of {:?} is {}; convert it with string(…)", &*key, other.noun());
            Err(EvaluationError::failed(message))
        }
        (key, _) => Err(EvaluationError::failed(format!("the key {key} is not a string"))),
    }
}

fn unwanted(wanted: Type, found: &Inner<'_>) -> EvaluationError {
    let (wanted, found) = (wanted.noun(), found.noun());
    EvaluationError::failed(format!("the expression must yield {wanted}, but yields {found}"))
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
