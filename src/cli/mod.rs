//! The commands: one file per command, in folders of which each uses only those before it: `shared`, `policies`, `run`, `leave`,
//! `look`, `more`. This layer assembles all others.

mod help;
mod leave;
mod look;
mod more;
mod policies;
mod run;
mod shared;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use nodegate_base::telemetry;
use shared::invocation::Invocation;

pub use run::serve::{ClusterConfig, PendingTaintMode, Running, ServeConfig, start};

/// nodegate labels and taints Kubernetes Nodes at admission, before anything can be scheduled on them, and protects
/// those labels and taints from unauthorized changes.
#[derive(Debug, Parser)]
#[command(
    name = "nodegate",
    version,
    max_term_width = 100,
    after_help = "Try it without a cluster:   nodegate demo\n\
                  Serve a policy:             nodegate serve --policy policy.yaml\n\
                  Register it:                nodegate render webhooks --url https://HOST:8443 --ca-file certs/ca.crt | kubectl apply -f -\n\
                  \n\
                  Exit codes: 0 success; 1 findings (failed cases, violations, pending changes); 2 error."
)]
struct Root {
    /// Log more, such as which files are skipped; the same as LOG_LEVEL=DEBUG
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<run::serve::ServeArgs>),
    Demo(look::demo::DemoArgs),
    Plan(policies::plan::PlanArgs),
    Test(policies::test::TestArgs),
    Init(Box<policies::init::InitArgs>),
    Check(policies::check::CheckArgs),
    Explain(Box<look::explain::ExplainArgs>),
    Render(more::render::RenderArgs),
    Export(run::export::ExportArgs),
    Firstboot(run::firstboot::FirstbootArgs),
    Apply(run::apply::ApplyArgs),
    Report(look::report::ReportArgs),
    History(look::history::HistoryArgs),
    Top(Box<look::top::TopArgs>),
    Migrate(leave::migrate::MigrateArgs),
    Probe(look::probe::ProbeArgs),
    Verify(run::verify::VerifyArgs),
    Pools(Box<run::pools::PoolsArgs>),
    Cleanup(Box<leave::cleanup::CleanupArgs>),
    Certs(run::certs::CertsArgs),
    Completions(more::completions::CompletionsArgs),
    Man(more::man::ManArgs),
}

/// What a command found.
pub(crate) enum Findings {
    /// There are no findings.
    None,
    /// Failed cases, pending changes and the like.
    Some,
}

/// Logs what the environment asks for, or DEBUG, or else the `usual` level.
fn log(verbose: bool, usual: &str) -> anyhow::Result<()> {
    let environment = |name: &str| std::env::var(name).ok();
    let level = if verbose { Some("DEBUG".to_owned()) } else { environment("LOG_LEVEL") };
    telemetry::init(telemetry::filter(environment("RUST_LOG").as_deref(), Some(level.as_deref().unwrap_or(usual)))?);
    Ok(())
}

/// Parses the arguments, of which the first is the name of the program.
fn parse(invocation: Invocation, arguments: impl Iterator<Item = OsString>) -> Result<Root, clap::Error> {
    let mut command = invocation.named(help::grouped(Root::command()));
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Root::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

fn run(Root { verbose, command }: Root, invocation: Invocation) -> anyhow::Result<Findings> {
    match command {
        Command::Serve(_) => log(verbose, "INFO")?,
        // The log of its server would be among the lines of a demo, and any log on the screen of top. firstboot never fails,
        // whatever is in the environment.
        Command::Demo(_) | Command::Firstboot(_) | Command::Top(_) => {}
        // Those that end by themselves.
        _ => log(verbose, "WARNING")?,
    }
    match command {
        Command::Serve(args) => run::serve::run(*args),
        Command::Demo(args) => look::demo::run(&args),
        Command::Firstboot(args) => run::firstboot::run(&args),
        Command::Plan(args) => policies::plan::run(&args, invocation),
        Command::Test(args) => policies::test::run(&args),
        Command::Init(args) => policies::init::run(&args, invocation),
        Command::Check(args) => policies::check::run(&args),
        Command::Explain(args) => look::explain::run(&args, invocation),
        Command::Render(args) => more::render::run(&args),
        Command::Export(args) => run::export::run(&args, invocation),
        Command::Apply(args) => run::apply::run(&args, invocation),
        Command::Report(args) => look::report::run(&args, invocation),
        Command::History(args) => look::history::run(&args, invocation),
        Command::Top(args) => look::top::run(&args, invocation),
        Command::Migrate(args) => leave::migrate::run(&args, invocation),
        Command::Probe(args) => look::probe::run(&args),
        Command::Verify(args) => run::verify::run(&args, invocation),
        Command::Pools(args) => run::pools::run(&args, invocation),
        Command::Cleanup(args) => leave::cleanup::run(&args, invocation),
        Command::Certs(args) => run::certs::run(&args),
        Command::Completions(args) => more::completions::run(&args),
        Command::Man(args) => more::man::run(&args),
    }
}

/// Parses the arguments and runs the command. Exit code 0: success; 1: findings; 2: error.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let invocation =
        Invocation::of(arguments.first().map(OsString::as_os_str), std::env::var_os("KUBECONFIG").as_deref());
    let root = match parse(invocation, two_dashes(arguments.clone()).into_iter()) {
        Ok(root) => root,
        Err(error) => {
            run::firstboot::rescue(&arguments, &error.to_string());
            if error.use_stderr() {
                // The message repeats arguments, and a file name can contain control characters.
                shared::output::block(error.render().to_string().trim_end());
                return ExitCode::from(2);
            }
            // Help and version go to standard output. A closed pipe is not an error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    let outcome = run(root, invocation);
    match outcome {
        Ok(Findings::None) => ExitCode::SUCCESS,
        Ok(Findings::Some) => ExitCode::from(1),
        Err(error) if shared::output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            shared::output::error(&error);
            ExitCode::from(2)
        }
    }
}

/// Translates flags of k8s-auto-labeller, which have one dash: `-label-dir` works here as `--labels-dir`, and `-kubeconfig` as
/// `--kubeconfig`. What follows `--` is not ours.
fn two_dashes(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    for argument in &mut arguments[..end] {
        let Some(text) = argument.to_str() else { continue };
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let own = match name {
            "-label-dir" | "--label-dir" | "-labels-dir" => "--labels-dir",
            "-kubeconfig" => "--kubeconfig",
            _ => continue,
        };
        *argument = value.map_or_else(|| own.into(), |value| format!("{own}={value}").into());
    }
    arguments
}
