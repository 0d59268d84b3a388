//! The accelerators of the machine, from sysfs, before any driver runs.
//!
//! # Guarantees
//! It reads files below a given root and does nothing else. What is not known is listed as unknown; nothing is inferred from sizes
//! of memory windows. `docs/reference/probe.md` has the rules and their sources.

mod devices;
mod document;
mod feature_file;
mod labels;
mod names;
mod pci;
mod products;
mod sysfs;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::io;
use std::path::Path;

pub use document::{Bus, Device, Kind, Probe, Unread};
pub use feature_file::feature_file;
pub use names::{Names, NamesError};

use sysfs::Sysfs;

/// Reads the tree below `root`, which is laid out like `/sys`.
///
/// # Errors
/// Returns an error if the root is not a directory with a directory `bus`. What cannot be read below it is in [`Probe::unread`].
pub fn probe(root: &Path, names: &Names) -> io::Result<Probe> {
    let sysfs = Sysfs::open(root)?;
    let mut unread = Vec::new();
    let found = devices::all(&sysfs, names, &mut unread);
    let labels = labels::of(&found);
    let (devices, unknown) = found.into_iter().partition(|device| device.short.is_some());
    unread.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(Probe { devices, unknown, unread, labels })
}
