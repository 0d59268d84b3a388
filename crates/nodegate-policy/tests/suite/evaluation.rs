//! Native policies, evaluated by the engine of this workspace, without an API server.

use std::collections::BTreeMap;

use nodegate_cel::{Budget, Expression, Schema, Shape, Value, Variable, Variables, Yields};
use serde_json::Value as Json;

/// One policy of an export, and what its binding does with a violation.
pub(crate) struct Policy {
    pub(crate) object: Json,
    pub(crate) action: Option<String>,
}

/// An evaluation of the variables of one policy. Tests may leak.
pub(crate) struct Evaluation {
    names: Vec<&'static str>,
    values: Vec<Value<'static>>,
}

fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Evaluation {
    /// One with these documents.
    pub(crate) fn of(documents: &[(&'static str, &Json)]) -> Self {
        let mut evaluation = Self { names: Vec::new(), values: Vec::new() };
        for (name, document) in documents {
            let text: &'static str = leaked(document.to_string());
            let whole = Expression::compile("dyn(d)", leaked(schema(&["d"])), Yields::Any).unwrap();
            evaluation.add(name, Value::read(text, &whole.paths("d"), &Budget::default()).unwrap());
        }
        evaluation
    }

    /// Whether there is a variable of the policy with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|there| there.strip_prefix("variables_") == Some(name))
    }

    fn add(&mut self, name: &'static str, value: Value<'static>) {
        self.names.push(name);
        self.values.push(value);
    }

    /// The value of an expression, in which `variables.x` is written `variables_x`; `None` if it fails. Each variable that a
    /// policy names is there, so `has(variables.x)` is true.
    pub(crate) fn value(&self, source: &str) -> Option<Value<'static>> {
        let mut source = source.replace("variables.", "variables_");
        for name in self.names.iter().filter(|name| name.starts_with("variables_")) {
            source = source.replace(&format!("has({name})"), "true");
        }
        let expression = Expression::compile(&source, leaked(schema(&self.names)), Yields::Any);
        let expression = leaked(expression.unwrap_or_else(|error| panic!("{source}\n{error}")));
        let mut variables = Variables::new();
        for (name, value) in self.names.iter().zip(&self.values) {
            variables = variables.with(name, value.clone());
        }
        expression.evaluate(leaked(variables)).ok()
    }

    pub(crate) fn holds(&self, source: &str) -> Option<bool> {
        self.value(source).map(|value| value.as_bool().unwrap_or_else(|| panic!("{source} yields no bool")))
    }

    /// A map of texts.
    pub(crate) fn texts(&self, source: &str) -> BTreeMap<String, String> {
        let entries = self.value(source).unwrap().entries().unwrap().into_iter();
        entries.map(|(key, value)| (key.as_str().unwrap().to_owned(), value.as_str().unwrap().to_owned())).collect()
    }
}

/// A value of texts, lists and maps as a document.
fn json(value: &Value<'_>) -> Json {
    if let Some(items) = value.items() {
        return items.iter().map(json).collect();
    }
    if let Some(entries) = value.entries() {
        return entries.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), json(value))).collect();
    }
    Json::from(value.as_str().unwrap())
}

fn schema(names: &[&'static str]) -> Schema {
    let variables: Vec<Variable> = names.iter().map(|name| Variable::new(name, Shape::Any)).collect();
    Schema { variables: variables.leak() }
}

impl Policy {
    /// The policies of an export with the actions of their bindings.
    pub(crate) fn all(objects: &[Json]) -> Vec<Self> {
        let action = |object: &Json| {
            let binding = objects.iter().find(|other| other["spec"]["policyName"] == object["metadata"]["name"])?;
            binding["spec"]["validationActions"][0].as_str().map(str::to_owned)
        };
        let policies = objects.iter().filter(|object| object["spec"]["policyName"].is_null());
        policies.map(|object| Self { object: object.clone(), action: action(object) }).collect()
    }

    pub(crate) fn texts<'p>(&'p self, list: &str, field: &'p str) -> impl Iterator<Item = &'p str> {
        let items = self.object["spec"][list].as_array().into_iter().flatten();
        items.map(move |item| item[field].as_str().unwrap())
    }

    /// The node after the patch of a mutating policy, whose variables are `evaluation`.
    pub(crate) fn patched(&self, evaluation: &Evaluation, node: &Json) -> Json {
        let operations = json(&evaluation.value(&self.patch()).unwrap());
        let mut node = node.clone();
        json_patch::patch(&mut node, &serde_json::from_value::<json_patch::Patch>(operations).unwrap()).unwrap();
        node
    }

    /// The expression of the patch. The engine has no messages, so they are maps here.
    fn patch(&self) -> String {
        self.object["spec"]["mutations"][0]["jsonPatch"]["expression"]
            .as_str()
            .unwrap_or("[]")
            .replace("JSONPatch{op:", "{\"op\":")
            .replace(", path:", ", \"path\":")
            .replace(", value:", ", \"value\":")
            .replace("jsonpatch.escapeKey(k)", r#"k.replace("~", "~0").replace("/", "~1")"#)
    }

    /// Whether the engine takes expressions as long as these. The API server takes longer ones.
    pub(crate) fn fits(&self) -> bool {
        let lists = ["matchConditions", "variables", "validations"];
        let short = |expression: &str| expression.len() < 4_000;
        lists.iter().all(|list| self.texts(list, "expression").all(short)) && short(&self.patch())
    }

    /// The variables, evaluated for a write; `None` if the policy is not about it, or one of them fails (which the
    /// failure policy ignores).
    pub(crate) fn evaluated(&self, mut evaluation: Evaluation) -> Option<Evaluation> {
        if !self.texts("matchConditions", "expression").all(|condition| evaluation.holds(condition).unwrap()) {
            return None;
        }
        for (name, expression) in self.texts("variables", "name").zip(self.texts("variables", "expression")) {
            let value = evaluation.value(expression)?;
            evaluation.add(leaked(format!("variables_{name}")), value);
        }
        Some(evaluation)
    }
}
