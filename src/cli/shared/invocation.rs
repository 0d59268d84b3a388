//! How the program was started: as `nodegate`, or by kubectl as its plugin.

use std::ffi::OsStr;
use std::path::Path;

use clap::Command;
use clap::builder::StyledStr;

/// kubectl runs a program with this name on `PATH` as `kubectl nodegate`.
const PLUGIN: &str = "kubectl-nodegate";

/// How the program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// As `nodegate`. The current context of kubectl is never used.
    Nodegate,
    /// As `nodegate`, with kubectl's environment variable `KUBECONFIG` set. Commands that only read use its current context.
    WithKubeconfig,
    /// As `kubectl nodegate`. Commands that only read use kubectl's current context.
    KubectlPlugin,
}

impl Invocation {
    /// Tells by the program's own name, which is the first argument.
    /// `kubeconfig` is the value of `KUBECONFIG`.
    pub(crate) fn of(program: Option<&OsStr>, kubeconfig: Option<&OsStr>) -> Self {
        match program.map(Path::new).and_then(Path::file_stem) {
            Some(name) if name == PLUGIN => Self::KubectlPlugin,
            _ if kubeconfig.is_some_and(|value| !value.is_empty()) => Self::WithKubeconfig,
            _ => Self::Nodegate,
        }
    }

    /// What people write to call the program.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Nodegate | Self::WithKubeconfig => "nodegate",
            Self::KubectlPlugin => "kubectl nodegate",
        }
    }

    /// The command as help and usage show it.
    pub(crate) fn named(self, command: Command) -> Command {
        match self {
            Self::Nodegate | Self::WithKubeconfig => command,
            Self::KubectlPlugin => {
                let commands: Vec<String> =
                    command.get_subcommands().map(|command| format!("nodegate {}", command.get_name())).collect();
                described(command.bin_name(self.program()), &commands)
            }
        }
    }
}

/// Writes `kubectl nodegate plan` for `nodegate plan` in the descriptions of a command and of those below it.
fn described(mut command: Command, commands: &[String]) -> Command {
    let text = |text: Option<&StyledStr>| text.map(|text| renamed(text.to_string(), commands));
    if let Some(about) = text(command.get_about()) {
        command = command.about(about);
    }
    if let Some(about) = text(command.get_long_about()) {
        command = command.long_about(about);
    }
    if let Some(help) = text(command.get_after_help()) {
        command = command.after_help(help);
    }
    command.mut_subcommands(|below| described(below, commands))
}

/// Writes `kubectl` before each of these commands, where it ends with a word.
fn renamed(text: String, commands: &[String]) -> String {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '-');
    commands.iter().fold(text, |text, command| {
        let mut parts = text.split(command.as_str());
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            renamed.push_str(if ends(part) { "kubectl " } else { "" });
            renamed.push_str(command);
            renamed.push_str(part);
        }
        renamed
    })
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
            assert_eq!(Invocation::of(Some(OsStr::new(program)), None), expected, "{program}");
        }
        assert_eq!(Invocation::of(None, None), Invocation::Nodegate);
        let kubeconfig = |value| Invocation::of(Some(OsStr::new("nodegate")), Some(OsStr::new(value)));
        assert_eq!((kubeconfig("a:b"), kubeconfig("")), (Invocation::WithKubeconfig, Invocation::Nodegate));
    }

    #[test]
    fn only_whole_commands_are_renamed() {
        let commands = ["nodegate plan".to_owned(), "nodegate man".to_owned()];
        let text = "run `nodegate plan`, nodegate man: what nodegate manages; nodegate plan-b; nodegate plan";
        let expected = "run `kubectl nodegate plan`, kubectl nodegate man: what nodegate manages; nodegate plan-b; kubectl nodegate plan";
        assert_eq!(renamed(text.to_owned(), &commands), expected);
    }
}
