//! Where the fields of a document are in its text.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::api::source::{Field, FieldPath, Node, SourceText, Tree};

/// The positions of a document's fields and the names of its entries, for errors.
///
/// Documents in force rarely have an error, and the tree of a large one takes far more memory than its text. So it is not
/// kept ([`Positions::settled`]), but parsed again for the first error.
#[derive(Debug)]
pub(super) struct Positions {
    /// The text, and how to parse the document in it again; `None` if only the tree is known.
    source: Option<(SourceText, Reparse)>,
    parsed: OnceLock<Option<Parsed>>,
}

/// Which document of a text it is, and how the tree of that one is parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reparse {
    pub(super) at: usize,
    pub(super) tree: fn(&str, usize) -> Option<Tree>,
}

/// A document's tree, and its named entries by path.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) tree: Tree,
    entries: OnceLock<HashMap<FieldPath, String>>,
}

impl Positions {
    /// The positions in a tree.
    pub(super) fn new(tree: Tree, source: Option<(SourceText, Reparse)>) -> Self {
        Self { source, parsed: OnceLock::from(Some(Parsed::new(tree))) }
    }

    /// The same without the tree, if that can be parsed again.
    pub(super) fn settled(self: Arc<Self>) -> Arc<Self> {
        match &self.source {
            Some(source) => Arc::new(Self { source: Some(source.clone()), parsed: OnceLock::new() }),
            None => self,
        }
    }

    /// The tree; `None` if the text cannot be parsed any more, which would be an error in this program.
    pub(super) fn parsed(&self) -> Option<&Parsed> {
        let again = || {
            let (text, Reparse { at, tree }) = self.source.as_ref()?;
            tree(text.as_str(), *at).map(Parsed::new)
        };
        self.parsed.get_or_init(again).as_ref()
    }
}

impl Parsed {
    fn new(tree: Tree) -> Self {
        Self { tree, entries: OnceLock::new() }
    }

    /// The entry that contains a field.
    pub(super) fn entry_of(&self, path: &FieldPath) -> Option<String> {
        entry_of(self.entries.get_or_init(|| named_entries(&self.tree)), path)
    }
}

/// The named rules and other entries of a document by path.
pub(super) fn named_entries(tree: &Tree) -> HashMap<FieldPath, String> {
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
pub(super) fn entry_of(entries: &HashMap<FieldPath, String>, path: &FieldPath) -> Option<String> {
    [3, 4].into_iter().find_map(|steps| entries.get(&path.first(steps))).cloned()
}
