//! What is recorded of a node: the CREATE of its kubelet as an AdmissionReview.
//!
//! Whatever it has of the cluster is a [`Redacted`], so a field that is added here cannot be written as it is.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Serialize;
use serde_json::Value as Json;

use super::redacted::{Pseudonyms, Redacted, quantity};
use super::seen::{Seen, User};

/// The annotations that are recorded: they name the object that stands for a machine.
const ANNOTATIONS: [&str; 5] = [
    "cluster.x-k8s.io/cluster-name",
    "cluster.x-k8s.io/machine",
    "cluster.x-k8s.io/owner-kind",
    "cluster.x-k8s.io/owner-name",
    "machine.openshift.io/machine",
];
/// Maximum number of entries of each list and map.
const ENTRIES_MAX: usize = 256;
/// How deep the fields are that a field manager claims: `f:metadata`, `f:labels`, and the key.
const CLAIMS_DEPTH: usize = 4;
/// The kubelet's CREATE of a node, as an AdmissionReview.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review {
    api_version: &'static str,
    kind: &'static str,
    request: Request,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: &'static str,
    kind: BTreeMap<&'static str, &'static str>,
    resource: BTreeMap<&'static str, &'static str>,
    name: Redacted,
    operation: &'static str,
    user_info: UserInfo,
    object: Object,
    old_object: (),
    dry_run: bool,
}

#[derive(Serialize)]
struct UserInfo {
    username: Redacted,
    groups: Vec<Redacted>,
    extra: BTreeMap<Redacted, Vec<Redacted>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Redacted,
    labels: BTreeMap<Redacted, Redacted>,
    annotations: BTreeMap<&'static str, Redacted>,
    managed_fields: Vec<Claims>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Claims {
    api_version: &'static str,
    manager: Redacted,
    operation: Redacted,
    #[serde(skip_serializing_if = "Option::is_none")]
    subresource: Option<Redacted>,
    fields_type: &'static str,
    fields_v1: Claimed,
}

/// The fields that are claimed, without values.
#[derive(Serialize)]
struct Claimed(BTreeMap<Redacted, Claimed>);

#[derive(Serialize)]
struct Spec {
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    provider_id: Option<Redacted>,
    taints: Vec<Taint>,
}

#[derive(Serialize)]
struct Taint {
    key: Redacted,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Redacted>,
    effect: Redacted,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    capacity: BTreeMap<Redacted, Redacted>,
    addresses: Vec<Address>,
    node_info: NodeInfo,
}

#[derive(Serialize)]
struct Address {
    #[serde(rename = "type")]
    kind: Redacted,
    address: Redacted,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    architecture: Redacted,
    operating_system: Redacted,
    os_image: Redacted,
    kubelet_version: Redacted,
    container_runtime_version: Redacted,
}

impl Review {
    /// What is recorded of a node.
    pub(super) fn of(seen: &Seen, pseudonyms: &mut Pseudonyms) -> Self {
        let object = Object::of(&seen.node, pseudonyms);
        let request = Request {
            uid: "00000000-0000-4000-8000-000000000000",
            kind: [("group", ""), ("version", "v1"), ("kind", "Node")].into(),
            resource: [("group", ""), ("version", "v1"), ("resource", "nodes")].into(),
            name: object.metadata.name.clone(),
            operation: "CREATE",
            user_info: UserInfo::of(&seen.user, pseudonyms),
            object,
            old_object: (),
            dry_run: false,
        };
        Self { api_version: "admission.k8s.io/v1", kind: "AdmissionReview", request }
    }

    /// The name of the node.
    pub(super) fn node(&self) -> &Redacted {
        &self.request.name
    }

