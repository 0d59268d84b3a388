//! Loops over lists, maps and optionals.

use std::collections::BTreeMap;

use crate::checked::tree::{Loop, LoopKind, Tree};
use crate::fault::EvaluationError;
use crate::functions::lists;
use crate::run::evaluate::Evaluation;
use crate::values::value::{Key, Value};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

impl<'a> Evaluation<'a> {
    pub(crate) fn repeat(&mut self, repeated: &'a Loop) -> Outcome<'a> {
        let range = self.value(&repeated.range)?;
        let body = &repeated.body;
        match repeated.kind {
            LoopKind::OptionalMap | LoopKind::OptionalFlatMap => self.optional(repeated, range),
            LoopKind::All => self.quantified(repeated, &range, false),
            LoopKind::Exists => self.quantified(repeated, &range, true),
            LoopKind::ExistsOne => {
                let mut count = 0_usize;
                for item in self.items(repeated, &range)? {
                    count += usize::from(self.with(item, |inner| inner.condition(body))?);
                }
                Ok(Value::Bool(count == 1))
            }
            LoopKind::Filter => {
                let mut kept = Vec::new();
                for item in self.items(repeated, &range)? {
                    let first = item.first.clone();
                    if self.with(item, |inner| inner.condition(body))? {
                        kept.push(first);
                    }
                }
                Ok(Value::from(kept))
            }
            LoopKind::Collect => {
                let mut collected = Vec::new();
                for item in self.items(repeated, &range)? {
                    collected.extend(self.with(item, |inner| inner.filtered(repeated))?);
                }
                Ok(Value::from(collected))
            }
            LoopKind::SortBy => {
                let mut keyed = Vec::new();
                for item in self.items(repeated, &range)? {
                    let value = item.first.clone();
                    keyed.push((self.with(item, |inner| inner.value(body))?, value));
                }
                lists::sorted(&mut self.steps, keyed)
            }
            LoopKind::TransformMap => {
                let mut map = BTreeMap::new();
                for item in self.items(repeated, &range)? {
                    let key: Option<Key<'a>> = item.first.as_key();
                    if let (Some(key), Some(value)) = (key, self.with(item, |inner| inner.filtered(repeated))?) {
                        map.insert(key, value);
                    }
                }
                Ok(Value::from(map))
            }
            LoopKind::TransformMapEntry => self.entries(repeated, &range),
        }
    }

    /// The entries of all maps that the body yields. Two of one key are an error, as in cel-go (`ext/comprehensions.go`).
    fn entries(&mut self, repeated: &'a Loop, range: &Value<'a>) -> Outcome<'a> {
        let mut map = BTreeMap::new();
        for item in self.items(repeated, range)? {
            let new = match self.with(item, |inner| inner.filtered(repeated))? {
                None => continue,
                Some(Value::Map(new)) => new,
                Some(other) => return Err(wrong(&repeated.body, "a map", &other)),
            };
            self.steps.take(new.len())?;
            for (key, value) in new.entries() {
                if map.contains_key(&key) {
                    return Err(EvaluationError::failed(format!("transformMapEntry yields the key {key} twice")));
                }
                map.insert(key, value);
            }
        }
        Ok(Value::from(map))
    }

    /// `all` and `exists`: one item that decides outweighs any that fails, wherever it stands.
    fn quantified(&mut self, repeated: &'a Loop, range: &Value<'a>, decides: bool) -> Outcome<'a> {
        let mut failure = None;
        for item in self.items(repeated, range)? {
            match self.with(item, |inner| inner.condition(&repeated.body)) {
                Ok(value) if value == decides => return Ok(Value::Bool(decides)),
                Ok(_) => {}
                Err(error @ EvaluationError::Failed(_)) => failure = failure.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        failure.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn optional(&mut self, repeated: &'a Loop, range: Value<'a>) -> Outcome<'a> {
        match range {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => {
                let item = Bound { first: (*value).clone(), second: None };
                let result = self.with(item, |inner| inner.value(&repeated.body))?;
                match (repeated.kind, result) {
                    (LoopKind::OptionalFlatMap, result @ Value::Optional(_)) => Ok(result),
                    (LoopKind::OptionalFlatMap, other) => Err(wrong(&repeated.body, "an optional", &other)),
                    (_, result) => Ok(Value::some(result)),
                }
            }
            other => Err(wrong(&repeated.range, "an optional", &other)),
        }
    }

    /// The body, unless the filter leaves the item out.
    fn filtered(&mut self, repeated: &'a Loop) -> Result<Option<Value<'a>>, EvaluationError> {
        if let Some(filter) = &repeated.filter
            && !self.condition(filter)?
        {
            return Ok(None);
        }
        self.value(&repeated.body).map(Some)
    }

    /// What the variables of the loop are bound to, one after the other.
    fn items(&mut self, repeated: &Loop, range: &Value<'a>) -> Result<Vec<Bound<'a>>, EvaluationError> {
        let two = repeated.two_variables;
        match range {
            Value::List(items) => {
                self.steps.take(items.len())?;
                let indexes = (0_i64..).map(Value::Int);
                Ok(indexes.zip(items.iter()).map(|(index, item)| Bound::new(two, index, item)).collect())
            }
            Value::Map(entries) => {
                self.steps.take(entries.len())?;
                let entries = entries.entries().into_iter();
                Ok(entries.map(|(key, value)| Bound { first: key.into(), second: two.then_some(value) }).collect())
            }
            other => Err(wrong(&repeated.range, "a list or a map", other)),
        }
    }

    /// Evaluates with the variables of a loop bound to `item`.
    fn with<T>(&mut self, item: Bound<'a>, body: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.locals.len();
        self.locals.push(item.first);
        self.locals.extend(item.second);
        let result = body(self);
        self.locals.truncate(outer);
        result
    }
}

/// The values of the variables of a loop.
struct Bound<'a> {
    first: Value<'a>,
    second: Option<Value<'a>>,
}

impl<'a> Bound<'a> {
    /// Of a list: a single variable is the item, two are index and item.
    fn new(two: bool, index: Value<'a>, item: Value<'a>) -> Self {
        if two { Self { first: index, second: Some(item) } } else { Self { first: item, second: None } }
    }
}

fn wrong(tree: &Tree, wanted: &str, found: &Value<'_>) -> EvaluationError {
    EvaluationError::failed(format!("{} is {}, this needs {wanted}", tree.describe(), found.noun()))
}
