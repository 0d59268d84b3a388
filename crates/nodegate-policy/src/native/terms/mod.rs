//! The parts of native policies: formulas, variables, matches, and what of a set can be exported.

pub(super) mod formula;
pub(super) mod matching;
pub(super) mod node_info;
pub(super) mod ranges;
pub(super) mod re2;
pub(super) mod request;
pub(super) mod selection;
pub(super) mod subject;
pub(super) mod variables;
