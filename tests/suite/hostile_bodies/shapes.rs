//! The bodies: where a review is blown up, and how.

use serde_json::{Value, json};

use super::is_full_run;
use crate::admission::{CREATE, edited};

/// A policy with something in every section.
const WRITTEN: &str = r#"{
  "presets": ["gpu"],
  "rules": [{"name": "r", "match": {"names": ["a-*-b"], "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
      "taints": ["t"], "capacity": {"cpu": ">=1"}, "osImage": ["U*x"], "expression": "node.metadata.name.matches('(a{1,50}){1,50}b')", "anyOf": [{"names": ["x?"]}]},
    "labels": {"a": "b"}, "labelExpressions": {"c": "node.metadata.name"}, "annotations": {"d": "e"}, "taints": [{"key": "k", "effect": "NoSchedule"}]}],
  "derived": [{"label": "l", "anyOf": ["m"]}],
  "persist": {"labels": ["p/*"], "taints": ["q"]},
  "protect": {"keys": ["z"]},
  "governance": {"reserved": [{"keys": ["k"], "allow": {"users": ["*x?"], "groups": ["g*?"], "serviceAccounts": ["n:*y?"]}, "except": {"users": ["u"]}}],
    "required": [{"keys": ["k"]}], "allowed": [{"key": "k", "values": ["v"]}, {"key": "l", "pattern": "[a-z0-9]{2,900}"}], "immutable": [{"keys": ["k"]}],
    "dependencies": [{"when": {"a": "b"}, "require": {"c": "d"}}], "naming": [{"keys": ["k"], "regex": "[a-z0-9]{2,1000}[a-z]{1,400}", "of": "value"}],
    "expressions": [{"expression": "object.metadata.name.matches('(a{1,50}){1,50}c')", "message": "m"}]}
}"#;

/// Sizes of what is blown up. What is larger than a review may be is refused before it is parsed.
const SIZES: [usize; 5] = [1 << 20, 3 << 20, 8 << 20, 16 << 20, 32 << 20];
/// The same for policies, whose reviews are smaller.
const SIZES_OF_POLICY: [usize; 3] = [1 << 20, 3 << 20, 32 << 20];
/// One less than the number of entries that is too many, for the lists and objects that have such a bound.
const COUNTS: [(&str, usize); 6] = [
    ("metadata/labels", 179_999),
    ("metadata/annotations", 179_999),
    ("status/capacity", 179_999),
    ("spec/taints", 89_999),
    ("userInfo/groups", 16_383),
    ("object/spec/rules", 2_000),
];
/// What texts are filled with: one is escaped in JSON, and one in Rust's messages.
const FILLS: [&str; 3] = ["x", "\\n", "\u{7f}"];
/// The beginnings of the keys of an object, for which policies have rules, or none.
const BEGINS: [&str; 5] = ["once.example/", "protected.example/", "reserved.example/", "nodegate.dev/", "x"];
/// Stands for what is blown up.
const HERE: &str = "@@here@@";
/// Stands for a number.
const NUMBER: &str = "@@number@@";

/// The largest size in the gate, where each megabyte takes time in a debug build.
const GATE_MAX: usize = 8 << 20;

/// Draws numbers, the same ones again for the same seed (SplitMix64).
pub(super) struct Draw {
    seed: u64,
    state: u64,
}

