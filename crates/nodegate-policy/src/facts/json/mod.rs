//! JSON of which only what is read is kept, within limits.

pub(crate) mod borrow;
pub(crate) mod compact;
pub(crate) mod count;
pub(crate) mod kinds;
pub(crate) mod limits;
