//! Values, their types, and what reading them costs.

pub(crate) mod document;
pub(crate) mod given;
pub(crate) mod network;
pub(crate) mod opaque;
pub(crate) mod paths;
pub(crate) mod quantity;
pub(crate) mod steps;
pub(crate) mod time;
pub(crate) mod types;
pub(crate) mod url;
pub(crate) mod value;
pub(crate) mod variables;
