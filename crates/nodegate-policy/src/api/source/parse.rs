//! Parses YAML.

use serde_json::Value as Json;
use serde_saphyr::Spanned;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::traps::{self, SyntaxError};
use super::value::Value;
use super::{Field, Node, SourcePosition, Tree};

/// Maximum number of lists, mappings, names and values of a file.
const FILE_VALUES_MAX: usize = 250_000;

/// Parses all documents of a YAML text, which may be JSON. The parser's budget limits anchors and nesting,
/// so a hostile text is an error and does not exhaust memory.
///
/// # Errors
/// Returns an error if the text is not YAML, has a key twice in one mapping, or has a tag that is not one of YAML's own.
pub fn parse_documents(text: &str) -> Result<Vec<Tree>, SyntaxError> {
    parse_documents_within(text, FILE_VALUES_MAX)
}

/// As [`parse_documents`], with at most `values` lists, mappings, names and values in each document.
///
/// # Errors
/// As [`parse_documents`]. What is beyond the limit is not parsed.
pub fn parse_documents_within(text: &str, values: usize) -> Result<Vec<Tree>, SyntaxError> {
    let documents = match parse(text, values, DuplicateKeyPolicy::Error) {
        Ok(documents) => documents,
        Err(error) => match error.without_snippet() {
            serde_saphyr::Error::DuplicateMappingKey { key, location } => {
                // Only to find the first one: the text stays refused.
                let all = parse(text, values, DuplicateKeyPolicy::LastWins).unwrap_or_default();
                return Err(traps::duplicate(key.as_deref(), (*location).into(), &all));
            }
            error => return Err(traps::explain(text, values, error)),
        },
    };
    let mut reader = Reader { text, unquoted: None };
    let trees = documents.into_iter().map(|document| reader.tree(document, 0));
    let trees = trees.filter(|tree| !tree.is_null()).collect();
    reader.unquoted.map_or(Ok(trees), |place| Err(traps::unquoted(text, place)))
}

fn parse(
    text: &str,
    values: usize,
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<Vec<Spanned<Value>>, serde_saphyr::Error> {
    // `y`, `no` and `on` are strings; only true and false are booleans.
    // A NodePolicy has about ten levels and a Node about fifteen. Each level needs stack, and files are also
    // parsed on threads with a small stack.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        emit_comments: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: values,
            // The parser's own limits for what it takes as usual, and in proportion for more.
            max_events: 4 * values,
            max_documents: 1024.max(values / 250),
            max_total_scalar_bytes: (64 << 20).max(256 * values),
        },
        duplicate_keys: duplicate_keys,
    };
    serde_saphyr::from_multiple_with_options(text, options)
}

/// Attaches positions to values.
struct Reader<'t> {
    text: &'t str,
    /// The position of the first value that YAML accepts, but reads as something else than it says.
    unquoted: Option<SourcePosition>,
}

impl Reader<'_> {
    /// The tree of a value, which begins behind the byte `after`.
    fn tree(&mut self, spanned: Spanned<Value>, after: usize) -> Tree {
        let place = SourcePosition::from(spanned.referenced);
        if self.unquoted.is_none() {
            self.unquoted = traps::misread(self.text, after, place);
        }
        let mut tree = Tree { place, value: Node::Scalar(Json::Null), written: None };
        tree.value = match spanned.value {
            Value::Scalar(scalar) => {
                let written = self.text.get(place.start()..place.end()).filter(|written| !written.is_empty());
                tree.written = written.filter(|_| !scalar.is_string()).map(Into::into);
                Node::Scalar(scalar)
            }
            Value::List(items) => {
                let mut behind = place.start();
                let item = |(index, item): (usize, Spanned<Value>)| {
                    let after = behind;
                    behind = SourcePosition::from(item.referenced).end();
                    (index, self.tree(item, after))
                };
                Node::List(items.into_iter().enumerate().map(item).collect())
            }
            Value::Mapping(fields) => {
                let field = |(key, value): (Spanned<String>, Spanned<Value>)| {
                    let place = SourcePosition::from(key.referenced);
                    Field { place, key: key.value, tree: self.tree(value, place.end()) }
                };
                Node::Mapping(fields.into_iter().map(field).collect())
            }
        };
        tree
    }
}
