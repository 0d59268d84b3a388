//! Policies, nodes and writes at random. The tests with a cluster include these files as well.

pub(crate) mod demanded;
pub(crate) mod generator;
