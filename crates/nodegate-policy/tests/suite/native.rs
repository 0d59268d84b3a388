//! What native policies evaluate to, by the engine of this workspace, without an API server.
//! `tests/suite/cluster/native` compares them with `decide` and `judge` on a real one.

use std::collections::BTreeMap;

use nodegate_cel::{Budget, Expression, Schema, Shape, Value, Variable, Variables, Yields};
use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::native::{NativeOptions, export};
use nodegate_policy::simulate::{Scene, Simulated, compile_inline, node_of, scene, simulate};
use nodegate_policy::{Desired, Exemptions, Violation};
use serde_json::{Value as Json, json};

use crate::cases::tests;

/// One policy of an export, and what its binding does with a violation.
struct Policy {
    object: Json,
    action: Option<String>,
}

/// An evaluation of the variables of one policy. Tests may leak.
struct Evaluation {
    names: Vec<&'static str>,
    values: Vec<Value<'static>>,
}

fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Evaluation {
    fn new(node: &Json, scene: &Scene) -> Self {
        let operation = if scene.old.is_some() { "UPDATE" } else { "CREATE" };
        let request = json!({
            "operation": operation,
            "name": node["metadata"]["name"],
            "subResource": if scene.status { "status" } else { "" },
            "dryRun": false,
            "userInfo": {"username": scene.username, "groups": scene.groups},
        });
        let mut evaluation = Self { names: Vec::new(), values: Vec::new() };
        let old = scene.old.clone().unwrap_or(Json::Null);
        for (name, document) in [("object", node), ("oldObject", &old), ("request", &request)] {
            let text: &'static str = leaked(document.to_string());
            let whole = Expression::compile("dyn(d)", leaked(schema(&["d"])), Yields::Any).unwrap();
            evaluation.add(name, Value::read(text, &whole.paths("d"), &Budget::default()).unwrap());
        }
        evaluation
    }

    fn add(&mut self, name: &'static str, value: Value<'static>) {
        self.names.push(name);
        self.values.push(value);
    }

    /// The value of an expression, in which `variables.x` is written `variables_x`; `None` if it fails.
    fn value(&self, source: &str) -> Option<Value<'static>> {
        let source = source.replace("variables.", "variables_");
        if let Some((list, rest)) = source.rsplit_once(".transformMapEntry(") {
            return self.map_entries(list, rest);
        }
        let expression = Expression::compile(&source, leaked(schema(&self.names)), Yields::Any);
        let expression = leaked(expression.unwrap_or_else(|error| panic!("{source}\n{error}")));
        let mut variables = Variables::new();
        for (name, value) in self.names.iter().zip(&self.values) {
            variables = variables.with(name, value.clone());
        }
        expression.evaluate(leaked(variables)).ok()
    }

    /// `list.transformMapEntry(i, v, {key: value})`, which the engine does not have.
    fn map_entries(&self, list: &str, rest: &str) -> Option<Value<'static>> {
        let (names, body) = rest.split_once(", {").unwrap();
        let name: &'static str = leaked(names.split_once(", ").unwrap().1.to_owned());
        let body = body.strip_suffix("})").unwrap();
        let (mut quoted, mut at) = (false, 0);
        for (index, letter) in body.char_indices() {
            quoted ^= letter == '"';
            if letter == ':' && !quoted {
                at = index;
                break;
            }
        }
        let (key, value) = (&body[..at], &body[at + 1..]);
        let entry = |item: Value<'static>| {
            let mut inner = Self { names: self.names.clone(), values: self.values.clone() };
            inner.add(name, item);
            let key: &'static str = leaked(inner.value(key)?.as_str().unwrap().to_owned());
            Some((key, inner.value(value)?))
        };
        Some(Value::map(self.value(list)?.items().unwrap().into_iter().map(entry).collect::<Option<Vec<_>>>()?))
    }

    fn holds(&self, source: &str) -> Option<bool> {
        self.value(source).map(|value| value.as_bool().unwrap_or_else(|| panic!("{source} yields no bool")))
    }

    /// A map of texts.
    fn texts(&self, source: &str) -> BTreeMap<String, String> {
        let entries = self.value(source).unwrap().entries().unwrap().into_iter();
        entries.map(|(key, value)| (key.as_str().unwrap().to_owned(), value.as_str().unwrap().to_owned())).collect()
    }
}

