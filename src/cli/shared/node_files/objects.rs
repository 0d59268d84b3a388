//! The objects of Kubernetes in a file, in every form in which kubectl, client libraries and `jq` write them.
//!
//! YAML and JSON; several documents, JSON one after the other or one a line; lists, also those of an API server, whose items have
//! no kind, and bare arrays.

use std::ops::Range;

use nodegate_policy::api::problem::Problem;
use nodegate_policy::api::schema::ShapeFault;
use nodegate_policy::api::source::{
    FieldPath, Node, Related, SourcePosition, SourceText, SyntaxError, Tree, parse_documents_within,
};
use nodegate_policy::simulate::{read_node, read_object};
use nodegate_policy::{Origin, PolicyError, without_place};
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

/// Maximum number of lists, mappings, names and values of a YAML document: about a thousand nodes as kubectl prints them. The parser
/// remembers the position of each. JSON has no limit.
const YAML_VALUES_MAX: usize = 2_000_000;
/// The number of errors after which a file is not read further.
const ERRORS_MAX: usize = 100;
/// Maximum number of lists in each other: an array of Lists has two.
const LISTS_MAX: usize = 8;

/// The objects that a command takes.
#[derive(Clone, Copy)]
pub(in crate::cli) struct Wanted {
    /// Their kinds.
    pub(in crate::cli) kinds: &'static [&'static str],
    /// What to pass, for errors.
    pub(in crate::cli) expected: &'static str,
}

/// An object of one of the kinds that are wanted.
pub(in crate::cli) struct Object {
    pub(in crate::cli) kind: &'static str,
    pub(in crate::cli) json: Json,
}

/// Reads the objects of a text.
///
/// # Errors
/// Returns what is wrong, with its place: what is neither YAML nor JSON, objects of other kinds, and values that the API server
/// refuses.
pub(super) fn read(file: &str, text: &str, wanted: Wanted) -> Result<Vec<Object>, Vec<PolicyError>> {
    let origin = Origin::File(file.to_owned());
    let mut reader = Reader { text, origin, wanted, lists: 0, found: Vec::new(), errors: Vec::new() };
    reader.read();
    if reader.errors.is_empty() { Ok(reader.found) } else { Err(reader.errors) }
}

struct Reader<'t> {
    text: &'t str,
    origin: Origin,
    wanted: Wanted,
    /// The number of lists around what is read.
    lists: usize,
    found: Vec<Object>,
    errors: Vec<PolicyError>,
}

/// What is known of a list or an object before it is parsed.
#[derive(Deserialize)]
struct Head<'t> {
    #[serde(default)]
    kind: Json,
    #[serde(borrow, default)]
    items: Option<&'t RawValue>,
}

/// Why an object is refused.
struct Refused {
    /// Its kind and its name, if it has one.
    entry: Option<String>,
    faults: Vec<ShapeFault>,
}

impl<'t> Reader<'t> {
    fn read(&mut self) {
        let root = FieldPath::root();
        let (mut rest, mut fault) = (self.text, None);
        loop {
            // Files with a byte order mark may have been put together.
            rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\u{feff}');
            if !rest.starts_with(['{', '[']) {
                break;
            }
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&'t RawValue>();
            match values.next() {
                Some(Ok(value)) => self.json(value.get(), None, &root),
                Some(Err(error)) => fault = Some(error),
                None => {}
            }
            if fault.is_some() {
                break;
            }
            rest = &rest[values.byte_offset()..];
        }
        match (parse_documents_within(rest, YAML_VALUES_MAX), fault) {
            (Ok(documents), _) => {
                let at = self.offset(rest);
                documents.into_iter().for_each(|document| self.yaml(document, at, None, &root));
            }
            // What begins as JSON may be YAML, but not if it is only cut off, or too large for YAML.
            (Err(error), Some(fault)) if error.exceeds_budget || fault.is_eof() => self.invalid_json(rest, &fault),
            (Err(error), _) => self.invalid_yaml(rest, error),
        }
    }

