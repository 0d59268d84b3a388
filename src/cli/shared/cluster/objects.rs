//! Lists of objects of a cluster.

use anyhow::Context as _;
use kube::core::DynamicObject;
use kube::discovery::{ApiGroup, ApiResource};
use kube::{Client, Resource as _, discovery};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use nodegate_controller::{NodesError, each_object};

use crate::cli::shared::output;

/// Reads every object at a path of the API that fits the field selector. One that cannot be read is left out, which is printed as a note.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn each<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    fields: &str,
    mut take: impl FnMut(T),
) -> Result<(), NodesError> {
    let mut unreadable: usize = 0;
    let read = |text: Option<&[u8]>| match text.map(serde_json::from_slice) {
        Some(Ok(object)) => take(object),
        Some(Err(_)) | None => unreadable += 1,
    };
    each_object(client, path, fields, read).await?;
    if unreadable > 0 {
        output::note(&format!("note: {path}: {unreadable} of the objects could not be read and are not considered"));
    }
    Ok(())
}

/// The same for a kind that the cluster need not know, such as another program's; then there are none.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn each_of_kind(
    client: &Client,
    (group, kind): (&str, &str),
    fields: &str,
    take: impl FnMut(Json),
) -> anyhow::Result<()> {
    let known = match discovery::group(client, group).await {
        Ok(known) => known,
        Err(kube::Error::Discovery(_)) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("could not look for API group {group}")),
    };
    let Some(resource) = resource(&known, kind) else { return Ok(()) };
    let listed = each(client, &DynamicObject::url_path(&resource, None), fields, take).await;
    listed.with_context(|| format!("could not list objects of kind {kind}"))
}

/// The kind in the first version that has it: the preferred version of the group may lack a kind that is new.
fn resource(group: &ApiGroup, kind: &str) -> Option<ApiResource> {
    let mut all = group.versions().flat_map(|version| group.versioned_resources(version));
    all.find(|(resource, _)| resource.kind == kind).map(|(resource, _)| resource)
}
