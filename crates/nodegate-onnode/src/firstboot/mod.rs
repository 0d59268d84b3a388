//! Labels that a kubelet registers with on a node's first boot: how the unit that starts the kubelet is read and wrapped, and
//! how its command line is changed. Nothing here does I/O.
//!
//! systemd itself expands the command line: [`drop_in()`] puts the helper in front of the text of each command, and leaves the
//! rest as it is. So specifiers, variables, quotes and escapes mean what they mean without the helper.

mod command_line;
mod drop_in;
pub mod files;
mod labels;
mod native;
mod unit;
mod words;

pub use command_line::{Credentials, Distribution, Fault, NodeProgram};
pub use drop_in::{DropInFault, drop_in};
pub use labels::{ExtraLabels, Label};
pub use native::{Native, native};
pub use unit::{Service, UnitFault};

/// The variable that holds the labels. Its name is that of the scripts for OpenShift that this replaces.
pub const VARIABLE: &str = "FIRST_BOOT_ONLY_KUBELET_NODE_EXTRA_LABELS";
/// The name of the drop-in that `nodegate firstboot install` writes. Drop-ins are read in the order of their names, and this one has to be
/// the last.
pub const DROP_IN: &str = "zz-nodegate-firstboot.conf";
