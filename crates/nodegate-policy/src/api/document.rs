//! Policy documents before they are compiled, and the errors in them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::api::names::{cut_name, is_dns_subdomain};
use crate::api::policy::NodePolicySpec;
use crate::api::problem::Problem;
use crate::api::schema::{ShapeFault, check, document_schema};
use crate::api::source::positions::{Documents, InText, NamedEntries, Parsed, Positions};
use crate::api::source::{
    FieldPath, Node, Related, SourcePosition, SourceText, SyntaxError, Tree, parse_documents, parse_documents_within,
};

/// The label of something that a document has twice.
pub(crate) const THE_FIRST: &str = "the first one";

/// Maximum number of lists, mappings, names and values of an object. Anyone who reaches the webhook can have an object
/// parsed, so this is less than for a file. The 2,000 rules that the CRD allows have about 30,000.
pub(crate) const OBJECT_VALUES_MAX: usize = 50_000;

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
    positions: Option<Positions>,
    /// The text of the file.
    text: Option<SourceText>,
    /// The fields that do not conform to the schema. They are not in `spec`.
    invalid: Arc<[FieldPath]>,
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
        let (spec, invalid) = (Arc::new(spec), Arc::default());
        Self { name: name.into(), origin, spec, positions: None, text: None, invalid, flat_grace: None }
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
        let text_of_file = matches!(origin, Origin::File(_)).then(|| SourceText::from(text));
        let parsed = match origin {
            Origin::Object => parse_documents_within(text, OBJECT_VALUES_MAX),
            Origin::File(_) | Origin::Preset => parse_documents(text),
        };
        let trees = match parsed {
            Ok(trees) => trees.into_iter().flat_map(flatten_list),
            Err(error) => {
                errors.push(PolicyError::of_syntax(origin, text_of_file.as_ref(), error));
                return Vec::new();
            }
        };
        let documents = text_of_file.clone().map(|text| Arc::new(Documents::new(text, prepared_trees)));
        let read = |(at, tree)| {
            let source = documents.clone().map(|documents| InText { documents, at });
            Self::read(origin, text_of_file.as_ref(), source, tree, errors)
        };
        trees.enumerate().filter_map(read).collect()
    }

    /// The policy in `tree`, which is in `text`. See [`Self::parse_all`].
    pub(crate) fn from_tree(
        origin: &Origin,
        text: Option<&SourceText>,
        tree: Tree,
        errors: &mut Vec<PolicyError>,
    ) -> Option<Self> {
        Self::read(origin, text, None, tree, errors)
    }

    /// The policy in `tree`, which is that of `source` if it is known.
    fn read(
        origin: &Origin,
        text: Option<&SourceText>,
        source: Option<InText>,
        mut tree: Tree,
        errors: &mut Vec<PolicyError>,
    ) -> Option<Self> {
        if let Some(error) = other_kind(origin, text, &tree) {
            errors.push(error);
            return None;
        }
        let mut faults = Vec::new();
        // Before the invalid ones are removed.
        let entries = NamedEntries::of(&tree);
        prepare(&mut tree, &mut faults);
        let name = tree.field("metadata").and_then(|field| field.tree.text("name"));
        let is_valid = name.is_none_or(is_dns_subdomain);
        let name = name.map(|name| cut_name(name).to_owned());
        if let Some(name) = name.as_deref().filter(|_| !is_valid) {
            let path = FieldPath::root().key("metadata").key("name");
            let problem = Problem::new(
                format!("{name:?} is not a valid name"),
                "write at most 253 lower-case letters, digits, '-' or '.'",
            );
            faults.push(ShapeFault { place: tree.locate_value(&path).0, path, problem });
        }
        let spec = tree.field("spec").map(|spec| spec.tree.to_json()).unwrap_or_default();
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
            entry: entries.containing(&fault.path),
            path: fault.path,
            problem: fault.problem,
            related: None,
            text: text.cloned(),
        }));
        Some(Self {
            name: name.unwrap_or_default(),
            origin: origin.clone(),
            spec: Arc::new(spec.ok()?),
            positions: Some(Positions::new(Parsed { tree, entries }, source)),
            text: text.cloned(),
            invalid,
            flat_grace: None,
        })
    }

    /// The same document without the tree of its text, which takes much memory and is parsed again for the first error.
    #[must_use]
    pub fn settled(self) -> Self {
        Self { positions: self.positions.map(Positions::settled), ..self }
    }

    fn parsed(&self) -> Option<&Parsed> {
        self.positions.as_ref()?.parsed()
    }

    /// An error at `path` in this document, with the position of its value if the document was parsed from a text.
    pub(crate) fn fault(&self, path: &FieldPath, problem: impl Into<Problem>) -> PolicyError {
        self.located(path, Tree::locate_value, problem.into())
    }

    /// The names of the fields of `metadata`; none if the document was not parsed from a text.
    pub(crate) fn metadata_fields(&self) -> Vec<&str> {
        let metadata = self.parsed().and_then(|parsed| parsed.tree.field("metadata"));
        match metadata.map(|field| &field.tree.value) {
            Some(Node::Mapping(fields)) => fields.iter().map(|field| field.key.as_str()).collect(),
            _ => Vec::new(),
        }
    }

    /// The text from the value at `path` on, as it is written; `None` if the document was not parsed from a text.
    pub(crate) fn written_at(&self, path: &FieldPath) -> Option<&str> {
        self.text.as_ref()?.as_str().get(self.parsed()?.tree.locate_value(path).0.start()..)
    }

    /// As [`Self::fault`], about something that `first` already has.
    pub(crate) fn fault_again(&self, path: &FieldPath, first: &FieldPath, problem: Problem) -> PolicyError {
        let place = self.parsed().map(|parsed| parsed.tree.locate_value(first).0);
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
        let parsed = self.parsed();
        let located = parsed.map(|parsed| locate(&parsed.tree, path));
        let (place, path) = located.map_or_else(|| (None, path.clone()), |(place, written)| (Some(place), written));
        PolicyError {
            file: self.origin.file(),
            place,
            policy: Some(self.name.clone()),
            entry: parsed.and_then(|parsed| parsed.entries.containing(&path)),
            path,
            problem,
            related: None,
            text: self.text.clone(),
        }
    }

    /// The position of a part of `value`, the string at `path`, in the file. `None` if the document has no file, or the
    /// position is not certain.
    pub(crate) fn place_inside(&self, path: &FieldPath, value: &str, part: Range<usize>) -> Option<SourcePosition> {
        let (parsed, text) = (self.parsed()?, self.text.as_ref()?);
        parsed.tree.locate_value(path).0.inside(text.as_str(), value, part)
    }

    /// Whether a field at `path`, or in it, does not conform to the schema, so that other errors there may only follow from
    /// that.
    pub(crate) fn is_invalid_within(&self, path: &FieldPath) -> bool {
        if self.invalid.is_empty() {
            return false;
        }
        let written = self.parsed().map(|parsed| parsed.tree.locate(path).1);
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

/// The error of an object of Kubernetes that is no policy.
fn other_kind(origin: &Origin, text: Option<&SourceText>, tree: &Tree) -> Option<PolicyError> {
    let (version, kind) = (tree.text("apiVersion")?, tree.text("kind")?);
    if version.starts_with("nodegate.dev/") || kind == "NodePolicy" {
        return None;
    }
    let remedy = match kind {
        "Node" => "give a file with NodePolicies; `nodegate plan --policy POLICY FILE` reads nodes",
        _ => "give files with NodePolicies",
    };
    let path = FieldPath::root().key("kind");
    let place = tree.locate_value(&path).0;
    let problem = Problem::new(format!("this is a {kind}, not a NodePolicy"), remedy);
    Some(PolicyError { place: Some(place), ..PolicyError::in_file(origin, text, path, problem) })
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

/// The documents of a text, as they were read.
fn prepared_trees(text: &str) -> Vec<Tree> {
    let prepared = |mut tree| {
        prepare(&mut tree, &mut Vec::new());
        tree
    };
    parse_documents(text).into_iter().flatten().flat_map(flatten_list).map(prepared).collect()
}

/// Removes what is no part of a policy, and what does not conform to the schema.
fn prepare(tree: &mut Tree, faults: &mut Vec<ShapeFault>) {
    drop_server_fields(tree);
    check(tree, document_schema(), &FieldPath::root(), faults);
}

/// Removes `status`, which the API server adds, so that the output of `kubectl get -o yaml` is a valid policy.
fn drop_server_fields(tree: &mut Tree) {
    if let Node::Mapping(fields) = &mut tree.value {
        fields.retain(|field| field.key != "status");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
