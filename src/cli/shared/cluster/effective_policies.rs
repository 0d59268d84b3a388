//! Which policies a command uses, and whether the cluster has the same ones in force.

use anyhow::{Context as _, bail};
use kube::Client;
use serde_json::json;

use crate::cli::shared::cluster::connect::ClusterTarget;
use crate::cli::shared::output;
use nodegate_base::kube_error::in_words;
use nodegate_controller::policies::{self, Combined};
use nodegate_controller::tell::published::{self, InForce, Published};
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use nodegate_stores::files::{Loaded, Sources};

/// Combines the policies of files with the NodePolicy objects of the cluster, as `serve` does.
///
/// # Errors
/// Returns an error if the objects cannot be read.
pub(in crate::cli) async fn combined(
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

/// Why the published policies are unknown.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Unpublished {
    /// This version cannot use them.
    #[error("cannot read the policies in force {0}")]
    Unusable(String),
    /// They cannot be read.
    #[error("cannot tell which policies are in force: {0}")]
    Unread(String),
}

/// The policies that `serve` has published; `None` if no `serve` has been leader in the namespace.
///
/// # Errors
/// Returns an error if they cannot be read, or if this version cannot use them.
pub(in crate::cli) async fn published_set(
    client: &Client,
    place: &ClusterTarget,
) -> Result<Option<PolicySet>, Unpublished> {
    match published::read_set(client.clone(), &place.namespace).await {
        Ok(Some(InForce { set: Ok(set), .. })) => Ok(Some(set)),
        Ok(Some(InForce { set: Err(why), published })) => Err(Unpublished::Unusable(format!("({published}): {why}"))),
        Ok(None) => Ok(None),
        Err(error) => Err(Unpublished::Unread(in_words(&error))),
    }
}

/// The policies that `serve` has in force in the cluster. If it has not published them, the ones that files and objects
/// would put in force, with a note that is also returned.
///
/// # Errors
/// Returns an error if neither can be read.
pub(in crate::cli) async fn in_force(
    client: &Client,
    place: &ClusterTarget,
    sources: &Sources,
) -> anyhow::Result<(PolicySet, Option<String>)> {
    let because = match published_set(client, place).await {
        Ok(Some(set)) => return Ok((set, None)),
        Ok(None) => format!("cannot tell which policies are in force: {}", never_led(place)),
        Err(because) => because.to_string(),
    };
    let loaded = sources.load_documents().map_err(|errors| output::load_errors(&errors))?;
    let combined =
        combined(client, Some(&place.namespace), &loaded).await.context("could not read the NodePolicy objects")?;
    let note = format!("{because}; using: {}", Published::of(&combined.set));
    output::note(&format!("note: {note}"));
    Ok((combined.set, Some(note)))
}

/// Why there are no published policies.
pub(in crate::cli) fn never_led(place: &ClusterTarget) -> String {
    let (name, namespace) = (published::NAME, &place.namespace);
    format!(
        "ConfigMap {name} does not exist in namespace {namespace}, because no `nodegate serve` has been leader in this namespace"
    )
}

/// The policies that given ones lead to, beside the ones in force.
pub(in crate::cli) struct Proposal {
    /// The policies in force; absent if there are none, or if they are unknown and all of them would be replaced.
    pub(in crate::cli) in_force: Option<PolicySet>,
    /// The policies that would be in force.
    pub(in crate::cli) set: PolicySet,
    /// Names of policies that are not in force yet.
    pub(in crate::cli) added: Vec<String>,
    /// Names of policies that replace one with other content.
    pub(in crate::cli) replaced: Vec<String>,
    /// Names of policies that would not be in force anymore.
    pub(in crate::cli) removed: Vec<String>,
}

