//! `nodegate report`: what the fleet is, what differs from the policies in force, what nodes violate and what they cost.

mod cost;
mod devices;
mod document;
mod fleet;
mod native;
mod page;
mod text;
mod topologies;
mod violations;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use jiff::{Span, Timestamp};

use crate::cli::look::history;
use crate::cli::shared::cluster::connect::ConnectArgs;
use crate::cli::shared::cluster::saved_state::SavedFiles;
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::policy_files::PolicyFiles;
use crate::cli::{Findings, shared::whole_file};
pub(crate) use document::Report;
use fleet::{Fleet, Source};
use nodegate_policy::api::names::LabelKey;
use page::{Page, Recorded};
pub(crate) use violations::Violations;

/// Report on a fleet: labels, violations, stranded pods, cost
///
/// Shows nodes by label, missing and violated rules, what differs from the policies in force, conflicts, stranded pods, and
/// cost. Exits with 1 if nodes violate policies.
///
/// In a cluster, uses the policies in force there, and --policy only with --violations, or if the cluster does not
/// publish them. For nodes from files, uses --policy, or else the preset `baseline`.
///
/// Violations cover required and allowed values, names, dependencies and expressions, but not reserved and immutable
/// keys, which restrict writes. Each node is judged with what the policies set on it.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Report only violations of governance, to try a policy before you enforce it
    #[arg(long, conflicts_with_all = ["by", "cost", "stranded_pods"])]
    violations: bool,
    /// Files or directories with Nodes, as printed by `kubectl get nodes -o yaml`; - for standard input [default: the
    /// nodes of the cluster]
    #[arg(value_name = "PATH")]
    nodes: Vec<PathBuf>,
    #[command(flatten)]
    files: PolicyFiles,
    /// Count nodes by this label; can be repeated [default: all labels that policies set]
    #[arg(long, value_name = "KEY")]
    by: Vec<LabelKey>,
    /// Report resources by the first label of --by, with their price if --prices is given
    #[arg(long, requires = "by")]
    cost: bool,
    /// File with prices per hour, for --cost
    #[arg(long, value_name = "FILE", requires = "cost")]
    prices: Option<PathBuf>,
    /// List running pods that their nodes would not accept again
    #[arg(long)]
    stranded_pods: bool,
    /// Files with Pods, as printed by `kubectl get pods --all-namespaces -o json`, for nodes from files
    #[arg(long, value_name = "PATH", requires = "stranded_pods", conflicts_with_all = ["kubeconfig", "namespace"])]
    pods: Vec<PathBuf>,
    #[command(flatten)]
    saved: SavedFiles,
    #[command(flatten)]
    connect: ConnectArgs,
    /// With --violations, use the given policies even if they differ from the ones in force
    #[arg(long, requires = "violations")]
    force: bool,
    #[command(flatten)]
    served: ServedArgs,
    /// Write the report, with the recorded changes, as one HTML page to this file; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["violations", "output"])]
    html: Option<PathBuf>,
    /// With --html, show the changes of this last period, such as 30m, 12h or 7d
    #[arg(long, value_name = "DURATION", default_value = "7d", requires = "html", value_parser = history::period)]
    since: Span,
    /// Output format; csv prints the table of --cost
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// The output format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ReportFormat {
    /// A table for people.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// CSV, for cost tools.
    Csv,
}

impl ReportFormat {
    /// The format of everything but CSV.
    fn format(self) -> Format {
        match self {
            Self::Table | Self::Csv => Format::Table,
            Self::Json => Format::Json,
            Self::Yaml => Format::Yaml,
        }
    }
}

pub(in crate::cli) fn run(args: &ReportArgs, invocation: Invocation) -> anyhow::Result<Findings> {
    anyhow::ensure!(
        args.output != ReportFormat::Csv || args.cost,
        "-o csv requires --cost: only costs are a single table"
    );
    if args.violations {
        return violations::run(args, invocation);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let Fleet { report, source, states } = runtime.block_on(fleet::report(args, invocation))?;
    match (&args.html, args.output) {
        (Some(file), _) => {
            let now = Timestamp::now();
            let since = history::before(args.since, now).context("--since: the period is too long")?;
            let changes = states.map(|states| history::entries(&states, Some(since)));
            let recorded = changes.as_deref().map(|changes| Recorded { changes, since, period: args.since });
            let page = Page { report: &report, recorded, now, source: &source, stranded: args.stranded_pods };
            write_page(file, &page::html(&page)?)?;
        }
        (None, ReportFormat::Csv) => output::print(&cost::csv(&report.cost)?)?,
        (None, format) => output::show(format.format(), &report, text::of)?,
    }
    Ok(if report.violations.is_empty() { Findings::None } else { Findings::Some })
}

/// Writes the page to a file, or to standard output (`-`). A file is replaced whole or not at all.
fn write_page(file: &Path, page: &str) -> anyhow::Result<()> {
    if file == Path::new("-") {
        return output::print(page);
    }
    let name = || format!("--html {}", file.display());
    if let Some(mut stream) = whole_file::stream(file).with_context(name)? {
        return stream.write_all(page.as_bytes()).with_context(name);
    }
    // Whoever may write to the folder could put a link to any file of the user there.
    ensure!(
        !file.is_symlink(),
        "--html {} is a symbolic link; name the file that it leads to, or - for standard output",
        file.display()
    );
    whole_file::replace_alike(file, page).with_context(name)
}