    /// Reads a list or an object in JSON. `kind` is that of the items of the list that it is in.
    fn json(&mut self, text: &'t str, kind: Option<&str>, path: &FieldPath) {
        if self.errors.len() >= ERRORS_MAX {
            return;
        }
        if text.starts_with('[') && self.lists == 0 {
            return self.json_items(text, kind, path);
        }
        match serde_json::from_str::<Head<'t>>(text) {
            Ok(Head { kind: own, items }) if self.lists < LISTS_MAX && is_list(own.as_str(), items.is_some()) => {
                if let Some(items) = items {
                    self.json_items(items.get(), own.as_str().and_then(kind_of_items), &path.key("items"));
                }
            }
            Ok(_) | Err(_) => self.json_object(text, kind, path),
        }
    }

    fn json_items(&mut self, text: &'t str, kind: Option<&str>, path: &FieldPath) {
        match serde_json::from_str::<Option<Vec<&'t RawValue>>>(text) {
            Ok(items) => {
                self.lists += 1;
                for (index, item) in items.into_iter().flatten().enumerate() {
                    self.json(item.get(), kind, &path.index(index));
                }
                self.lists -= 1;
            }
            Err(_) => {
                let at = self.offset(text);
                self.error(Some(at..at + 1), path.clone(), None, no_list());
            }
        }
    }

    fn json_object(&mut self, text: &'t str, kind: Option<&str>, path: &FieldPath) {
        let value = match serde_json::from_str::<Json>(text) {
            Ok(value) => value,
            Err(fault) => return self.invalid_json(text, &fault),
        };
        let Some(refused) = self.add(Tree::from(value), kind, path) else { return };
        // Once more, for the positions.
        let placed = parse_documents_within(text, YAML_VALUES_MAX).ok().and_then(|mut documents| documents.pop());
        match placed.and_then(|tree| self.add(tree, kind, path)) {
            Some(placed) => self.refuse(placed, Some(self.offset(text))),
            None => self.refuse(refused, None),
        }
    }

    /// Reads a list or an object in YAML, of a text that begins at the byte `at`.
    fn yaml(&mut self, mut tree: Tree, at: usize, kind: Option<&str>, path: &FieldPath) {
        if self.errors.len() >= ERRORS_MAX {
            return;
        }
        let own = tree.text("kind").map(str::to_owned);
        let is_bare = matches!(tree.value, Node::List(_)) && self.lists == 0;
        if !is_bare && !is_list(own.as_deref(), tree.field("items").is_some()) {
            if let Some(refused) = self.add(tree, kind, path) {
                self.refuse(refused, Some(at));
            }
            return;
        }
        let (kind, path) = match is_bare {
            true => (kind, path.clone()),
            false => (own.as_deref().and_then(kind_of_items), path.key("items")),
        };
        let items = if is_bare { Some(&mut tree) } else { tree.field_mut("items") };
        match items.map(|items| (items.place, std::mem::replace(&mut items.value, Node::Scalar(Json::Null)))) {
            Some((_, Node::List(items))) => {
                self.lists += 1;
                items.into_iter().for_each(|(index, item)| self.yaml(item, at, kind, &path.index(index)));
                self.lists -= 1;
            }
            None | Some((_, Node::Scalar(Json::Null))) => {}
            Some((place, _)) => self.error(Some(at + place.start()..at + place.end()), path, None, no_list()),
        }
    }

    /// Adds the object in `tree`, or returns why it is refused.
    fn add(&mut self, mut tree: Tree, listed: Option<&str>, path: &FieldPath) -> Option<Refused> {
        let name = tree.field("metadata").and_then(|metadata| metadata.tree.text("name")).map(str::to_owned);
        let place = tree.locate_value(&FieldPath::root()).0;
        let mut faults = Vec::new();
        let own = tree.text("kind").filter(|kind| !kind.is_empty());
        let kind = own.or(listed).or_else(|| is_node(&tree).then_some("Node"));
        let entry = name.map(|name| format!("{} {name:?}", kind.unwrap_or("object")));
        match (kind, kind.and_then(|kind| self.wanted.kinds.iter().copied().find(|wanted| *wanted == kind))) {
            (_, Some(kind)) => {
                check(kind, &mut tree, path, &mut faults);
                if faults.is_empty() {
                    self.found.push(Object { kind, json: tree.to_json() });
                    return None;
                }
            }
            (found, None) => {
                let (what, path) = match (found, &tree.value) {
                    (Some(kind), _) => (format!("kind is {kind:?}"), path.key("kind")),
                    (None, Node::Mapping(_)) => ("the object has no kind".to_owned(), path.clone()),
                    (None, _) => ("this is not an object of Kubernetes".to_owned(), path.clone()),
                };
                let place = tree.field("kind").map_or(place, |kind| kind.tree.place);
                let problem = Problem::new(what, format!("pass {}", self.wanted.expected));
                faults.push(ShapeFault { place, path, problem });
            }
        }
        Some(Refused { entry, faults })
    }

    /// Adds the errors of an object in a text that begins at the byte `at`; without one, their positions are not known.
    fn refuse(&mut self, Refused { entry, faults }: Refused, at: Option<usize>) {
        for ShapeFault { place, path, problem } in faults {
            let bytes = at.map(|at| at + place.start()..at + place.end());
            self.error(bytes, path, entry.clone(), problem);
        }
    }

    /// The error of what is neither JSON nor YAML.
    fn invalid_yaml(&mut self, text: &str, SyntaxError { place, problem, related, exceeds_budget }: SyntaxError) {
        let problem = match exceeds_budget {
            true => Problem::new(problem.what, "write it as JSON, as `kubectl get nodes -o json` does"),
            false => problem,
        };
        let at = self.offset(text);
        let moved = |place: SourcePosition| {
            SourcePosition::of_bytes(self.text, at + place.start()..at + place.end()).unwrap_or(place)
        };
        let (place, source) = (place.map(moved), SourceText::from(self.text));
        let related = related.map(|Related { place, label }| Related { place: moved(place), label });
        let error = SyntaxError { place, problem, related, exceeds_budget };
        self.errors.push(PolicyError::of_syntax(&self.origin, Some(&source), error));
    }

    fn invalid_json(&mut self, text: &str, fault: &serde_json::Error) {
        let lines = text.split_inclusive('\n').take(fault.line().saturating_sub(1));
        let at = self.offset(text) + lines.map(str::len).sum::<usize>() + fault.column().saturating_sub(1);
        let what = without_place(fault);
        let remedy = if fault.is_eof() {
            "the file ends too early: write it again"
        } else {
            "write it as `kubectl get nodes -o json` does"
        };
        self.error(Some(at..at + 1), FieldPath::root(), None, Problem::new(format!("invalid JSON: {what}"), remedy));
    }

    /// Adds an error about these bytes.
    fn error(&mut self, bytes: Option<Range<usize>>, path: FieldPath, entry: Option<String>, problem: Problem) {
        let place = bytes.and_then(|bytes| SourcePosition::of_bytes(self.text, bytes));
        let source = self.errors.first().and_then(|error| error.text.clone());
        let source = source.unwrap_or_else(|| SourceText::from(self.text));
        let error = PolicyError::in_file(&self.origin, Some(&source), path, problem);
        self.errors.push(PolicyError { place, entry, ..error });
    }

    /// The byte at which a part of the text begins.
    fn offset(&self, part: &str) -> usize {
        part.as_ptr().addr() - self.text.as_ptr().addr()
    }
}

