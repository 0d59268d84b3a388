//! The page about the command line: what `--help` prints, with flags that several commands have described once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;

/// A flag that so many commands have, with the same words, is described once.
const SHARED: usize = 3;
const OPTIONS: &str = "\nOptions:\n";

/// What the program prints when it is asked for help, whatever the environment of the test.
pub(super) fn help(command: &[String]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{command:?} --help");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n").trim_end().to_owned() + "\n"
}

/// Every command and subcommand with its help.
pub(super) fn commands() -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(command) = waiting.pop() {
        let text = help(&command);
        let names: Vec<String> = crate::output::commands(&text).map(str::to_owned).collect();
        waiting.extend(names.into_iter().rev().map(|name| [command.clone(), vec![name]].concat()));
        found.push((command, text));
    }
    found
}

/// The flags below `Options:`, each with its description, and what follows them.
fn flags(options: &str) -> (Vec<String>, String) {
    let (mut flags, mut rest): (Vec<String>, String) = (Vec::new(), String::new());
    for line in options.lines() {
        let is_flag = line.trim_start().starts_with('-') && line.starts_with("  ") && !line.starts_with("       ");
        if !rest.is_empty() || !(line.is_empty() || line.starts_with(' ')) {
            writeln!(rest, "{line}").unwrap();
        } else if is_flag {
            flags.push(format!("{line}\n"));
        } else if let Some(flag) = flags.last_mut() {
            writeln!(flag, "{line}").unwrap();
        }
    }
    (flags.iter().map(|flag| format!("{}\n", flag.trim_end())).collect(), rest)
}

/// `--namespace` of `  -n, --namespace <NAMESPACE>` and what follows.
fn name(flag: &str) -> &str {
    flag.split_whitespace().find(|word| word.starts_with("--")).unwrap().trim_end_matches(',')
}

pub(super) fn page() -> String {
    let commands = commands();
    let mut of: BTreeMap<String, usize> = BTreeMap::new();
    for (_, text) in &commands {
        let options = text.split_once(OPTIONS).map_or("", |(_, options)| options);
        flags(options).0.into_iter().for_each(|flag| *of.entry(flag).or_default() += 1);
    }
    // Two texts for one name would need two links.
    let names =
        |many: bool| of.iter().filter(move |(_, count)| (**count >= SHARED) == many).map(|(flag, _)| name(flag));
    let twice: BTreeSet<&str> =
        names(true).filter(|one| names(true).filter(|other| other == one).count() > 1).collect();
    let is_shared = |flag: &String| of[flag] >= SHARED && !twice.contains(name(flag));
    let mut page = "# Command-line reference\n\nWhat `nodegate COMMAND --help` prints. `just generate` writes this page; do not edit it.\n\
                    The flags of `serve` are explained by task in [flags.md](flags.md). Flags that several commands have are [described once](#shared-flags).\n"
        .to_owned();
    for (command, text) in &commands {
        let title = [vec!["nodegate".to_owned()], command.clone()].concat().join(" ");
        let (head, options) = text.split_once(OPTIONS).unwrap_or((text, ""));
        let (flags, rest) = flags(options);
        let (shared, own): (Vec<&String>, Vec<&String>) = flags.iter().partition(|flag| is_shared(flag));
        write!(page, "\n## {title}\n\n```text\n{}\n", head.trim_end()).unwrap();
        if !own.is_empty() {
            let own: Vec<&str> = own.iter().map(|flag| flag.as_str()).collect();
            write!(page, "{OPTIONS}{}", own.join("\n")).unwrap();
        }
        if !rest.is_empty() {
            write!(page, "\n{}\n", rest.trim_end()).unwrap();
        }
        page.push_str("```\n");
        if !shared.is_empty() {
            let names: Vec<String> = shared.iter().map(|flag| format!("`{}`", name(flag))).collect();
            write!(page, "\n[Shared flags](#shared-flags): {}\n", names.join(", ")).unwrap();
        }
    }
    let shared: Vec<&str> = of.keys().filter(|flag| is_shared(flag)).map(String::as_str).collect();
    assert!(shared.len() > 5, "the page describes few flags once: {shared:?}");
    write!(page, "\n## Shared flags\n\n```text\n{}```\n", shared.join("\n")).unwrap();
    page
}
