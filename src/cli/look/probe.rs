//! `nodegate probe`: the accelerators of this machine, before any driver runs.

mod text;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::run::serve::duration::duration;
use crate::cli::shared::output;
use crate::cli::{Findings, shared::whole_file};
use nodegate_onnode::probe::{Names, Probe, probe};

/// List the GPUs and other accelerators of this machine
///
/// It reads sysfs only, so it needs no driver. Names come from the PCI ID Repository and a table of products. Prints a
/// table, labels, JSON, or a feature file of Node Feature Discovery.
#[derive(Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// Root of sysfs; another one than /sys in a container or for tests
    #[arg(long, value_name = "DIR", env = "NODEGATE_SYSFS", default_value = "/sys")]
    sysfs: PathBuf,
    /// A pci.ids file, for names of devices that are newer than this version of nodegate [default: built in]
    #[arg(long, value_name = "FILE", env = "NODEGATE_PCI_IDS")]
    pci_ids: Option<PathBuf>,
    /// Write a feature file of Node Feature Discovery instead of printing; replaced as a whole
    #[arg(long, value_name = "FILE", env = "NODEGATE_FEATURE_FILE", conflicts_with = "output")]
    feature_file: Option<PathBuf>,
    /// Probe repeatedly, with this pause in between, until the process is told to end
    #[arg(long, value_name = "DURATION", env = "NODEGATE_EVERY", value_parser = duration, requires = "feature_file")]
    every: Option<Duration>,
    /// Let the labels expire this long after they were written, so that they do not outlive probe
    #[arg(long, value_name = "DURATION", env = "NODEGATE_EXPIRE_AFTER", value_parser = duration, requires = "feature_file")]
    expire_after: Option<Duration>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table for people.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Labels, one `key=value` a line.
    Labels,
}

pub(in crate::cli) fn run(args: &ProbeArgs) -> anyhow::Result<Findings> {
    let names = match &args.pci_ids {
        None => Names::built_in().context("the built-in pci.ids does not parse; please report this bug")?,
        Some(file) => Names::of_file(file)
            .with_context(|| format!("could not use {} as --pci-ids; give a pci.ids file", file.display()))?,
    };
    match (&args.feature_file, args.every) {
        (None, _) => output::print(&text::render(args.output, &look(args, &names)?)?)?,
        (Some(file), None) => write(args, &names, file)?,
        (Some(file), Some(pause)) => {
            if pause < Duration::from_secs(1) {
                bail!("--every is shorter than a second; set a longer pause, such as 10m");
            }
            if args.expire_after.is_some_and(|expiry| expiry <= pause) {
                bail!(
                    "--expire-after is not longer than --every, so labels would expire while probe runs; set a longer one"
                );
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
            runtime.block_on(again_and_again(args, &names, file, pause))?;
        }
    }
    Ok(Findings::None)
}

/// Reads sysfs, and notes what could not be read.
fn look(args: &ProbeArgs, names: &Names) -> anyhow::Result<Probe> {
    let root = &args.sysfs;
    let found = probe(root, names)
        .with_context(|| format!("could not open {} as --sysfs; give the directory of sysfs", root.display()))?;
    for unread in &found.unread {
        output::note(&nodegate_base::text::on_a_line(&format!("warning: {} {}", unread.path, unread.problem)));
    }
    Ok(found)
}

fn write(args: &ProbeArgs, names: &Names, file: &Path) -> anyhow::Result<()> {
    let expires = args.expire_after.map(|after| Timestamp::now().checked_add(after)).transpose();
    let expires = expires.context("--expire-after is too long; set a period such as 30m")?;
    let text = nodegate_onnode::probe::feature_file(&look(args, names)?, expires);
    let failed = || format!("could not write {}", file.display());
    // Node Feature Discovery may run as another user, whatever the umask is here.
    whole_file::replace(file, &text, Some(Permissions::from_mode(0o644))).with_context(failed)
}

/// Probes until a signal arrives. A failure is told, and the next round may succeed.
async fn again_and_again(args: &ProbeArgs, names: &Names, file: &Path, pause: Duration) -> anyhow::Result<()> {
    // The first process of a container gets only signals that it handles.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    loop {
        if let Err(error) = write(args, names, file) {
            output::error(&error);
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}
