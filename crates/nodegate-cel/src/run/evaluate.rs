//! The answer of a checked expression for given variables.
//!
//! Written here and not taken from the `cel` crate (0.13), whose interpreter has no bound, copies
//! all of a value for every `.field`, builds lists in quadratic time, walks maps in an order that
//! changes from run to run, answers `false` for a field of what has none (`null.name`), fails on
//! `.?field` of what is absent, and drops the optional around a value that is copied.

use std::collections::BTreeMap;

use crate::Variables;
use crate::checked::schema::Variable;
use crate::checked::tree::{Call, Entry, Item, Tree};
use crate::fault::EvaluationError;
use crate::run::operators;
use crate::syntax::Constant;
use crate::values::steps::Steps;
use crate::values::value::{Key, Text, Value};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

/// One evaluation.
pub(crate) struct Evaluation<'a> {
    variables: &'a Variables<'a>,
    /// The values of the variables of the loops around the part that is evaluated.
    pub(crate) locals: Vec<Value<'a>>,
    pub(crate) steps: Steps,
}

impl<'a> Evaluation<'a> {
    pub(crate) fn new(variables: &'a Variables<'a>) -> Self {
        Self { variables, locals: Vec::new(), steps: Steps::new(variables.budget()) }
    }

    pub(crate) fn value(&mut self, tree: &'a Tree) -> Outcome<'a> {
        self.steps.take(1)?;
        match tree {
            Tree::Constant(constant) => Ok(written(constant)),
            Tree::Variable(variable) => self.variable(variable),
            Tree::Local(index) => match self.locals.get(*index) {
                Some(value) => Ok(value.clone()),
                None => Err(EvaluationError::Internal(format!("no loop variable {index}"))),
            },
            Tree::Member { of, key, optional } => {
                let (value, key) = (self.value(of)?, self.value(key)?);
                member(&mut self.steps, of, value, &key, *optional)
            }
            Tree::Has { of, field } => {
                let value = self.value(of)?;
                has(of, &value, field).map(Value::Bool)
            }
            Tree::Not(of) => Ok(Value::Bool(!self.condition(of)?)),
            Tree::Negate(of) => negate(&self.value(of)?),
            Tree::AllOf(terms) => self.junction(terms, false),
            Tree::AnyOf(terms) => self.junction(terms, true),
            Tree::Choose { test, then, otherwise } => {
                let branch = if self.condition(test)? { then } else { otherwise };
                self.value(branch)
            }
            Tree::Binary { operator, left, right } => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                operators::binary(&mut self.steps, *operator, &left, &right)
            }
            Tree::List(items) => self.list(items),
            Tree::Map(entries) => self.map(entries),
            Tree::Call(call) => self.call(call),
            Tree::OrElse { of, otherwise, unwrap } => match self.value(of)? {
                Value::Optional(Some(value)) if *unwrap => Ok((*value).clone()),
                Value::Optional(None) => self.value(otherwise),
                value @ Value::Optional(Some(_)) => Ok(value),
                other => {
                    Err(EvaluationError::failed(format!("{} is not an optional but {}", of.describe(), other.noun())))
                }
            },
            Tree::Loop(inner) => self.repeat(inner),
        }
    }

