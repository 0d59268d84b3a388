//! `nodegate firstboot`: labels that a kubelet registers with, on the node itself.

mod exec;
mod install;
mod k3s;
mod systemd;

use std::ffi::OsString;

use crate::cli::{Findings, shared::output};
use nodegate_base::text::{cut, on_a_line};

pub(in crate::cli) use exec::rescue;
pub(in crate::cli) use install::unit_name;

/// On a node: give the kubelet labels for its first registration
///
/// The labels are in the variable FIRST_BOOT_ONLY_KUBELET_NODE_EXTRA_LABELS of the kubelet's unit. `nodegate export firstboot` prints what a
/// node needs. No command here uses the network.
#[derive(Debug, clap::Args)]
pub(crate) struct FirstbootArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Exec(exec::ExecArgs),
    Install(install::InstallArgs),
}

pub(in crate::cli) fn run(args: &FirstbootArgs) -> anyhow::Result<Findings> {
    match &args.what {
        What::Exec(args) => exec::run(args),
        What::Install(args) => install::run(args),
    }
}

/// How important a line in the journal is, by the number that systemd reads.
#[derive(Clone, Copy)]
enum Priority {
    Warning = 4,
    Info = 6,
}

/// Writes a line to standard error, which is the journal in a service.
fn say(priority: Priority, text: &str) {
    const MAX: usize = 1000;
    let mut text = on_a_line(text).into_owned();
    cut(&mut text, MAX);
    let prefix =
        if std::env::var_os("JOURNAL_STREAM").is_some() { format!("<{}>", priority as u8) } else { String::new() };
    output::note(&format!("{prefix}nodegate firstboot: {text}"));
}

/// Whether these are the arguments of the helper in front of a command, of which nodegate must not lose sight.
fn wrapped_command(arguments: &[OsString]) -> Option<(&[OsString], &[OsString])> {
    let is_helper =
        arguments.get(1).is_some_and(|word| word == "firstboot") && arguments.get(2).is_some_and(|word| word == "exec");
    let at = arguments.iter().position(|word| word == "--").filter(|_| is_helper)?;
    Some((&arguments[3..at], &arguments[at + 1..])).filter(|(_, command)| !command.is_empty())
}