impl Draw {
    /// The seed is that of `NODEGATE_SEED`, or another one in each run.
    pub(super) fn seeded() -> Self {
        let given = std::env::var("NODEGATE_SEED").ok().map(|seed| seed.parse().expect("NODEGATE_SEED is a number"));
        let seed = given.unwrap_or_else(|| jiff::Timestamp::now().as_microsecond().unsigned_abs());
        Self { seed, state: seed }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}

/// How a place is blown up.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// More of the same, of at least so many bytes.
    Grown(usize),
    /// So many of the same.
    Counted(usize),
    /// A text instead.
    Text(&'static str, usize),
    /// A field with a long name besides.
    Name(&'static str, usize),
    /// A list of empty lists instead.
    Lists(usize),
    /// A list in a list, and so on.
    Nested(usize),
    /// A number with many digits instead.
    Digits(usize),
}

/// A body that is not made yet, because it is large.
pub(super) struct Plan {
    path: &'static str,
    review: Value,
    what: &'static str,
    place: String,
    shape: Shape,
    begin: &'static str,
}

/// A body, where it is sent, and what it is.
pub(super) struct Body {
    pub(super) path: &'static str,
    pub(super) what: String,
    pub(super) text: String,
}

impl Plan {
    pub(super) fn made(&self) -> Body {
        let Self { path, review, what, place, shape, begin } = self;
        // What both versions of a node have is blown up in both.
        let places: Vec<String> = match place.strip_prefix("/both") {
            Some(inner) => ["object", "oldObject"].map(|version| format!("/request/{version}{inner}")).into(),
            None => vec![place.clone()],
        };
        let mut review = review.clone();
        let mut blown = String::new();
        for place in &places {
            let Some(value) = review.pointer_mut(place) else { continue };
            blown = shape.of(value, begin);
            match (shape, &mut *value) {
                (Shape::Name(..), Value::Object(fields)) => drop(fields.insert(HERE.to_owned(), json!("x"))),
                _ => *value = json!(HERE),
            }
        }
        let text = review.to_string().replace(&format!("\"{HERE}\""), &blown);
        Body { path, what: format!("{path} {what} {place} {shape:?} {begin}"), text }
    }
}

impl Shape {
    /// The JSON that takes the place of a value.
    fn of(self, value: &Value, begin: &str) -> String {
        match self {
            Self::Grown(bytes) => grown(value, begin, bytes, usize::MAX),
            Self::Counted(count) => grown(value, begin, usize::MAX, count),
            Self::Text(fill, bytes) | Self::Name(fill, bytes) => text(fill, bytes),
            Self::Lists(bytes) => format!("[{}[]]", "[],".repeat(bytes / 3)),
            Self::Nested(bytes) => format!("{}{}", "[".repeat(bytes / 2), "]".repeat(bytes / 2)),
            Self::Digits(bytes) => "1".repeat(bytes),
        }
    }
}

fn text(fill: &str, bytes: usize) -> String {
    format!("\"{}\"", fill.repeat(bytes / fill.len()))
}

/// A value of the same kind, with at least so many bytes or entries.
fn grown(value: &Value, begin: &str, bytes: usize, count: usize) -> String {
    let (item, key, brackets) = match value {
        Value::Array(items) => (numbered(items.first().unwrap_or(&json!({}))), String::new(), ['[', ']']),
        Value::Object(fields) => {
            let value = fields.values().next().unwrap_or(&json!("")).to_string();
            (value, format!("\"{begin}{NUMBER}\":"), ['{', '}'])
        }
        _ => return text("x", bytes.min(SIZES[4])),
    };
    let entry = format!("{key}{item}");
    let parts: Vec<&str> = entry.split(NUMBER).collect();
    let mut all = String::from(brackets[0]);
    for at in 0..count {
        if all.len() >= bytes {
            break;
        }
        all.push_str(if at > 0 { "," } else { "" });
        all.push_str(&parts.join(&format!("{at:x}")));
    }
    all.push(brackets[1]);
    all
}

/// The JSON of an item, with the place of a number where names must differ.
fn numbered(item: &Value) -> String {
    let mut item = item.clone();
    match &mut item {
        Value::String(text) => text.push_str(NUMBER),
        Value::Object(fields) => {
            for name in ["name", "key"] {
                if let Some(Value::String(text)) = fields.get_mut(name) {
                    text.push_str(NUMBER);
                }
            }
        }
        _ => {}
    }
    item.to_string()
}

/// Every place in a value, but for itself.
pub(super) fn walk(value: &Value, place: &str, places: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Array(items) => items.iter().take(1).map(|item| ("0".to_owned(), item)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| (key.replace('~', "~0").replace('/', "~1"), field)).collect()
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => return,
    };
    for (key, value) in below {
        let place = format!("{place}/{key}");
        walk(value, &place, places);
        places.push(place);
    }
}

/// The reviews that are blown up: of a Node by its kubelet and by somebody else, and of a policy.
pub(super) fn reviews() -> Vec<(&'static str, Value)> {
    let node = |update: bool, kubelet: bool| {
        let review = edited(CREATE, |review| {
            let request = &mut review["request"];
            request["dryRun"] = json!(false);
            request["subResource"] = json!("");
            request["object"]["metadata"]["annotations"]["a.example/b"] = json!("c");
            request["object"]["spec"]["taints"] = json!([{"key": "reserved.example/a", "effect": "NoSchedule"}]);
            if !kubelet {
                request["userInfo"] = json!({"username": "someone", "groups": ["a"], "extra": {"b": ["c"]}});
            }
            if update {
                request["operation"] = json!("UPDATE");
                request["oldObject"] = request["object"].clone();
                request["object"]["metadata"]["labels"]["reserved.example/a"] = json!("b");
                request["object"]["metadata"]["labels"]["hardware.tier"] = json!("b");
            }
        });
        serde_json::from_str(&review).unwrap()
    };
    let policy = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "userInfo": {"username": "someone", "groups": ["a"]},
        "resource": {"group": "nodegate.dev", "version": "v1alpha1", "resource": "nodepolicies"},
        "object": {"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "h"},
                   "spec": serde_json::from_str::<Value>(WRITTEN).unwrap()},
    }});
    vec![
        ("CREATE by its kubelet", node(false, true)),
        ("UPDATE by its kubelet", node(true, true)),
        ("CREATE by somebody", node(false, false)),
        ("UPDATE by somebody", node(true, false)),
        (POLICY_REVIEW, policy),
    ]
}

