//! Checks a document against its schema.

use serde_json::Value as Json;

use super::fault::ShapeFault;
use super::taints;
use crate::api::Quoted;
use crate::api::problem::{ERRORS_MAX, Problem};
use crate::api::source::{Field, FieldPath, Node, SourcePosition, Tree, quoted};

/// Maximum length of a text, in bytes. Nothing in a policy is longer: the annotations of a node have as much in total.
const TEXT_MAX: usize = 256 * 1024;
/// Maximum length of the name of a field, in bytes. Keys of labels have at most 317.
const NAME_MAX: usize = 1024;
/// A longer name is not compared with known ones: that takes memory for each pair of characters.
const COMPARED_MAX: usize = 64;

/// The keyword with the [`Meaning`] of the texts in a field. The API server does not know it and drops it.
pub(super) const MEANING: &str = "x-nodegate";

/// What a text means, so that an error can say more than "expected a string".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A duration such as `60s`.
    Duration,
    /// A comparison such as `>=8`.
    Comparison,
    /// A taint as a mapping, which may also be written as a text.
    Taint,
    /// A taint, or a pattern for taints, as a text, which may also be written as a mapping.
    TaintText,
}

impl Meaning {
    pub(super) fn of(schema: &Json) -> Option<Self> {
        match schema.get(MEANING)?.as_str()? {
            "duration" => Some(Self::Duration),
            "comparison" => Some(Self::Comparison),
            "taint" => Some(Self::Taint),
            "taint-text" => Some(Self::TaintText),
            _ => None,
        }
    }
}

/// Checks `tree`, removes invalid values, and adds an error for each. A taint may be written as a text or as a mapping;
/// it is converted to the form that the schema has.
///
/// Returns false if `tree` itself is invalid, so the caller must drop it.
pub fn check(tree: &mut Tree, schema: &Json, path: &FieldPath, faults: &mut Vec<ShapeFault>) -> bool {
    check_value(tree, schema, &Context { key: None, meaning: None }, path, faults)
}

/// What a value gets from the mapping or list that it is in.
struct Context {
    /// The position of the name of the field.
    key: Option<SourcePosition>,
    /// The meaning of the texts in the whole.
    meaning: Option<Meaning>,
}

fn check_value(
    tree: &mut Tree,
    schema: &Json,
    context: &Context,
    path: &FieldPath,
    faults: &mut Vec<ShapeFault>,
) -> bool {
    if faults.len() >= ERRORS_MAX {
        // The document is refused in any case.
        return false;
    }
    let Some(wanted) = schema.get("type").and_then(Json::as_str) else {
        check_values(tree, path, faults);
        return true;
    };
    let meaning = Meaning::of(schema).or(context.meaning);
    match (&tree.value, wanted, meaning) {
        (Node::Mapping(_), "string", Some(Meaning::TaintText)) => return taint_as_text(tree, path, faults),
        (Node::Scalar(Json::String(_)), "object", Some(Meaning::Taint)) => taints::to_mapping(tree),
        _ => {}
    }
    let head = tree.head();
    if let Some(length) = tree.as_text().map(str::len).filter(|length| *length > TEXT_MAX) {
        faults.push(ShapeFault { place: tree.place, path: path.clone(), problem: too_long("text", length, TEXT_MAX) });
        return false;
    }
    let (problem, place) = match (&mut tree.value, wanted) {
        (Node::Mapping(fields), "object") => {
            return check_mapping(head, fields, schema, meaning, path, faults);
        }
        (Node::List(items), "array") => {
            let inner = &schema["items"];
            let context = Context { key: None, meaning };
            items.retain_mut(|(index, item)| check_value(item, inner, &context, &path.index(*index), faults));
            return true;
        }
        (Node::Scalar(scalar), _) => {
            (scalar_problem(scalar, tree.written.as_deref(), wanted, schema, meaning), tree.place)
        }
        (Node::List(items), _) => (Some(unexpected_list(items, wanted, schema)), context.key.unwrap_or(head)),
        (Node::Mapping(_), _) => (Some(unexpected_mapping(wanted)), context.key.unwrap_or(head)),
    };
    let fits = problem.is_none();
    faults.extend(problem.map(|problem| ShapeFault { place, path: path.clone(), problem }));
    fits
}

/// The field of a mapping that most people mean if they write only its value, and its value.
fn in_a_field(schema: &Json, items: &[String]) -> Option<String> {
    let is_list = |name: &&&str| schema["properties"][**name]["items"]["type"] == "string";
    let field = ["keys", "labels", "names"].iter().find(is_list)?;
    (!items.is_empty()).then(|| format!("write {{{field}: [{}]}}", items.join(", ")))
}

fn unexpected_list(items: &[(usize, Tree)], wanted: &str, schema: &Json) -> Problem {
    let what = format!("expected {}, found a list", article(wanted));
    let texts: Option<Vec<String>> = items.iter().map(|(_, item)| item.as_text().map(str::to_owned)).collect();
    match wanted {
        "object" if let Some(remedy) = texts.and_then(|texts| in_a_field(schema, &texts)) => Problem::new(what, remedy),
        "object" => Problem::new(what, "write its fields as `key: value`, without `-`"),
        _ => Problem::new(what, "write one value, without brackets or `-`"),
    }
}

