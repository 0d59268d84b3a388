//! Values, their types, and what reading them costs.

pub(crate) mod document;
pub(crate) mod given;
pub(crate) mod paths;
pub(crate) mod steps;
pub(crate) mod time;
pub(crate) mod types;
pub(crate) mod value;
pub(crate) mod variables;
