//! What proves which machine a node is, and to which pools it belongs.

pub(crate) mod asserted;
pub(crate) mod bootstrap;
pub(crate) mod evidence;
pub(crate) mod extra;
pub(crate) mod machines;