fn unexpected_mapping(wanted: &str) -> Problem {
    let what = format!("expected {}, found a mapping", article(wanted));
    match wanted {
        "array" => Problem::new(what, "begin each item of the list with `- `"),
        _ => what.into(),
    }
}

fn check_mapping(
    at: SourcePosition,
    fields: &mut Vec<Field>,
    schema: &Json,
    meaning: Option<Meaning>,
    path: &FieldPath,
    faults: &mut Vec<ShapeFault>,
) -> bool {
    let properties = schema.get("properties").and_then(Json::as_object);
    let open = schema.get("additionalProperties");
    let mut whole = true;
    report_outdented(fields, schema, path, faults);
    for name in schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str) {
        if fields.iter().any(|field| field.key == name) {
            continue;
        }
        whole = false;
        // An unknown field that is most likely meant to be this one is the error.
        let known: Vec<&str> = properties.into_iter().flat_map(|all| all.keys()).map(String::as_str).collect();
        let is_mistyped = |field: &Field| !known.contains(&&*field.key) && nearest(&field.key, &known) == Some(name);
        if !fields.iter().any(is_mistyped) {
            let problem = Problem::new(format!("the field {name:?} is missing"), "add it");
            faults.push(ShapeFault { place: at, path: path.clone(), problem });
        }
    }
    let required = |key: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == key));
    fields.retain_mut(|field| {
        if field.key.len() > NAME_MAX {
            let problem = too_long("name", field.key.len(), NAME_MAX);
            faults.push(ShapeFault { place: field.place, path: path.clone(), problem });
            return false;
        }
        let (inner, meaning) = match (properties.and_then(|all| all.get(&field.key)), open) {
            (Some(inner), _) => (inner, None),
            (None, Some(Json::Bool(false))) => {
                let known = properties.into_iter().flat_map(|all| all.keys());
                let problem = unknown_field(&field.key, known.map(String::as_str));
                faults.push(ShapeFault { place: field.place, path: path.key(&field.key), problem });
                return false;
            }
            (None, Some(inner)) if inner.is_object() => (inner, meaning),
            (None, _) => return true,
        };
        let path = path.key(&field.key);
        let fits = if field.tree.is_null() {
            faults.push(ShapeFault { place: field.place, path, problem: no_value_of(&field.key, inner) });
            false
        } else {
            check_value(&mut field.tree, inner, &Context { key: Some(field.place), meaning }, &path, faults)
        };
        whole &= fits || !required(&field.key);
        fits
    });
    whole
}

fn too_long(what: &str, length: usize, max: usize) -> Problem {
    Problem::new(format!("a {what} of {length} bytes, but the limit is {max}"), "write a shorter one")
}

/// Reports and removes fields that are written beside the one that they belong to, which has no value then:
///
/// ```yaml
/// match:
/// names: [gpu-1]
/// ```
fn report_outdented(fields: &mut Vec<Field>, schema: &Json, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    let property = |key: &str| &schema["properties"][key];
    let empty = fields.iter().find(|field| {
        let belongs =
            |other: &Field| property(&other.key).is_null() && !property(&field.key)["properties"][&other.key].is_null();
        // Few fields have fields of their own, so this looks through all of them only a few times.
        field.tree.is_null() && property(&field.key)["properties"].is_object() && fields.iter().any(belongs)
    });
    let Some(parent) = empty.map(|field| field.key.clone()) else { return };
    fields.retain(|field| {
        let belongs = property(&field.key).is_null() && !property(&parent)["properties"][&field.key].is_null();
        if belongs {
            let what = format!("{} is a field of {parent:?}, but it is written beside it", Quoted(&field.key));
            let problem = Problem::new(what, format!("indent it below {parent:?}"));
            faults.push(ShapeFault { place: field.place, path: path.key(&field.key), problem });
        }
        !belongs && field.key != parent
    });
}

/// Adds an error for each field without a value if the schema accepts any type. Kubernetes writes null for unset times.
fn check_values(tree: &Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    match &tree.value {
        Node::Scalar(_) => {}
        Node::List(items) => items.iter().for_each(|(index, item)| check_values(item, &path.index(*index), faults)),
        Node::Mapping(fields) => {
            for field in fields {
                let (path, is_time) =
                    (path.key(&field.key), field.key.ends_with("Time") || field.key.ends_with("Timestamp"));
                if !field.tree.is_null() {
                    check_values(&field.tree, &path, faults);
                } else if !is_time {
                    faults.push(ShapeFault { place: field.place, path, problem: no_value(&Json::Null) });
                }
            }
        }
    }
}

/// As [`no_value`], for a field with this name: `{team:ml}` has the field `team:ml`.
fn no_value_of(key: &str, schema: &Json) -> Problem {
    match key.split_once(':') {
        Some((key, value)) => {
            Problem::new("the field has no value", format!("write a space after the colon: {key}: {value}"))
        }
        None => no_value(schema),
    }
}

