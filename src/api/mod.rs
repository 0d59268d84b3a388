//! The documents people write and read. Serde and schema only; what they mean is `policy`'s concern.

pub mod case;
pub mod crd;
pub mod names;
pub mod policy;
pub mod schema;
pub mod source;
pub mod state;
