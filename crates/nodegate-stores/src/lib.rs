//! What nodegate reads and keeps in memory for many readers: policy files, saved state, answers of inventories, who asked for
//! the certificates of kubelets, the objects that provisioners make for machines, and the devices of nodes.

mod by_text;
pub mod certificates;
pub mod devices;
pub mod files;
pub mod inventory;
pub mod machines;
pub mod state;
pub mod touched;
pub mod witnesses;
