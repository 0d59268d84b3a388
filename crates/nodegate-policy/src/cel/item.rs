//! Expressions over one item of an inventory's answer.

use std::collections::BTreeMap;

use nodegate_cel::{Budget, EvaluationError, Paths, Value};

use super::Expression;

/// One item of an answer, and its key if it has one.
pub struct Item<'a>(nodegate_cel::Variables<'a>);

impl<'a> Item<'a> {
    /// The item in this JSON, of which expressions read `paths`.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON.
    pub fn of_json(text: &'a str, paths: &Paths, budget: &Budget) -> Result<Self, serde_json::Error> {
        Ok(Self(nodegate_cel::Variables::new().with("item", Value::read(text, paths, budget)?)))
    }

    /// The item with those of these fields that are in `paths`; an empty one is null.
    pub fn of_fields(fields: impl IntoIterator<Item = (&'a str, &'a str)>, paths: &Paths) -> Self {
        let value = |text: &'a str| if text.is_empty() { Value::NULL } else { Value::from(text) };
        let read = fields.into_iter().filter(|(name, _)| paths.member(name).is_some());
        let fields = read.map(|(name, text)| (name, value(text)));
        Self(nodegate_cel::Variables::new().with("item", Value::map(fields)))
    }

    /// The same item under this key.
    #[must_use]
    pub fn under(self, key: &'a str) -> Self {
        Self(self.0.with("key", key))
    }

    /// Makes evaluations take their steps out of `budget`.
    #[must_use]
    pub fn within(self, budget: &'a Budget) -> Self {
        Self(self.0.within(budget))
    }
}

impl Expression {
    /// The text that it yields for an item: also of a number, and of true and false. `None` for null, and for an optional without a
    /// value.
    ///
    /// # Errors
    /// Returns a sentence if it fails, or yields something else.
    pub fn text_of(&self, item: &Item<'_>) -> Result<Option<String>, String> {
        text(&self.compiled.evaluate(&item.0).map_err(in_words)?)
    }

    /// The labels that it yields for an item, each as [text](Self::text_of); none for null, and for an optional without a value.
    ///
    /// # Errors
    /// Returns a sentence if it fails, or yields something else than a map of these.
    pub fn labels_of(&self, item: &Item<'_>) -> Result<BTreeMap<String, String>, String> {
        let value = self.compiled.evaluate(&item.0).map_err(in_words)?;
        let Some(value) = value.content() else { return Ok(BTreeMap::new()) };
        let entries = value.entries().ok_or_else(|| "it does not yield a map".to_owned())?;
        let mut labels = BTreeMap::new();
        for (key, value) in entries {
            if let Some((key, value)) = text(&key)?.zip(text(&value)?) {
                labels.insert(key, value);
            }
        }
        Ok(labels)
    }
}

/// The error without what it may quote of the item.
fn in_words(error: EvaluationError) -> String {
    match error {
        EvaluationError::Failed(_) => "something that it reads is missing, or is of another kind".to_owned(),
        other => other.to_string(),
    }
}

fn text(value: &Value<'_>) -> Result<Option<String>, String> {
    let Some(value) = value.content() else { return Ok(None) };
    let text = value.as_str().map(str::to_owned);
    let text = text.or_else(|| value.as_i64().map(|number| number.to_string()));
    let text = text.or_else(|| value.as_bool().map(|value| value.to_string()));
    let text = text.or_else(|| value.as_f64().map(|number| number.to_string()));
    text.map(Some).ok_or_else(|| "it yields neither text nor a number, true or false".to_owned())
}
