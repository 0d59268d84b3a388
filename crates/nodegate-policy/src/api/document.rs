//! Policy documents before they are compiled, and the errors in them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::api::names::is_dns_subdomain;
use crate::api::policy::NodePolicySpec;
use crate::api::problem::Problem;
use crate::api::schema::{ShapeFault, check, document_schema};
use crate::api::source::{
    Field, FieldPath, Node, Related, SourcePosition, SourceText, SyntaxError, Tree, parse_documents,
};

/// The label of something that a document has twice.
pub(crate) const THE_FIRST: &str = "the first one";

/// Where a document comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, by its path as given.
    File(String),
    /// A preset inside the binary.
    Preset,
    /// A `NodePolicy` object of a cluster.
    Object,
}

/// A `NodePolicy`, with the positions of its fields if it was parsed from a text. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PolicyDocument {
    /// `metadata.name`.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The spec.
    pub spec: Arc<NodePolicySpec>,
    tree: Option<Arc<Tree>>,
    /// The text of the file.
    text: Option<SourceText>,
    /// The fields that do not conform to the schema. They are not in `spec`.
    invalid: Arc<[FieldPath]>,
    /// The named entries by path.
    entries: Arc<HashMap<FieldPath, String>>,
    /// For flat label files: the grace period before labels that they no longer set are removed.
    pub(crate) flat_grace: Option<Duration>,
}

/// An error in a policy: where it is, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// The file, if there is one.
    pub file: Option<String>,
    /// Line and column, if known.
    pub place: Option<SourcePosition>,
    /// The policy's name, if it has one.
    pub policy: Option<String>,
    /// The rule or other entry that the field is in, if it has a name: `rule "gpu"`.
    pub entry: Option<String>,
    /// The field.
    pub path: FieldPath,
    /// What is wrong and what to do.
    pub problem: Problem,
    /// Another place in the file that the error is about.
    pub related: Option<Related>,
    /// The text of the file, if there is one.
    pub text: Option<SourceText>,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.policy) {
            (Some(file), _) => write!(f, "{file}:")?,
            (None, Some(policy)) => write!(f, "NodePolicy {policy}:")?,
            (None, None) => {}
        }
        if let (Some(_), Some(place)) = (&self.file, self.place) {
            write!(f, "{}:{}:", place.line, place.column)?;
        }
        match self.whereabouts() {
            Some(whereabouts) => write!(f, " {whereabouts}: {}", self.problem),
            None => write!(f, " {}", self.problem),
        }
    }
}

impl PolicyError {
    /// An error in a file that is no policy.
    pub fn in_file(origin: &Origin, text: Option<&SourceText>, path: FieldPath, problem: Problem) -> Self {
        let (file, text) = (origin.file(), text.cloned());
        Self { file, place: None, policy: None, entry: None, path, problem, related: None, text }
    }

    /// An error that keeps a file from being parsed at all.
    pub fn of_syntax(origin: &Origin, text: Option<&SourceText>, error: SyntaxError) -> Self {
        let SyntaxError { place, problem, related, exceeds_budget: _ } = error;
        Self { place, related, ..Self::in_file(origin, text, FieldPath::root(), problem) }
    }

    /// Sorts errors by their place, and removes those that say the same of one place.
    pub fn sort(errors: &mut Vec<Self>) {
        errors.sort_by(|a, b| (&a.file, a.place, &a.policy).cmp(&(&b.file, b.place, &b.policy)));
        let mut unique: Vec<Self> = Vec::with_capacity(errors.len());
        for error in errors.drain(..) {
            let here = |other: &&Self| (&other.file, other.place) == (&error.file, error.place);
            if !unique.iter().rev().take_while(here).any(|other| *other == error) {
                unique.push(error);
            }
        }
        *errors = unique;
    }

    /// The name of the entry and the field, such as `rule "gpu" (spec.rules[3].labels)`; `None` for the whole document.
    pub fn whereabouts(&self) -> Option<String> {
        let path = self.path.to_string();
        match &self.entry {
            Some(entry) => Some(format!("{entry} ({path})")),
            None => Some(path).filter(|path| !path.is_empty()),
        }
    }
}

impl PolicyDocument {
    /// A document that was not parsed from a text (a cluster object, flat label files).
    pub fn new(name: impl Into<String>, origin: Origin, spec: NodePolicySpec) -> Self {
        let (entries, invalid) = (Arc::default(), Arc::default());
        let spec = Arc::new(spec);
        Self { name: name.into(), origin, spec, tree: None, text: None, invalid, entries, flat_grace: None }
    }

    /// Marks a document of flat label files: labels are removed after `grace`, and absence is always false.
    pub fn with_flat_grace(self, grace: Duration) -> Self {
        Self { flat_grace: Some(grace), ..self }
    }

