//! The commands in `nodegate --help`, by what they are for. clap has headings for flags, but none for commands.

use std::fmt::Write as _;

use clap::Command;

/// Each command is in one group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Write policies", &["init", "check", "test", "plan"]),
    ("Run", &["serve", "apply", "render", "export", "firstboot", "certs", "verify", "pools"]),
    ("Look", &["demo", "report", "explain", "history", "top", "probe"]),
    ("Move and remove", &["migrate", "cleanup"]),
    ("More", &["completions", "man", "help"]),
];

/// Lists the commands in groups.
pub(super) fn grouped(command: Command) -> Command {
    let (header, literal) = (*command.get_styles().get_header(), *command.get_styles().get_literal());
    let about = |name: &str| match command.find_subcommand(name).and_then(Command::get_about) {
        Some(about) => about.to_string(),
        // clap adds it when it parses.
        None => "Print help, of one command or of all".to_owned(),
    };
    let mut commands = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(commands, "{header}{group}:{header:#}");
        for name in names {
            let _ = writeln!(commands, "  {literal}{name:<11}{literal:#}  {}", about(name));
        }
        commands.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Root;

    #[test]
    fn each_command_is_in_one_group_and_its_line_fits() {
        let root = Root::command();
        let all: BTreeSet<&str> = root.get_subcommands().map(Command::get_name).chain(["help"]).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(grouped.len(), all.len(), "no command is in two groups");
        let long = |command: &&Command| command.get_about().is_none_or(|about| about.to_string().len() > 80 - 15);
        let long: Vec<&str> = root.get_subcommands().filter(long).map(Command::get_name).collect();
        assert_eq!(long, [""; 0], "80 columns");
    }
}
