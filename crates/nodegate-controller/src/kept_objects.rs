//! The objects that nodegate creates in a cluster, besides saved state: all of them, to delete them.
//!
//! Webhook configurations, RBAC objects and the guard are not among them: people or the chart install those.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, ListParams, Preconditions};
use kube::core::{DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::{Api, Client};

use crate::cluster::certificates::SECRET;
use crate::cluster::native::{KEPT_BY, KINDS};
use crate::cluster::registration::{is_conflict, is_gone};
use crate::leader::LEASE;
use crate::policies;
use crate::tell::{published, reports};
use nodegate_base::pages::next_page;
use nodegate_policy::FIELD_MANAGER;
use nodegate_stores::inventory;
use nodegate_stores::state::{Deletion, POOLS_NAME};

/// The label that Helm sets: such an object belongs to a release.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The group of native admission policies.
const ADMISSION: (&str, &str) = ("admissionregistration.k8s.io", "v1");

/// An object that nodegate created.
#[derive(Clone, Debug)]
pub struct KeptObject {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace, if its kind has one.
    pub namespace: Option<String>,
    /// Whether it affects writes of nodes, so that it must be deleted before nodes are changed.
    pub judges_nodes: bool,
    api: Api<DynamicObject>,
    metadata: ObjectMeta,
}

/// Objects of one kind could not be listed.
#[derive(Debug, thiserror::Error)]
#[error("could not read {kind} objects")]
pub struct NotListed {
    kind: String,
    #[source]
    error: kube::Error,
}

/// All objects that nodegate created in `namespace`, and those in no namespace that this nodegate maintains, in the order
/// in which they are to be deleted.
///
/// # Errors
/// Returns an error if the API server refuses to show one kind of them, or cannot be reached.
pub async fn kept_objects(client: &Client, namespace: &str) -> Result<Vec<KeptObject>, NotListed> {
    let finder = Finder { client, namespace };
    let mut found = Vec::new();
    let has_native = finder.is_served(ADMISSION.0, ADMISSION.1).await?;
    for (kind, plural) in KINDS {
        if has_native.iter().any(|served| served == plural) {
            let resource =
                ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(ADMISSION.0, ADMISSION.1, kind), plural);
            let listed = finder.list(&resource, None, &format!("{KEPT_BY}={namespace}")).await?;
            found.extend(listed.into_iter().map(|object| KeptObject { judges_nodes: true, ..object }));
        }
    }
    let maps = ApiResource::erase::<ConfigMap>(&());
    for name in [published::NAME, POOLS_NAME] {
        found.extend(finder.get(&maps, name).await?);
    }
    found.extend(finder.list(&maps, Some(namespace), &inventory::selector()).await?);
    let revisions = ApiResource::erase::<ControllerRevision>(&());
    found.extend(finder.list(&revisions, Some(namespace), &policies::revisions_selector()).await?);
    let reported = reports::resource();
    if finder.is_served(&reported.group, &reported.version).await?.contains(&reported.plural) {
        let selector = format!("{}={}", reports::MANAGED_BY.0, reports::MANAGED_BY.1);
        found.extend(finder.list(&reported, None, &selector).await?);
    }
    // The same name may be in use for a certificate of others, which the chart or people put there.
    let secret = finder.get(&ApiResource::erase::<Secret>(&()), SECRET).await?;
    found.extend(secret.filter(|secret| secret.is_nodegates()));
    found.extend(finder.get(&ApiResource::erase::<Lease>(&()), LEASE).await?);
    Ok(found)
}

struct Finder<'a> {
    client: &'a Client,
    namespace: &'a str,
}

impl Finder<'_> {
    /// The plural names that the API server serves in this group and version.
    async fn is_served(&self, group: &str, version: &str) -> Result<Vec<String>, NotListed> {
        match self.client.list_api_group_resources(&format!("{group}/{version}")).await {
            Ok(served) => Ok(served.resources.into_iter().map(|resource| resource.name).collect()),
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            Err(error) => Err(NotListed { kind: format!("{group}/{version}"), error }),
        }
    }

    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    async fn get(&self, resource: &ApiResource, name: &str) -> Result<Option<KeptObject>, NotListed> {
        let api = self.api(resource, Some(self.namespace));
        let found = api.get_metadata_opt(name).await;
        let found = found.map_err(|error| NotListed { kind: resource.kind.clone(), error })?;
        Ok(found.map(|found| KeptObject::new(resource, api, found)))
    }

    async fn list(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Vec<KeptObject>, NotListed> {
        let api = self.api(resource, namespace);
        let mut next = Some(ListParams::default().labels(selector).limit(500));
        let mut found = Vec::new();
        while let Some(parameters) = next {
            let page = api.list_metadata(&parameters).await;
            let page = page.map_err(|error| NotListed { kind: resource.kind.clone(), error })?;
            next = next_page(parameters, &page.metadata);
            found.extend(page.items.into_iter().map(|object| KeptObject::new(resource, api.clone(), object)));
        }
        Ok(found)
    }
}

impl KeptObject {
    fn new(resource: &ApiResource, api: Api<DynamicObject>, object: PartialObjectMeta<DynamicObject>) -> Self {
        let metadata = object.metadata;
        Self {
            kind: resource.kind.clone(),
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone(),
            judges_nodes: false,
            api,
            metadata,
        }
    }

    /// Whether nodegate has written the object and no Helm release contains it.
    fn is_nodegates(&self) -> bool {
        let of_helm =
            self.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == "Helm");
        let mut managers = self.metadata.managed_fields.iter().flatten();
        !of_helm && managers.any(|fields| fields.manager.as_deref() == Some(FIELD_MANAGER))
    }

    /// Deletes it, unless it was changed since it was read.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn delete(&self) -> Result<Deletion, kube::Error> {
        let preconditions =
            Preconditions { uid: self.metadata.uid.clone(), resource_version: self.metadata.resource_version.clone() };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api.delete(&self.name, &parameters).await {
            Ok(_) => Ok(Deletion::Done),
            Err(error) if is_gone(&error) => Ok(Deletion::Done),
            Err(error) if is_conflict(&error) => Ok(Deletion::Changed),
            Err(error) => Err(error),
        }
    }
}
