//! `nodegate completions`: scripts with which shells complete commands, flags and their values.

use clap::CommandFactory as _;

use super::{Findings, Root, output};

/// Print the script with which a shell completes commands, flags and their values.
///
/// For bash: `source <(nodegate completions bash)` in ~/.bashrc. For zsh: write it to a file `_nodegate` in a directory of
/// `$fpath`. For fish: write it to ~/.config/fish/completions/nodegate.fish.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Findings> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Root::command(), "nodegate", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(Findings::None)
}
