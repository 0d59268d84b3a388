//! What an expression is evaluated with.

use std::collections::BTreeMap;

use super::excerpt::Excerpt;
use super::steps::Budget;
use super::tree::Variable;
use super::value::{Key, Text, Value};

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
    pub groups: &'a [&'a str],
}

/// A node under review, before it is known which labels and taints count.
#[derive(Clone, Debug)]
pub struct NodeVariables<'a> {
    node: Excerpt<'a>,
    gpu: Value<'a>,
    inventory: Option<Value<'a>>,
}

/// The variables of evaluations.
///
/// One set serves any number of expressions. It borrows what it can: making one costs a small
/// allocation for all labels and one for each taint, and copies no text.
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
            fields.into_iter().fold(Value::Null, |taint, (name, text)| taint.with_field(name, Value::from(text)))
        });
        let Excerpt { value: node } = self.node.with(texts(labels), Value::from(taints.collect::<Vec<_>>()));
        let mut values = vec![(Variable::Node, node), (Variable::Gpu, self.gpu.clone())];
        values.extend(self.inventory.clone().map(|inventory| (Variable::Inventory, inventory)));
        Variables { values, budget: None }
    }
}

impl<'a> Variables<'a> {
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        Self { values: Vec::new(), budget: None }
    }

    /// The node `object`, of which everything was read that is asked for.
    #[must_use]
    pub fn node(object: &Excerpt<'a>) -> NodeVariables<'a> {
        NodeVariables { node: object.clone(), gpu: Value::from(BTreeMap::new()), inventory: None }
    }

    /// A write of `object` over `old`, which is `null` to expressions when the node is created. Both are
    /// [completed](Excerpt::completed).
    #[must_use]
    pub fn write(object: &Excerpt<'a>, old: Option<&Excerpt<'a>>, request: &RequestVariables<'a>) -> Self {
        let values = vec![
            (Variable::Object, object.value.clone()),
            (Variable::OldObject, old.map_or(Value::Null, |old| old.value.clone())),
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
        let groups: Vec<Value<'a>> = self.groups.iter().map(|group| Value::from(*group)).collect();
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
    let mut entries: Vec<_> =
        entries.into_iter().map(|(name, text)| (Text::Borrowed(name), Value::from(text))).collect();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    entries.dedup_by(|(later, _), (kept, _)| later == kept);
    Value::from(entries)
}
