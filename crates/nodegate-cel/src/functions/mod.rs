//! The functions an expression may call: those of Kubernetes' CEL environment.
//!
//! The table is the whole truth: what is not in it is refused when an expression is compiled.

mod core;
mod encoding;
mod format;
mod formats;
pub(super) mod lists;
mod math;
mod network;
mod quantities;
mod text;
mod time;
mod urls;

use crate::checked::pattern::Pattern;
use crate::fault::EvaluationError;
use crate::values::steps::Steps;
use crate::values::types::Type;
use crate::values::value::Value;

/// A function or method.
#[derive(Debug)]
pub(super) struct Function {
    /// With its namespace, if it has one: `math.ceil`.
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// Of a method, the first is the target.
    pub(super) parameters: &'static [Type],
    /// How many of the last parameters may be left out.
    pub(super) optional: usize,
    pub(super) returns: Type,
    pub(super) run: Run,
}

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `name(a, b)`
    Function,
    /// `a.name(b)`
    Method,
    /// Both.
    Either,
}

type Outcome<'a> = Result<Value<'a>, EvaluationError>;
type Plain = for<'a> fn(&mut Steps, &[Value<'a>]) -> Outcome<'a>;
type Matcher = for<'a> fn(&mut Steps, &Pattern, &[Value<'a>]) -> Outcome<'a>;

/// What does the work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// A function of its arguments.
    Plain(Plain),
    /// One whose second parameter is a regular expression, compiled with the expression.
    Pattern(Matcher),
}

impl Function {
    const fn new(name: &'static str, form: Form, parameters: &'static [Type], returns: Type, run: Run) -> Self {
        Self { name, form, parameters, optional: 0, returns, run }
    }

    /// The last `count` parameters may be left out.
    const fn optional(self, count: usize) -> Self {
        Self { optional: count, ..self }
    }

    /// How a message shows the function.
    pub(super) fn signature(&self) -> String {
        let required = self.parameters.len() - self.optional;
        let mut names: Vec<_> = self.parameters.iter().map(|of| of.name().to_owned()).collect();
        names.iter_mut().skip(required).for_each(|name| *name = format!("[{name}]"));
        match (self.form, names.split_first()) {
            (Form::Method, Some((target, names))) => format!("{target}.{}({})", self.name, names.join(", ")),
            _ => format!("{}({})", self.name, names.join(", ")),
        }
    }

    /// The answer for arguments of the right number.
    pub(super) fn call<'a>(
        &self,
        steps: &mut Steps,
        pattern: Option<&Pattern>,
        arguments: &[Value<'a>],
    ) -> Outcome<'a> {
        let patterned = matches!(self.run, Run::Pattern(_));
        let parameters = self.parameters.iter().enumerate().filter(|(at, _)| !patterned || *at != 1);
        for ((_, wanted), argument) in parameters.zip(arguments) {
            if !wanted.admits(argument) {
                return Err(self.mismatch(argument));
            }
        }
        match (self.run, pattern) {
            (Run::Plain(run), _) => run(steps, arguments),
            (Run::Pattern(run), Some(pattern)) => run(steps, pattern, arguments),
            (Run::Pattern(_), None) => Err(EvaluationError::Internal(format!("{} without a pattern", self.name))),
        }
    }

    fn mismatch(&self, found: &Value<'_>) -> EvaluationError {
        EvaluationError::failed(format!("{} cannot take {}", self.signature(), found.noun()))
    }
}

/// A function of its arguments, called by its name.
const fn function(name: &'static str, parameters: &'static [Type], returns: Type, run: Plain) -> Function {
    Function::new(name, Form::Function, parameters, returns, Run::Plain(run))
}

/// A function of its arguments, called on the first of them.
const fn method(name: &'static str, parameters: &'static [Type], returns: Type, run: Plain) -> Function {
    Function::new(name, Form::Method, parameters, returns, Run::Plain(run))
}

/// As much of a text as a message repeats.
fn begin(text: &str) -> String {
    text.chars().take(80).collect()
}

/// What a function says when the table let through what it cannot take.
fn unsuited(name: &str, arguments: &[Value<'_>]) -> EvaluationError {
    let kinds: Vec<_> = arguments.iter().map(Value::noun).collect();
    EvaluationError::failed(format!("{name}() cannot take ({})", kinds.join(", ")))
}

pub(super) fn all() -> impl Iterator<Item = &'static Function> {
    [
        core::FUNCTIONS,
        text::FUNCTIONS,
        format::FUNCTIONS,
        lists::FUNCTIONS,
        time::FUNCTIONS,
        math::FUNCTIONS,
        encoding::FUNCTIONS,
        formats::FUNCTIONS,
        urls::FUNCTIONS,
        quantities::FUNCTIONS,
        network::FUNCTIONS,
    ]
    .into_iter()
    .flatten()
}

/// The function `name`, called as a method or not.
pub(super) fn find(name: &str, method: bool) -> Option<&'static Function> {
    let form = if method { Form::Method } else { Form::Function };
    all().find(|function| function.name == name && (function.form == form || function.form == Form::Either))
}

/// Whether functions live in the namespace `name`.
pub(super) fn is_namespace(name: &str) -> bool {
    all().any(|function| function.name.split_once('.').is_some_and(|(space, _)| space == name))
}

/// Whether Kubernetes 1.37 has the function `name`, with its namespace (`k8s.io/apiserver/pkg/cel/environment/base.go`): it
/// leaves out cel-go's libraries of mathematics and encoding.
pub(super) fn is_in_kubernetes(name: &str) -> bool {
    !["math.", "base64."].iter().any(|space| name.starts_with(space))
}

/// The names that may be called as a method or not, for messages.
pub(super) fn names(method: bool) -> Vec<&'static str> {
    let other = if method { Form::Function } else { Form::Method };
    let mut names: Vec<_> = all().filter(|function| function.form != other).map(|function| function.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}
