//! What nodegate reads and keeps in memory for many readers: policy files, saved state, and answers of inventories.

pub mod files;
pub mod inventory;
pub mod state;
pub mod touched;
