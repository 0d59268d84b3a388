//! `nodegate render schema`: JSON Schemas of files, for editors, and of what commands print, for other programs.

use crate::cli::certs::Certificates;
use crate::cli::history::Entry;
use crate::cli::init::Summary;
use crate::cli::migrate::MigrationsStatus;
use crate::cli::plan::Plan;
use crate::cli::report::{Report, Violations};
use crate::probe::Probe;
use nodegate_policy::api::case::PolicyTest;
use nodegate_policy::api::schema::{document_schema, for_editors, output_schema_of, schema_of};
use nodegate_policy::cleanup::Cleanup;
use nodegate_policy::explain::{Explanation, WhyNot};
use serde_json::{Value as Json, json};

#[derive(Debug, clap::Args)]
pub(super) struct SchemaArgs {
    /// The kind of the documents
    #[arg(value_enum, default_value_t = Kind::NodePolicy, ignore_case = true)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Kind {
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
    /// What `nodegate explain -o json` prints
    Explain,
    /// What `nodegate explain --why-not -o json` prints
    WhyNot,
    /// What `nodegate cleanup -o json` prints
    Cleanup,
    /// What `nodegate probe -o json` prints
    Probe,
    /// What `nodegate certs -o json` prints
    Certs,
}

pub(super) fn render(args: &SchemaArgs) -> anyhow::Result<String> {
    of(args.kind)
}

/// The text of the schema file of one kind.
///
/// # Errors
/// Returns an error if the schema cannot be serialized, which is a bug in nodegate.
pub(in crate::cli) fn of(kind: Kind) -> anyhow::Result<String> {
    let (title, of_kind) = match kind {
        Kind::NodePolicy => ("NodePolicy", for_editors(document_schema().clone())),
        Kind::PolicyTest => ("PolicyTest", for_editors(schema_of::<PolicyTest>())),
        Kind::Plan => ("plan", output_schema_of::<Plan>()),
        Kind::Report => ("report", output_schema_of::<Report>()),
        Kind::Violations => ("violations", output_schema_of::<Violations>()),
        Kind::History => ("history", output_schema_of::<Vec<Entry>>()),
        Kind::MigrateStatus => ("migrate-status", output_schema_of::<MigrationsStatus>()),
        Kind::Init => ("init", output_schema_of::<Summary>()),
        Kind::Explain => ("explain", output_schema_of::<Explanation>()),
        Kind::WhyNot => ("why-not", output_schema_of::<WhyNot>()),
        Kind::Cleanup => ("cleanup", output_schema_of::<Cleanup>()),
        Kind::Probe => ("probe", output_schema_of::<Probe>()),
        Kind::Certs => ("certs", output_schema_of::<Certificates>()),
    };
    let mut schema = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title});
    if let (Some(schema), Json::Object(of_kind)) = (schema.as_object_mut(), of_kind) {
        schema.extend(of_kind.into_iter().filter(|(field, _)| field != "title"));
    }
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}