fn schema(names: &[&'static str]) -> Schema {
    let variables: Vec<Variable> = names.iter().map(|name| Variable::new(name, Shape::Any)).collect();
    Schema { variables: variables.leak() }
}

impl Policy {
    /// The policies of an export with the actions of their bindings.
    fn all(objects: &[Json]) -> Vec<Self> {
        let action = |object: &Json| {
            let binding = objects.iter().find(|other| other["spec"]["policyName"] == object["metadata"]["name"])?;
            binding["spec"]["validationActions"][0].as_str().map(str::to_owned)
        };
        let policies = objects.iter().filter(|object| object["spec"]["policyName"].is_null());
        policies.map(|object| Self { object: object.clone(), action: action(object) }).collect()
    }

    fn texts<'p>(&'p self, list: &str, field: &'p str) -> impl Iterator<Item = &'p str> {
        let items = self.object["spec"][list].as_array().into_iter().flatten();
        items.map(move |item| item[field].as_str().unwrap())
    }

    /// The variables, evaluated for a write; `None` if the policy is not about it, or one of them fails (which the
    /// failure policy ignores).
    fn evaluated(&self, node: &Json, scene: &Scene) -> Option<Evaluation> {
        let mut evaluation = Evaluation::new(node, scene);
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

/// What the mutating policies give a write: labels, annotations, and taints as `key:Effect`.
fn desired(policies: &[Policy], scene: &Scene) -> [BTreeMap<String, String>; 3] {
    let mut found = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
    let mutating = policies.iter().filter(|policy| policy.object["kind"] == "MutatingAdmissionPolicy");
    for policy in mutating {
        let Some(evaluation) = policy.evaluated(&scene.node, scene) else { continue };
        for (map, name) in found.iter_mut().zip(["desiredLabels", "desiredAnnotations", "desiredTaints"]) {
            if !evaluation.names.contains(&leaked(format!("variables_{name}")).as_str()) {
                continue;
            }
            let source = match name {
                "desiredTaints" => {
                    r#"variables.desiredTaints.transformMapEntry(i, t, {t.key + ":" + t.effect: t.value})"#.to_owned()
                }
                _ => format!("variables.{name}"),
            };
            map.extend(evaluation.texts(&source));
        }
    }
    found
}

/// Whether a validation with this action refuses the node as it would be stored.
fn refuses(policies: &[Policy], action: &str, node: &Json, scene: &Scene) -> bool {
    let policies = policies.iter().filter(|policy| policy.action.as_deref() == Some(action));
    policies.into_iter().any(|policy| {
        policy.evaluated(node, scene).is_some_and(|evaluation| {
            policy.texts("validations", "expression").any(|expression| evaluation.holds(expression) == Some(false))
        })
    })
}

/// How the native answers to one case differ from nodegate's.
fn differences(policies: &[Policy], scene: &Scene, simulated: &Simulated) -> Vec<String> {
    let mut found = Vec::new();
    let decision = &simulated.decision;
    if !scene.status {
        let native = desired(policies, scene);
        let value = |(key, desired): (String, &Desired)| (key, desired.value.clone());
        let ours = [
            decision.labels.iter().map(|(key, desired)| value((key.clone(), desired))).collect::<BTreeMap<_, _>>(),
            decision.annotations.iter().map(|(key, desired)| value((key.clone(), desired))).collect(),
            decision.taints.iter().map(|(id, desired)| value((id.to_string(), desired))).collect(),
        ];
        if native != ours {
            found.push(format!("native policies give {native:?}, decide {ours:?}"));
        }
    }
    // What is overridden is only warned about.
    let mode = |one: &Violation| if one.overridden_by.is_some() { EntryMode::Warn } else { one.mode };
    let violated = |wanted: EntryMode| simulated.verdict.violations.iter().any(|one| mode(one) == wanted);
    for (action, mode) in [("Deny", EntryMode::Enforce), ("Warn", EntryMode::Warn), ("Audit", EntryMode::Audit)] {
        let (native, ours) = (refuses(policies, action, &simulated.node, scene), violated(mode));
        if native != ours {
            found.push(format!("{action}: native policies {native}, judge {ours}: {:?}", simulated.verdict.violations));
        }
    }
    found
}

#[test]
fn native_policies_answer_every_table_case_as_nodegate_does() {
    let (mut found, mut compared) = (Vec::new(), 0);
    for (file, test) in tests() {
        if !test.expect_errors.is_empty() {
            continue;
        }
        let set = compile_inline(test.policy.as_ref().unwrap()).unwrap();
        let native = export(&set, &NativeOptions::default());
        // Of what is left out the answers differ.
        if !native.left_out.is_empty() {
            continue;
        }
        let policies = Policy::all(&native.objects);
        for case in test.cases.iter().filter(|case| case.saved.is_none() && case.controller != Some(true)) {
            let scene = scene(case, node_of(case).unwrap().unwrap()).unwrap();
            let simulated = simulate(&set, &scene, &Exemptions::default()).unwrap();
            let lines = differences(&policies, &scene, &simulated);
            found.extend(lines.into_iter().map(|line| format!("{file}: {}: {line}", case.name)));
            compared += 1;
        }
    }
    assert!(found.is_empty(), "{} of {compared}:\n{}", found.len(), found.join("\n"));
    assert!(compared > 100, "only {compared} cases were compared");
}

fn left_out(policy: &Json) -> Vec<String> {
    let native = export(&compile_inline(policy).unwrap(), &NativeOptions::default());
    native.left_out.into_iter().map(|left_out| left_out.reason).collect()
}

#[test]
fn rules_on_the_absence_of_a_published_label_are_left_out() {
    let rule = |key: &str, operator: &str, values: Json| {
        let requirement = json!({"key": key, "operator": operator, "values": values});
        json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions": [requirement]}}, "labels": {"out": "1"}}]})
    };
    let published = "feature.node.kubernetes.io/avx";
    for (operator, values) in [("DoesNotExist", json!([])), ("NotIn", json!(["1"]))] {
        let found = left_out(&rule(published, operator, values.clone()));
        assert!(matches!(found.as_slice(), [reason] if reason.contains(published)), "{operator}: {found:?}");
        assert_eq!(
            left_out(&rule("team.example/a", operator, values)),
            Vec::<String>::new(),
            "nobody publishes a family"
        );
    }
    for (operator, values) in [("Exists", json!([])), ("In", json!(["1"]))] {
        assert_eq!(left_out(&rule(published, operator, values)), Vec::<String>::new(), "{operator}");
    }
}

#[test]
fn no_execute_is_added_to_a_living_node_only_where_the_rule_evicts() {
    let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
    let policy = json!({"rules": [
        {"name": "drain", "taints": taint("drain", "NoExecute")},
        {"name": "evict", "taints": taint("evict", "NoExecute"), "evict": true},
        {"name": "keep-off", "taints": taint("keep-off", "NoSchedule")},
    ]});
    let policies = Policy::all(&export(&compile_inline(&policy).unwrap(), &NativeOptions::default()).objects);
    let node = |taints: &Json| json!({"metadata": {"name": "n", "labels": {"write": taints.to_string().len().to_string()}}, "spec": {"taints": taints}});
    let gives = |key: &str, old: Option<Json>, taints: Json| {
        let old = old.map(|old| node(&old));
        let (username, groups, saved, pending_taint) = ("admin".to_owned(), Vec::new(), None, None);
        let mut object = node(&taints);
        object["metadata"]["labels"]["new"] = json!("1");
        let scene = Scene { node: object, old, status: false, username, groups, saved, pending_taint };
        let [.., taints] = desired(&policies, &scene);
        taints.keys().any(|id| id.starts_with(key))
    };
    for key in ["drain", "evict", "keep-off"] {
        assert!(gives(key, None, json!([])), "{key}: the node is created");
    }
    let none = || Some(json!([]));
    assert!(!gives("drain", none(), json!([])));
    assert!(gives("evict", none(), json!([])) && gives("keep-off", none(), json!([])));
    assert!(gives("drain", Some(taint("drain", "NoExecute")), json!([])), "it is there already");
    assert!(gives("drain", none(), taint("drain", "NoExecute")), "the requester adds it");
    assert!(!gives("drain", Some(taint("drain", "NoSchedule")), json!([])), "another effect evicts nobody");
}

#[test]
fn rules_and_entries_are_held_by_native_policies_if_nothing_of_them_is_left_out() {
    let set = compile_inline(&json!({
        "rules": [
            {"name": "a", "labels": {"x": "1"}},
            {"name": "ab", "match": {"gpu": {"count": ">=1"}}, "labels": {"y": "1"}},
        ],
        "governance": {"required": [{"name": "owner", "keys": ["owner"]}]},
    }));
    let native = export(&set.unwrap(), &NativeOptions::default());
    let held: Vec<String> = native.held.iter().map(ToString::to_string).collect();
    assert_eq!(held, ["test/a", "test/owner"]);
    assert!(matches!(native.left_out.as_slice(), [one] if one.what == "ab"), "{:?}", native.left_out);
}