    /// The grace period of a document of flat label files.
    pub fn flat_grace(&self) -> Option<Duration> {
        self.flat_grace
    }

    /// Parses every `NodePolicy` of a YAML or JSON text. `v1/List` objects are split.
    ///
    /// Errors are added to `errors`. A document that does not conform to the schema is returned without
    /// the invalid parts, so that the rest can be compiled in the same pass. If there are errors, the
    /// documents must not come into force.
    pub fn parse_all(origin: &Origin, text: &str, errors: &mut Vec<PolicyError>) -> Vec<Self> {
        let source = matches!(origin, Origin::File(_)).then(|| SourceText::from(text));
        let trees = match parse_documents(text) {
            Ok(trees) => trees,
            Err(error) => {
                errors.push(PolicyError::of_syntax(origin, source.as_ref(), error));
                return Vec::new();
            }
        };
        let trees = trees.into_iter().flat_map(flatten_list);
        trees.filter_map(|tree| Self::from_tree(origin, source.as_ref(), tree, errors)).collect()
    }

    /// The policy in `tree`, which is in `text`. See [`Self::parse_all`].
    pub(crate) fn from_tree(
        origin: &Origin,
        text: Option<&SourceText>,
        mut tree: Tree,
        errors: &mut Vec<PolicyError>,
    ) -> Option<Self> {
        let mut faults = Vec::new();
        let entries = named_entries(&tree);
        drop_server_fields(&mut tree);
        check(&mut tree, document_schema(), &FieldPath::root(), &mut faults);
        let name = tree.field("metadata").and_then(|field| field.tree.text("name")).map(str::to_owned);
        if let Some(name) = name.as_deref().filter(|name| !is_dns_subdomain(name)) {
            let path = FieldPath::root().key("metadata").key("name");
            let problem = Problem::new(
                format!("{name:?} is not a valid name"),
                "write at most 253 lower-case letters, digits, '-' or '.'",
            );
            faults.push(ShapeFault { place: tree.locate_value(&path).0, path, problem });
        }
        let spec = tree.to_json().get("spec").cloned().unwrap_or_default();
        let spec = if spec.is_null() { Ok(NodePolicySpec::default()) } else { serde_json::from_value(spec) };
        let spec = spec.map_err(|error| {
            let path = FieldPath::root().key("spec");
            faults.push(ShapeFault { place: tree.locate(&path).0, path, problem: error.to_string().into() });
        });
        let invalid = faults.iter().map(|fault| fault.path.clone()).collect();
        errors.extend(faults.into_iter().map(|fault| PolicyError {
            file: origin.file(),
            place: Some(fault.place),
            policy: name.clone(),
            entry: entry_of(&entries, &fault.path),
            path: fault.path,
            problem: fault.problem,
            related: None,
            text: text.cloned(),
        }));
        Some(Self {
            name: name.unwrap_or_default(),
            origin: origin.clone(),
            spec: Arc::new(spec.ok()?),
            tree: Some(Arc::new(tree)),
            text: text.cloned(),
            invalid,
            entries: Arc::new(entries),
            flat_grace: None,
        })
    }

    /// An error at `path` in this document, with the position of its value if the document was parsed from a text.
    pub(crate) fn fault(&self, path: &FieldPath, problem: impl Into<Problem>) -> PolicyError {
        self.located(path, Tree::locate_value, problem.into())
    }

    /// As [`Self::fault`], about something that `first` already has.
    pub(crate) fn fault_again(&self, path: &FieldPath, first: &FieldPath, problem: Problem) -> PolicyError {
        let place = self.tree.as_ref().map(|tree| tree.locate_value(first).0);
        let related = place.map(|place| Related { place, label: THE_FIRST.to_owned() });
        PolicyError { related, ..self.fault(path, problem) }
    }

    /// As [`Self::fault`], at the name of a field.
    pub(crate) fn fault_at_key(&self, path: &FieldPath, problem: impl Into<Problem>) -> PolicyError {
        self.located(path, Tree::locate, problem.into())
    }

    fn located(
        &self,
        path: &FieldPath,
        locate: fn(&Tree, &FieldPath) -> (SourcePosition, FieldPath),
        problem: Problem,
    ) -> PolicyError {
        let located = self.tree.as_ref().map(|tree| locate(tree, path));
        let (place, path) = located.map_or_else(|| (None, path.clone()), |(place, written)| (Some(place), written));
        PolicyError {
            file: self.origin.file(),
            place,
            policy: Some(self.name.clone()),
            entry: entry_of(&self.entries, &path),
            path,
            problem,
            related: None,
            text: self.text.clone(),
        }
    }

