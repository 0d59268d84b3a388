//! `nodegate completions`: scripts with which shells complete commands, flags and their values.

use clap::CommandFactory as _;

use crate::cli::{Findings, Root, shared::output};

/// What makes the script of bash an executable that answers kubectl, as `kubectl_complete-NAME` of a plugin has to: candidates a
/// line, and how to go on (`k8s.io/kubectl/pkg/cmd/plugin/plugin_completion.go`, cobra's `ShellCompDirective`).
const FOR_KUBECTL: &str = r#"
COMP_WORDS=(nodegate "$@")
COMP_CWORD=$#
_nodegate nodegate "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
if [[ ${#COMPREPLY[@]} -gt 0 ]]; then
    printf '%s\n' "${COMPREPLY[@]}"
    echo :4 # and no files
else
    echo :0
fi
"#;

/// Print the script with which a shell completes commands and flags
///
/// For bash: `source <(nodegate completions bash)` in ~/.bashrc. For zsh: write it to a file `_nodegate` in a directory
/// of `$fpath`. For fish: write it to ~/.config/fish/completions/nodegate.fish. For `kubectl nodegate`: write the
/// output of `nodegate completions --kubectl` to an executable `kubectl_complete-nodegate` in a directory of `$PATH`.
/// It needs bash.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, required_unless_present = "kubectl")]
    shell: Option<clap_complete::Shell>,
    /// Print the executable with which kubectl completes `kubectl nodegate`
    #[arg(long, conflicts_with = "shell")]
    kubectl: bool,
}

pub(in crate::cli) fn run(args: &CompletionsArgs) -> anyhow::Result<Findings> {
    let shell = args.shell.unwrap_or(clap_complete::Shell::Bash);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Root::command(), "nodegate", &mut script);
    let script = String::from_utf8(script)?;
    let script = if args.kubectl { format!("#!/usr/bin/env bash\n{script}{FOR_KUBECTL}") } else { script };
    output::print(&script)?;
    Ok(Findings::None)
}
