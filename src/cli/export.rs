//! `nodegate export`: policies in the forms of others.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::Findings;
use super::output::{self, Format};
use crate::api::names::is_dns_subdomain;
use crate::files::Sources;
use crate::policy::native::{self, LeftOut, Native, NativeOptions};

/// Print policies in a form that works without nodegate.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Native admission policies (Kubernetes 1.36), which hold while no nodegate is up
    AdmissionPolicies(AdmissionPoliciesArgs),
}

/// What cannot be exported is listed on standard error, with the reason.
#[derive(Debug, clap::Args)]
struct AdmissionPoliciesArgs {
    /// NodePolicy file, or directory of them; without it the preset `baseline` is exported
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    policies: Vec<PathBuf>,
    /// Directory of flat label files
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
    /// Name of the objects, and prefix of their names
    #[arg(long, default_value = "nodegate", value_parser = object_name)]
    name: String,
    /// Group whose members may override every policy
    #[arg(long = "break-glass-group", value_name = "GROUP")]
    break_glass_groups: Vec<String>,
    /// nodegate's own user, such as system:serviceaccount:nodegate:nodegate, which is never changed nor judged
    #[arg(long, value_name = "USER")]
    self_user: Option<String>,
    /// Of the validating policies: whether a write passes when a validation cannot be evaluated
    #[arg(long, value_enum, default_value_t = FailurePolicy::Ignore)]
    failure_policy: FailurePolicy,
    /// Exit with 1 when something cannot be exported
    #[arg(long)]
    exit_code: bool,
    /// How to print the objects
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    output: ObjectFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum FailurePolicy {
    Ignore,
    Fail,
}

/// Both are what `kubectl apply -f -` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ObjectFormat {
    Yaml,
    Json,
}

fn object_name(text: &str) -> Result<String, String> {
    // Suffixes such as -expression-12 come after it.
    if text.len() <= 200 && is_dns_subdomain(text) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a name; write at most 200 lower-case letters, digits, '-' or '.'"))
}

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<Findings> {
    let What::AdmissionPolicies(args) = &args.what;
    let sources =
        Sources { policies: args.policies.clone(), labels_dir: args.labels_dir.clone(), ..Sources::default() };
    let set = sources.load().map_err(|errors| output::load_errors(&errors))?;
    let options = NativeOptions {
        name: args.name.clone(),
        break_glass_groups: args.break_glass_groups.clone(),
        self_user: args.self_user.clone(),
        failure_policy: match args.failure_policy {
            FailurePolicy::Ignore => native::FailurePolicy::Ignore,
            FailurePolicy::Fail => native::FailurePolicy::Fail,
        },
    };
    let Native { objects, left_out, held: _ } = native::export(&set, &options);
    output::print(&text(args.output, objects)?)?;
    report(&left_out, args.self_user.is_none());
    Ok(if args.exit_code && !left_out.is_empty() { Findings::Some } else { Findings::None })
}

fn text(format: ObjectFormat, objects: Vec<Json>) -> anyhow::Result<String> {
    if format == ObjectFormat::Json {
        return output::structured(Format::Json, &json!({"apiVersion": "v1", "kind": "List", "items": objects}));
    }
    let mut text =
        "# Made by: nodegate export admission-policies. Deleting these objects always recovers a cluster.\n".to_owned();
    for (number, object) in objects.iter().enumerate() {
        if number > 0 {
            text.push_str("---\n");
        }
        text.push_str(&output::structured(Format::Yaml, object)?);
    }
    Ok(text)
}

/// What is not in the objects.
fn report(left_out: &[LeftOut], nobody_is_self: bool) {
    if !left_out.is_empty() {
        let mut table = output::table(&["policy", "not exported", "reason"]);
        left_out.iter().for_each(|one| table.add_row([&one.policy, &one.what, &one.reason]));
        output::note(&table.trim_fmt());
    }
    if nobody_is_self {
        output::note(
            "without --self-user a nodegate in this cluster is judged like anyone; name its user, such as system:serviceaccount:nodegate:nodegate",
        );
    }
}
