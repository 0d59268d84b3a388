//! `nodegate render guard`: native admission policies that hold while no nodegate is up.

use crate::controller::certificates::SECRET;
use crate::controller::leader::LEASE;
use crate::policy::native::{self, FenceOptions, GuardOptions, MutatingVersion};
use crate::state::NAME_PREFIX;

/// Flags of `render guard`.
#[derive(Debug, clap::Args)]
pub(super) struct GuardArgs {
    /// Name of the validating webhook configuration, where the leader keeps what policies protect; names of objects begin with it
    #[arg(long, value_name = "NAME", default_value = "nodegate")]
    name: String,
    /// Version of MutatingAdmissionPolicy that the API server has: v1 (Kubernetes 1.36), v1beta1, or none.
    /// Without one, protected labels of a node that joins while nodegate is away are removed only when it is back.
    #[arg(long, value_enum, default_value_t = Mutating::V1)]
    mutating: Mutating,
    /// nodegate's own service account; prints the fence as well, which keeps the account from writing more than it has to
    #[arg(long, value_name = "NS/NAME", value_parser = super::namespaced)]
    service_account: Option<super::Namespaced>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Mutating {
    V1,
    V1beta1,
    None,
}

/// The objects as YAML documents.
pub(super) fn render(args: &GuardArgs) -> anyhow::Result<String> {
    let options = GuardOptions {
        name: args.name.clone(),
        configuration: args.name.clone(),
        mutating: match args.mutating {
            Mutating::V1 => Some(MutatingVersion::V1),
            Mutating::V1beta1 => Some(MutatingVersion::V1Beta1),
            Mutating::None => None,
        },
    };
    let comment = "Made by: nodegate render guard. Deleting these objects always recovers a cluster.";
    let mut documents = Vec::new();
    for object in native::guard(&options) {
        documents.push(super::document(comment, &object)?);
    }
    if let Some(account) = &args.service_account {
        for object in native::fence(&fence_options(args, account)) {
            documents.push(super::document(comment, &object)?);
        }
    }
    Ok(documents.join("---\n"))
}

fn fence_options(args: &GuardArgs, account: &super::Namespaced) -> FenceOptions {
    FenceOptions {
        name: args.name.clone(),
        user: format!("system:serviceaccount:{}:{}", account.namespace, account.name),
        namespace: account.namespace.clone(),
        config_maps: vec!["nodegate-in-force".to_owned()],
        state_prefix: NAME_PREFIX.to_owned(),
        secret: SECRET.to_owned(),
        lease: LEASE.to_owned(),
    }
}
