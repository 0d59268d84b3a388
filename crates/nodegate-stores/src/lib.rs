//! What nodegate reads and keeps in memory for many readers: policy files, saved state, answers of inventories, and who asked for
//! the certificates of kubelets.

pub mod certificates;
pub mod files;
pub mod inventory;
pub mod state;
pub mod touched;
