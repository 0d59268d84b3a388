//! How the program was started: as `nodegate`, or by kubectl as its plugin.

use std::ffi::OsStr;
use std::path::Path;

use clap::Command;

/// kubectl runs a program with this name on `PATH` as `kubectl nodegate`.
const PLUGIN: &str = "kubectl-nodegate";

/// How the program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// As `nodegate`. The current context of kubectl is never used.
    Nodegate,
    /// As `kubectl nodegate`. Commands that only read use kubectl's current context.
    KubectlPlugin,
}

impl Invocation {
    /// Tells by the program's own name, which is the first argument.
    pub(crate) fn of(program: Option<&OsStr>) -> Self {
        match program.map(Path::new).and_then(Path::file_stem) {
            Some(name) if name == PLUGIN => Self::KubectlPlugin,
            _ => Self::Nodegate,
        }
    }

    /// What people write to call the program.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Nodegate => "nodegate",
            Self::KubectlPlugin => "kubectl nodegate",
        }
    }

    /// The command as help and usage show it.
    pub(crate) fn named(self, command: Command) -> Command {
        match self {
            Self::Nodegate => command,
            Self::KubectlPlugin => {
                let names: Vec<String> =
                    command.get_subcommands().map(|command| format!("nodegate {}", command.get_name())).collect();
                renamed(command.bin_name(self.program()), &names)
            }
        }
    }
}

/// Writes `kubectl nodegate plan` for `nodegate plan` in the descriptions of a command and of those below it.
fn renamed(mut command: Command, names: &[String]) -> Command {
    let text = |text: Option<&clap::builder::StyledStr>| {
        text.map(|text| {
            names.iter().fold(text.to_string(), |text, name| text.replace(name, &format!("kubectl {name}")))
        })
    };
    if let Some(about) = text(command.get_about()) {
        command = command.about(about);
    }
    if let Some(about) = text(command.get_long_about()) {
        command = command.long_about(about);
    }
    if let Some(help) = text(command.get_after_help()) {
        command = command.after_help(help);
    }
    command.mut_subcommands(|below| renamed(below, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_recognised_by_its_name() {
        for (program, expected) in [
            ("/usr/local/bin/kubectl-nodegate", Invocation::KubectlPlugin),
            ("kubectl-nodegate.exe", Invocation::KubectlPlugin),
            ("/opt/kubectl-nodegate/nodegate", Invocation::Nodegate),
            ("nodegate", Invocation::Nodegate),
        ] {
            assert_eq!(Invocation::of(Some(OsStr::new(program))), expected, "{program}");
        }
        assert_eq!(Invocation::of(None), Invocation::Nodegate);
    }
}
