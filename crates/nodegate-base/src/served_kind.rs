//! Kinds that an API server may not have.

use kube::core::ApiResource;
use kube::error::DiscoveryError;
use kube::{Client, Error, discovery};

/// The API of a kind in its most stable version, which may not be the group's; `None` if the API server has none.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn served_kind(client: &Client, group: &str, kind: &str) -> kube::Result<Option<ApiResource>> {
    let group = match discovery::group(client, group).await {
        Err(Error::Discovery(DiscoveryError::MissingApiGroup(_))) => return Ok(None),
        group => group?,
    };
    let mut resources = group.resources_by_stability().into_iter().map(|(resource, _)| resource);
    Ok(resources.find(|resource| resource.kind == kind))
}