/// Whether an object with this kind is a list. Client libraries write lists without a kind.
fn is_list(kind: Option<&str>, has_items: bool) -> bool {
    kind.filter(|kind| !kind.is_empty()).map_or(has_items, |kind| kind.ends_with("List"))
}

/// The kind of the items of a list of this kind: those that an API server lists have none of their own.
fn kind_of_items(list: &str) -> Option<&str> {
    list.strip_suffix("List").filter(|kind| !kind.is_empty())
}

fn no_list() -> Problem {
    Problem::new("the items are not a list", "write them as [{…}, …]")
}

/// Whether an object without a kind is a Node, as `jq '.items[]'` prints those that an API server lists. Nothing else has this field.
fn is_node(tree: &Tree) -> bool {
    let status = tree.field("status").map(|status| &status.tree);
    status.and_then(|status| status.field("nodeInfo")).is_some_and(|info| matches!(info.tree.value, Node::Mapping(_)))
}

fn check(kind: &str, tree: &mut Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    match kind {
        "Node" => {
            read_node(tree, path, faults);
            let metadata = tree.field("metadata").map(|field| &field.tree);
            let has = |name| metadata.and_then(|metadata| metadata.text(name)).is_some_and(|name| !name.is_empty());
            if faults.is_empty() && !has("name") && !has("generateName") {
                let place = tree.locate_value(&FieldPath::root()).0;
                let problem = Problem::new("the Node has no name", "add metadata.name");
                faults.push(ShapeFault { place, path: path.clone(), problem });
            }
        }
        "AdmissionReview" => {
            for name in ["object", "oldObject"] {
                let node = tree.field_mut("request").and_then(|request| request.field_mut(name));
                if let Some(node) = node.filter(|node| !node.is_null()) {
                    read_node(node, &path.key("request").key(name), faults);
                }
            }
        }
        _ => read_object(tree, path, faults),
    }
}