    /// The position of a part of `value`, the string at `path`, in the file. `None` if the document has no file, or the
    /// position is not certain.
    pub(crate) fn place_inside(&self, path: &FieldPath, value: &str, part: Range<usize>) -> Option<SourcePosition> {
        let (tree, text) = (self.tree.as_ref()?, self.text.as_ref()?);
        tree.locate_value(path).0.inside(text.as_str(), value, part)
    }

    /// Whether a field at `path`, or in it, does not conform to the schema, so that other errors there may only follow from
    /// that.
    pub(crate) fn is_invalid_within(&self, path: &FieldPath) -> bool {
        let written = self.tree.as_ref().map(|tree| tree.locate(path).1);
        self.invalid.iter().any(|invalid| invalid.is_within(written.as_ref().unwrap_or(path)))
    }
}

impl Origin {
    fn file(&self) -> Option<String> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::Preset | Self::Object => None,
        }
    }
}

/// The named rules and other entries of a document by path.
fn named_entries(tree: &Tree) -> HashMap<FieldPath, String> {
    fn add(kind: &str, list: &Field, path: &FieldPath, found: &mut HashMap<FieldPath, String>) {
        let Node::List(items) = &list.tree.value else { return };
        let named = items.iter().filter_map(|(index, item)| Some((path.index(*index), item.text("name")?)));
        found.extend(named.map(|(path, name)| (path, format!("{kind} {name:?}"))));
    }
    let mut found = HashMap::new();
    let Some(spec) = tree.field("spec").map(|field| &field.tree) else { return found };
    let path = FieldPath::root().key("spec");
    for (section, kind) in [("rules", "rule"), ("inventory", "inventory")] {
        spec.field(section).into_iter().for_each(|list| add(kind, list, &path.key(section), &mut found));
    }
    if let Some(Node::Mapping(sections)) = spec.field("governance").map(|field| &field.tree.value) {
        let path = path.key("governance");
        sections.iter().for_each(|section| add("entry", section, &path.key(&section.key), &mut found));
    }
    found
}

/// The entry that contains a field. The path of `spec.rules[0]` has three steps, that of `spec.governance.reserved[0]` four.
fn entry_of(entries: &HashMap<FieldPath, String>, path: &FieldPath) -> Option<String> {
    [3, 4].into_iter().find_map(|steps| entries.get(&path.first(steps))).cloned()
}

/// The items of a `v1/List` (as `kubectl get -o yaml` prints it), or the document itself.
fn flatten_list(tree: Tree) -> Vec<Tree> {
    if tree.text("kind") != Some("List") {
        return vec![tree];
    }
    let Node::Mapping(fields) = tree.value else { return Vec::new() };
    let items = fields.into_iter().find(|field| field.key == "items").map(|field| field.tree.value);
    match items {
        Some(Node::List(items)) => items.into_iter().map(|(_, item)| item).collect(),
        _ => Vec::new(),
    }
}

/// Removes `status`, which the API server adds, so that the output of `kubectl get -o yaml` is a valid policy.
fn drop_server_fields(tree: &mut Tree) {
    if let Node::Mapping(fields) = &mut tree.value {
        fields.retain(|field| field.key != "status");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The documents of a file, and its errors as they are printed.
    fn parsed(text: &str) -> (Vec<PolicyDocument>, Vec<String>) {
        let mut errors = Vec::new();
        let documents = PolicyDocument::parse_all(&Origin::File("p.yaml".to_owned()), text, &mut errors);
        (documents, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_error_in_a_file_names_the_file_and_the_position() {
        let head = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: a}\n";
        let (_, errors) = parsed(&format!("{head}spec:\n  rulez: []\n"));
        assert_eq!(errors, ["p.yaml:5:3: spec.rulez: unknown field \"rulez\"; did you mean \"rules\"?"]);
        let (documents, errors) = parsed("a: [\n");
        assert!(documents.is_empty() && errors[0].starts_with("p.yaml:"), "{errors:?}");
        let (documents, _) = parsed(&format!("{head}spec:\n  rules: [{{name: r}}]\n"));
        let errors = crate::PolicySet::compile(&documents).unwrap_err();
        assert!(errors[0].to_string().starts_with("p.yaml:5:18: rule \"r\" (spec.rules[0]): "), "{errors:?}");
    }

    #[test]
    fn every_policy_of_a_list_is_a_document() {
        let item = |name: &str| {
            format!(
                "{{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {{name: {name}}}, spec: {{}}, status: {{}}}}"
            )
        };
        let (documents, errors) =
            parsed(&format!("{{apiVersion: v1, kind: List, items: [{}, {}]}}", item("a"), item("b")));
        assert_eq!(documents.iter().map(|document| document.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(errors.is_empty(), "{errors:?}");
        let (documents, errors) = parsed("{apiVersion: v1, kind: List, items: []}\n---\n{kind: List}\n");
        assert!(documents.is_empty() && errors.is_empty(), "{errors:?}");
    }
}
