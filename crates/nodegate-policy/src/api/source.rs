//! YAML (and JSON) text as a tree with the position of every value.
//!
//! Errors that are found after parsing (an invalid label value, a cycle between rules) still have a line
//! and a column: they have a [`FieldPath`], and the tree converts it to a position.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map as JsonMap, Value as Json};
use serde_saphyr::{Location, Spanned};

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// A field of a mapping.
    Key(String),
    /// An item of a list.
    Index(usize),
}

/// A path in a document, such as `spec.rules[0].labels["a/b"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldPath(Vec<Segment>);

impl FieldPath {
    /// The path of the whole document.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of the field `name`.
    #[must_use]
    pub fn key(&self, name: impl Into<String>) -> Self {
        self.with(Segment::Key(name.into()))
    }

    /// The path of the item `index`.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// The first `steps` steps.
    #[must_use]
    pub fn first(&self, steps: usize) -> Self {
        Self(self.0.iter().take(steps).cloned().collect())
    }

    fn with(&self, segment: Segment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    let plain = key.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
                    match (plain && !key.is_empty(), at) {
                        (true, 0) => f.write_str(key)?,
                        (true, _) => write!(f, ".{key}")?,
                        (false, _) => write!(f, "[{key:?}]")?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// A position in a text; line and column start at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl From<Location> for SourcePosition {
    fn from(location: Location) -> Self {
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self { line: narrow(location.line()), column: narrow(location.column()) }
    }
}

/// A value with its position.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The position of the value.
    pub place: SourcePosition,
    /// The value.
    pub value: Node,
}

/// The value of a [`Tree`].
#[derive(Clone, Debug)]
pub enum Node {
    /// Null, a boolean, a number or a text.
    Scalar(Json),
    /// A list. Each item keeps its index in the text, even after invalid items were removed.
    List(Vec<(usize, Tree)>),
    /// A mapping, in the order of the text.
    Mapping(Vec<Field>),
}

/// One field of a mapping.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name.
    pub key: String,
    /// The position of the name.
    pub place: SourcePosition,
    /// The value.
    pub tree: Tree,
}

/// A text that is not YAML.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    /// Where parsing stopped, if known.
    pub place: Option<SourcePosition>,
    /// What is wrong.
    pub message: String,
    /// Whether the text exceeds the parser's budget, and may be YAML otherwise.
    pub exceeds_budget: bool,
}

/// Parses all documents of a YAML text, which may be JSON. The parser's budget limits anchors and nesting,
/// so a hostile text is an error and does not exhaust memory.
pub fn parse_documents(text: &str) -> Result<Vec<Tree>, SyntaxError> {
    // `y`, `no` and `on` are strings; only true and false are booleans.
    // A NodePolicy has about ten levels and a Node about fifteen. Each level needs stack, and files are also
    // parsed on threads with a small stack.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: 32 },
    };
    match serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options) {
        Ok(documents) => {
            Ok(documents.into_iter().map(tree).filter(|tree| !matches!(tree.value, Node::Scalar(Json::Null))).collect())
        }
        Err(error) => Err(SyntaxError {
            place: error.location().map(SourcePosition::from).filter(|place| place.line > 0),
            message: error.without_snippet().to_string(),
            exceeds_budget: matches!(error.without_snippet(), serde_saphyr::Error::Budget { .. }),
        }),
    }
}

impl Tree {
    /// The tree as JSON. Fields without a value (null) are omitted, as the API server does.
    pub fn to_json(&self) -> Json {
        match &self.value {
            Node::Scalar(scalar) => scalar.clone(),
            Node::List(items) => Json::Array(items.iter().map(|(_, item)| item.to_json()).collect()),
            Node::Mapping(fields) => Json::Object(
                fields
                    .iter()
                    .filter(|field| !field.tree.is_null())
                    .map(|field| (field.key.clone(), field.tree.to_json()))
                    .collect::<JsonMap<_, _>>(),
            ),
        }
    }

