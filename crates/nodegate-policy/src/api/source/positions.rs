//! Where the fields of a document are in its text.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::api::names::cut_name;
use crate::api::source::{Field, FieldPath, Node, SourceText, Tree};

/// The positions of a document's fields and the names of its entries, for errors.
///
/// Documents in force rarely have an error, and the tree of a large one takes far more memory than its text. So it is not
/// kept ([`Positions::settled`]), but parsed again for the first error.
#[derive(Clone, Debug)]
pub(in crate::api) enum Positions {
    /// In a tree that is kept.
    Kept(Arc<Parsed>, Option<InText>),
    /// In a tree that is parsed when it is needed.
    Settled(InText),
}

/// One of the documents of a text.
#[derive(Clone, Debug)]
pub(in crate::api) struct InText {
    pub(in crate::api) documents: Arc<Documents>,
    pub(in crate::api) at: usize,
}

/// The documents of a text. Errors may be in all of them at once, so they are parsed together.
#[derive(Debug)]
pub(in crate::api) struct Documents {
    text: SourceText,
    parse: fn(&str) -> Vec<Tree>,
    parsed: OnceLock<Vec<Parsed>>,
}

/// A document's tree, and its named entries by path.
#[derive(Debug)]
pub(in crate::api) struct Parsed {
    pub(in crate::api) tree: Tree,
    pub(in crate::api) entries: NamedEntries,
}

/// The named rules and other entries of a document by path.
#[derive(Debug)]
pub(in crate::api) struct NamedEntries(HashMap<FieldPath, String>);

impl Positions {
    /// The positions in a document, which is that of `source` if it is known.
    pub(in crate::api) fn new(parsed: Parsed, source: Option<InText>) -> Self {
        Self::Kept(Arc::new(parsed), source)
    }

    /// The same without the tree, if that can be parsed again.
    pub(in crate::api) fn settled(self) -> Self {
        match self {
            Self::Kept(_, Some(source)) => Self::Settled(source),
            other => other,
        }
    }

    /// The tree; `None` if the text cannot be parsed any more, which would be an error in this program.
    pub(in crate::api) fn parsed(&self) -> Option<&Parsed> {
        match self {
            Self::Kept(parsed, _) => Some(parsed),
            Self::Settled(InText { documents, at }) => documents.parsed().get(*at),
        }
    }
}

impl Documents {
    /// The documents of `text`; `parse` returns their trees.
    pub(in crate::api) fn new(text: SourceText, parse: fn(&str) -> Vec<Tree>) -> Self {
        Self { text, parse, parsed: OnceLock::new() }
    }

    fn parsed(&self) -> &[Parsed] {
        let parsed = |tree| Parsed { entries: NamedEntries::of(&tree), tree };
        self.parsed.get_or_init(|| (self.parse)(self.text.as_str()).into_iter().map(parsed).collect())
    }
}

impl NamedEntries {
    /// The entries of a document.
    pub(in crate::api) fn of(tree: &Tree) -> Self {
        let mut found = HashMap::new();
        let Some(spec) = tree.field("spec").map(|field| &field.tree) else { return Self(found) };
        let path = FieldPath::root().key("spec");
        for (section, kind) in [("rules", "rule"), ("inventory", "inventory")] {
            spec.field(section).into_iter().for_each(|list| Self::add(kind, list, &path.key(section), &mut found));
        }
        if let Some(Node::Mapping(sections)) = spec.field("governance").map(|field| &field.tree.value) {
            let path = path.key("governance");
            sections.iter().for_each(|section| Self::add("entry", section, &path.key(&section.key), &mut found));
        }
        Self(found)
    }

    fn add(kind: &str, list: &Field, path: &FieldPath, found: &mut HashMap<FieldPath, String>) {
        let Node::List(items) = &list.tree.value else { return };
        let named = items.iter().filter_map(|(index, item)| Some((path.index(*index), item.text("name")?)));
        found.extend(named.map(|(path, name)| (path, format!("{kind} {:?}", cut_name(name)))));
    }

    /// The entry that contains a field. The path of `spec.rules[0]` has three steps, that of `spec.governance.reserved[0]` four.
    pub(in crate::api) fn containing(&self, path: &FieldPath) -> Option<String> {
        [3, 4].into_iter().find_map(|steps| self.0.get(&path.first(steps))).cloned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::api::source::parse_documents;

    #[test]
    fn a_text_is_parsed_once_for_errors_in_all_of_its_documents() {
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let parse = |text: &str| {
            TIMES.fetch_add(1, Ordering::Relaxed);
            parse_documents(text).unwrap()
        };
        let text = "a: 1\n---\nb: 2\n---\nc: 3\n";
        let documents = Arc::new(Documents::new(text.into(), parse));
        let of = |(at, tree)| {
            let parsed = Parsed { entries: NamedEntries::of(&tree), tree };
            Positions::new(parsed, Some(InText { documents: documents.clone(), at })).settled()
        };
        let all: Vec<Positions> = parse_documents(text).unwrap().into_iter().enumerate().map(of).collect();
        assert_eq!(TIMES.load(Ordering::Relaxed), 0, "nothing asks for a tree");
        for (positions, name) in all.iter().chain(&all).zip(["a", "b", "c"].iter().cycle()) {
            assert!(positions.parsed().unwrap().tree.field(name).is_some(), "{name}");
        }
        assert_eq!(TIMES.load(Ordering::Relaxed), 1);
    }
}
