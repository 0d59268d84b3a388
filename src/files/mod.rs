//! Policy files and flat label files: read, compiled, watched.

mod labels;
mod load;
mod watch;

pub use load::{LoadError, Loaded, Sources};
pub use watch::watch;
