//! What must hold for any bytes whatever. The fuzz targets run it on bytes they make up, and
//! `tests/suite/fuzzing.rs` on the inputs that are kept, so that both mean the same.

mod expression;
mod node;
mod policy;
mod review;
mod unit;

/// Panics when something does not hold for `bytes` at the entry point that the target is named after.
pub(crate) fn check(target: &str, bytes: &[u8]) {
    match target {
        "review" => review::check(bytes),
        "policy" => policy::check(bytes),
        "expression" => expression::check(bytes),
        "unit" => unit::check(bytes),
        other => panic!("{other} is no target"),
    }
}
