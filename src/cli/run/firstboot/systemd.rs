//! What systemd knows of a unit, through `systemctl`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;

use nodegate_base::text::on_a_line;

/// systemd reads larger files, but nobody writes one.
const FILE_MAX: u64 = 1 << 20;

/// A file of a unit.
pub(super) type UnitFile = (String, Vec<u8>);

/// The manager that a unit belongs to.
pub(super) struct Manager {
    is_user: bool,
}

impl Manager {
    pub(super) fn new(is_user: bool) -> Self {
        Self { is_user }
    }

    /// The directory for units that are gone after a boot.
    pub(super) fn runtime_directory(&self) -> anyhow::Result<PathBuf> {
        if !self.is_user {
            return Ok("/run/systemd/system".into());
        }
        let runtime = env::var_os("XDG_RUNTIME_DIR")
            .context("--user: XDG_RUNTIME_DIR is not set; log in to a session of systemd")?;
        Ok(Path::new(&runtime).join("systemd/user"))
    }

    /// Reads the unit files and drop-ins anew.
    pub(super) fn reload(&self) -> anyhow::Result<()> {
        self.systemctl(&["daemon-reload"]).map(drop)
    }

    /// The file of a unit and its drop-ins, in the order in which systemd reads them.
    pub(super) fn files(&self, unit: &str) -> anyhow::Result<Vec<PathBuf>> {
        let mut answer = self.show(unit)?;
        if value(&answer, "NeedDaemonReload") == "yes" {
            self.reload()?;
            answer = self.show(unit)?;
        }
        let fragment = value(&answer, "FragmentPath");
        anyhow::ensure!(
            !fragment.is_empty(),
            "systemd knows no file of the unit {unit}; check --unit against `systemctl list-units`"
        );
        let drop_ins = value(&answer, "DropInPaths").split_whitespace();
        Ok(std::iter::once(fragment).chain(drop_ins).map(PathBuf::from).collect())
    }

    /// Whether systemd can start the unit.
    pub(super) fn is_loaded(&self, unit: &str) -> anyhow::Result<bool> {
        Ok(value(&self.show(unit)?, "LoadState") == "loaded")
    }

    fn show(&self, unit: &str) -> anyhow::Result<String> {
        self.systemctl(&["show", "--property=LoadState,FragmentPath,DropInPaths,NeedDaemonReload", "--", unit])
    }

    fn systemctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("systemctl");
        command.args(self.is_user.then_some("--user")).args(arguments);
        let output = command.output().context("could not run systemctl")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "systemctl {} failed: {}", arguments[0], on_a_line(said.trim()));
        String::from_utf8(output.stdout).context("systemctl answered with text that is not UTF-8")
    }
}

fn value<'a>(answer: &'a str, property: &str) -> &'a str {
    answer.lines().find_map(|line| line.strip_prefix(property)?.strip_prefix('=')).unwrap_or_default()
}

/// Reads a file of a unit.
pub(super) fn read(path: &Path) -> anyhow::Result<UnitFile> {
    let name = path.display().to_string();
    let failed = || format!("could not read {name}");
    let is_file = fs::metadata(path).with_context(failed)?.is_file();
    anyhow::ensure!(is_file, "{name} is not a file");
    let mut bytes = Vec::new();
    let file = fs::File::open(path).with_context(failed)?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).with_context(failed)?;
    anyhow::ensure!(bytes.len() as u64 <= FILE_MAX, "{name} is larger than 1 MiB; check that it is a unit file");
    Ok((name, bytes))
}