pub(super) const POLICY_REVIEW: &str = "a policy";

/// One body at a place, of a shape that is drawn.
fn plan(draw: &mut Draw, what: &'static str, review: &Value, place: &str) -> Plan {
    let is_policy = what == POLICY_REVIEW;
    let bytes = *draw.of(if is_policy { &SIZES_OF_POLICY[..] } else { &SIZES });
    let bytes = if is_full_run() { bytes } else { bytes.min(GATE_MAX) };
    // Two of the largest do not fit into one review.
    let bytes = if place.starts_with("/both") { bytes.min(11 << 20) } else { bytes };
    let value = review.pointer(&place.replace("/both", "/request/object")).cloned().unwrap_or_default();
    let bound = COUNTS.iter().find(|(end, _)| place.ends_with(end)).map(|(_, count)| Shape::Counted(*count));
    let fill = *draw.of(&FILLS);
    let shape = match (draw.below(8), &value) {
        (0..2, Value::Array(_) | Value::Object(_)) => Shape::Grown(bytes),
        (2..4, Value::Array(_) | Value::Object(_)) => bound.unwrap_or(Shape::Grown(bytes)),
        (4, Value::Object(_)) => Shape::Name(fill, bytes),
        (5, _) => *draw.of(&[Shape::Lists(bytes), Shape::Nested(bytes), Shape::Digits(bytes)]),
        _ => Shape::Text(fill, bytes),
    };
    let path = if is_policy && draw.below(8) > 0 { "/validate" } else { *draw.of(&["/mutate", "/validate"]) };
    Plan { path, review: review.clone(), what, place: place.to_owned(), shape, begin: draw.of::<&str>(&BEGINS) }
}

/// Every place of a review, and those that both versions of a node have.
fn places(review: &Value) -> Vec<String> {
    let mut places = Vec::new();
    walk(review, "", &mut places);
    if !review["request"]["oldObject"].is_null() {
        walk(&review["request"]["oldObject"], "/both", &mut places);
    }
    places
}

/// The plans that are sent in every run.
fn always(draw: &mut Draw) -> Vec<Plan> {
    let reviews = reviews();
    let [(create, creation), (update, change), (_, _), (other, others)] = &reviews[..4] else { unreachable!() };
    let mut plans: Vec<Plan> =
        ["/object/metadata/labels", "/object/metadata/annotations", "/object/spec/taints", "/userInfo/groups"]
            .iter()
            .map(|place| plan(draw, create, creation, &format!("/request{place}")))
            .collect();
    let one = |path, (what, review): (&'static str, &Value), place: &str, shape, begin| Plan {
        path,
        review: review.clone(),
        what,
        place: place.to_owned(),
        shape,
        begin,
    };
    let largest = if is_full_run() { 23 << 20 } else { GATE_MAX };
    // Up to the bounds in both versions: by a kubelet, with a protected key, and by somebody else, with reserved ones.
    for place in ["/both/metadata/labels", "/both/spec/taints"] {
        let count = if place.ends_with("taints") { 89_999 } else { 179_999 };
        plans.push(one("/validate", (update, change), place, Shape::Counted(count), "x"));
        plans.push(one("/mutate", (other, others), place, Shape::Counted(count), "reserved.example/"));
    }
    // What errors repeated, what is put back, and a long key of a taint.
    plans.push(one("/mutate", (create, creation), "/request", Shape::Text(FILLS[2], largest), ""));
    plans.push(one(
        "/mutate",
        (update, change),
        "/request/oldObject/metadata/labels",
        Shape::Counted(900),
        "nodegate.dev/",
    ));
    plans.push(one(
        "/validate",
        (other, others),
        "/request/object/spec/taints/0/key",
        Shape::Text(FILLS[2], largest),
        "",
    ));
    plans
}

/// The pairs of bodies that are sent at the same time: those of every run, in the full run one of every place, and `drawn` more.
pub(super) fn pairs(draw: &mut Draw, drawn: usize) -> Vec<[Plan; 2]> {
    let reviews = reviews();
    let mut plans = always(draw);
    if is_full_run() {
        for (what, review) in &reviews {
            plans.extend(places(review).iter().map(|place| plan(draw, what, review, place)));
        }
    }
    let one = |draw: &mut Draw| {
        let (what, review) = draw.of(&reviews);
        let places = places(review);
        let place = draw.of(&places).clone();
        plan(draw, what, review, &place)
    };
    let mut pairs: Vec<[Plan; 2]> = plans.into_iter().map(|first| [first, one(draw)]).collect();
    pairs.extend((0..drawn).map(|_| [one(draw), one(draw)]));
    pairs
}
