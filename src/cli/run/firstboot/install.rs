//! `nodegate firstboot install`: puts the helper in front of a unit's commands, until the node has registered or boots again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anyhow::Context as _;

use crate::cli::run::firstboot::systemd::{self, Manager, UnitFile};
use crate::cli::run::firstboot::{Priority, say};
use crate::cli::{Findings, shared::output, shared::whole_file};
use nodegate_onnode::firstboot::{DROP_IN, Service, drop_in};

/// Write a drop-in that starts the kubelet through `nodegate firstboot exec`
///
/// The drop-in is in /run, so a boot removes it. It repeats the unit's command as it is written, and systemd expands it. On any error the
/// unit starts without the drop-in.
#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    /// The unit that starts the kubelet, k3s or RKE2
    #[arg(long, default_value = "kubelet.service", value_parser = unit_name)]
    unit: String,
    /// Once this file exists, remove the drop-in instead: the kubelet's client certificate
    #[arg(long, value_name = "FILE")]
    until: Option<PathBuf>,
    /// The unit belongs to the user's manager, as with k3s in rootless mode
    #[arg(long)]
    user: bool,
    /// Print the drop-in instead of writing it
    #[arg(long)]
    print: bool,
    /// With --print: read these files, first the unit's and then its drop-ins, instead of asking systemd
    #[arg(long = "unit-file", value_name = "FILE", requires = "print")]
    unit_files: Vec<PathBuf>,
    /// The program that the drop-in starts [default: this program]
    #[arg(long, value_name = "FILE")]
    helper: Option<PathBuf>,
}

pub(in crate::cli) fn unit_name(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.@".contains(c);
    if text.len() < 256 && text.ends_with(".service") && !text.starts_with(['.', '-']) && text.chars().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not the name of a service; write a name such as kubelet.service"))
}

pub(super) fn run(args: &InstallArgs) -> anyhow::Result<Findings> {
    let manager = Manager::new(args.user);
    if args.print {
        output::print(&contents(args, &manager, None)?)?;
        return Ok(Findings::None);
    }
    let path = manager.runtime_directory()?.join(format!("{}.d", args.unit)).join(DROP_IN);
    if args.until.as_deref().is_some_and(Path::exists) {
        remove(&path, &manager)?;
        return Ok(Findings::None);
    }
    let written = contents(args, &manager, Some(&path)).and_then(|text| write(args, &manager, &path, &text));
    if written.is_err() {
        // A drop-in of before must not outlive what it was made from.
        remove(&path, &manager)?;
    }
    written.with_context(|| format!("{} starts without extra labels", args.unit))?;
    Ok(Findings::None)
}

/// The drop-in for the unit below `own`, which is empty if there is nothing to do.
fn contents(args: &InstallArgs, manager: &Manager, own: Option<&Path>) -> anyhow::Result<String> {
    let paths = if args.unit_files.is_empty() { manager.files(&args.unit)? } else { args.unit_files.clone() };
    let own_name = |path: &Path| path.file_name().is_some_and(|name| name == DROP_IN);
    let others = paths.iter().filter(|path| Some(path.as_path()) != own && !own_name(path));
    let files: Vec<UnitFile> = others.map(|path| systemd::read(path)).collect::<anyhow::Result<_>>()?;
    let service = Service::read(files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())))?;
    let helper = match &args.helper {
        Some(helper) => helper.clone(),
        None => env::current_exe().context("could not tell where this program is; name it with --helper")?,
    };
    if own.is_some() {
        // systemd looks for the program only when it starts the unit, and then the kubelet would not start.
        let found = fs::metadata(&helper).with_context(|| format!("--helper {}", helper.display()))?;
        anyhow::ensure!(
            found.is_file() && found.permissions().mode() & 0o111 != 0,
            "--helper {}: is not a program; name one",
            helper.display()
        );
    }
    let helper = helper.to_str().filter(|path| path.starts_with('/'));
    Ok(drop_in(&service, helper.context("--helper is not an absolute path in UTF-8; write one")?)?)
}

fn write(args: &InstallArgs, manager: &Manager, path: &Path, text: &str) -> anyhow::Result<()> {
    if text.is_empty() {
        return remove(path, manager);
    }
    if fs::read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    let failed = || format!("could not write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(failed)?;
    whole_file::replace(path, text, None).with_context(failed)?;
    manager.reload()?;
    anyhow::ensure!(manager.is_loaded(&args.unit)?, "systemd refuses the unit with {}", path.display());
    say(Priority::Info, &format!("{} starts through {}", args.unit, path.display()));
    Ok(())
}

/// Removes the drop-in if there is one.
fn remove(path: &Path, manager: &Manager) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => {
            removed.with_context(|| format!("could not remove {}", path.display()))?;
            manager.reload()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_named_as_systemd_names_services() {
        for name in ["kubelet.service", "k3s-agent.service", "rke2@a-b.service"] {
            assert!(unit_name(name).is_ok(), "{name}");
        }
        for name in [
            "kubelet",
            "../kubelet.service",
            "/a.service",
            "--help.service",
            "a b.service",
            ".service",
            "a\\x2db.service",
        ] {
            assert!(unit_name(name).is_err(), "{name}");
        }
    }
}
