//! The documents that users write and read: only types and schema. Compiling them checks their meaning.

pub mod answers;
pub mod case;
pub mod crd;
pub mod document;
pub mod names;
pub mod policy;
pub mod pools;
pub mod presets;
pub mod problem;
mod quote;
pub mod schema;
pub mod source;
pub mod stable_hash;
pub mod state;

pub use quote::Quoted;