/// Adds the policies of files to the ones in force: each replaces the one with its name. With `only`, all others are
/// removed.
///
/// # Errors
/// Returns an error if the files cannot be read, if the policies in force are unknown and needed, or if both cannot be
/// combined.
pub(in crate::cli) async fn proposed(
    client: &Client,
    place: &ClusterTarget,
    sources: &Sources,
    only: bool,
) -> anyhow::Result<Proposal> {
    let given = match sources.are_empty() && sources.persist_prefix.is_none() {
        true => Vec::new(),
        false => sources.load_documents().map_err(|errors| output::load_errors(&errors))?.documents,
    };
    let in_force = match published_set(client, place).await {
        Ok(Some(set)) => Some(set),
        Ok(None) if given.is_empty() => {
            bail!("there is nothing to plan: no policies are given, and none are in force: {}", never_led(place))
        }
        Ok(None) => {
            output::note(&format!("note: no policies are in force: {}", never_led(place)));
            None
        }
        // The wrong base would show changes that nobody plans.
        Err(because) if only => {
            output::note(&format!("note: {because}"));
            None
        }
        Err(because) => bail!("{because}; to plan without them, give all policies with --policy, and add --only"),
    };
    // Presets, and what stands in for absent policies, follow from the other documents.
    let present = || {
        let all = in_force.iter().flat_map(PolicySet::documents);
        all.filter(|document| document.origin != Origin::Preset)
    };
    let named = |documents: &[PolicyDocument], name: &str| documents.iter().any(|document| document.name == name);
    let mut documents: Vec<PolicyDocument> = given.clone();
    let (mut added, mut replaced, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for document in &given {
        match present().find(|present| present.name == document.name) {
            Some(present) if json!(*present.spec) == json!(*document.spec) => {}
            Some(_) => replaced.push(document.name.clone()),
            None => added.push(document.name.clone()),
        }
    }
    for document in present().filter(|document| !named(&given, &document.name)) {
        if only { removed.push(document.name.clone()) } else { documents.push(document.clone()) }
    }
    // A prefix to persist is not counted as a policy, so `baseline` stays in force beside it.
    if sources.are_empty() && !given.is_empty() && documents.len() == given.len() {
        let stand_in = present_stand_in(in_force.as_ref());
        documents.push(stand_in.unwrap_or_else(|| nodegate_policy::baseline(sources.baseline_mode)));
    }
    let set = match &in_force {
        Some(in_force) if documents.is_empty() => in_force.clone(),
        _ => PolicySet::compile(&documents).map_err(|errors| {
            let errors: Vec<_> = errors.into_iter().map(nodegate_stores::files::LoadError::Policy).collect();
            output::load_errors(&errors).context("the given policies and the ones in force cannot be combined")
        })?,
    };
    for names in [&mut added, &mut replaced, &mut removed] {
        names.sort_unstable();
    }
    Ok(Proposal { in_force, set, added, replaced, removed })
}

/// The preset that is in force because there is no policy.
fn present_stand_in(in_force: Option<&PolicySet>) -> Option<PolicyDocument> {
    in_force?.documents().iter().find(|document| published::stands_in(document)).cloned()
}

/// Compares a set of policies with the one that `serve` has in force.
///
/// # Errors
/// Returns an error if they differ, unless `force` is set. If it is unknown which set is in force, prints a note
/// instead.
pub(in crate::cli) async fn compare(
    client: &Client,
    place: &ClusterTarget,
    set: &PolicySet,
    force: bool,
) -> anyhow::Result<Published> {
    let ours = Published::of(set);
    let map = format!("ConfigMap {} in namespace {}", published::NAME, place.namespace);
    let in_force = match published::read(client.clone(), &place.namespace).await {
        Ok(Some(in_force)) => in_force,
        Ok(None) => {
            output::note(&format!(
                "note: cannot tell which policies are in force: {map} does not exist, because no `nodegate serve` has been leader in \
                 this namespace; using: {ours}"
            ));
            return Ok(ours);
        }
        Err(error) => {
            output::note(&format!(
                "note: cannot tell which policies are in force: could not read {map}: {}; using: {ours}",
                in_words(&error)
            ));
            return Ok(ours);
        }
    };
    if in_force != ours && !force {
        bail!(
            "these policies differ from the ones in force in the cluster\ngiven:    {ours}\nin force: {in_force}\n\
             pass the same policy files as to `nodegate serve` (--policy, --labels-dir) and use the same version of nodegate, or add \
             --force to use these policies anyway"
        );
    }
    if in_force != ours {
        output::note(&format!("note: --force: the policies in force in the cluster differ: {in_force}"));
    }
    Ok(ours)
}