    fn variable(&self, variable: &'static Variable) -> Outcome<'a> {
        match self.variables.get(variable.name) {
            Some(Value::Unread(why)) => Err((*why).into()),
            Some(value) => Ok(value.clone()),
            None => Err(EvaluationError::failed(format!("{} is unknown", variable.name))),
        }
    }

    /// A part that must be a condition.
    pub(crate) fn condition(&mut self, tree: &'a Tree) -> Result<bool, EvaluationError> {
        match self.value(tree)? {
            Value::Bool(value) => Ok(value),
            other => Err(EvaluationError::failed(format!("{} is not a bool but {}", tree.describe(), other.noun()))),
        }
    }

    /// `&&` and `||`: one term that decides outweighs any that fails, wherever it stands.
    fn junction(&mut self, terms: &'a [Tree], decides: bool) -> Outcome<'a> {
        let mut failure = None;
        for term in terms {
            match self.condition(term) {
                Ok(value) if value == decides => return Ok(Value::Bool(decides)),
                Ok(_) => {}
                Err(error @ EvaluationError::Failed(_)) => failure = failure.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        failure.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn list(&mut self, items: &'a [Item]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            let value = self.value(&item.value)?;
            values.extend(kept(value, item.optional)?);
        }
        Ok(Value::from(values))
    }

    fn map(&mut self, entries: &'a [Entry]) -> Outcome<'a> {
        let mut map = BTreeMap::new();
        for entry in entries {
            let key = self.value(&entry.key)?;
            let written = key.as_key().filter(|_| !matches!(key, Value::Double(_)));
            let key = written.ok_or_else(|| EvaluationError::failed(format!("{} cannot be a key", key.noun())))?;
            let value = self.value(&entry.value)?;
            if let Some(value) = kept(value, entry.optional)?
                && let Some(_) = map.insert(key.clone(), value)
            {
                return Err(EvaluationError::failed(format!("the map has the key {key} twice")));
            }
        }
        Ok(Value::from(map))
    }

    fn call(&mut self, call: &'a Call) -> Outcome<'a> {
        let arguments: Result<Vec<_>, _> = call.arguments.iter().map(|argument| self.value(argument)).collect();
        call.function.call(&mut self.steps, call.pattern.as_ref(), &arguments?)
    }
}

fn written(constant: &Constant) -> Value<'_> {
    match constant {
        Constant::Null => Value::Null,
        Constant::Bool(value) => Value::Bool(*value),
        Constant::Int(value) => Value::Int(*value),
        Constant::Uint(value) => Value::Uint(*value),
        Constant::Double(value) => Value::Double(*value),
        Constant::Text(text) => Value::from(&**text),
        Constant::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}

fn negate<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Int(value) => value
            .checked_neg()
            .map(Value::Int)
            .ok_or_else(|| EvaluationError::failed(format!("-({value}) is beyond the range of int"))),
        Value::Double(value) => Ok(Value::Double(-value)),
        other => Err(EvaluationError::failed(format!("`-` cannot take {}", other.noun()))),
    }
}

/// What an item or entry marked with `?` contributes.
fn kept(value: Value<'_>, optional: bool) -> Result<Option<Value<'_>>, EvaluationError> {
    match value {
        Value::Optional(value) if optional => Ok(value.map(|value| (*value).clone())),
        other if optional => Err(EvaluationError::failed(format!("`?` needs an optional, found {}", other.noun()))),
        other => Ok(Some(other)),
    }
}

/// The member of a value; of an optional it is an optional again.
fn member<'a>(steps: &mut Steps, of: &Tree, value: Value<'a>, key: &Value<'a>, optional: bool) -> Outcome<'a> {
    steps.take(1)?;
    let (holder, optional) = match value {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(holder)) => ((*holder).clone(), true),
        holder => (holder, optional),
    };
    let found = match (&holder, key.as_key()) {
        (Value::Map(entries), Some(key)) => entries.get(&key),
        (Value::List(items), Some(Key::Int(index))) => usize::try_from(index).ok().and_then(|index| items.get(index)),
        (Value::List(_), Some(Key::Uint(_))) => None,
        // No key has a fraction.
        (Value::Map(_), None) if matches!(key, Value::Double(_)) => None,
        _ => {
            let message = format!("{} is {}, which has no {}", of.describe(), holder.noun(), shown(key));
            return Err(EvaluationError::failed(message));
        }
    };
    match found {
        Some(Value::Unread(why)) => Err(why.into()),
        Some(found) if optional => Ok(Value::some(found)),
        Some(found) => Ok(found),
        None if optional => Ok(Value::Optional(None)),
        None => Err(EvaluationError::failed(format!("{} has no {}", of.describe(), shown(key)))),
    }
}

fn shown(key: &Value<'_>) -> String {
    key.as_key().map_or_else(|| format!("member named by {}", key.noun()), |key| key.to_string())
}

fn has(of: &Tree, value: &Value<'_>, field: &str) -> Result<bool, EvaluationError> {
    match value {
        Value::Map(entries) => Ok(entries.get(&Key::Text(Text::Borrowed(field))).is_some()),
        Value::Optional(None) => Ok(false),
        Value::Optional(Some(value)) => has(of, value, field),
        other => Err(EvaluationError::failed(format!("{} is {}, which has no fields", of.describe(), other.noun()))),
    }
}
