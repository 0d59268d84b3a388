//! `nodegate man`: man pages.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Findings, Root, shared::output, shared::whole_file};
use nodegate_base::text::on_a_line;

/// Write man pages into a directory, one for each command
///
/// To install them for all users: `sudo nodegate man /usr/local/share/man/man1`. Then `man nodegate-plan` shows the page of
/// `nodegate plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The directory. It is created if it does not exist, and pages in it are replaced
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(in crate::cli) fn run(args: &ManArgs) -> anyhow::Result<Findings> {
    let place = || on_a_line(&args.directory.display().to_string()).into_owned();
    std::fs::create_dir_all(&args.directory).with_context(place)?;
    write_pages(&args.directory).with_context(place)?;
    output::print(&format!("wrote the man pages to {0}; read one with: man {0}/nodegate.1\n", place()))?;
    Ok(Findings::None)
}

/// The pages are made elsewhere first: `clap_mangen` would write through links in the directory.
fn write_pages(directory: &Path) -> anyhow::Result<()> {
    let made = tempfile::tempdir()?;
    clap_mangen::generate_to(Root::command(), made.path())?;
    for page in std::fs::read_dir(made.path())? {
        let page = page?;
        whole_file::replace(&directory.join(page.file_name()), &std::fs::read_to_string(page.path())?, None)?;
    }
    Ok(())
}
