//! By which policies a command judges, and whether they are those in force in the cluster.

use anyhow::bail;
use kube::Client;

use super::connect::Place;
use super::output;
use crate::controller::policies::{self, Combined};
use crate::controller::published::{self, Published};
use crate::files::Loaded;
use crate::kube_error::in_words;
use crate::policy::PolicySet;

/// The policies of files together with the NodePolicy objects of the cluster, as `serve` puts them together.
///
/// # Errors
/// If the objects cannot be read.
pub(super) async fn combined(
    client: &Client,
    namespace: Option<&str>,
    files: &Loaded,
) -> Result<Combined, kube::Error> {
    let mut objects = policies::read(client.clone(), namespace).await?;
    let combined = objects.combine(&files.documents, files.stands_in);
    for (name, complaint) in combined.reports.iter().filter_map(|(name, report)| Some((name, report.complaint()?))) {
        output::note(&format!("note: NodePolicy {name}: {complaint}"));
    }
    Ok(combined)
}

/// Compares a set with the one that `serve` has in force.
///
/// # Errors
/// If it is another one and that is not forced. Where nobody has told which set is in force, that is said and no error.
pub(super) async fn compare(client: &Client, place: &Place, set: &PolicySet, force: bool) -> anyhow::Result<Published> {
    let ours = Published::of(set);
    let map = format!("ConfigMap {} in namespace {}", published::NAME, place.namespace);
    let in_force = match published::read(client.clone(), &place.namespace).await {
        Ok(Some(in_force)) => in_force,
        Ok(None) => {
            output::note(&format!(
                "note: nothing says which policies are in force here ({map} is missing: no `nodegate serve` has led in this \
                 namespace); used: {ours}"
            ));
            return Ok(ours);
        }
        Err(error) => {
            output::note(&format!(
                "note: which policies are in force is not known ({map}: {}); used: {ours}",
                in_words(&error)
            ));
            return Ok(ours);
        }
    };
    if in_force != ours && !force {
        bail!(
            "these policies are not the ones in force in the cluster\n  given here: {ours}\n  in force:   {in_force}\n\
             name the policy files that `nodegate serve` has (--policy, --labels-dir) and use the same version of nodegate, or \
             add --force to use these policies all the same"
        );
    }
    if in_force != ours {
        output::note(&format!("note: --force: the policies in force are others: {in_force}"));
    }
    Ok(ours)
}
