//! YAML (and JSON) text as a tree with the position of every value.
//!
//! Errors that are found after parsing (an invalid label value, a cycle between rules) still have a line
//! and a column: they have a [`FieldPath`], and the tree converts it to a position.

mod encoding;
mod parse;
mod path;
mod place;
pub mod positions;
mod quotes;
mod traps;
mod value;

use serde_json::{Map as JsonMap, Value as Json};

pub use encoding::{NotText, decode};
pub use parse::{parse_documents, parse_documents_within};
pub use path::{FieldPath, Segment};
pub use place::{SourcePosition, SourceText};
pub(crate) use traps::quoted;
pub use traps::{Related, SyntaxError};

/// A value with its position.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The position of the value.
    pub place: SourcePosition,
    /// The value.
    pub value: Node,
    /// The value as written, if it is written without quotes and YAML reads it as something else than that text: `1.10`.
    pub written: Option<Box<str>>,
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

/// A tree without positions.
impl From<Json> for Tree {
    fn from(value: Json) -> Self {
        let place = SourcePosition::default();
        let value = match value {
            Json::Array(items) => Node::List(items.into_iter().map(Self::from).enumerate().collect()),
            Json::Object(fields) => {
                let field = |(key, value)| Field { key, place, tree: Self::from(value) };
                Node::Mapping(fields.into_iter().map(field).collect())
            }
            scalar => Node::Scalar(scalar),
        };
        Self { place, value, written: None }
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

    /// The value of the field `key` of a mapping.
    pub fn field_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.value {
            Node::Mapping(fields) => fields.iter_mut().find(|field| field.key == key).map(|field| &mut field.tree),
            _ => None,
        }
    }

    /// The string in the field `key`, if it is a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.field(key)?.tree.as_text()
    }

    /// The value, if it is a string.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Node::Scalar(Json::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Finds `path`, or its longest existing part. Returns the position, which for a field is that of its name, and the
    /// path with the list indexes of the text, even if invalid items were removed.
    pub fn locate(&self, path: &FieldPath) -> (SourcePosition, FieldPath) {
        let (key, tree, written) = self.walk(path);
        (key.unwrap_or(tree.place), written)
    }

    /// As [`Self::locate`], with the position of what is written there: the value of a field, or the name of an entry. A
    /// mapping or list, and a field without a value, are found by their names.
    pub fn locate_value(&self, path: &FieldPath) -> (SourcePosition, FieldPath) {
        let (key, tree, written) = self.walk(path);
        let place = match (&tree.value, key) {
            (Node::Scalar(Json::Null) | Node::List(_) | Node::Mapping(_), Some(key)) => key,
            _ => tree.head(),
        };
        (place, written)
    }

    /// The longest existing part of `path`: the position of its name if it is a field, its value, and the path as written.
    fn walk(&self, path: &FieldPath) -> (Option<SourcePosition>, &Self, FieldPath) {
        let (mut key, mut tree) = (None, self);
        let mut complete = true;
        let mut written = FieldPath::root();
        for segment in &path.0 {
            let next = match (segment, &tree.value) {
                (Segment::Key(name), Node::Mapping(_)) if complete => {
                    tree.field(name).map(|field| (Some(field.place), segment.clone(), &field.tree))
                }
                (Segment::Index(index), Node::List(items)) if complete => {
                    items.get(*index).map(|(index, item)| (None, Segment::Index(*index), item))
                }
                _ => None,
            };
            complete = next.is_some();
            written.0.push(next.as_ref().map_or_else(|| segment.clone(), |(_, segment, _)| segment.clone()));
            if let Some((place, _, next)) = next {
                (key, tree) = (place, next);
            }
        }
        (key, tree, written)
    }

    /// The position that stands for this value: the name of an entry, or where the value begins.
    pub(crate) fn head(&self) -> SourcePosition {
        let Node::Mapping(fields) = &self.value else { return self.place };
        let name = self.field("name").filter(|name| matches!(name.tree.value, Node::Scalar(Json::String(_))));
        match (name, fields.first()) {
            (Some(name), _) => name.tree.place,
            (None, Some(first)) if first.place.start() == self.place.start() => first.place,
            (None, _) => self.place,
        }
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
        assert_eq!((place.line, place.column, path.to_string().as_str()), (4, 5, "b[1].y"));
        let (place, _) = trees[1].locate(&FieldPath::root().key("c").key("d"));
        assert_eq!((place.line, place.column), (8, 5));
    }

    #[test]
    fn a_syntax_error_names_its_place() {
        let error = parse_documents("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(error.place.is_some_and(|place| place.line >= 2), "{error:?}");
        let error = parse_documents("a: 1\na: 2\n").unwrap_err();
        assert_eq!(error.place.map(|place| place.line), Some(2), "{error:?}");
    }
}
