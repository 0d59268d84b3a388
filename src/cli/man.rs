//! `nodegate man`: man pages.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::{Findings, Root, output};
use crate::text::on_a_line;

/// Write man pages into a directory: one for nodegate and one for each command.
///
/// To install them for all users: `sudo nodegate man /usr/local/share/man/man1`. Then `man nodegate-plan` shows the page of
/// `nodegate plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The directory. It is created if it does not exist, and pages in it are replaced
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> anyhow::Result<Findings> {
    let place = || on_a_line(&args.directory.display().to_string()).into_owned();
    std::fs::create_dir_all(&args.directory).with_context(place)?;
    clap_mangen::generate_to(Root::command(), &args.directory).with_context(place)?;
    output::print(&format!("wrote the man pages to {0}; read one with: man {0}/nodegate.1\n", place()))?;
    Ok(Findings::None)
}