    /// Whether there is no value.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Node::Scalar(Json::Null))
    }

    /// The field `key` of a mapping.
    pub fn field(&self, key: &str) -> Option<&Field> {
        match &self.value {
            Node::Mapping(fields) => fields.iter().find(|field| field.key == key),
            _ => None,
        }
    }

    /// The string in the field `key`, if it is a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        match &self.field(key)?.tree.value {
            Node::Scalar(Json::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Finds `path`, or its longest existing part. Returns the position, and the path with the list indexes
    /// of the text, even if invalid items were removed.
    pub fn locate(&self, path: &FieldPath) -> (SourcePosition, FieldPath) {
        let mut place = self.place;
        let mut here = Some(self);
        let mut written = FieldPath::root();
        for segment in &path.0 {
            let next = match (segment, here.map(|tree| &tree.value)) {
                (Segment::Key(key), Some(Node::Mapping(fields))) => fields
                    .iter()
                    .find(|field| field.key == *key)
                    .map(|field| (field.place, segment.clone(), &field.tree)),
                (Segment::Index(index), Some(Node::List(items))) => {
                    items.get(*index).map(|(index, tree)| (tree.place, Segment::Index(*index), tree))
                }
                _ => None,
            };
            match next {
                Some((at, segment, tree)) => {
                    place = at;
                    here = Some(tree);
                    written.0.push(segment);
                }
                None => {
                    here = None;
                    written.0.push(segment.clone());
                }
            }
        }
        (place, written)
    }
}

/// The value that serde parses, before positions are attached.
enum Value {
    Scalar(Json),
    List(Vec<Spanned<Value>>),
    Mapping(Vec<(Spanned<String>, Spanned<Value>)>),
}

fn tree(spanned: Spanned<Value>) -> Tree {
    let place = SourcePosition::from(spanned.referenced);
    let value = match spanned.value {
        Value::Scalar(scalar) => Node::Scalar(scalar),
        Value::List(items) => Node::List(items.into_iter().map(tree).enumerate().collect()),
        Value::Mapping(fields) => Node::Mapping(
            fields
                .into_iter()
                .map(|(key, value)| Field {
                    place: SourcePosition::from(key.referenced),
                    key: key.value,
                    tree: tree(value),
                })
                .collect(),
        ),
    };
    Tree { place, value }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Scalar(v.into()))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Scalar(v.into()))
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Scalar(v.into()))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Scalar(v.into()))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Scalar(v.into()))
    }

    fn visit_string<E: de::Error>(self, v: String) -> Result<Value, E> {
        Ok(Value::Scalar(v.into()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Scalar(Json::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Scalar(Json::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Value::Mapping(fields))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_line_and_column() {
        let trees =
            parse_documents("a: 1\nb:\n  - x: \"true\"\n  - y: no\n---\n# only a comment\n---\nc: {d: 2.5}\n").unwrap();
        assert_eq!(trees.len(), 2);
        assert_eq!(trees[0].to_json(), serde_json::json!({"a": 1, "b": [{"x": "true"}, {"y": "no"}]}));
        let (place, path) = trees[0].locate(&FieldPath::root().key("b").index(1).key("y"));
        assert_eq!((place, path.to_string().as_str()), (SourcePosition { line: 4, column: 5 }, "b[1].y"));
        let (place, _) = trees[1].locate(&FieldPath::root().key("c").key("d"));
        assert_eq!(place, SourcePosition { line: 8, column: 5 });
    }

    #[test]
    fn a_syntax_error_names_its_place() {
        let error = parse_documents("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(error.place.is_some_and(|place| place.line >= 2), "{error:?}");
        let error = parse_documents("a: 1\na: 2\n").unwrap_err();
        assert_eq!(error.place.map(|place| place.line), Some(2), "{error:?}");
    }

    #[test]
    fn paths_with_odd_keys_are_quoted() {
        let path = FieldPath::root().key("spec").key("labels").key("a/b").index(3);
        assert_eq!(path.to_string(), "spec.labels[\"a/b\"][3]");
        assert_eq!(FieldPath::root().key("labels").key("").to_string(), "labels[\"\"]");
    }

    #[test]
    fn paths_with_plain_keys_are_joined_with_dots() {
        let path = FieldPath::root().key("spec").index(0).key("node-type").key("node_type").key("Type2");
        assert_eq!(path.to_string(), "spec[0].node-type.node_type.Type2");
    }
}
