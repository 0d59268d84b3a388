//! What an expression is evaluated with.

use crate::values::given::Value;
use crate::values::steps::Budget;

/// The variables of evaluations. One set serves any number of expressions.
#[derive(Clone, Debug, Default)]
pub struct Variables<'a> {
    values: Vec<(&'static str, Value<'a>)>,
    budget: Option<&'a Budget>,
}

impl<'a> Variables<'a> {
    /// No variables: expressions that mention one fail.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable, or gives it another value.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value<'a>>) -> Self {
        self.values.retain(|(there, _)| *there != name);
        self.values.push((name, value.into()));
        self
    }

    /// Makes evaluations take their steps out of `budget`; otherwise each has as many as one may take.
    #[must_use]
    pub fn within(self, budget: &'a Budget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    pub(crate) fn budget(&self) -> Option<&'a Budget> {
        self.budget
    }

    pub(crate) fn get(&self, name: &str) -> Option<&crate::values::value::Value<'a>> {
        self.values.iter().find(|(there, _)| *there == name).map(|(_, value)| &value.0)
    }
}
