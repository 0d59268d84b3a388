//! How labels are read out of answers that are not labels by node already.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodegate_cel::{Budget, Paths};

use crate::api::answers::AnswerFormat;
use crate::api::names::LabelKey;
use crate::cel::{Expression, Item};
use crate::facts::inventory::{DroppedLabel, name_of_machine};

/// Where the items of an answer are, and what they say.
#[derive(Clone, Debug)]
pub struct AnswerForm {
    /// The format.
    pub format: AnswerFormat,
    /// The keys that lead to the items; without any, they are the answer itself.
    pub items: Box<[String]>,
    /// The keys that lead to the URL of the next page.
    pub next: Option<Box<[String]>>,
    /// The name of the node, or the ID of the machine, that an item is about.
    pub(crate) names: Option<Arc<Expression>>,
    /// Whether items are about machines.
    pub(crate) by_machine: bool,
    pub(crate) labels: Box<[(LabelKey, Arc<Expression>)]>,
    pub(crate) label_map: Option<Arc<Expression>>,
    /// What all expressions read of an item.
    pub(crate) paths: Paths,
    /// Whether they read its key.
    pub(crate) reads_keys: bool,
}

/// What an item says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemLabels {
    /// The name of the node, or of the machine, that it is about, if it says so.
    pub name: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The labels of which it is not known what it says.
    pub unknown: Vec<DroppedLabel>,
}

impl From<BTreeMap<String, String>> for ItemLabels {
    /// The labels of an answer in which nothing is unknown.
    fn from(labels: BTreeMap<String, String>) -> Self {
        Self { labels, ..Self::default() }
    }
}

impl AnswerForm {
    /// What an item in JSON says. `key`: its key, if the items are the values of an object.
    ///
    /// # Errors
    /// Returns a sentence if it is not known what it is about, or which labels that has.
    pub fn of_json(&self, key: Option<&str>, text: &str) -> Result<ItemLabels, String> {
        let budget = Budget::brief();
        let item = Item::of_json(text, &self.paths, &budget).map_err(|error| format!("it is not JSON: {error}"))?;
        let item = item.within(&budget);
        self.of(&match key {
            Some(key) => item.under(key),
            None => item,
        })
    }

