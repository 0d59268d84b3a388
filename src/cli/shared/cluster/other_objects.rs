//! Objects of other programs, whose kinds a cluster need not know.

use anyhow::Context as _;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client, discovery};
use serde_json::Value as Json;

use nodegate_base::pages::next_page;

/// Number of objects in one page of a list.
const PAGE: u32 = 500;

/// All objects of a kind, of the version that the API server recommends; none if it does not know the kind.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn list(client: &Client, group: &str, kind: &str) -> anyhow::Result<Vec<Json>> {
    let known = match discovery::group(client, group).await {
        Ok(known) => known,
        Err(kube::Error::Discovery(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("could not look for API group {group}")),
    };
    let Some((resource, _)) = known.recommended_kind(kind) else { return Ok(Vec::new()) };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let (mut next, mut found) = (Some(ListParams::default().limit(PAGE)), Vec::new());
    while let Some(parameters) = next {
        let page = api.list(&parameters).await.with_context(|| format!("could not list objects of kind {kind}"))?;
        next = next_page(parameters, &page.metadata);
        for object in page.items {
            found.push(serde_json::to_value(object)?);
        }
    }
    Ok(found)
}