/// The problem of a field without a value. Kubernetes treats null as absent, so the field would be ignored.
fn no_value(schema: &Json) -> Problem {
    let wanted = match (schema.get("enum"), schema["type"].as_str()) {
        (Some(_), _) | (None, None) => "a value",
        (None, Some("string")) => "\"\" for an empty string",
        (None, Some("object")) => "{} for an empty mapping",
        (None, Some(other)) => article(other),
    };
    Problem::new("the field has no value", format!("write {wanted}, or remove the field"))
}

/// The one of `known` that `found` is most likely meant to be.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    if found.len() > COMPARED_MAX {
        return None;
    }
    let distance = |name: &str| strsim::damerau_levenshtein(&found.to_lowercase(), &name.to_lowercase());
    let near = known.iter().map(|name| (distance(name), *name)).min();
    near.filter(|(distance, name)| *distance <= 2.max(name.len() / 3)).map(|(_, name)| name)
}

fn unknown_field<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Problem {
    let known: Vec<&str> = known.collect();
    let remedy = match nearest(found, &known) {
        // Who knows Pods and Deployments writes labels directly.
        _ if known.contains(&"selector") && ["labels", "matchLabels"].contains(&found) => {
            "write selector: {matchLabels: {KEY: VALUE}}".to_owned()
        }
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("the valid fields are {}", known.join(", ")),
    };
    Problem::new(format!("unknown field {}", Quoted(found)), remedy)
}

fn article(kind: &str) -> &'static str {
    match kind {
        "object" => "a mapping",
        "array" => "a list",
        "integer" => "an integer",
        "boolean" => "true or false",
        "number" => "a number",
        _ => "a string",
    }
}

fn scalar_problem(
    scalar: &Json,
    written: Option<&str>,
    wanted: &str,
    schema: &Json,
    meaning: Option<Meaning>,
) -> Option<Problem> {
    let fits = match wanted {
        "string" => scalar.is_string(),
        "boolean" => scalar.is_boolean(),
        "integer" => scalar.is_i64() || scalar.is_u64(),
        "number" => scalar.is_number(),
        _ => false,
    };
    if !fits {
        return Some(unexpected_scalar(scalar, written, wanted, schema, meaning));
    }
    let names = schema.get("enum").and_then(Json::as_array)?;
    if names.contains(scalar) {
        return None;
    }
    let names: Vec<&str> = names.iter().filter_map(Json::as_str).collect();
    let names = match names.as_slice() {
        [rest @ .., before, last] if !rest.is_empty() => format!("{}, {before} or {last}", rest.join(", ")),
        names => names.join(" or "),
    };
    Some(Problem::new(format!("{scalar} is not a valid value"), format!("write {names}")))
}

/// The problem of a scalar of another type than the schema wants. It shows the value as it is written: `1.10` is not 1.1.
fn unexpected_scalar(
    scalar: &Json,
    written: Option<&str>,
    wanted: &str,
    schema: &Json,
    meaning: Option<Meaning>,
) -> Problem {
    let found = match (scalar, written) {
        (Json::Null, _) => "nothing".to_owned(),
        (Json::Bool(_) | Json::Number(_), Some(written)) => written.to_owned(),
        (other, _) => other.to_string(),
    };
    let is_plain = scalar.is_boolean() || scalar.is_number();
    match (wanted, meaning) {
        ("string", Some(Meaning::Duration)) if scalar.is_number() => {
            Problem::new(format!("expected a duration, found {found}"), format!("add a unit: {found}s"))
        }
        ("string", Some(Meaning::Comparison)) if scalar.is_number() => Problem::new(
            format!("expected a comparison, found {found}"),
            format!("write \">={found}\" for at least {found}, or \"=={found}\" for exactly {found}"),
        ),
        ("string", _) if is_plain => {
            Problem::new(format!("expected a string, found {found}"), format!("write it in quotes: {}", quoted(&found)))
        }
        ("array", _) if schema["items"]["type"] == "string" && !scalar.is_null() => {
            let item = scalar.as_str().map_or_else(|| quoted(&found), quoted);
            Problem::new(format!("expected a list, found {found}"), format!("write it as [{item}]"))
        }
        ("object", _) if let Some(remedy) = scalar.as_str().and_then(|text| in_a_field(schema, &[text.to_owned()])) => {
            Problem::new(format!("expected a mapping, found {found}"), remedy)
        }
        ("integer", _) => {
            Problem::new(format!("expected an integer, found {found}"), "write a number without quotes, such as 10")
        }
        _ => format!("expected {}, found {found}", article(wanted)).into(),
    }
}

/// Converts a mapping to the text of the taint that it stands for. Returns false if it is not one.
fn taint_as_text(tree: &mut Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) -> bool {
    let before = faults.len();
    check(tree, &taints::schema(), path, faults);
    if faults.len() == before {
        faults.extend(taints::faults(tree, path));
    }
    let is_taint = faults.len() == before;
    if is_taint {
        taints::to_text(tree);
    }
    is_taint
}
