//! Paths in a document.

use std::fmt;
use std::sync::Arc;

use crate::api::Quoted;

/// Maximum length of a key that is written without quotes, in bytes. No field has a longer name.
const PLAIN_MAX: usize = 64;

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// A field of a mapping.
    Key(Arc<str>),
    /// An item of a list.
    Index(usize),
}

/// A path in a document, such as `spec.rules[0].labels["a/b"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldPath(pub(super) Vec<Segment>);

impl FieldPath {
    /// The path of the whole document.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of the field `name`.
    #[must_use]
    pub fn key(&self, name: impl AsRef<str>) -> Self {
        self.with(Segment::Key(name.as_ref().into()))
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

    /// Whether this is `other`, or the path of something in it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
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
                    let plain = key.len() <= PLAIN_MAX
                        && key.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
                    match (plain && !key.is_empty(), at) {
                        (true, 0) => f.write_str(key)?,
                        (true, _) => write!(f, ".{key}")?,
                        (false, _) => write!(f, "[{}]", Quoted(key))?,
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_odd_keys_are_quoted() {
        let path = FieldPath::root().key("spec").key("labels").key("a/b").index(3);
        assert_eq!(path.to_string(), "spec.labels[\"a/b\"][3]");
        assert_eq!(FieldPath::root().key("labels").key("").to_string(), "labels[\"\"]");
    }

    #[test]
    fn a_path_repeats_only_the_beginning_of_a_long_key() {
        for fill in ["x", "\u{7f}"] {
            let path = FieldPath::root().key("spec").key(fill.repeat(3 << 20)).to_string();
            assert!(path.starts_with("spec[\"") && path.len() < 4096, "{} bytes", path.len());
        }
    }

    #[test]
    fn paths_with_plain_keys_are_joined_with_dots() {
        let path = FieldPath::root().key("spec").index(0).key("node-type").key("node_type").key("Type2");
        assert_eq!(path.to_string(), "spec[0].node-type.node_type.Type2");
    }
}
