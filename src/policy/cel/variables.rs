//! What an expression is evaluated with.

use std::collections::BTreeMap;

use serde_json::{Map as JsonMap, Value as Json};

use super::steps::Budget;
use super::tree::Variable;
use super::value::{Key, Map, Text, Value};

/// What is inferred of a node's GPUs. What is not known is left out, and reading it has no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuVariables<'a> {
    /// `nvidia`, `amd`, `intel`.
    pub vendor: Option<&'a str>,
    /// The model in lower case without the vendor.
    pub model: Option<&'a str>,
    /// How many.
    pub count: Option<i64>,
    /// Where this is known from.
    pub source: Option<&'a str>,
}

/// Who writes what, as the API server tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestVariables<'a> {
    /// `CREATE` or `UPDATE`.
    pub operation: &'a str,
    /// The node's name.
    pub name: &'a str,
    /// Empty for the node itself, or `status`.
    pub sub_resource: &'a str,
    /// Whether nothing is stored.
    pub dry_run: bool,
    /// The requester's user name.
    pub username: &'a str,
    /// The requester's uid, if it has one.
    pub uid: Option<&'a str>,
    /// The requester's groups.
    pub groups: &'a [String],
}

/// A node under review, before it is known which labels and taints count.
///
/// Borrows the object; making one looks only at the fields around labels and taints, whatever the
/// size of the rest.
#[derive(Clone, Debug)]
pub struct NodeVariables<'a> {
    node: &'a Json,
    gpu: Value<'a>,
    inventory: Option<Value<'a>>,
}

/// The variables of evaluations.
///
/// One set serves any number of expressions. It borrows what it can: making one costs a small
/// allocation for every label and taint and copies nothing else.
#[derive(Clone, Debug)]
pub struct Variables<'a> {
    values: Vec<(Variable, Value<'a>)>,
    budget: Option<&'a Budget>,
}

impl<'a> NodeVariables<'a> {
    /// Adds what is inferred of the node's GPUs; without it nothing is known of them.
    #[must_use]
    pub fn with_gpu(mut self, gpu: &GpuVariables<'a>) -> Self {
        let texts = [("vendor", gpu.vendor), ("model", gpu.model), ("source", gpu.source)];
        let texts = texts.into_iter().filter_map(|(name, text)| text.map(|text| (key(name), Value::from(text))));
        let count = gpu.count.map(|count| (key("count"), Value::Int(count)));
        self.gpu = Value::from(texts.chain(count).collect::<BTreeMap<_, _>>());
        self
    }

    /// Adds the labels that inventories give this node, perhaps none. Without this call no
    /// inventory has answered, and an expression that mentions `inventory` has no answer.
    #[must_use]
    pub fn with_inventory(mut self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.inventory = Some(texts(labels));
        self
    }

    /// The variables with these labels, as (key, value), and taints, as (key, value, effect), in
    /// place of the object's own. A taint without a value has an empty one.
    #[must_use]
    pub fn with<'v>(
        &'v self,
        labels: impl IntoIterator<Item = (&'v str, &'v str)>,
        taints: impl IntoIterator<Item = (&'v str, &'v str, &'v str)>,
    ) -> Variables<'v> {
        let taints = taints.into_iter().map(|(taint, value, effect)| {
            let fields = [("key", taint), ("value", value), ("effect", effect)];
            Value::from(
                fields.map(|(name, text)| (key(name), Value::from(text))).into_iter().collect::<BTreeMap<_, _>>(),
            )
        });
        let node = node(self.node, texts(labels), Value::from(taints.collect::<Vec<_>>()));
        let mut values = vec![(Variable::Node, node), (Variable::Gpu, self.gpu.clone())];
        values.extend(self.inventory.clone().map(|inventory| (Variable::Inventory, inventory)));
        Variables { values, budget: None }
    }
}

impl<'a> Variables<'a> {
    /// The node `object`, a whole Node as JSON.
    #[must_use]
    pub fn node(object: &'a Json) -> NodeVariables<'a> {
        NodeVariables { node: object, gpu: Value::from(BTreeMap::new()), inventory: None }
    }

    /// A write of `object` over `old`, which is `null` to expressions when the node is created.
    #[must_use]
    pub fn write(object: &'a Json, old: Option<&'a Json>, request: &RequestVariables<'a>) -> Self {
        let values = vec![
            (Variable::Object, complete(object)),
            (Variable::OldObject, old.map_or(Value::Null, complete)),
            (Variable::Request, request.value()),
        ];
        Self { values, budget: None }
    }

    /// Has evaluations take their steps out of `budget`; otherwise each has as many as one may take.
    #[must_use]
    pub fn within(self, budget: &'a Budget) -> Self {
        Self { budget: Some(budget), ..self }
    }

    pub(super) fn budget(&self) -> Option<&'a Budget> {
        self.budget
    }

    pub(super) fn get(&self, variable: Variable) -> Option<&Value<'a>> {
        self.values.iter().find(|(name, _)| *name == variable).map(|(_, value)| value)
    }
}

impl<'a> RequestVariables<'a> {
    fn value(&self) -> Value<'a> {
        let groups: Vec<Value<'a>> = self.groups.iter().map(|group| Value::from(group.as_str())).collect();
        let mut user =
            BTreeMap::from([(key("username"), Value::from(self.username)), (key("groups"), Value::from(groups))]);
        user.extend(self.uid.map(|uid| (key("uid"), Value::from(uid))));
        Value::from(BTreeMap::from([
            (key("operation"), Value::from(self.operation)),
            (key("name"), Value::from(self.name)),
            (key("subResource"), Value::from(self.sub_resource)),
            (key("dryRun"), Value::Bool(self.dry_run)),
            (key("userInfo"), Value::from(user)),
        ]))
    }
}

fn key(name: &str) -> Key<'_> {
    Key::Text(Text::Borrowed(name))
}

fn texts<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value<'a> {
    Value::from(entries.into_iter().map(|(name, text)| (key(name), Value::from(text))).collect::<BTreeMap<_, _>>())
}

/// A node with its own labels and taints, empty where absent.
fn complete(object: &Json) -> Value<'_> {
    let field = |holder, name| object.get(holder).and_then(|holder: &Json| holder.get(name));
    let labels = match field("metadata", "labels") {
        Some(Json::Object(labels)) => Value::Map(Map::Json(labels)),
        _ => Value::from(BTreeMap::new()),
    };
    let taints = match field("spec", "taints") {
        Some(Json::Array(taints)) => Value::List(super::value::List::Json(taints)),
        _ => Value::from(Vec::new()),
    };
    node(object, labels, taints)
}

/// `object` with other labels and taints.
fn node<'a>(object: &'a Json, labels: Value<'a>, taints: Value<'a>) -> Value<'a> {
    let fields = |of: Option<&'a Json>| match of {
        Some(Json::Object(fields)) => shallow(fields),
        _ => BTreeMap::new(),
    };
    let (mut metadata, mut spec) = (fields(object.get("metadata")), fields(object.get("spec")));
    metadata.insert(key("labels"), labels);
    spec.insert(key("taints"), taints);
    let mut node = fields(Some(object));
    node.insert(key("metadata"), Value::from(metadata));
    node.insert(key("spec"), Value::from(spec));
    Value::from(node)
}

fn shallow(fields: &JsonMap<String, Json>) -> BTreeMap<Key<'_>, Value<'_>> {
    fields.iter().map(|(name, value)| (key(name), Value::from(value))).collect()
}