    /// The file that has it.
    pub(super) fn file(&self) -> FileName {
        FileName(self.request.name.clone())
    }
}

impl UserInfo {
    fn of(user: &User, pseudonyms: &mut Pseudonyms) -> Self {
        Self {
            username: pseudonyms.text(&user.name),
            groups: texts(&user.groups, pseudonyms),
            extra: extra(user, pseudonyms),
        }
    }
}

/// Texts, redacted.
pub(super) fn texts(all: &[impl AsRef<str>], pseudonyms: &mut Pseudonyms) -> Vec<Redacted> {
    all.iter().take(ENTRIES_MAX).map(|text| pseudonyms.text(text.as_ref())).collect()
}

/// What the authenticator adds about a user.
pub(super) fn extra(user: &User, pseudonyms: &mut Pseudonyms) -> BTreeMap<Redacted, Vec<Redacted>> {
    let all = user.extra.iter().take(ENTRIES_MAX);
    all.map(|(key, values)| (pseudonyms.key_of_extra(key), texts(values, pseudonyms))).collect()
}

impl Object {
    fn of(node: &Node, pseudonyms: &mut Pseudonyms) -> Self {
        let metadata = &node.metadata;
        let annotation = |key: &'static str| Some((key, metadata.annotations.as_ref()?.get(key)?));
        let found: Vec<_> = ANNOTATIONS.into_iter().filter_map(annotation).collect();
        let labels = metadata.labels.iter().flatten().take(ENTRIES_MAX);
        let claims = metadata.managed_fields.iter().flatten().take(ENTRIES_MAX);
        let metadata = Metadata {
            name: pseudonyms.text(metadata.name.as_deref().unwrap_or_default()),
            labels: labels.map(|(key, value)| (pseudonyms.text(key), pseudonyms.text(value))).collect(),
            annotations: found.into_iter().map(|(key, value)| (key, pseudonyms.text(value))).collect(),
            managed_fields: claims.map(|entry| Claims::of(entry, pseudonyms)).collect(),
        };
        let spec = Spec::of(node, pseudonyms);
        Self { api_version: "v1", kind: "Node", metadata, spec, status: Status::of(node, pseudonyms) }
    }
}

impl Claims {
    fn of(entry: &ManagedFieldsEntry, pseudonyms: &mut Pseudonyms) -> Self {
        let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
        let told = fields.into_iter().flatten().filter(|(key, _)| matches!(key.as_str(), "f:metadata" | "f:spec"));
        let told = told.map(|(key, below)| (pseudonyms.text(key), Claimed::of(below, CLAIMS_DEPTH, pseudonyms)));
        let fields_v1 = Claimed(told.collect());
        Self {
            api_version: "v1",
            manager: pseudonyms.text(entry.manager.as_deref().unwrap_or_default()),
            operation: pseudonyms.text(entry.operation.as_deref().unwrap_or_default()),
            subresource: entry.subresource.as_deref().map(|text| pseudonyms.text(text)),
            fields_type: "FieldsV1",
            fields_v1,
        }
    }
}

impl Claimed {
    fn of(fields: &Json, depth: usize, pseudonyms: &mut Pseudonyms) -> Self {
        let below = fields.as_object().filter(|_| depth > 0).into_iter().flatten().take(ENTRIES_MAX);
        Self(below.map(|(key, below)| (pseudonyms.text(key), Self::of(below, depth - 1, pseudonyms))).collect())
    }
}

impl Spec {
    fn of(node: &Node, pseudonyms: &mut Pseudonyms) -> Self {
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten().take(ENTRIES_MAX);
        let taints = taints.map(|taint| Taint {
            key: pseudonyms.text(&taint.key),
            value: taint.value.as_deref().map(|value| pseudonyms.text(value)),
            effect: pseudonyms.text(&taint.effect),
        });
        let taints = taints.collect();
        Self { provider_id: spec.and_then(|spec| spec.provider_id.as_deref()).map(|id| pseudonyms.text(id)), taints }
    }
}

impl Status {
    fn of(node: &Node, pseudonyms: &mut Pseudonyms) -> Self {
        let status = node.status.as_ref();
        let capacity = status.and_then(|status| status.capacity.as_ref()).into_iter().flatten().take(ENTRIES_MAX);
        let capacity = capacity.filter_map(|(key, value)| Some((pseudonyms.text(key), quantity(&value.0)?))).collect();
        let addresses = status.and_then(|status| status.addresses.as_ref()).into_iter().flatten().take(ENTRIES_MAX);
        let addresses = addresses.map(|address| Address {
            kind: pseudonyms.text(&address.type_),
            address: pseudonyms.text(&address.address),
        });
        let addresses = addresses.collect();
        let info = status.and_then(|status| status.node_info.clone()).unwrap_or_default();
        let node_info = NodeInfo {
            architecture: pseudonyms.text(&info.architecture),
            operating_system: pseudonyms.text(&info.operating_system),
            os_image: pseudonyms.text(&info.os_image),
            kubelet_version: pseudonyms.text(&info.kubelet_version),
            container_runtime_version: pseudonyms.text(&info.container_runtime_version),
        };
        Self { capacity, addresses, node_info }
    }
}

/// The name of the file of a node.
pub(super) struct FileName(Redacted);

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.json", self.0)
    }
}

impl Serialize for FileName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
