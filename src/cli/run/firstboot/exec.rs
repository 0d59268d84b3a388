//! `nodegate firstboot exec`: adds labels to a command line and replaces itself by that command.
//!
//! Whatever fails here, the command is started as it is.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::panic::catch_unwind;
use std::path::Path;
use std::{env, fs, io};

use anyhow::{Context as _, anyhow};

use crate::cli::Findings;
use crate::cli::run::firstboot::k3s::Configuration;
use crate::cli::run::firstboot::{Priority, say, wrapped_command};
use nodegate_base::text::counted;
use nodegate_onnode::firstboot::{Credentials, ExtraLabels, NodeProgram, VARIABLE};

/// Start a command, with the extra labels if it starts a kubelet that has not registered its node yet
///
/// The drop-in of `nodegate firstboot install` puts this in front of the kubelet's command line. On any error, the
/// command is started as it is, and a line on standard error says why.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// The second word of COMMAND is the name that the program gets, as with the prefix @ of ExecStart=
    #[arg(long)]
    named: bool,
    /// A closed pipe ends the program, as with IgnoreSIGPIPE=no
    #[arg(long)]
    default_sigpipe: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A program, and its words from its name on.
struct Started<'a> {
    program: &'a OsStr,
    words: Vec<OsString>,
}

pub(super) fn run(args: &ExecArgs) -> anyhow::Result<Findings> {
    let original = original(args)?;
    let candidate = (original.program.to_owned(), original.words.clone());
    let changed = catch_unwind(move || with_labels(&candidate.0, &candidate.1))
        .unwrap_or_else(|_| Err(anyhow!("nodegate failed unexpectedly; please report the lines above")));
    match changed {
        Ok(None) => {}
        Ok(Some(words)) => {
            let error = replace_process(&Started { program: original.program, words }, args.default_sigpipe);
            say(
                Priority::Warning,
                &format!("could not start the command with extra labels, starting it without them: {error}"),
            );
        }
        Err(error) => say(Priority::Warning, &format!("no labels are added: {error:#}")),
    }
    let error = replace_process(&original, args.default_sigpipe);
    Err(anyhow!("could not start {}: {error}", original.program.display()))
}

/// Starts the wrapped command as it is if the arguments of the helper cannot be read: an older program may meet a newer drop-in.
/// Returns only if there is no such command, or it cannot be started.
pub(in crate::cli) fn rescue(arguments: &[OsString], problem: &str) {
    let Some((flags, command)) = wrapped_command(arguments) else { return };
    say(Priority::Warning, &format!("no labels are added: {problem}"));
    let given = |name: &str| flags.iter().any(|flag| flag == name);
    let (named, default_sigpipe) = (given("--named"), given("--default-sigpipe"));
    let args = ExecArgs { named, default_sigpipe, command: command.to_vec() };
    let failed = match original(&args) {
        Ok(original) => replace_process(&original, default_sigpipe).to_string(),
        Err(error) => error.to_string(),
    };
    say(Priority::Warning, &format!("could not start the command: {failed}"));
}

fn original(args: &ExecArgs) -> anyhow::Result<Started<'_>> {
    let (program, rest) = args.command.split_first().context("COMMAND is empty; name a program after --")?;
    let words = if args.named { rest } else { &args.command };
    anyhow::ensure!(!words.is_empty(), "--named: COMMAND has no second word; write the name after the program");
    Ok(Started { program, words: words.to_vec() })
}

/// The words with the labels of the environment, or nothing if there is nothing to add.
fn with_labels(program: &OsStr, words: &[OsString]) -> anyhow::Result<Option<Vec<OsString>>> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(None) };
    let text = text.to_str().with_context(|| format!("{VARIABLE} is not UTF-8"))?;
    let ExtraLabels { labels, refused } = ExtraLabels::parse(text);
    if labels.is_empty() && refused.is_empty() {
        return Ok(None);
    }
    let (node, name) = found(program, words)?;
    let configuration = Configuration::read(&node)?;
    if is_registered(&node.credentials(configuration.data_dir.as_deref()))? {
        return Ok(None);
    }
    for reason in &refused {
        say(Priority::Warning, &format!("{VARIABLE}: a label is left out: {reason}"));
    }
    if labels.is_empty() {
        return Ok(None);
    }
    let mut changed = node.with_labels(&labels, configuration.labels)?;
    if let Some(name) = name {
        changed[0] = name;
    }
    let listed = labels.iter().map(|label| label.flag()).collect::<Vec<_>>().join(",");
    say(
        Priority::Info,
        &format!("adds {} for the first registration: {listed}", counted(labels.len(), "label", "labels")),
    );
    Ok(Some(changed))
}

/// The kubelet in the words. A program under another name is found by its path; then the name is returned.
fn found(program: &OsStr, words: &[OsString]) -> anyhow::Result<(NodeProgram, Option<OsString>)> {
    match NodeProgram::find(words.to_vec()) {
        Ok(node) => Ok((node, None)),
        Err(fault) => {
            let mut words = words.to_vec();
            let name = std::mem::replace(&mut words[0], program.to_owned());
            NodeProgram::find(words).map(|node| (node, Some(name))).map_err(|_| fault.into())
        }
    }
}

fn is_registered(credentials: &Credentials) -> anyhow::Result<bool> {
    let directory: &Path = &credentials.directory;
    let failed = || format!("could not tell from {} whether the kubelet has registered", directory.display());
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(failed),
        Ok(entries) => {
            for entry in entries {
                if credentials.is_certificate(&entry.with_context(failed)?.file_name()) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Returns only if the program cannot be started.
fn replace_process(started: &Started<'_>, default_sigpipe: bool) -> io::Error {
    let Some((name, arguments)) = started.words.split_first() else {
        return io::Error::other("there is no command");
    };
    if default_sigpipe {
        return std::process::Command::new(started.program).arg0(name).args(arguments).exec();
    }
    // The standard library would give the program the default action for SIGPIPE; systemd has it ignored.
    let text = |word: &OsStr| CString::new(word.as_bytes()).map_err(io::Error::other);
    let words: io::Result<Vec<CString>> = started.words.iter().map(|word| text(word)).collect();
    match (text(started.program), words) {
        (Ok(program), Ok(words)) => match nix::unistd::execvp(&program, &words) {
            Ok(never) => match never {},
            Err(errno) => errno.into(),
        },
        (Err(error), _) | (_, Err(error)) => error,
    }
}
