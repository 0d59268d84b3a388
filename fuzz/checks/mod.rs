//! What must hold for any bytes whatever. The fuzz targets run it on bytes they make up, and
//! `tests/suite/fuzzing.rs` on the inputs that are kept, so that both mean the same.

mod expression;
mod node;
mod policy;
mod review;

/// The entry points, by the names of their targets, corpora and dictionaries.
pub(crate) const TARGETS: [(&str, fn(&[u8])); 3] =
    [("review", review::check), ("policy", policy::check), ("expression", expression::check)];

/// Panics when something does not hold for `bytes` at the entry point `target`.
pub(crate) fn check(target: &str, bytes: &[u8]) {
    let (_, check) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    check(bytes);
}
