//! What is read of the documents of other programs: every field is either known or a reason to leave its rule where it is.

use std::collections::BTreeSet;

use crate::api::document::{Origin, PolicyError};
use crate::api::problem::Problem;
use crate::api::source::{Field, FieldPath, Node, SourceText, Tree, parse_documents};
use crate::keys;

/// Why a rule is not translated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// The line in its file.
    pub line: u32,
    /// What has no exact form here, and what to do.
    pub text: String,
}

/// The reasons of one rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Reasons(pub(super) Vec<Reason>);

impl Reasons {
    pub(super) fn add(&mut self, line: u32, text: impl Into<String>) {
        self.0.push(Reason { line, text: text.into() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a reason for each field that has a value and is not known. `whose` is what the fields are in.
    pub(super) fn of_unknown(&mut self, tree: &Tree, known: &[&str], whose: &str) {
        for field in fields(tree).iter().filter(|field| !field.tree.is_null() && !known.contains(&field.key.as_str())) {
            self.add(field.place.line, format!("`{}` of {whose} has no exact translation", field.key));
        }
        if !matches!(tree.value, Node::Mapping(_)) {
            self.add(tree.place.line, format!("{whose} is not a mapping"));
        }
    }
}

/// Keys of nodes that a rule sets or reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    pub(super) keys: BTreeSet<(keys::Field, String)>,
    /// Whether it may be others as well.
    pub(super) unknown: bool,
}

impl Keys {
    pub(super) fn unknown() -> Self {
        Self { unknown: true, ..Self::default() }
    }

    pub(super) fn add(&mut self, field: keys::Field, key: &str) {
        self.keys.insert((field, key.to_owned()));
    }
}

/// An object in a file.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) file: String,
    /// The number of its document in the file, from 1.
    pub(super) document: usize,
    pub(super) kind: String,
    pub(super) version: String,
    pub(super) name: String,
    pub(super) tree: Tree,
}

/// The objects of files, given by name and text, those of lists one by one. `is_wanted` judges `apiVersion` and `kind`.
///
/// # Errors
/// Returns all that is wrong: what is not YAML, and objects that are not wanted, for which `remedy` says what to pass.
pub(super) fn objects(
    files: &[(String, String)],
    is_wanted: fn(&str, &str) -> bool,
    remedy: &str,
) -> Result<Vec<Object>, Vec<PolicyError>> {
    let (mut objects, mut errors) = (Vec::new(), Vec::new());
    for (file, text) in files {
        let (origin, text) = (Origin::File(file.clone()), SourceText::from(text.as_str()));
        let trees = match parse_documents(text.as_str()) {
            Ok(trees) => trees,
            Err(error) => {
                errors.push(PolicyError::of_syntax(&origin, Some(&text), error));
                continue;
            }
        };
        if trees.is_empty() {
            let problem = Problem::new("the file has no object", remedy);
            errors.push(PolicyError::in_file(&origin, None, FieldPath::root(), problem));
        }
        for (document, tree) in trees.into_iter().enumerate() {
            let is_list = tree.text("kind").is_some_and(|kind| kind.ends_with("List"));
            let all = match tree.field("items").map(|items| &items.tree.value) {
                Some(Node::List(items)) if is_list => items.iter().map(|(_, item)| item.clone()).collect(),
                _ => vec![tree],
            };
            for tree in all {
                let text_of = |key| tree.text(key).unwrap_or_default().to_owned();
                let (version, kind) = (text_of("apiVersion"), text_of("kind"));
                if !is_wanted(&version, &kind) {
                    let place = tree.field("kind").map_or(tree.place, |kind| kind.tree.place);
                    let what = match kind.as_str() {
                        "" => "the object has no kind".to_owned(),
                        kind => format!("this is a {kind} of {version:?}"),
                    };
                    let problem = Problem::new(what, remedy);
                    let error = PolicyError::in_file(&origin, Some(&text), FieldPath::root().key("kind"), problem);
                    errors.push(PolicyError { place: Some(place), ..error });
                    continue;
                }
                let name = tree.field("metadata").and_then(|metadata| metadata.tree.text("name"));
                let name = name.unwrap_or_default().to_owned();
                objects.push(Object { file: file.clone(), document: document + 1, kind, version, name, tree });
            }
        }
    }
    if errors.is_empty() { Ok(objects) } else { Err(errors) }
}

/// The fields of a mapping.
pub(super) fn fields(tree: &Tree) -> &[Field] {
    match &tree.value {
        Node::Mapping(fields) => fields,
        _ => &[],
    }
}

/// The items of a list.
pub(super) fn items(tree: &Tree) -> impl Iterator<Item = &Tree> {
    let items = match &tree.value {
        Node::List(items) => items.as_slice(),
        _ => &[],
    };
    items.iter().map(|(_, item)| item)
}

/// The field of a mapping, if it has a value.
pub(super) fn given<'t>(tree: &'t Tree, key: &str) -> Option<&'t Field> {
    tree.field(key).filter(|field| !field.tree.is_null())
}

/// The items of the list in a field; none if it has no value.
pub(super) fn list<'t>(tree: &'t Tree, key: &str) -> impl Iterator<Item = &'t Tree> + use<'t> {
    given(tree, key).into_iter().flat_map(|field| items(&field.tree))
}

/// As [`list`]. A value that is no list is a reason.
pub(super) fn listed<'t>(tree: &'t Tree, key: &str, reasons: &mut Reasons) -> impl Iterator<Item = &'t Tree> + use<'t> {
    if let Some(field) = given(tree, key).filter(|field| !matches!(field.tree.value, Node::List(_))) {
        reasons.add(field.place.line, format!("`{key}` is not a list"));
    }
    list(tree, key)
}

/// The entries of the mapping in a field; none if it has no value. A value that is no mapping is a reason.
pub(super) fn entries<'t>(tree: &'t Tree, key: &str, reasons: &mut Reasons) -> &'t [Field] {
    let Some(field) = given(tree, key) else { return &[] };
    if !matches!(field.tree.value, Node::Mapping(_)) {
        reasons.add(field.place.line, format!("`{key}` is not a mapping"));
    }
    fields(&field.tree)
}

/// The texts of a list. What is not a list with at least one text, and only texts, is a reason.
pub(super) fn texts(field: &Field, whose: &str, reasons: &mut Reasons) -> Vec<String> {
    let all: Vec<&Tree> = items(&field.tree).collect();
    let texts: Vec<String> = all.iter().filter_map(|item| item.as_text()).map(str::to_owned).collect();
    if texts.is_empty() || texts.len() < all.len() {
        let key = &field.key;
        reasons.add(field.place.line, format!("`{key}` of {whose} is not a list of texts with at least one item"));
    }
    texts
}

/// Calls `see` with each name and text in a tree, and its line.
pub(super) fn each_text(tree: &Tree, see: &mut impl FnMut(u32, &str)) {
    match &tree.value {
        Node::Scalar(_) => tree.as_text().into_iter().for_each(|text| see(tree.place.line, text)),
        Node::List(items) => items.iter().for_each(|(_, item)| each_text(item, see)),
        Node::Mapping(fields) => {
            for field in fields {
                see(field.place.line, &field.key);
                each_text(&field.tree, see);
            }
        }
    }
}
