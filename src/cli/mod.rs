//! The commands: one file per command. This layer assembles all others.

mod apply;
mod certs;
mod check;
mod cleanup;
mod completions;
mod connect;
mod demo;
mod effective_policies;
mod explain;
mod export;
mod failure_policy;
mod faults;
mod firstboot;
mod history;
mod init;
mod invocation;
mod lines;
mod man;
mod member;
mod migrate;
mod nodes;
mod output;
mod plan;
mod probe;
mod reach;
mod render;
mod report;
mod revert;
mod saved_state;
mod serve;
mod served;
mod test;
mod verify;
mod whole_file;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::invocation::Invocation;
use crate::telemetry;

pub use serve::{ClusterConfig, PendingTaintMode, Running, ServeConfig, start};

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
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::ServeArgs>),
    Demo(demo::DemoArgs),
    Plan(plan::PlanArgs),
    Test(test::TestArgs),
    Init(Box<init::InitArgs>),
    Check(check::CheckArgs),
    Explain(Box<explain::ExplainArgs>),
    Render(render::RenderArgs),
    Export(export::ExportArgs),
    Firstboot(firstboot::FirstbootArgs),
    Apply(apply::ApplyArgs),
    Report(report::ReportArgs),
    History(history::HistoryArgs),
    Migrate(migrate::MigrateArgs),
    Probe(probe::ProbeArgs),
    Verify(verify::VerifyArgs),
    Cleanup(Box<cleanup::CleanupArgs>),
    Certs(certs::CertsArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// What a command found.
pub(crate) enum Findings {
    /// There are no findings.
    None,
    /// Failed cases, pending changes and the like.
    Some,
}

/// Sets up logging for a command that ends by itself: warnings and errors only, unless the environment asks for more.
fn telemetry_for_command() -> anyhow::Result<()> {
    let environment = |name: &str| std::env::var(name).ok();
    let level = environment("LOG_LEVEL").unwrap_or_else(|| "WARNING".to_owned());
    telemetry::init(telemetry::filter(environment("RUST_LOG").as_deref(), Some(&level))?);
    Ok(())
}

/// Parses the arguments, of which the first is the name of the program.
fn parse(invocation: Invocation, arguments: impl Iterator<Item = OsString>) -> Result<Root, clap::Error> {
    let mut command = invocation.named(Root::command());
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Root::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Parses the arguments and runs the command. Exit code 0: success; 1: findings; 2: error.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let invocation = Invocation::of(arguments.first().map(OsString::as_os_str));
    let root = match parse(invocation, two_dashes(arguments.clone()).into_iter()) {
        Ok(root) => root,
        Err(error) => {
            firstboot::rescue(&arguments, &error.to_string());
            if error.use_stderr() {
                // The message repeats arguments, and a file name can contain control characters.
                output::block(error.render().to_string().trim_end());
                return ExitCode::from(2);
            }
            // Help and version go to standard output. A closed pipe is not an error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    let outcome = match root.command {
        Command::Serve(args) => serve::run(*args),
        Command::Demo(args) => demo::run(&args),
        Command::Plan(args) => plan::run(&args, invocation),
        Command::Test(args) => test::run(&args),
        Command::Init(args) => init::run(&args, invocation),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args, invocation),
        Command::Render(args) => render::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Firstboot(args) => firstboot::run(&args),
        Command::Apply(args) => apply::run(&args, invocation),
        Command::Report(args) => report::run(&args, invocation),
        Command::History(args) => history::run(&args, invocation),
        Command::Migrate(args) => migrate::run(&args, invocation),
        Command::Probe(args) => probe::run(&args),
        Command::Verify(args) => verify::run(&args, invocation),
        Command::Cleanup(args) => cleanup::run(&args, invocation),
        Command::Certs(args) => certs::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match outcome {
        Ok(Findings::None) => ExitCode::SUCCESS,
        Ok(Findings::Some) => ExitCode::from(1),
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
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