    /// What a line of comma-separated values says; `fields`: the name of each column and what the line has there.
    ///
    /// # Errors
    /// Returns a sentence if it is not known what it is about, or which labels that has.
    pub fn of_fields<'f>(&self, fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> Result<ItemLabels, String> {
        let budget = Budget::brief();
        self.of(&Item::of_fields(fields, &self.paths).within(&budget))
    }

    fn of(&self, item: &Item<'_>) -> Result<ItemLabels, String> {
        let failed = |field: &str, why: String| format!("{field} is unknown: {why}");
        let name = self.names.as_ref().map(|name| name.text_of(item)).transpose();
        let field = if self.by_machine { "machine" } else { "node" };
        let name = name.map_err(|why| failed(field, why))?.flatten().filter(|name| !name.is_empty());
        let name = if self.by_machine { name.as_deref().and_then(name_of_machine) } else { name };
        if self.names.is_some() && name.is_none() {
            return Ok(ItemLabels::default());
        }
        let map = self.label_map.as_ref().map(|map| map.labels_of(item)).transpose();
        let mut labels = map.map_err(|why| failed("labelMap", why))?.unwrap_or_default();
        let mut unknown = Vec::new();
        for (key, expression) in &self.labels {
            match expression.text_of(item) {
                Ok(Some(value)) => drop(labels.insert(key.to_string(), value)),
                Ok(None) => drop(labels.remove(key.as_str())),
                Err(reason) => {
                    labels.remove(key.as_str());
                    unknown.push(DroppedLabel { key: key.to_string(), reason });
                }
            }
        }
        Ok(ItemLabels { name, labels, unknown })
    }

    /// Whether items say which node they are about.
    pub fn names_nodes(&self) -> bool {
        self.names.is_some()
    }

    /// Whether the items are the values of an object: what they say depends on their keys.
    pub fn reads_keys(&self) -> bool {
        self.reads_keys
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::simulate::compile_inline;

    fn form(answer: &Json) -> Arc<AnswerForm> {
        let inventory = json!({"name": "cmdb", "url": "https://cmdb.example/nodes", "allow": ["rack", "unit", "x/*"], "answer": answer});
        let set = compile_inline(&json!({"inventory": [inventory]})).unwrap();
        set.inventories().next().unwrap().form.clone().unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_item_says_labels_as_text_or_that_there_are_none() {
        let form = form(&json!({"node": "item.name.lowerAscii()", "labels": {
            "rack": "item.?rack.?name.orValue(\"\").replace(\" \", \"-\")", "unit": "item.?unit", "x/on": "item.?on"}}));
        for (item, expected) in [
            (
                json!({"name": "N1", "rack": {"name": "R 7"}, "unit": 12, "on": true}),
                labels(&[("rack", "R-7"), ("unit", "12"), ("x/on", "true")]),
            ),
            (json!({"name": "N1", "rack": {"name": "R7"}, "unit": 12.0}), labels(&[("rack", "R7"), ("unit", "12")])),
            (json!({"name": "N1", "rack": {}, "unit": null}), labels(&[("rack", "")])),
        ] {
            let said = form.of_json(None, &item.to_string()).unwrap();
            assert_eq!(
                said,
                ItemLabels { name: Some("n1".to_owned()), labels: expected, unknown: Vec::new() },
                "{item}"
            );
        }
        let nameless = [json!({"name": ""}), json!({"name": "", "rack": 3})];
        for item in nameless {
            assert_eq!(form.of_json(None, &item.to_string()), Ok(ItemLabels::default()), "{item}");
        }
    }

    #[test]
    fn what_fails_is_unknown_and_not_absent() {
        let form = form(&json!({"node": "item.name", "labels": {"rack": "item.rack.name", "unit": "item.unit"}}));
        let said = form.of_json(None, &json!({"name": "n1", "rack": null, "unit": [1]}).to_string()).unwrap();
        let unknown: Vec<&str> = said.unknown.iter().map(|label| &*label.key).collect();
        assert_eq!((said.labels, unknown), (labels(&[]), vec!["rack", "unit"]));
        let why = form.of_json(None, &json!({"rack": "7"}).to_string()).unwrap_err();
        assert_eq!(why, "node is unknown: something that it reads is missing, or is of another kind");
        assert!(form.of_json(None, "{\"name\"").unwrap_err().contains("not JSON"));
    }

    #[test]
    fn a_map_gives_labels_and_single_ones_replace_them() {
        let form = form(
            &json!({"node": "key", "labelMap": "item.labels", "labels": {"rack": "item.?rack", "unit": "item.unit"}}),
        );
        assert!(form.reads_keys());
        let item = json!({"labels": {"rack": "1", "unit": "2", "x/a": "3"}, "rack": null, "unit": {}});
        let said = form.of_json(Some("n1"), &item.to_string()).unwrap();
        assert_eq!((said.name.as_deref(), said.labels), (Some("n1"), labels(&[("x/a", "3")])));
        assert_eq!(said.unknown.len(), 1);
        let item = json!({"labels": {"x/a": 1, "x/b": null}, "rack": null, "unit": 3}).to_string();
        assert_eq!(form.of_json(Some("n1"), &item).unwrap().labels, labels(&[("unit", "3"), ("x/a", "1")]));
        let why = |labels: Json| form.of_json(Some("n1"), &json!({"labels": labels}).to_string()).unwrap_err();
        assert_eq!(why(json!([])), "labelMap is unknown: it does not yield a map");
        assert_eq!(why(json!({"a": {}})), "labelMap is unknown: it yields neither text nor a number, true or false");
    }

    #[test]
    fn fields_of_a_line_are_text_and_empty_ones_are_null() {
        let form =
            form(&json!({"format": "csv", "node": "item.host", "labels": {"rack": "item.rack", "unit": "item.unit"}}));
        let said = form.of_fields([("host", "n1"), ("rack", ""), ("unit", "07")]).unwrap();
        assert_eq!(
            (said.name.as_deref(), said.labels, said.unknown),
            (Some("n1"), labels(&[("unit", "07")]), Vec::new())
        );
        assert_eq!(form.of_fields([("host", "n1"), ("unit", "1")]).unwrap().unknown.len(), 1, "no such column");
    }

    #[test]
    fn another_form_is_another_question() {
        let inventory = |answer: Json| {
            let mut spec = json!({"name": "cmdb", "url": "https://cmdb.example/nodes", "allow": ["rack"]});
            if answer.is_object() {
                spec["answer"] = answer;
            }
            let set = compile_inline(&json!({"inventory": [spec]})).unwrap();
            set.inventories().next().unwrap().clone()
        };
        let rack = |source: &str| inventory(json!({"node": "item.name", "labels": {"rack": source}}));
        let (one, same, other) = (rack("item.rack"), rack("item.rack"), rack("item.rack.name"));
        assert!(one.asks_like(&same) && !one.asks_like(&other) && !one.asks_like(&inventory(Json::Null)));
        let (answer, _) = one.accept(labels(&[("rack", "7")]));
        assert!(same.is_answered_by(&answer) && !other.is_answered_by(&answer));
    }

    #[test]
    fn an_author_is_told_what_is_missing() {
        for (url, answer, expected) in [
            ("", json!({"labels": {"rack": "item.rack"}}), "nothing says which item is about which node"),
            ("", json!({"node": "item.name"}), "nothing says which labels an item has"),
            ("", json!({"node": "item.name", "labels": {"row": "item.row"}}), "\"row\" is not in allow"),
            ("", json!({"node": "item.name", "labels": {"rack": "node.rack"}}), "node"),
            (
                "",
                json!({"node": "item.name", "labels": {"rack": "item.rack"}, "items": "results.list"}),
                "write /results/list",
            ),
            (
                "",
                json!({"format": "csv", "node": "item.name", "labels": {"rack": "item.rack"}, "next": "/next"}),
                "this is for JSON",
            ),
            ("/{node}", json!({"labels": {"rack": "item.rack"}, "next": "/next"}), "so it has no further pages"),
        ] {
            let url = format!("https://cmdb.example/nodes{url}");
            let spec = json!({"name": "cmdb", "url": url, "allow": ["rack"], "answer": answer});
            let errors = compile_inline(&json!({"inventory": [spec]})).unwrap_err();
            let errors = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert!(errors.contains(expected), "{answer}: {errors}");
        }
    }
}
