//! Policy files and flat label files: read, compiled, watched.

mod entries;
mod error;
mod labels;
mod load;
mod watch;

pub use error::LoadError;
pub use load::{Loaded, Sources};
pub use watch::watch;
