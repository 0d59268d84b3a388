//! Objects of other programs, whose kinds a cluster need not know.

use anyhow::Context as _;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::discovery::{ApiGroup, ApiResource};
use kube::{Api, Client, discovery};
use serde_json::Value as Json;

use nodegate_base::pages::next_page;

/// Number of objects in one page of a list.
const PAGE: u32 = 500;

/// Reads every object of a kind that fits the field selector; none if the API server does not know the kind.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn each(
    client: &Client,
    (group, kind): (&str, &str),
    fields: &str,
    mut take: impl FnMut(&Json),
) -> anyhow::Result<()> {
    let known = match discovery::group(client, group).await {
        Ok(known) => known,
        Err(kube::Error::Discovery(_)) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("could not look for API group {group}")),
    };
    let Some(resource) = resource(&known, kind) else { return Ok(()) };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut next = Some(ListParams::default().limit(PAGE).fields(fields));
    while let Some(parameters) = next {
        let page = api.list(&parameters).await.with_context(|| format!("could not list objects of kind {kind}"))?;
        next = next_page(parameters, &page.metadata);
        for object in page.items {
            take(&serde_json::to_value(object)?);
        }
    }
    Ok(())
}

/// The kind in the first version that has it: the preferred version of the group may lack a kind that is new.
fn resource(group: &ApiGroup, kind: &str) -> Option<ApiResource> {
    let mut all = group.versions().flat_map(|version| group.versioned_resources(version));
    all.find(|(resource, _)| resource.kind == kind).map(|(resource, _)| resource)
}
