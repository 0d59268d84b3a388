//! `nodegate render schema`: JSON Schemas of files, for editors, and of what commands print, for other programs.

use crate::cli::leave::migrate::MigrationsStatus;
use crate::cli::look::history::Entry;
use crate::cli::look::report::{Report, Violations};
use crate::cli::policies::init::{Summary, TranslationSummary};
use crate::cli::policies::plan::Plan;
use crate::cli::run::certs::Certificates;
use crate::cli::shared::autoscalers::document::{Differences, Templates};
use crate::cli::shared::editor_schema;
use nodegate_onnode::probe::Probe;
use nodegate_policy::api::schema::output_schema_of;
use nodegate_policy::cleanup::Cleanup;
use nodegate_policy::explain::{Explanation, WhyNot};

#[derive(Debug, clap::Args)]
pub(super) struct SchemaArgs {
    /// The kind of the documents
    #[arg(value_enum, default_value_t = Kind::NodePolicy, ignore_case = true)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// Policy files
    #[value(name = "NodePolicy")]
    NodePolicy,
    /// Test cases of `nodegate test`
    #[value(name = "PolicyTest")]
    PolicyTest,
    /// What `nodegate plan -o json` prints
    Plan,
    /// What `nodegate report -o json` prints
    Report,
    /// What `nodegate report --violations -o json` prints
    Violations,
    /// What `nodegate history -o json` prints
    History,
    /// What `nodegate migrate status -o json` prints
    MigrateStatus,
    /// What `nodegate init -o json` prints
    Init,
    /// What `nodegate init --from-kyverno -o json` and `--from-nfd` print
    InitFrom,
    /// What `nodegate explain -o json` prints
    Explain,
    /// What `nodegate explain --why-not -o json` prints
    WhyNot,
    /// What `nodegate cleanup -o json` prints
    Cleanup,
    /// What `nodegate probe -o json` prints
    Probe,
    /// What `nodegate certs show -o json` prints
    Certs,
    /// What `nodegate export autoscaler -o json` prints
    Templates,
    /// What `nodegate export autoscaler --check -o json` prints
    TemplatesCheck,
}

pub(super) fn render(args: &SchemaArgs) -> anyhow::Result<String> {
    of(args.kind)
}

/// The text of the schema file of one kind.
///
/// # Errors
/// Returns an error if the schema cannot be serialized, which is a bug in nodegate.
fn of(kind: Kind) -> anyhow::Result<String> {
    let (title, of_kind) = match kind {
        Kind::NodePolicy => return editor_schema::node_policy(),
        Kind::PolicyTest => return editor_schema::policy_test(),
        Kind::Plan => ("plan", output_schema_of::<Plan>()),
        Kind::Report => ("report", output_schema_of::<Report>()),
        Kind::Violations => ("violations", output_schema_of::<Violations>()),
        Kind::History => ("history", output_schema_of::<Vec<Entry>>()),
        Kind::MigrateStatus => ("migrate-status", output_schema_of::<MigrationsStatus>()),
        Kind::Init => ("init", output_schema_of::<Summary>()),
        Kind::InitFrom => ("init-from", output_schema_of::<TranslationSummary>()),
        Kind::Explain => ("explain", output_schema_of::<Explanation>()),
        Kind::WhyNot => ("why-not", output_schema_of::<WhyNot>()),
        Kind::Cleanup => ("cleanup", output_schema_of::<Cleanup>()),
        Kind::Probe => ("probe", output_schema_of::<Probe>()),
        Kind::Certs => ("certs", output_schema_of::<Certificates>()),
        Kind::Templates => ("templates", output_schema_of::<Templates>()),
        Kind::TemplatesCheck => ("templates-check", output_schema_of::<Differences>()),
    };
    editor_schema::titled(title, of_kind)
}
